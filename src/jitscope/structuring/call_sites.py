"""Where a program calls its bodies: jaxpr -> call sites."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .. import _jax
from ..ir.fingerprint import Fingerprint, fingerprint


@dataclasses.dataclass(frozen=True)
class CallSite:
    """An equation that calls a body, ``trips`` times per run of what surrounds it.

    ``links`` are the positions of results of another call of that body and of the operands
    that they are of this one, and ``around`` the equations that it lies in, outermost first.
    """

    eqn: Any
    trips: int
    links: tuple[tuple[int, int], ...] = ()
    around: tuple[Any, ...] = ()

    @property
    def jaxpr(self) -> _jax.AnyJaxpr:
        return self.eqn.params["jaxpr"]

    @property
    def is_backward(self) -> bool:
        """Whether the call is in the backward pass of a gradient."""
        return getattr(self.eqn.params["name"], "is_backward", False) or any(
            map(_jax.is_transposed, (*self.around, self.eqn))
        )

    @property
    def identity(self) -> Fingerprint:
        return fingerprint(self.jaxpr)


def call_sites(
    jaxpr: _jax.AnyJaxpr, trips: int = 1, around: tuple[Any, ...] = ()
) -> Iterator[CallSite]:
    """Call sites in a jaxpr and in what is nested in it, but not within the bodies called."""
    makers: dict[Any, tuple[str, int]] = {}
    for eqn in _jax.equations(jaxpr):
        if eqn.primitive is _jax.jit_p:
            digest = fingerprint(eqn.params["jaxpr"]).digest
            made = ((makers.get(x), i) for i, x in enumerate(eqn.invars) if isinstance(x, _jax.Var))
            links = tuple((by[1], i) for by, i in made if by is not None and by[0] == digest)
            yield CallSite(eqn, trips, links, around)
            makers.update((var, (digest, i)) for i, var in enumerate(eqn.outvars))
        elif eqn.primitive in _jax.SUBPROGRAMS:
            inner_trips = trips * _jax.trip_count(eqn)
            for sub in _jax.sub_jaxprs(eqn):
                yield from call_sites(sub, inner_trips, (*around, eqn))

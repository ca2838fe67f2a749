"""How the calls of one body in its callers stand to one another: what waits, and what lies between.

A *row* is made of calls each of which waits for the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import _jax

IsCall = Callable[[Any], bool]
"""Whether an equation calls the body."""


class Caller(NamedTuple):
    """A jaxpr, and how many calls of the body there are in it."""

    jaxpr: _jax.AnyJaxpr
    n_calls: int


def n_successive(callers: Iterable[Caller], is_call: IsCall) -> int:
    """The most calls that wait for one another in a caller, added up over all callers."""
    return sum(
        _longest_row(caller.jaxpr, is_call) if caller.n_calls > 1 else 1 for caller in callers
    )


def from_call_to_call(callers: Iterable[Caller], is_call: IsCall) -> Iterator[Sequence[Any]]:
    """Equations of a caller from each call to the next one, both included."""
    for caller in callers:
        if caller.n_calls > 1:
            eqns = _jax.equations(caller.jaxpr)
            calls = [i for i, eqn in enumerate(eqns) if is_call(eqn)]
            for first, last in itertools.pairwise(calls):
                yield eqns[first : last + 1]


def _longest_row(jaxpr: _jax.AnyJaxpr, is_call: IsCall) -> int:
    """The most calls that wait for one another, in a jaxpr and what it holds."""
    before: dict[Any, int] = {}
    longest = 0
    for eqn in _jax.equations(jaxpr):
        length = max((before.get(x, 0) for x in eqn.invars if isinstance(x, _jax.Var)), default=0)
        if is_call(eqn):
            length += 1
        elif eqn.primitive in _jax.SUBPROGRAMS and eqn.primitive is not _jax.jit_p:
            length += max((_longest_row(sub, is_call) for sub in _jax.sub_jaxprs(eqn)), default=0)
        if length:
            longest = max(longest, length)
            before.update(dict.fromkeys(eqn.outvars, length))
    return longest

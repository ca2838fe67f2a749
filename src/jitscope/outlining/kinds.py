"""What equations of one token have in common, and what runs of them are worth.

The weights follow the thresholds of the default policy, so that a repeat that it may keep is
taken before one that it will decline and put back in line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _jax
from ..ir.fingerprint import Fingerprint
from ..names import SubroutineName, is_outlined
from .dataflow import Interface

_MIN_EQUATIONS = 12
_MIN_USES = 4
_MIN_SAVED_LIGHT = 180
_DECLINED_WORTH = 1 / 16
MIN_KEPT = _MIN_EQUATIONS * _MIN_USES  # equations of the shortest line with a body that is kept
# Of short steps in a long chain so many are put together: XLA:CPU, element-wise bodies of 12,
# 48, 96 equations with 16 uses start 1.5, 3.2, 5.4 times faster.
_LIGHT_STRETCH = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What equations of one token have in common.

    Attributes:
      number: equal tokens have equal ones.
      movable: whether such an equation may be in a body.
      heavy: whether XLA compiles it, or something in it, on its own.
      n_nested: equations in the jaxprs of a loop, remat, call or the like.
      is_call: it is a call already.
      pure: equal operands give equal results.
    """

    number: int
    movable: bool
    heavy: bool
    n_nested: int
    is_call: bool
    pure: bool

    @property
    def is_large(self) -> bool:
        """Whether it is as much by itself as a body worth keeping."""
        return self.n_nested >= _MIN_EQUATIONS


class Kinds:
    """The kind of every token met so far."""

    def __init__(self) -> None:
        self._of_token: dict[str, Kind] = {}
        self._contents: dict[int, tuple[Any, _Content]] = {}

    def of(self, eqn: Any, token: Fingerprint) -> Kind:
        """The kind of an equation, given its token."""
        kind = self._of_token.get(token.digest)
        if kind is None:
            content = self._content(eqn)
            kind = self._of_token[token.digest] = Kind(
                number=len(self._of_token),
                movable=not token.is_local and _jax.is_movable(eqn),
                heavy=content.heavy,
                n_nested=_n_nested(eqn),
                is_call=eqn.primitive is _jax.jit_p,
                pure=content.pure and not token.is_local,
            )
        return kind

    def _content(self, eqn: Any) -> _Content:
        """Of the equation and all that are nested in it; each jaxpr is looked at once."""
        nested = [self._of_jaxpr(sub) for sub in _jax.sub_jaxprs(eqn)]
        return _Content(
            eqn.primitive in _jax.HEAVY or any(content.heavy for content in nested),
            eqn.primitive in _jax.PURE and all(content.pure for content in nested),
        )

    def _of_jaxpr(self, jaxpr: _jax.AnyJaxpr) -> _Content:
        found = self._contents.get(id(jaxpr))
        if found is None:  # kept beside its content, so that its id is not used again
            contents = list(map(self._content, _jax.equations(jaxpr)))
            found = self._contents[id(jaxpr)] = (
                jaxpr,
                _Content(any(c.heavy for c in contents), all(c.pure for c in contents)),
            )
        return found[1]


class _Content(NamedTuple):
    """Whether something among equations is heavy, and whether all of them are pure."""

    heavy: bool
    pure: bool


class Weights:
    """What runs of a line are worth, by what the default policy would do with them."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._heavy = _running_total(kind.heavy for kind in kinds)
        self._calls = _running_total(kind.is_call and kind.is_large for kind in kinds)

    def worth(self, start: int, length: int, n_uses: int) -> float:
        """Share of the equations saved that counts."""
        return _DECLINED_WORTH if self._is_declined(start, length, n_uses) else 1.0

    def stretch(self, start: int, period: int) -> int:
        """Least length of a run that consists of whole periods."""
        light = self._heavy[start + period] == self._heavy[start]
        return _LIGHT_STRETCH if light else _MIN_EQUATIONS

    def hides_calls(self, interface: Interface) -> bool:
        """Whether a body that will be declined holds calls that had better be counted."""
        start, length = interface.starts[0], interface.length
        return bool(self._calls[start + length] > self._calls[start]) and self._is_declined(
            start, length, len(interface.starts)
        )

    def _is_declined(self, start: int, length: int, n_uses: int) -> bool:
        light = self._heavy[start + length] == self._heavy[start]
        return n_uses < _MIN_USES or bool(light and (n_uses - 1) * length < _MIN_SAVED_LIGHT)


def _running_total(flags: Iterable[bool]) -> np.ndarray:
    return np.cumsum([0, *flags])


def is_marked(eqn: Any) -> bool:
    """Whether the user made this call a subroutine: it stays a call of the program's own."""
    name = eqn.params.get("name")
    return isinstance(name, SubroutineName) and not is_outlined(name)


def _n_nested(eqn: Any) -> int:
    if eqn.primitive not in _jax.SUBPROGRAMS:
        return 0
    return sum(len(_jax.equations(sub)) for sub in _jax.sub_jaxprs(eqn))

"""Work that a call does and the call before it has done.

The last gradient of one leapfrog step is the first of the next. XLA does it once where it sees
both; between kept calls it does not, and 128 such steps run 1.8 times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _jax
from ..ir.fingerprint import Tokens, literal_text


def n_done_before(stretch: Sequence[Any]) -> int:
    """Heavy equations of a call that repeat an equation before it, on the same operands.

    Args:
      stretch: the equations of a caller from a call to the next one of the same body.
    """
    *before, call = stretch
    numbering = _Numbering()
    numbering.count(before)
    return numbering.count([call])


class _Numbering:
    """Numbers for values, equal where values are, with the calls in equations spelled out."""

    def __init__(self) -> None:
        self._tokens = Tokens()
        self._results: dict[tuple[Any, ...], list[object]] = {}
        self._numbers: dict[Any, object] = {}
        self._done: set[tuple[Any, ...]] = set()

    def count(self, eqns: Sequence[Any]) -> int:
        """How many heavy equations of the next ones are among those counted before."""
        self._done = set(self._results)
        return self._count(eqns, self._numbers)

    def _count(self, eqns: Sequence[Any], numbers: dict[Any, object]) -> int:
        n_done = 0
        for eqn in eqns:
            operands = [_number(atom, numbers) for atom in eqn.invars]
            if eqn.primitive in _jax.FUSED_CALLS:
                (body,) = map(_jax.opened, _jax.sub_jaxprs(eqn))
                inner = dict(zip(body.invars, operands, strict=True))
                n_done += self._count(body.eqns, inner)
                results = [_number(atom, inner) for atom in body.outvars]
            else:
                results = [object() for _ in eqn.outvars]
                if not eqn.effects:
                    key = (self._tokens.of(eqn).digest, *operands)
                    results = self._results.setdefault(key, results)
                    n_done += key in self._done and eqn.primitive in _jax.HEAVY
            numbers.update(zip(eqn.outvars, results, strict=True))
        return n_done


def _number(atom: Any, numbers: dict[Any, object]) -> object:
    if isinstance(atom, _jax.Literal):
        return literal_text(atom)
    return numbers.setdefault(atom, object())

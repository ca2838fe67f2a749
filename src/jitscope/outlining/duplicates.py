"""Work that a line of equations does twice and XLA would do once.

The last gradient of one leapfrog step is the first of the next. XLA merges the two where it sees
them; between kept calls it does not (20 such steps run 2.4 times as long). So heavy equations that
repeat an earlier one, with the same operands, are merged before repeats become calls. What is cheap
stays where it is: made again in a body, it need not be passed to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _jax
from ..ir.fingerprint import Fingerprint, literal_text
from .kinds import Kind, is_marked


def merged(
    eqns: Sequence[Any],
    tokens: Sequence[Fingerprint],
    kinds: Sequence[Kind],
    outvars: Sequence[Any],
) -> tuple[Sequence[Any], Sequence[Any]]:
    """The line without heavy equations that repeat an earlier one, and without what only they read.

    Args:
      eqns: the line.
      tokens: of the equations.
      kinds: of the equations.
      outvars: what is needed behind the line.

    Returns:
      Equations and outvars; the very same where nothing is done twice.
    """
    stand_ins = _duplicates(eqns, tokens, kinds)
    if not stand_ins:
        return eqns, outvars

    def final(atom: Any) -> Any:
        return atom if isinstance(atom, _jax.Literal) else stand_ins.get(atom, atom)

    eqns = [
        eqn.replace(invars=list(map(final, eqn.invars)))
        for eqn in eqns
        if not any(var in stand_ins for var in eqn.outvars)
    ]
    outvars = list(map(final, outvars))
    return _needed(eqns, outvars), outvars


def _duplicates(
    eqns: Sequence[Any], tokens: Sequence[Fingerprint], kinds: Sequence[Kind]
) -> dict[Any, Any]:
    """Results of heavy equations, with the earlier results that they are equal to."""
    first: dict[Any, Any] = {}  # of each variable, the first that is equal to it
    makers: dict[tuple[str, tuple[Any, ...]], Any] = {}
    found: dict[Any, Any] = {}
    for eqn, token, kind in zip(eqns, tokens, kinds, strict=True):
        if eqn.effects or not kind.pure or is_marked(eqn):
            continue
        operands = tuple(
            literal_text(atom) if isinstance(atom, _jax.Literal) else first.get(atom, atom)
            for atom in eqn.invars
        )
        maker = makers.setdefault((token.digest, operands), eqn)
        if maker is eqn:
            continue
        equal = dict(zip(eqn.outvars, maker.outvars, strict=True))
        first.update(equal)
        if kind.heavy and not any(isinstance(var, _jax.DropVar) for var in maker.outvars):
            found.update(equal)
    return found


def _needed(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations that have effects or results that somebody reads."""
    read = {atom for atom in outvars if not isinstance(atom, _jax.Literal)}
    kept: list[Any] = []
    for eqn in reversed(eqns):
        if eqn.effects or not read.isdisjoint(eqn.outvars):
            read.update(atom for atom in eqn.invars if not isinstance(atom, _jax.Literal))
            kept.append(eqn)
    return kept[::-1]

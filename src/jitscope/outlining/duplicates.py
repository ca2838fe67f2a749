"""Work that a line of equations does twice and XLA would do once.

The last gradient of one leapfrog step is the first of the next. XLA merges the two where it sees
them; between kept calls it does not (20 such steps run 2.4 times as long). So heavy equations that
repeat an earlier one, with the same operands, are merged before repeats become calls. What is cheap
stays where it is: made again in a body, it need not be passed to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

from .. import _jax
from ..ir.fingerprint import Fingerprint, literal_text
from .kinds import Kind, is_marked


def merged(
    eqns: Sequence[Any],
    tokens: Sequence[Fingerprint],
    kinds: Sequence[Kind],
    outvars: Sequence[Any],
) -> tuple[dict[int, Any], Sequence[Any]] | None:
    """The line without heavy equations that repeat an earlier one, and without what only they read.

    Args:
      eqns: the line.
      tokens: of the equations.
      kinds: of the equations.
      outvars: what is needed behind the line.

    Returns:
      The equations that are left, by their place in the line, and the outvars; None where nothing
      is done twice.
    """
    stand_ins = _duplicates(eqns, tokens, kinds)
    if not stand_ins:
        return None

    def final(atom: Any) -> Any:
        return atom if isinstance(atom, _jax.Literal) else stand_ins.get(atom, atom)

    outvars = list(map(final, outvars))
    left: dict[int, Any] = {}
    read = set(_jax.variables(outvars))
    for i in range(len(eqns) - 1, -1, -1):
        eqn = eqns[i]
        if stand_ins.keys().isdisjoint(eqn.outvars) and (
            eqn.effects or not read.isdisjoint(eqn.outvars)
        ):
            invars = list(map(final, eqn.invars))
            if any(map(is_not, invars, eqn.invars)):
                eqn = eqn.replace(invars=invars)
            read.update(_jax.variables(invars))
            left[i] = eqn
    return dict(sorted(left.items())), outvars


def _duplicates(
    eqns: Sequence[Any], tokens: Sequence[Fingerprint], kinds: Sequence[Kind]
) -> dict[Any, Any]:
    """Results of heavy equations, with the earlier results that they are equal to."""
    heavy = [kind.number for kind in kinds if kind.heavy]
    if len(set(heavy)) == len(heavy):
        return {}
    first: dict[Any, Any] = {}  # of each variable, the first that is equal to it
    makers: dict[tuple[str, tuple[Any, ...]], Any] = {}
    found: dict[Any, Any] = {}
    for eqn, token, kind in zip(eqns, tokens, kinds, strict=True):
        if eqn.effects or not kind.pure or (kind.is_call and is_marked(eqn)):
            continue
        operands = tuple(
            [
                literal_text(atom) if isinstance(atom, _jax.Literal) else first.get(atom, atom)
                for atom in eqn.invars
            ]
        )
        maker = makers.setdefault((token.digest, operands), eqn)
        if maker is eqn:
            continue
        equal = dict(zip(eqn.outvars, maker.outvars, strict=True))
        first.update(equal)
        if kind.heavy and not any(isinstance(var, _jax.DropVar) for var in maker.outvars):
            found.update(equal)
    return found

"""Which results of a loop a later loop computes again rather than reads: Loop -> Recipe.

The layers of a gradient hand on many values that follow from others by cheap operations: the
derivative of an activation from its argument, a normed value from its factors. In a program
without loops XLA computes these again where they are used; across loops it cannot, and all of
them would be stored for every trip. A *recipe* computes such results from others that are
stored, and from operands of the loop that made them.

Only operations on single elements and changes of shape are cheap here, and nothing that jumps,
such as a comparison of real numbers: it could turn out otherwise where rounding does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from .. import _jax
from ..ir.fingerprint import equation_token, literal_text
from ..structuring.shared_call import shared_call_p
from .stacks import Carry, Constant, Loop, Rows

_MOST_EQUATIONS = 12
"""Equations for one result. A bound, so that no loop computes again all that another did."""


class Leaf(NamedTuple):
    """What a recipe starts from: a result of the loop's body, or an operand of it."""

    is_result: bool
    position: int


@dataclasses.dataclass(eq=False)
class Recipe:
    """How results of a loop follow from others.

    Attributes:
      loop: whose results they are.
      positions: which results of its body.
      leaves: what they follow from.
      jaxpr: from the leaves to the results.
    """

    loop: Loop
    positions: list[int]
    leaves: list[Leaf]
    jaxpr: _jax.AnyJaxpr

    def source(self, leaf: Leaf, rows: Rows) -> Constant | Rows:
        """Where a loop finds a leaf if it would find the results in these rows."""
        if leaf.is_result:
            return rows._replace(stack=self.loop.results[leaf.position])
        source = self.loop.sources[leaf.position]
        if isinstance(source, Constant):
            return source
        assert isinstance(source, Rows)
        last = len(self.loop.chain) - 1
        trip, step = rows.first, rows.step
        if self.loop.backwards:
            trip, step = last - trip, -step
        return Rows(
            source.stack, source.first + source.step * trip, source.step * step, rows.length
        )


def find_recipe(loop: Loop, wanted: Collection[int], stored: Collection[int]) -> Recipe | None:
    """The results that need not be stored.

    Args:
      loop: that computes them.
      wanted: results of its body that only later loops read.
      stored: results that are stored in any case.
    """
    body = _Body(loop)
    leaf_of: dict[Any, Leaf] = {}
    for position in stored:
        if not isinstance(body.outvars[position], _jax.Literal):
            leaf_of.setdefault(body.outvars[position], Leaf(True, position))
    for position, source in enumerate(loop.sources):
        if not isinstance(source, Carry):
            leaf_of.setdefault(body.invars[position], Leaf(False, position))
    positions, needed, leaves = [], set(), {}
    for position in sorted(wanted, key=body.place):
        atom = body.outvars[position]
        found = body.steps_to(atom, leaf_of)
        if found is None:
            leaf_of[atom] = Leaf(True, position)
            continue
        positions.append(position)
        needed.update(found)
        body.add_leaves([atom], found, leaf_of, leaves)
    if not positions:
        return None
    jaxpr = _jax.new_jaxpr(
        list(leaves),
        [body.outvars[position] for position in positions],
        [body.eqns[i] for i in sorted(needed)],
        "recomputed",
    )
    return Recipe(loop, positions, list(leaves.values()), jaxpr)


class _Body:
    """The body of a loop with the calls in it spelled out, and nothing computed twice."""

    def __init__(self, loop: Loop) -> None:
        open_ = _jax.opened(loop.chain.body)
        self.eqns: list[Any] = []
        self._results: dict[Any, list[Any]] = {}
        self.invars = list(open_.invars)
        self.outvars = self._spelled_out(open_, dict(zip(self.invars, self.invars, strict=True)))
        self._maker = {var: i for i, eqn in enumerate(self.eqns) for var in eqn.outvars}

    def _spelled_out(self, open_: Any, local: dict[Any, Any]) -> list[Any]:
        def read(atom: Any) -> Any:
            return atom if isinstance(atom, _jax.Literal) else local[atom]

        for eqn in open_.eqns:
            invars = list(map(read, eqn.invars))
            inner = _called(eqn)
            if inner is not None:
                called = _jax.opened(inner)
                results = self._spelled_out(called, dict(zip(called.invars, invars, strict=True)))
                local.update(zip(eqn.outvars, results, strict=True))
                continue
            key = equation_token(eqn).digest, *map(_identity, invars)
            if eqn.effects or key not in self._results:
                self._results[key] = [_jax.Var(var.aval) for var in eqn.outvars]
                self.eqns.append(eqn.replace(invars=invars, outvars=self._results[key]))
            local.update(zip(eqn.outvars, self._results[key], strict=True))
        return list(map(read, open_.outvars))

    def place(self, position: int) -> int:
        """Orders results such that each follows those it may be computed from."""
        atom = self.outvars[position]
        return -1 if isinstance(atom, _jax.Literal) else self._maker.get(atom, -1)

    def steps_to(self, atom: Any, leaves: Collection[Any]) -> set[int] | None:
        """The equations from leaves to an atom; None if they are not few and cheap."""
        steps: set[int] = set()
        waiting = [atom]
        while waiting:
            atom = waiting.pop()
            if isinstance(atom, _jax.Literal) or atom in leaves:
                continue
            i = self._maker.get(atom)
            if i is None or not _is_cheap(self.eqns[i]):
                return None
            if i not in steps:
                steps.add(i)
                waiting += self.eqns[i].invars
            if len(steps) > _MOST_EQUATIONS:
                return None
        return steps

    def add_leaves(
        self, atoms: Iterable[Any], steps: Iterable[int], known: dict[Any, Leaf], leaves: Any
    ) -> None:
        """Enters the leaves that equations and results start from."""
        for atom in (*atoms, *(a for i in steps for a in self.eqns[i].invars)):
            if not isinstance(atom, _jax.Literal) and atom in known:
                leaves[atom] = known[atom]


def _identity(atom: Any) -> Any:
    return literal_text(atom) if isinstance(atom, _jax.Literal) else atom


def _called(eqn: Any) -> _jax.AnyJaxpr | None:
    """The body of a call without constants of its own or options."""
    if eqn.primitive is shared_call_p and not eqn.params["unit"]:
        inner = eqn.params["shared"]
    elif eqn.primitive is _jax.jit_p and not _jax.has_options(eqn):
        inner = eqn.params["jaxpr"]
    else:
        return None
    return None if _jax.consts(inner) else inner


def _is_cheap(eqn: Any) -> bool:
    if eqn.effects or not _jax.is_movable(eqn):
        return False
    if eqn.primitive not in _jax.FUSED or not any(_jax.is_inexact(a.aval) for a in eqn.invars):
        return eqn.primitive in _jax.FUSED
    return eqn.primitive not in _jax.DISCONTINUOUS and all(
        _jax.is_inexact(var.aval) for var in eqn.outvars
    )

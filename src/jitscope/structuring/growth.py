"""Which chains of calls XLA would fuse into ever larger kernels, were they not kept apart.

Where a value is read by several fused operations, XLA may compute it again in each of them. If
each layer computes the next value so from the last one, the kernels of a layer hold the work of
all layers before it: compile time and run time grow with the square of the depth, if that is
more than a sliver of each layer. An operation
on two full-sized values is not repeated in what it also reaches through a product or a
reduction; one on a full-sized value and small ones is, such as the last addition in the
gradient of a layer norm. (``InstructionFusion``; measured on XLA:CPU with residual layers with
and without norms, biases and gradients.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _jax
from ..ir.program import live_equations

_MOST_BETWEEN = 32  # equations; what is more than glue has kernels of its own
_FEWEST_REPEATED = 1 / 30
"""Of a body's equations. Layers of eight experts repeat 1 % to 2 %: XLA took 2.1 times as long for
twice as many, and kept they ran 0.87x as fast. A transformer's layers repeat 7 %.
"""


def grows(body: _jax.AnyJaxpr, links: Iterable[tuple[int, int]]) -> bool:
    """Whether a chain of calls of a body is fused into kernels that grow from call to call.

    Args:
      body: of the calls.
      links: positions of a result of one call and of the operand of the next that it is.
    """
    fed: dict[int, list[int]] = {}
    for result, operand in links:
        fed.setdefault(operand, []).append(result)
    if not fed:
        return False
    flow = _Flow(body)
    return any(flow.grows(results, operand) for operand, results in fed.items())


def between(eqns: Sequence[Any]) -> tuple[_jax.AnyJaxpr, list[tuple[int, int]]] | None:
    """A call and what lies between it and the next one, as the body of a chain.

    Args:
      eqns: of one caller, from a call to the next one of the same body.

    Returns:
      A body and the links of its chain, for `grows`; None where the calls do not wait for each
      other or much lies between them.
    """
    one, *others, other = eqns
    made = set(one.outvars)
    glue: list[Any] = []
    for eqn in others:
        if not made.isdisjoint(_jax.variables(eqn.invars)):
            glue.append(eqn)
            made.update(eqn.outvars)
    wanted = [(i, x) for i, x in enumerate(other.invars) if isinstance(x, _jax.Var) and x in made]
    outvars = [x for _, x in wanted]
    glue = live_equations(glue, outvars)
    if not wanted or len(glue) > _MOST_BETWEEN:
        return None
    body = [one, *glue]
    inside = {var for eqn in body for var in eqn.outvars}
    read = _jax.variables(x for eqn in body for x in eqn.invars)
    invars = list(dict.fromkeys(x for x in read if x not in inside))
    links = [
        (k, invars.index(one.invars[i]))
        for k, (i, _) in enumerate(wanted)
        if isinstance(one.invars[i], _jax.Var)
    ]
    return _jax.new_jaxpr(invars, outvars, body, "period"), links


@dataclasses.dataclass(frozen=True, eq=False)
class _Value:
    """A value of a body: its rank, and the primitive and operands of the equation that makes it."""

    rank: int
    primitive: Any = None
    operands: tuple[_Value | None, ...] = ()  # None is a literal

    @property
    def is_fused(self) -> bool:
        return self.primitive in _jax.FUSED

    @property
    def n_full_operands(self) -> int:
        """Operands as large as the value itself that are not small values spread."""
        return sum(
            x is not None and x.rank >= self.rank and x.primitive not in _jax.BROADCASTS
            for x in self.operands
        )


class _Flow:
    """The values of a body, with the calls in it spelled out."""

    def __init__(self, body: _jax.AnyJaxpr) -> None:
        self._made: list[_Value] = []  # each behind those it is made of
        self._operands = [_Value(_rank(var)) for var in _jax.opened(body).invars]
        self._results = self._values(body, self._operands)

    def _values(
        self, jaxpr: _jax.AnyJaxpr, operands: Sequence[_Value | None]
    ) -> list[_Value | None]:
        open_ = _jax.opened(jaxpr)
        known: dict[Any, _Value | None] = {var: _Value(_rank(var)) for var in open_.constvars}
        known.update(zip(open_.invars, operands, strict=True))

        def read(atom: Any) -> _Value | None:
            return None if isinstance(atom, _jax.Literal) else known[atom]

        for eqn in open_.eqns:
            given = tuple(map(read, eqn.invars))
            if eqn.primitive in _jax.FUSED_CALLS:
                (inner,) = _jax.sub_jaxprs(eqn)
                made = self._values(inner, given)
            else:
                made = [_Value(_rank(var), eqn.primitive, given) for var in eqn.outvars]
                self._made += made
            known.update(zip(eqn.outvars, made, strict=True))
        return list(map(read, open_.outvars))

    def grows(self, results: Iterable[int], operand: int) -> bool:
        """Whether one of the results that are fed to an operand is computed again and again."""
        fused = {self._operands[operand]}  # made of it by fused equations alone
        apart: set[_Value | None] = set()  # made of it by others, too
        for value in self._made:
            of_fused = any(x in fused for x in value.operands)
            if of_fused and value.is_fused:
                fused.add(value)
            if (of_fused and not value.is_fused) or any(x in apart for x in value.operands):
                apart.add(value)
        if len(fused) - 1 < _FEWEST_REPEATED * len(self._made):
            return False
        made = [self._results[i] for i in results]
        return any(
            x in fused and x.primitive and (x not in apart or x.n_full_operands < 2)
            for x in made
            if x is not None
        )


def _rank(var: Any) -> int:
    return len(getattr(var.aval, "shape", ()))

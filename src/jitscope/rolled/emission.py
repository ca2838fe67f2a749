"""The equations of a line with loops: Demand -> jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from .. import _jax
from .demand import Cost, Demand
from .scan import Operands, Scan
from .stacks import Loop, Rows, Stack


class Emission:
    """Equations under construction."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._equations: list[Any] = []
        self._replaced: dict[Any, Any] = {}
        self._stacks: dict[Stack, Any] = {}

    def jaxpr(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """A jaxpr with the line's loops in it."""
        for item in self._demand.line:
            if isinstance(item, Loop):
                self._loop(item)
            else:
                invars = list(map(self._read, item.invars))
                self._equations.append(item.replace(invars=invars))
        outvars = list(map(self._read, _jax.opened(jaxpr).outvars))
        return _jax.rebuilt(jaxpr, eqns=self._equations, outvars=outvars)

    def _read(self, atom: Any) -> Any:
        return atom if isinstance(atom, _jax.Literal) else self._replaced.get(atom, atom)

    def _traced(self, fun: Callable[..., Any], operands: Sequence[Any], template: Any) -> list[Any]:
        """Adds the equations of a function; returns its results."""
        traced = _jax.opened(_jax.traced_as(fun, [atom.aval for atom in operands], template))
        local = dict(zip(traced.invars, operands, strict=True))

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, _jax.Literal) else local.get(atom, atom)

        for eqn in traced.eqns:
            invars = list(map(read, eqn.invars))
            self._equations.append(eqn.replace(invars=invars, source_info=template.source_info))
        return list(map(read, traced.outvars))

    def _loop(self, loop: Loop) -> None:
        cost, template = self._demand.cost(loop), loop.chain.calls[0]
        for stack in cost.built:
            operands = Operands()
            parts = [
                (self._stacks[piece.stack], piece) if isinstance(piece, Rows) else (piece, None)
                for piece in stack.pieces
            ]
            numbers = [operands.number(self._read(atom)) for atom, _ in parts]
            rows = [rows for _, rows in parts]
            (self._stacks[stack],) = self._traced(
                lambda *values, numbers=numbers, rows=rows: [
                    _put_together([values[n] for n in numbers], rows)
                ],
                operands.atoms,
                template,
            )
        if cost.written or cost.finals:
            self._scan(loop, cost, template)
        for stack, rows in cost.copied_out.items():
            copies = self._traced(
                lambda values, rows=rows: [
                    lax.index_in_dim(values, i, 0, keepdims=False) for i in rows
                ],
                [self._stacks[stack]],
                template,
            )
            for i, copy in zip(rows, copies, strict=True):
                self._replaced.update(dict.fromkeys(stack.rows[i], copy))

    def _scan(self, loop: Loop, cost: Cost, template: Any) -> None:
        scan = Scan(loop, cost.written, self._demand.recipes)
        operands = [
            self._stacks[atom] if isinstance(atom, Stack) else self._read(atom)
            for atom in scan.operands.atoms
        ]
        results = self._traced(scan, operands, template)
        n_carried = len(results) - len(cost.written)
        self._stacks.update(zip(cost.written, results[n_carried:], strict=True))
        last = 0 if loop.backwards else len(loop.chain) - 1
        for position in cost.finals:
            final = results[scan.carry_of_result(position)]
            self._replaced.update(dict.fromkeys(loop.results[position].rows[last], final))


def _put_together(values: Sequence[Any], rows: Sequence[Rows | None]) -> Any:
    """One stack of single values and of rows of other stacks."""
    parts = []
    for value, of in zip(values, rows, strict=True):
        if of is None:
            parts.append(lax.expand_dims(value, (0,)))
            continue
        first = min(of.first, of.first + of.step * (of.length - 1))
        part = lax.slice_in_dim(value, first, first + of.length)
        parts.append(part if of.step == 1 else lax.rev(part, (0,)))
    return lax.concatenate(parts, 0)

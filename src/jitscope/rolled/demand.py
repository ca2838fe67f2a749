"""What somebody waits for in a line with loops: which stacks are built, written and copied out.

Found from the end of the line, so that a loop is left out where nobody reads its results, and
stores only what later ones read and cannot compute again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import _jax
from .chains import Chain, Line
from .recipe import Recipe, find_recipe
from .stacks import Constant, Loop, Rows, Stack, Stacks


@dataclasses.dataclass
class Cost:
    """What a loop reads and writes beside its calls' own operands and results.

    Attributes:
      built: stacks that are put together before it.
      written: stacks that it writes.
      finals: results that are needed of the last trip alone, from the carry.
      copied_out: rows that others than loops need.
    """

    built: list[Stack] = dataclasses.field(default_factory=list)
    written: list[Stack] = dataclasses.field(default_factory=list)
    finals: list[int] = dataclasses.field(default_factory=list)
    copied_out: dict[Stack, list[int]] = dataclasses.field(default_factory=dict)

    @property
    def n_copies(self) -> int:
        """Values that are copied into and out of stacks."""
        return sum(map(len, self.copied_out.values())) + sum(
            len(stack.pieces) for stack in self.built
        )

    @property
    def copied_bytes(self) -> int:
        """Bytes that stacking and unstacking copy."""
        copied_out = sum(
            len(rows) * stack.n_bytes // len(stack) for stack, rows in self.copied_out.items()
        )
        return copied_out + sum(stack.n_bytes for stack in self.built)


class Demand:
    """The values and stacks of a line that somebody waits for, found from its end."""

    def __init__(self, line: Line, outvars: Sequence[Any]) -> None:
        stacks = Stacks()
        self.line = [stacks.loop(item) if isinstance(item, Chain) else item for item in line]
        self._costs: dict[int, Cost] = {}
        self._values = set(_jax.variables(outvars))
        self._stacks: set[Stack] = set()
        self._stored: set[Stack] = set()  # of the stacks, those that are read in other ways
        self.recipes: dict[Stack, Recipe] = {}
        self.line = [item for item in reversed(self.line) if self._visit(item)][::-1]

    @property
    def loops(self) -> list[Loop]:
        return [item for item in self.line if isinstance(item, Loop)]

    @property
    def copied_bytes(self) -> int:
        return sum(cost.copied_bytes for cost in self._costs.values())

    def cost(self, loop: Loop) -> Cost:
        return self._costs[id(loop)]

    def _visit(self, item: Any) -> bool:
        """Enters what an item needs; whether anything needs the item."""
        if isinstance(item, Loop):
            return self._visit_loop(item)
        if not item.effects and self._values.isdisjoint(item.outvars):
            return False
        self._values.update(_jax.variables(item.invars))
        return True

    def _visit_loop(self, loop: Loop) -> bool:
        cost = self._costs[id(loop)] = Cost()
        self._find_results(loop, cost)
        self._find_recipe(loop, cost)
        cost.written += [
            stack
            for stack in (*loop.results.values(), *loop.carried.values())
            if stack in self._stacks and stack not in self.recipes
        ]
        is_run = bool(cost.written or cost.finals)
        for source in loop.sources if is_run else ():
            if isinstance(source, Rows):
                self._stacks.add(source.stack)
            else:
                self._need(source.atom if isinstance(source, Constant) else source.initial)
        for stack in reversed(loop.built):
            if stack in self._stacks:
                cost.built.insert(0, stack)
                for piece in stack.pieces:
                    self._need_stored(piece)
        return is_run or bool(cost.built)

    def _need(self, atom: Any) -> None:
        self._values.update(_jax.variables([atom]))

    def _need_stored(self, piece: Any) -> None:
        if isinstance(piece, Rows):
            self._stacks.add(piece.stack)
            self._stored.add(piece.stack)
        else:
            self._need(piece)

    def _find_recipe(self, loop: Loop, cost: Cost) -> None:
        """Finds results that later loops can compute from others."""
        read = {p for p, stack in loop.results.items() if stack in self._stacks}
        stored = {p for p in read if loop.results[p] in self._stored | cost.copied_out.keys()}
        recipe = find_recipe(loop, read - stored, stored)
        if recipe is None:
            return
        self.recipes.update((loop.results[position], recipe) for position in recipe.positions)
        for leaf in recipe.leaves:
            if leaf.is_result:
                continue
            source = loop.sources[leaf.position]
            self._need_stored(source.atom if isinstance(source, Constant) else source)

    def _find_results(self, loop: Loop, cost: Cost) -> None:
        last = 0 if loop.backwards else len(loop.chain) - 1
        for position, stack in loop.results.items():
            rows = [i for i, row in enumerate(stack.rows) if not self._values.isdisjoint(row)]
            if last in rows and position in loop.chain.links.values():
                cost.finals.append(position)
                rows.remove(last)
            if rows:
                cost.copied_out[stack] = rows
                self._stacks.add(stack)

"""One loop as a function of its operands, to be traced into ``lax.scan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax

from .. import _jax
from .recipe import Recipe
from .stacks import Carry, Constant, Loop, Rows, Source, Stack


class Operands:
    """Atoms and stacks, each once, numbered."""

    def __init__(self) -> None:
        self.atoms: list[Any] = []

    def number(self, atom: Any) -> int:
        found = next((i for i, known in enumerate(self.atoms) if known is atom), None)
        if found is None:
            self.atoms.append(atom)
        return len(self.atoms) - 1 if found is None else found


class Scan:
    """The loop as a function of its operands, to be traced."""

    def __init__(
        self, loop: Loop, written: Sequence[Stack], recipes: Mapping[Stack, Recipe]
    ) -> None:
        self._loop = loop
        self._recipes = recipes
        self.operands = Operands()
        self._in_order: set[int] = set()
        for source in loop.sources:
            self._enter(source)
        # Two operands that start and go on alike are one carry.
        self._carries = list(
            dict.fromkeys(self._key(s) for s in loop.sources if isinstance(s, Carry))
        )
        self._written_results = [r for r, stack in loop.results.items() if stack in written]
        self._written_carried = [p for p, stack in loop.carried.items() if stack in written]

    def _enter(self, source: Source) -> None:
        """Numbers the operands that a source needs."""
        if isinstance(source, Rows) and source.stack in self._recipes:
            recipe = self._recipes[source.stack]
            for leaf in recipe.leaves:
                self._enter(recipe.source(leaf, source))
        elif isinstance(source, Rows) and self._loop.reads_in_order(source):
            self._in_order.add(self._number(source))
        else:
            self._number(source)

    def _number(self, source: Source) -> int:
        if isinstance(source, Rows):
            return self.operands.number(source.stack)
        return self.operands.number(source.atom if isinstance(source, Constant) else source.initial)

    def _key(self, carry: Carry) -> tuple[int, int]:
        return carry.result, self._number(carry)

    def carry_of_result(self, position: int) -> int:
        """Which of the carried values is a result of the body."""
        return next(i for i, (result, _) in enumerate(self._carries) if result == position)

    def __call__(self, *values: Any) -> list[Any]:
        """The last carried values, and the stacks that are written."""
        n_trips = len(self._loop.chain)
        in_order = {number: values[number] for number in sorted(self._in_order)}
        carried, written = lax.scan(
            lambda carried, xs: self._trip(values, carried, *xs),
            [values[number] for _, number in self._carries],
            (in_order, lax.iota("int32", n_trips)),
            length=n_trips,
            reverse=self._loop.backwards,
        )
        return [*carried, *written]

    def _trip(self, values: Any, carried: Any, in_order: Any, row: Any) -> Any:
        """One run of the body; results as ``lax.scan`` wants them."""
        loop = self._loop
        computed: dict[tuple[Recipe, int, int], list[Any]] = {}

        def read(source: Source) -> Any:
            number = self._number(source) if not is_computed(source) else -1
            if isinstance(source, Constant):
                return values[number]
            if isinstance(source, Carry):
                return carried[self._carries.index(self._key(source))]
            if number < 0:
                return compute(source)
            if loop.reads_in_order(source):
                return in_order[number]
            trip = len(loop.chain) - 1 - row if loop.backwards else row
            at = source.first + source.step * trip
            return lax.dynamic_index_in_dim(values[number], at, 0, keepdims=False)

        def is_computed(source: Source) -> bool:
            return isinstance(source, Rows) and source.stack in self._recipes

        def compute(rows: Rows) -> Any:
            recipe = self._recipes[rows.stack]
            key = recipe, rows.first, rows.step
            if key not in computed:
                leaves = [read(recipe.source(leaf, rows)) for leaf in recipe.leaves]
                computed[key] = _jax.call(recipe.jaxpr, leaves, "recomputed")
            position = next(p for p in recipe.positions if recipe.loop.results[p] is rows.stack)
            return computed[key][recipe.positions.index(position)]

        operands = list(map(read, loop.sources))
        results = _jax.call(loop.chain.body, operands, loop.chain.calls[0].params["name"])
        written = [results[position] for position in self._written_results]
        written += [operands[position] for position in self._written_carried]
        return [results[result] for result, _ in self._carries], written

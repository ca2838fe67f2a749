"""Where a loop takes its operands from: chains in a line -> what is stacked, and what that costs.

A *stack* is an array that holds one value for each trip of a loop, along a new first axis: the
loop's own results, or operands put together for it. A loop reads a stack that is there already,
from either end and from any row on: parameters stacked for the forward pass serve the backward
pass, and residuals stay in the stack that the forward loop wrote. Only what is in no
stack is copied into one, and only what others than loops need is copied out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from .. import _jax
from ..ir.fingerprint import literal_text
from .chains import Chain


@dataclasses.dataclass(eq=False)
class Stack:
    """Values along a new first axis.

    Attributes:
      rows: the variables that hold each value.
      aval: type of one.
      pieces: what it is put together from, in order; empty for what a loop writes.
    """

    rows: list[list[Any]]
    aval: Any
    pieces: list[Piece] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_bytes(self) -> int:
        return len(self) * _jax.n_bytes(self.aval)


class Rows(NamedTuple):
    """Rows of a stack: the first, and then every ``step``-th, which is 1 or -1."""

    stack: Stack
    first: int
    step: int
    length: int

    @property
    def is_all(self) -> bool:
        """Whether they are the whole stack in its order."""
        return self.step == 1 and self.length == len(self.stack)

    def reversed(self) -> Rows:
        """The same rows from the last to the first."""
        return Rows(self.stack, self.first + self.step * (self.length - 1), -self.step, self.length)


Piece: TypeAlias = "Rows | Any"
"""Rows of another stack, or one variable or literal."""


class Constant(NamedTuple):
    """An operand that is the same in all calls."""

    atom: Any


class Carry(NamedTuple):
    """An operand that is a result of the call before, and of the first call ``initial``."""

    initial: Any
    result: int


Source: TypeAlias = Constant | Carry | Rows


@dataclasses.dataclass(eq=False)
class Loop:
    """A chain with the sources of its operands.

    Attributes:
      chain: the calls.
      backwards: whether trip ``i`` reads and writes row ``n - 1 - i`` of its stacks.
      sources: of each operand of the body; rows are in the order of the trips.
      built: the stacks put together for it.
      results: the stack of each result of the body that somebody may read.
      carried: the stack of each carried operand as it enters a trip.
    """

    chain: Chain
    backwards: bool
    sources: list[Source]
    built: list[Stack]
    results: dict[int, Stack]
    carried: dict[int, Stack]

    def reads_in_order(self, rows: Rows) -> bool:
        """Whether trips and rows of a stack go together."""
        return (rows.reversed() if self.backwards else rows).is_all


class Stacks:
    """The stacks of a line so far."""

    def __init__(self) -> None:
        self._places: dict[Any, list[tuple[Stack, int]]] = {}

    def loop(self, chain: Chain) -> Loop:
        """Finds the sources of a chain's operands, and enters the stacks that its loop makes."""
        avals = [var.aval for var in _jax.opened(chain.body).invars]
        columns: list[Source | list[Piece]] = []
        for position in range(len(avals)):
            values = chain.operands(position)
            if position in chain.links:
                columns.append(Carry(values[0], chain.links[position]))
            elif all(same_atom(value, values[0]) for value in values):
                columns.append(Constant(values[0]))
            else:
                columns.append(list(self._pieces(values)))
        backwards = _is_backwards(columns, avals)
        loop = Loop(chain, backwards, [], [], {}, {})
        for column, aval in zip(columns, avals, strict=True):
            loop.sources.append(
                column if isinstance(column, tuple) else self._rows(column, aval, loop)
            )
        self._enter_results(loop)
        return loop

    def _rows(self, pieces: list[Piece], aval: Any, loop: Loop) -> Rows:
        """Rows that a loop reads for an operand; they are put together if need be."""
        if len(pieces) == 1:
            return pieces[0]
        if loop.backwards:
            pieces = [p.reversed() if isinstance(p, Rows) else p for p in reversed(pieces)]
        stack = Stack([row for piece in pieces for row in _rows_of(piece)], aval, pieces)
        stack = next((s for s in loop.built if _same_rows(s, stack)), stack)
        if stack not in loop.built:
            loop.built.append(stack)
            self._enter(stack)
        rows = Rows(stack, 0, 1, len(stack))
        return rows.reversed() if loop.backwards else rows

    def _enter_results(self, loop: Loop) -> None:
        chain, body = loop.chain, _jax.opened(loop.chain.body)

        def new(rows: list[list[Any]], aval: Any) -> Stack:
            stack = Stack(rows[::-1] if loop.backwards else rows, aval)
            self._enter(stack)
            return stack

        for position, atom in enumerate(body.outvars):
            loop.results[position] = new(chain.results(position), atom.aval)
        for position in chain.links:
            rows = [list(_jax.variables([atom])) for atom in chain.operands(position)]
            loop.carried[position] = new(rows, body.invars[position].aval)

    def _enter(self, stack: Stack) -> None:
        for i, row in enumerate(stack.rows):
            for var in row:
                self._places.setdefault(var, []).append((stack, i))

    def _pieces(self, values: Sequence[Any]) -> Iterator[Piece]:
        """The values as few rows of stacks as there are, and what is in none."""
        at = 0
        while at < len(values):
            longest = max(self._runs(values[at:]), key=lambda rows: rows.length, default=None)
            if longest is None or longest.length == 1:
                yield values[at]
                at += 1
            else:
                yield longest
                at += longest.length

    def _runs(self, values: Sequence[Any]) -> Iterator[Rows]:
        """Rows of the stacks that hold the first value, as far as they hold the next ones."""
        if isinstance(values[0], _jax.Literal):
            return
        for stack, first in self._places.get(values[0], ()):
            for step in (1, -1):
                n = 1
                while (
                    n < len(values)
                    and 0 <= first + n * step < len(stack)
                    and any(var is values[n] for var in stack.rows[first + n * step])
                ):
                    n += 1
                yield Rows(stack, first, step, n)


def same_atom(a: Any, b: Any) -> bool:
    """Whether two atoms are the same value."""
    if isinstance(a, _jax.Literal) and isinstance(b, _jax.Literal):
        return literal_text(a) == literal_text(b)
    return a is b


def _rows_of(piece: Piece) -> Iterable[list[Any]]:
    if isinstance(piece, Rows):
        for i in range(piece.length):
            yield piece.stack.rows[piece.first + i * piece.step]
    else:
        yield list(_jax.variables([piece]))


def _same_rows(a: Stack, b: Stack) -> bool:
    """Whether two stacks are put together from the same pieces."""
    return len(a.pieces) == len(b.pieces) and all(
        x == y if isinstance(x, Rows) and isinstance(y, Rows) else same_atom(x, y)
        for x, y in zip(a.pieces, b.pieces, strict=True)
    )


def _is_backwards(columns: Sequence[Source | list[Piece]], avals: Sequence[Any]) -> bool:
    """Whether more bytes of the stacks at hand are read from the end than from the start."""
    total = 0
    for column, aval in zip(columns, avals, strict=True):
        for piece in column if isinstance(column, list) else ():
            if isinstance(piece, Rows):
                total -= piece.step * piece.length * _jax.n_bytes(aval)
    return total > 0

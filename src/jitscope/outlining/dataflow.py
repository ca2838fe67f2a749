"""What runs of a straight line of equations take from outside and give back.

A *run* is a stretch of consecutive equations. Runs of equal tokens can become calls of one
body if their operands come from the same places: from the same result within the run, or
from outside. ``Flow.interfaces`` sorts runs into such classes and settles what each class
passes: which operands coincide everywhere, which literals stay inside, which results
anybody outside needs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import _jax
from ..ir.fingerprint import literal_text

_SPARE_RESULTS = 8  # a run may give back one unneeded result per so many equations, and one more

_END_BITS = 32  # of the place of a result among those of its equation


@dataclasses.dataclass(frozen=True)
class Interface:
    """Runs that can become calls of one body, and what they pass.

    Attributes:
      length: equations of a run.
      starts: first equation of each run.
      operands: for each operand the places that read it, as (equation of the run, position).
      results: of the body, as (equation of the run, position).
      needed: for each run, which of the results are used outside it.
    """

    length: int
    starts: tuple[int, ...]
    operands: tuple[tuple[tuple[int, int], ...], ...]
    results: tuple[tuple[int, int], ...]
    needed: tuple[tuple[bool, ...], ...]

    @property
    def saved(self) -> float:
        """Equations saved, less the cost of the boundary in equations.

        A value that crosses the boundary counts a quarter of an equation, the call one.
        """
        n_values = len(self.operands) + len(self.results)
        n_uses = len(self.starts)
        return (n_uses - 1) * self.length - n_uses * (1 + n_values / 4)


@dataclasses.dataclass(frozen=True)
class Edges:
    """What equations of a line read of each other, in the order of the equations that read.

    Attributes:
      user: the equation that reads.
      definer: the equation whose result that is.
      ends: which operand of the one is which result of the other, as one integer.
    """

    user: np.ndarray
    definer: np.ndarray
    ends: np.ndarray


class Flow:
    """Where each operand of a straight line of equations comes from and each result goes."""

    def __init__(self, eqns: Sequence[Any], outvars: Sequence[Any]) -> None:
        self._n = len(eqns)
        self._first_operand = _offsets(len(eqn.invars) for eqn in eqns)
        self._first_result = _offsets(len(eqn.outvars) for eqn in eqns)
        self._number_values(eqns)
        self._user = np.repeat(np.arange(self._n), np.diff(self._first_operand))
        self._definer = np.repeat(np.arange(self._n), np.diff(self._first_result))
        self._last_use = np.full(len(self._definer), -1)
        used = self._source >= 0
        np.maximum.at(self._last_use, self._source[used], self._user[used])
        self._last_use[
            [
                self._result_of[v]
                for v in outvars
                if not isinstance(v, _jax.Literal) and v in self._result_of
            ]
        ] = self._n
        self._weights = _cut_weights(eqns)

    def _number_values(self, eqns: Sequence[Any]) -> None:
        """Numbers results from 0, inputs from -2 down, literals apart from both."""
        self._result_of: dict[Any, int] = {}
        results, others = self._result_of, dict[Any, int]()
        literals: dict[str, int] = {}
        values: list[int] = []
        is_literal: list[bool] = []
        for eqn in eqns:
            for atom in eqn.invars:
                if isinstance(atom, _jax.Literal):
                    is_literal.append(True)
                    values.append(literals.setdefault(literal_text(atom), len(literals)))
                    continue
                is_literal.append(False)
                number = results.get(atom)
                values.append(
                    -2 - others.setdefault(atom, len(others)) if number is None else number
                )
            for var in eqn.outvars:
                results[var] = len(results)
        self._is_literal = np.asarray(is_literal, bool)
        self._values = np.asarray(values, np.int64)
        self._source = np.where(self._is_literal, -1, np.maximum(self._values, -1))

    @functools.cached_property
    def edges(self) -> Edges:
        """From each result to each operand that it is."""
        operands = np.flatnonzero(self._source >= 0)
        results, user = self._source[operands], self._user[operands]
        definer = self._definer[results]
        place = (operands - self._first_operand[user]) << _END_BITS
        ends = place + (results - self._first_result[definer])
        return Edges(user, definer, ends.astype(np.uint64))

    def cut_cost(self, period: int) -> np.ndarray:
        """Cost of cutting before each equation: values that a run hands to the next one.

        Counts values, and a larger one among equally many slightly more; what is used more
        than a period later crosses every cut and does not count.
        """
        near = self._source >= 0
        near[near] = (self._user - self._definer[self._source])[near] <= period
        until = np.full(len(self._definer), -1)
        np.maximum.at(until, self._source[near], self._user[near])
        crossing = until > self._definer
        steps = np.zeros(self._n + 2)
        np.add.at(steps, self._definer[crossing] + 1, self._weights[crossing])
        np.add.at(steps, until[crossing] + 1, -self._weights[crossing])
        return np.maximum(np.cumsum(steps).round(6), 0.0)

    def with_literals(self, numbers: Sequence[int]) -> np.ndarray:
        """One integer per equation: equal where its number and its literal operands are."""
        literals = np.where(self._is_literal, self._values, -1)
        known: dict[tuple[int, bytes], int] = {}
        return np.asarray(
            [
                known.setdefault((number, literals[self._operands(i, 1)].tobytes()), len(known))
                for i, number in enumerate(numbers)
            ]
        )

    def interfaces(self, length: int, starts: Sequence[int]) -> list[Interface]:
        """Classes of runs of equal tokens; runs that are like no other are left out."""
        by_shape: dict[bytes, list[int]] = {}
        for start in starts:
            by_shape.setdefault(self._origins(start, length).tobytes(), []).append(start)
        return [
            self._interface(length, cluster)
            for group in by_shape.values()
            for cluster in self._alike_in_results(length, group)
            if len(cluster) > 1
        ]

    def _operands(self, start: int, length: int) -> slice:
        return slice(self._first_operand[start], self._first_operand[start + length])

    def _origins(self, start: int, length: int) -> np.ndarray:
        """For each operand the result within the run that it is, or -1."""
        first = self._first_result[start]
        source = self._source[self._operands(start, length)]
        return np.where(source >= first, source - first, -1)

    def _needed(self, start: int, length: int) -> np.ndarray:
        results = slice(self._first_result[start], self._first_result[start + length])
        return self._last_use[results] >= start + length

    def _alike_in_results(self, length: int, starts: Sequence[int]) -> Iterator[list[int]]:
        """Runs whose needed results are so alike that all may give back the union."""
        by_needed: dict[bytes, list[int]] = {}
        for start in starts:
            by_needed.setdefault(self._needed(start, length).tobytes(), []).append(start)
        spare = 1 + length // _SPARE_RESULTS
        clusters: list[tuple[np.ndarray, list[int]]] = []
        for key, group in sorted(by_needed.items(), key=lambda item: (-len(item[1]), item[1][0])):
            needed = np.frombuffer(key, bool)
            for union, cluster in clusters:
                if max((needed & ~union).sum(), (union & ~needed).sum()) <= spare:
                    union |= needed
                    cluster += group
                    break
            else:
                clusters.append((needed.copy(), group))
        return (sorted(cluster) for _, cluster in clusters)

    def _interface(self, length: int, starts: Sequence[int]) -> Interface:
        start = starts[0]
        operands = self._places(self._user, self._first_operand, start, length)
        results = self._places(self._definer, self._first_result, start, length)
        needed = np.stack([self._needed(s, length) for s in starts])
        union = np.flatnonzero(needed.any(0))
        return Interface(
            length,
            tuple(starts),
            tuple(tuple(operands[i] for i in slots) for slots in self._passed(length, starts)),
            tuple(results[i] for i in union),
            tuple(map(tuple, needed[:, union].tolist())),
        )

    def _passed(self, length: int, starts: Sequence[int]) -> list[list[int]]:
        """Operands of the body: positions from outside that coincide in every run."""
        outside = np.flatnonzero(self._origins(starts[0], length) < 0)
        kinds = np.stack([self._is_literal[self._operands(s, length)][outside] for s in starts])
        values = np.stack([self._values[self._operands(s, length)][outside] for s in starts])
        inside = kinds.all(0) & (values == values[0]).all(0)
        passed: dict[bytes, list[int]] = {}
        for i in np.flatnonzero(~inside).tolist():
            column = kinds[:, i].tobytes() + values[:, i].tobytes()
            passed.setdefault(column, []).append(int(outside[i]))
        return list(passed.values())

    @staticmethod
    def _places(
        owner: np.ndarray, first: np.ndarray, start: int, length: int
    ) -> list[tuple[int, int]]:
        numbers = np.arange(first[start], first[start + length])
        owners = owner[numbers]
        return list(zip((owners - start).tolist(), (numbers - first[owners]).tolist(), strict=True))


def _offsets(counts: Iterator[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.fromiter(counts, np.int64))]).astype(np.int64)


def _cut_weights(eqns: Sequence[Any]) -> np.ndarray:
    """One per result, and up to a tenth more for the largest; a symbolic size counts as none."""
    avals = [var.aval for eqn in eqns for var in eqn.outvars]
    of_aval = {aval: _size(aval) for aval in set(avals)}
    sizes = [of_aval[aval] for aval in avals]
    largest = max(sizes, default=0) or 1
    return 1 + np.asarray(sizes, float) / (10 * largest)


def _size(aval: Any) -> int:
    size = getattr(aval, "size", 0)
    return size if isinstance(size, int) else 0

"""Stretches of a line that hold what a run holds, in another order.

The tracer writes down equations that do not depend on each other in the order in which Python came
to them. `repeats` compares sequences, so that a repeat is to it the occurrences in one order. Here
the other ones are found: first by sums of hashes over the equations of a stretch and the edges
between them, which are the same in every order, then by matching them one by one.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .dataflow import Edges
from .mixing import hashed

_LAST_BITS = (1 << 16) - 1
_LENGTHS = 32  # lengths of runs looked at, each of which costs passes over the line
_MISMATCHES = 64  # stretches that look like a run and are not, looked at in one line


@dataclasses.dataclass(frozen=True)
class Alike:
    """Stretches that hold the same equations, with the same edges between them.

    Attributes:
      length: of the stretches.
      runs: those of them that were found, by their places in the argument of `aligned`.
      starts: of all stretches.
      places: start of each stretch in another order to the places in it of the equations.
    """

    length: int
    runs: list[int]
    starts: list[int]
    places: dict[int, list[int]]

    def put(self, order: list[int]) -> None:
        """Changes an order so that the stretches are equal."""
        for start, places in self.places.items():
            order[start : start + self.length] = [start + i for i in places]

    def put_back(self, order: list[int]) -> None:
        """Leaves the stretches as they stand."""
        for start in self.places:
            order[start : start + self.length] = range(start, start + self.length)


def aligned(
    numbers: np.ndarray, edges: Edges, runs: Sequence[Any], is_root: Callable[[], np.ndarray]
) -> list[Alike]:
    """Finds stretches that hold, in another order, what a run holds.

    Args:
      numbers: one per equation, equal where the equations do the same.
      edges: between the equations.
      runs: what was found, with ``length`` and ``starts``, without overlap, best first.
      is_root: whether each equation keeps its order among its like; rarely asked.
    """
    taken = np.zeros(len(numbers), bool)
    for run in runs:
        for start in run.starts:
            taken[start : start + run.length] = True
    n_runs = collections.Counter(run.length for run in runs)
    room = _longest(~taken)
    lengths = [length for length in n_runs if n_runs[length] > 1 or length <= room]
    if not lengths:
        return []
    return _Alignment(numbers, edges, runs, is_root, taken).of(lengths[:_LENGTHS])


class _Alignment:
    def __init__(
        self,
        numbers: np.ndarray,
        edges: Edges,
        runs: Sequence[Any],
        is_root: Callable[[], np.ndarray],
        taken: np.ndarray,
    ) -> None:
        self._numbers, self._edges, self._runs = numbers, edges, runs
        self._is_root, self._taken = functools.cache(is_root), taken
        self._labels: dict[Any, int] = {}
        self._mismatches_left = _MISMATCHES
        self._found: dict[int, Alike] = {}

    def of(self, lengths: Sequence[int]) -> list[Alike]:
        sums = np.cumsum(np.append(np.uint64(0), hashed(self._numbers)))
        for length in lengths:
            signatures = sums[length:] - sums[:-length]
            if self._may_join(length, signatures):
                self._join(length, signatures + self._of_edges(length))
        return list(self._found.values())

    def _may_join(self, length: int, signatures: np.ndarray) -> bool:
        """Whether a stretch holds what a run does, or two runs do, whatever the edges are."""
        leaders = self._leaders(length, signatures)
        n_runs = sum(run.length == length for run in self._runs)
        return len(leaders) < n_runs or len(self._candidates(length, signatures, leaders)) > 0

    def _join(self, length: int, signatures: np.ndarray) -> None:
        leaders = self._leaders(length, signatures)
        for number, run in enumerate(self._runs):
            if run.length == length:
                leader = leaders[int(signatures[run.starts[0]])]
                if leader != number and self._joins(leader, run.starts):
                    self._found[leader].runs.append(number)
        for start in self._candidates(length, signatures, leaders).tolist():
            leader = leaders.get(int(signatures[start]))
            if leader is not None and not self._taken[start : start + length].any():
                self._joins(leader, [start])

    def _leaders(self, length: int, signatures: np.ndarray) -> dict[int, int]:
        """The first run of each signature."""
        leaders: dict[int, int] = {}
        for number, run in enumerate(self._runs):
            if run.length == length:
                leaders.setdefault(int(signatures[run.starts[0]]), number)
        return leaders

    def _candidates(
        self, length: int, signatures: np.ndarray, leaders: dict[int, int]
    ) -> np.ndarray:
        """Starts of stretches that are free and may have a signature of a run."""
        wanted = np.zeros(_LAST_BITS + 1, bool)  # by the last bits, so that few are looked up
        wanted[[signature & _LAST_BITS for signature in leaders]] = True
        blocked = np.append(0, np.cumsum(self._taken))
        is_free = blocked[length:] == blocked[:-length]
        return np.flatnonzero(is_free & wanted[signatures & np.uint64(_LAST_BITS)])

    def _of_edges(self, length: int) -> np.ndarray:
        """For the stretch at each start, a number equal for the same edges within a stretch."""
        user, definer = self._edges.user, self._edges.definer
        near = user - definer < length
        user, definer, hashes = user[near], definer[near], self._edge_hashes[near]
        changes = np.zeros(len(self._numbers) + 1, np.uint64)
        np.add.at(changes, np.maximum(user - length + 1, 0), hashes)
        np.subtract.at(changes, definer + 1, hashes)
        return np.cumsum(changes)[:-length]

    @functools.cached_property
    def _edge_hashes(self) -> np.ndarray:
        own = hashed(self._numbers)
        read = hashed(own[self._edges.user] + self._edges.ends)
        return hashed(read + own[self._edges.definer])

    def _joins(self, leader: int, starts: Sequence[int]) -> bool:
        """Whether equal stretches hold the equations of a run in another order."""
        run = self._runs[leader]
        model, length = run.starts[0], run.length
        there, here = (self._numbers[s : s + length] for s in (model, starts[0]))
        if self._mismatches_left == 0 or np.array_equal(there, here):
            return False  # what stands in the same order was compared before
        places = self._matched(model, starts[0], length)
        if places is None:
            self._mismatches_left -= 1
            return False
        alike = self._found.setdefault(leader, Alike(length, [leader], list(run.starts), {}))
        for start in starts:
            alike.starts.append(start)
            alike.places[start] = places
            self._taken[start : start + length] = True
        return True

    def _matched(self, model: int, start: int, length: int) -> list[int] | None:
        """The places in a stretch of the equations of the model, one by one."""
        model_reads, reads = self._reads(model, length), self._reads(start, length)
        unmatched: dict[int, list[int]] = {}
        for i, label in enumerate(self._labelled(start, reads)):
            unmatched.setdefault(label, []).append(i)
        places: list[int] = []
        for label, read in zip(self._labelled(model, model_reads), model_reads, strict=True):
            there = [(ends, places[i]) for ends, i in read]
            like = unmatched.get(label, [])
            place = next((i for i in like if reads[i] == there), None)
            if place is None:
                return None
            like.remove(place)
            places.append(place)
        is_root = self._is_root()
        roots = [i for i in places if is_root[start + i]]
        return places if roots == sorted(roots) else None

    def _reads(self, start: int, length: int) -> list[list[tuple[int, int]]]:
        """For each equation of a stretch the edges to others in it."""
        edges = slice(*np.searchsorted(self._edges.user, [start, start + length]).tolist())
        found: list[list[tuple[int, int]]] = [[] for _ in range(length)]
        for user, definer, ends in zip(
            (self._edges.user[edges] - start).tolist(),
            (self._edges.definer[edges] - start).tolist(),
            self._edges.ends[edges].tolist(),
            strict=True,
        ):
            if definer >= 0:
                found[user].append((ends, definer))
        return found

    def _labelled(self, start: int, reads: list[list[tuple[int, int]]]) -> list[int]:
        """One label for each equation of a stretch, of all that it reads and that reads it."""
        numbers = self._numbers[start : start + len(reads)].tolist()
        down: list[int] = []
        for number, read in zip(numbers, reads, strict=True):
            down.append(self._label((number, *[(ends, down[i]) for ends, i in read])))
        readers: list[list[tuple[int, int]]] = [[] for _ in reads]
        labels = [0] * len(reads)
        for i in range(len(reads) - 1, -1, -1):
            labels[i] = self._label((down[i], *sorted(readers[i])))
            for ends, j in reads[i]:
                readers[j].append((ends, labels[i]))
        return labels

    def _label(self, key: Any) -> int:
        return self._labels.setdefault(key, len(self._labels))


def _longest(flags: np.ndarray) -> int:
    """Length of the longest stretch of true flags."""
    ends = np.flatnonzero(~flags)
    return int(np.diff(ends, prepend=-1, append=len(flags)).max()) - 1

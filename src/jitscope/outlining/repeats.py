"""Repeated substrings of a sequence of integers, taken greedily without overlap.

A *repeat* is a substring with two or more *starts*. It is *tandem* where occurrences follow
each other without a gap: such a run can be cut at any phase of its period, and the phase is
chosen here by the number of occurrences and by what each cut costs.

This module knows nothing of programs. Whoever calls it says what a substring is worth and
has the last word on every repeat, so that what is refused stays free for others. Time and
memory are n log n for n integers; the number of repeats looked at is bounded, the most
valuable first.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .suffixes import SuffixIndex

_LOOKS = (256, 8)  # repeats looked at: so many, and one more for every so many integers
_INTEGERS = 512  # integers that cost as much to look at as a repeat does by itself
_PERIODS = 256  # distinct periods looked at, each of which costs passes over the sequence
_STRETCHED_USES = 8  # fewest occurrences for which short periods are put together,
_EXACT_USES = 4  # and where the longer ones are then equal in all details
_EXACT_PERIODS = 64  # numbers of periods tried for that


@dataclasses.dataclass(frozen=True)
class Repeat:
    """A substring of ``length`` integers with all of its occurrences taken."""

    length: int
    starts: tuple[int, ...]


def _taken_whole(repeat: Repeat) -> list[Repeat]:
    return [repeat]


@dataclasses.dataclass(frozen=True)
class Preferences:
    """What makes a repeat worth taking.

    Attributes:
      min_length: of the shortest repeat.
      min_gain: in integers; repeats that save no more, whatever a use costs, are not looked at.
      worth: start, length and number of uses of a repeat to the share of what it saves that
        counts, at most 1.
      cut_cost: period to the cost of cutting before each position of the sequence.
      stretch: start and period to the least length of a repeat made of whole periods; used
        where a period is shorter and its cuts cost something, so that it is one long chain.
      details: one integer per token of the sequence, equal where the tokens are equal in details
        too (the values of literals) that would otherwise have to be passed to each occurrence.
      accept: a repeat to those that are taken instead: all of it, parts, or nothing.
    """

    min_length: int = 2
    min_gain: float = 0.0
    worth: Callable[[int, int, int], float] = lambda start, length, n_uses: 1.0
    cut_cost: Callable[[int], np.ndarray | None] = lambda period: None
    stretch: Callable[[int, int], int] = lambda start, period: 1
    details: Callable[[], np.ndarray] | None = None
    accept: Callable[[Repeat], list[Repeat]] = _taken_whole


def take_repeats(tokens: Sequence[int] | np.ndarray, preferences: Preferences) -> list[Repeat]:
    """Repeats without overlap, most valuable first.

    Args:
      tokens: the sequence; only equality counts.
      preferences: what to take.
    """
    if len(tokens) < 2 * preferences.min_length:
        return []
    return _Search(SuffixIndex(tokens), preferences).run()


# --- groups of equal substrings --------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """All suffixes, ``first`` to ``last`` in sorted order, that share ``length`` integers.

    Attributes:
      gap: least distance of two suffixes that are neighbours in the order.
      gap_start: where the first of these two starts.
    """

    length: int
    first: int
    last: int
    gap: int
    gap_start: int

    @property
    def is_tandem(self) -> bool:
        """Whether two of the occurrences overlap, so that they repeat with that period."""
        return self.gap < self.length

    def bound(self, n: int) -> float:
        """Most that can be saved in a sequence of ``n`` integers."""
        return float(min((self.last - self.first) * self.length, n))


def _groups(index: SuffixIndex, min_length: int) -> Iterator[_Group]:
    """Groups whose occurrences are not all preceded by the same integer."""
    before = np.append(index.tokens, -1)[index.order - 1]
    changes = np.concatenate([[0], np.cumsum(before[1:] != before[:-1])])
    for length, first, last, (gap, gap_start) in _intervals(index, min_length):
        if changes[last] > changes[first]:
            yield _Group(length, first, last, gap, gap_start)


def _intervals(
    index: SuffixIndex, min_length: int
) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """Length, first, last, and least gap with its start, of each group of suffixes."""
    starts, following = index.order[:-1], index.order[1:]
    gaps = list(
        zip(
            np.abs(following - starts).tolist(), np.minimum(following, starts).tolist(), strict=True
        )
    )
    common = [*index.common.tolist(), 0]
    stack: list[tuple[int, int, tuple[int, int]]] = []  # length, first, gap
    for i in range(1, index.n + 1):
        length, first, gap = common[i], i - 1, (index.n, 0)
        while stack and stack[-1][0] > length:
            top, first, top_gap = stack.pop()
            gap = min(gap, top_gap)
            yield top, first, i - 1, gap
        if length < min_length:
            continue
        gap = min(gap, gaps[i - 1])
        if stack and stack[-1][0] == length:
            _, first, top_gap = stack.pop()
            gap = min(gap, top_gap)
        stack.append((length, first, gap))


# --- choosing --------------------------------------------------------------------------------


class _Search:
    """Lazy greedy choice: a group is evaluated when its bound comes up."""

    def __init__(self, index: SuffixIndex, preferences: Preferences) -> None:
        self._index = index
        self._preferences = preferences
        self._free = np.ones(index.n, bool)
        self._classes: dict[int, np.ndarray] = {}
        self._owner: dict[tuple[int, int], _Group] = {}  # of each period and rotation
        self._looks_left = _LOOKS[0] + index.n // _LOOKS[1]
        self._epoch = 0

    def run(self) -> list[Repeat]:
        groups = _groups(self._index, self._preferences.min_length)
        heap: list[tuple] = [
            (-bound, i, -1, group, None)
            for i, group in enumerate(groups)
            if (bound := group.bound(self._index.n)) > self._preferences.min_gain
        ]
        heapq.heapify(heap)
        taken: list[Repeat] = []
        while heap and self._looks_left > 0:
            _, number, epoch, group, repeat = heapq.heappop(heap)
            if epoch == self._epoch:
                taken += self._take(group, repeat)
                continue
            gain, repeat = self._evaluated(group)
            if repeat is not None and gain > 0:
                heapq.heappush(heap, (-gain, number, self._epoch, group, repeat))
        return taken

    def _take(self, group: _Group, repeat: Repeat) -> list[Repeat]:
        accepted = self._preferences.accept(repeat)
        for part in accepted:
            for start in part.starts:
                self._free[start : start + part.length] = False
        self._epoch += bool(accepted)
        return accepted

    def _evaluated(self, group: _Group) -> tuple[float, Repeat | None]:
        if group.is_tandem:
            return self._tandem(group)
        starts = np.sort(self._index.order[group.first : group.last + 1])
        self._look(len(starts))
        starts = self._apart(self._only_free(starts, group.length), group.length)
        return self._gain(starts, group.length, 0.0), Repeat(group.length, tuple(starts.tolist()))

    def _tandem(self, group: _Group) -> tuple[float, Repeat | None]:
        period, start = group.gap, group.gap_start
        classes = self._classes_of(period)
        if classes is None or not self._owns(group, classes[start : start + period]):
            return 0.0, None
        self._look(self._index.n)
        phase_of = np.full(int(classes.max()) + 1, -1)
        phase_of[classes[start : start + period][::-1]] = np.arange(period)[::-1]
        starts = self._only_free(np.flatnonzero(phase_of[classes] >= 0), period)
        return self._best_phase(starts, phase_of[classes[starts]], period)

    def _look(self, n_integers: int) -> None:
        self._looks_left -= 1 + n_integers // _INTEGERS

    def _owns(self, group: _Group, rotations: np.ndarray) -> bool:
        """Whether the group is the first with this period and one of these rotations."""
        owner = self._owner.get((group.gap, int(rotations[0])))
        if owner is None:
            self._owner.update(((group.gap, r), group) for r in rotations.tolist())
        return owner is None or owner is group

    def _best_phase(
        self, starts: np.ndarray, phases: np.ndarray, period: int
    ) -> tuple[float, Repeat | None]:
        if len(starts) < 2:
            return 0.0, None
        costs = self._preferences.cut_cost(period)
        weights = np.zeros(len(starts)) if costs is None else costs[starts]
        uses = np.bincount(phases)
        cost = np.bincount(phases, weights)
        gains = (uses - 1) * float(period) - uses - cost
        first = np.full(len(uses), self._index.n)
        np.minimum.at(first, phases, starts)
        best = np.lexsort((first, -gains))[0]
        at_best = self._apart(starts[phases == best], period)
        chain = bool(cost[best] > 0)
        length, at_best = self._stretched(at_best, period, chain)
        if length < self._preferences.min_length:
            return 0.0, None
        cost_of_cuts = float(cost[best]) / uses[best] * len(at_best)
        return (
            self._gain(at_best, length, float(cost_of_cuts)),
            Repeat(length, tuple(at_best.tolist())),
        )

    def _stretched(self, starts: np.ndarray, period: int, chain: bool) -> tuple[int, np.ndarray]:
        """Whole periods put together where one alone is too short."""
        if not chain or not len(starts):
            return period, starts
        least = self._preferences.stretch(int(starts[0]), period)
        if period >= least:
            return period, starts
        unit = self._exact_periods(starts, period)
        wanted = max(least, math.isqrt(period * len(starts)))
        n_periods = (unit or 1) * -(-wanted // (period * (unit or 1)))
        runs = np.split(starts, np.flatnonzero(np.diff(starts) != period) + 1)
        kept = [run[: len(run) // n_periods * n_periods : n_periods] for run in runs]
        stretched = np.concatenate(kept)
        if len(stretched) < (_EXACT_USES if unit > 1 else _STRETCHED_USES):
            return period, starts
        return n_periods * period, stretched

    def _exact_periods(self, starts: np.ndarray, period: int) -> int:
        """After how many periods the details repeat, often enough; 0 where they do not."""
        if self._preferences.details is None:
            return 1
        periods = self._preferences.details()[starts[:, None] + np.arange(period)]
        _, kind = np.unique(periods, axis=0, return_inverse=True)
        kind = kind.ravel()
        repeated = np.flatnonzero(kind == kind[0])[1 : 1 + _EXACT_PERIODS]
        repeated = repeated[repeated * _EXACT_USES <= len(starts)]
        return next((n for n in repeated.tolist() if np.array_equal(kind[n:], kind[:-n])), 0)

    def _gain(self, starts: np.ndarray, length: int, cost: float) -> float:
        if len(starts) < 2:
            return 0.0
        saved = (len(starts) - 1) * float(length) - len(starts) - cost
        return saved * self._preferences.worth(int(starts[0]), length, len(starts))

    def _classes_of(self, length: int) -> np.ndarray | None:
        if length not in self._classes:
            if len(self._classes) >= _PERIODS:
                return None
            self._look(self._index.n)
            self._classes[length] = self._index.classes(length)
        return self._classes[length]

    def _only_free(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Starts of substrings of which nothing is taken yet."""
        if not self._epoch or not len(starts):
            return starts
        step = self._preferences.min_length  # nothing shorter is ever taken
        offsets = np.append(np.arange(0, length, step), length - 1)
        if len(starts) * len(offsets) < self._index.n:
            return starts[self._free[starts[:, None] + offsets].all(1)]
        blocked = np.concatenate([[0], np.cumsum(~self._free)])
        return starts[blocked[starts + length] == blocked[starts]]

    @staticmethod
    def _apart(starts: np.ndarray, length: int) -> np.ndarray:
        """The starts, in order, without those that overlap an earlier one."""
        if len(starts) < 2 or np.diff(starts).min() >= length:
            return starts
        kept = [int(starts[0])]
        for start in starts[1:].tolist():
            if start >= kept[-1] + length:
                kept.append(start)
        return np.asarray(kept)

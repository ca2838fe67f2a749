"""Contenders compared round by round: records -> ratios.

Times of one machine drift, so a contender is compared with another within a round, where they were
measured directly after one another. Every measure here is a time, so less is better.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.record import EntryKey, Record

Measure = Callable[[Record], float]
Group = Mapping[EntryKey, Mapping[str, Sequence[Record]]]
"""Entry to contender to its records."""


@dataclass(frozen=True)
class Clock:
    """How time is told: seconds that passed, or seconds of the processors.

    The former is what users wait for; the latter is what can be trusted on a machine that others
    use as well.
    """

    name: str
    cold: Measure
    run: Measure


WALL = Clock("wall", lambda record: record.cold_s, lambda record: record.median_run_s)
CPU = Clock("CPU", lambda record: record.cold_cpu_s, lambda record: record.median_run_cpu_s)


def grouped(records: Iterable[Record]) -> Group:
    """Sorts records by entry and contender, both in the order in which they first appear."""
    groups: dict[EntryKey, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[record.entry][record.contender].append(record)
    return {entry: dict(contenders) for entry, contenders in groups.items()}


def ratios(ours: Sequence[Record], baseline: Sequence[Record], measure: Measure) -> list[float]:
    """Ours / baseline, one for each round that has both."""
    by_round = {record.round: measure(record) for record in baseline}
    return [measure(r) / by_round[r.round] for r in ours if r.round in by_round]


def ratio(ours: Sequence[Record], baseline: Sequence[Record], measure: Measure) -> float:
    """The median of `ratios`; NaN where no round has both."""
    return statistics.median(ratios(ours, baseline, measure) or [math.nan])


def typical(records: Iterable[Record], measure: Measure) -> float:
    """The median over the rounds."""
    return statistics.median(measure(record) for record in records)

"""What changed from one reuse report to another: two ReuseReports -> Difference -> str.

Programs are matched by name and, where a name occurs more than once, by order. Counts are the
same in every process; seconds are not, and are only shown beside them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..reuse.reuse_report import ProgramReport, ReuseReport
from ..words import printable

COUNTS: Mapping[str, Callable[[ProgramReport], float]] = {
    "equations": lambda program: program.n_equations,
    "compiled": lambda program: program.n_compiled,
    "bodies": lambda program: len(program.bodies),
    "seconds": lambda program: program.seconds.cold_s,
}
"""Counts of a program that may have a budget."""
TRACES = "traces"
"""The count of a shared subroutine that may have one."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One count before and after.

    Attributes:
      of: name of the program or subroutine.
      count: which count.
      before: None where there was no such program.
      after: None where there is none now.
    """

    of: str
    count: str
    before: float | None
    after: float | None

    @property
    def growth(self) -> float:
        """Percent by which it grew, below 0 where it shrank; of something new, infinite."""
        if self.after is None or self.before == self.after:
            return 0.0
        if not self.before:
            return float("inf")
        return 100 * (self.after - self.before) / self.before


@dataclasses.dataclass(frozen=True)
class Difference:
    """All counts of two reports, in the order of the later one.

    Attributes:
      changes: every count, changed or not.
      predicted: what makes counts of the two no like and like, in words.
    """

    changes: tuple[Change, ...]
    predicted: tuple[str, ...] = ()

    def exceeding(self, budgets: Mapping[str, float]) -> tuple[Change, ...]:
        """Counts that grew by more than their budget allows, in percent.

        A program or subroutine that is new has no earlier count to exceed.
        """
        return tuple(
            change
            for change in self.changes
            if change.before is not None
            and change.count in budgets
            and change.growth > budgets[change.count]
        )


def difference(before: ReuseReport, after: ReuseReport) -> Difference:
    """Compares two reports."""
    changes = [
        Change(name, count, *(None if one is None else value(one) for one in (old, new)))
        for name, old, new in _matched(before.programs, after.programs)
        for count, value in COUNTS.items()
    ]
    changes += [
        Change(name, TRACES, *(None if one is None else one.n_traces for one in (old, new)))
        for name, old, new in _matched(before.subroutines, after.subroutines)
    ]
    return Difference(tuple(changes), tuple(_predicted(before, after)))


def _predicted(before: ReuseReport, after: ReuseReport) -> Iterator[str]:
    """What to know of programs that one report only looked at and the other structured."""
    pairs = [
        (name, old, new)
        for name, old, new in _matched(before.programs, after.programs)
        if old and new and old.is_applied != new.is_applied
    ]
    for which, other, place in (("earlier", "later", 1), ("later", "earlier", 2)):
        looked_at = [pair[place] for pair in pairs if not pair[place].is_applied]
        if looked_at:
            names = ", ".join(dict.fromkeys(program.name for program in looked_at))
            yield (
                f"{names}: only looked at in the {which} report, and structured in the {other}. "
                f"What the {which} counts as compiled is a prediction, of "
                f"{sum(p.n_compiled for p in looked_at):,} equations; jax.jit compiles all "
                f"{sum(p.n_equations for p in looked_at):,}"
            )


def render(found: Difference, budgets: Mapping[str, float]) -> str:
    """The counts that changed, those beyond their budget marked.

    Args:
      found: a difference.
      budgets: percent by which each count may grow.
    """
    exceeding = found.exceeding(budgets)
    changed = [
        change
        for change in found.changes
        if change.before != change.after
        and (
            change.count != "seconds"
            or change in exceeding
            or None in (change.before, change.after)
            or abs(change.growth) >= _NOISE
        )
    ]
    notes = [printable(note) for note in found.predicted]
    if not changed:
        one = ", but one of the two is a prediction" if notes else ""
        return "\n".join([f"no count changed{one}", *notes])
    rows = [
        (
            printable(change.of),
            change.count,
            _text(change.before),
            _text(change.after),
            _growth(change, change in exceeding, budgets),
        )
        for change in changed
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = (
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}} -> {d:<{widths[3]}}  {e}"
        for a, b, c, d, e in rows
    )
    return "\n".join([*(line.rstrip() for line in lines), *notes])


_NOISE = 50
"""Percent by which seconds differ for no reason."""


def _growth(change: Change, is_over: bool, budgets: Mapping[str, float]) -> str:
    if change.before is None:
        return "new"
    if change.after is None:
        return "gone"
    text = "from nothing" if not change.before else f"{change.growth:+.1f} %"
    return text + (f"  over its budget of {budgets[change.count]:+g} %" if is_over else "")


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def _matched(before: tuple, after: tuple) -> Iterator[tuple[str, Any, Any]]:
    """Name, earlier and later one; None where there is no such."""
    waiting: dict[str, collections.deque] = collections.defaultdict(collections.deque)
    for one in before:
        waiting[one.name].append(one)
    for one in after:
        yield one.name, waiting[one.name].popleft() if waiting[one.name] else None, one
    for name, rest in waiting.items():
        for one in rest:
            yield name, one, None

"""What the policy's choice loses to the best contender in hindsight: records -> a table.

Regret is our time / the best contender's time, less one. The best is picked after the fact from all
contenders of a program, so with noise alone it is not zero; beyond 10 % the policy is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.ratios import Clock, Measure, grouped, ratio, typical
from benchmarks.record import Record
from benchmarks.suites import label

CHOSEN = ("outermost_plain", "outermost_annotated")
LIMIT = 0.10


@dataclass(frozen=True)
class Regret:
    """One program under one of the contenders in which the policy decides.

    Attributes:
        entry: The program's label.
        contender: The contender.
        best_cold: The contender with the shortest cold start.
        cold: Regret of the cold start.
        best_run: The contender with the shortest run.
        run: Regret of the run time.
    """

    entry: str
    contender: str
    best_cold: str
    cold: float
    best_run: str
    run: float

    @property
    def is_wrong(self) -> bool:
        """Whether either is beyond the limit."""
        return max(self.cold, self.run) > LIMIT


def regrets(records: Sequence[Record], clock: Clock) -> list[Regret]:
    """The regret of every program, the largest first."""
    found = []
    for (program, settings), contenders in grouped(records).items():
        for name in CHOSEN:
            if name in contenders:
                best_cold, cold = _regret(contenders, name, clock.cold)
                best_run, run = _regret(contenders, name, clock.run)
                entry = label(program, dict(settings))
                found.append(Regret(entry, name, best_cold, cold, best_run, run))
    return sorted(found, key=lambda one: -max(one.cold, one.run))


def _regret(
    contenders: Mapping[str, Sequence[Record]], name: str, measure: Measure
) -> tuple[str, float]:
    best = min(contenders, key=lambda other: typical(contenders[other], measure))
    loss = ratio(contenders[name], contenders[best], measure) - 1
    return best, 0.0 if math.isnan(loss) else max(0.0, loss)


def table(records: Sequence[Record], clock: Clock) -> str:
    """Returns a Markdown table, with `!` behind what is beyond the limit."""
    rows = [
        f"Regret by {clock.name} seconds: time lost to the best contender in hindsight",
        "",
        "| program | contender | cold | best | run | best |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {one.entry} | {one.contender} | {_percent(one.cold)} | {one.best_cold} "
        f"| {_percent(one.run)} | {one.best_run} |"
        for one in regrets(records, clock)
    ]
    return "\n".join(rows)


def _percent(regret: float) -> str:
    return f"{regret:.0%}{' !' if regret > LIMIT else ''}"

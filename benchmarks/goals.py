"""Whether jitscope reaches its goals: measurements -> one line a goal.

A goal is about `outermost_jit` against the same code under `jax.jit`, and not about tiny sizes,
which are there to be run at all. *Deep* programs are those in which at least twelve equal layers,
steps or calls follow one another.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders import BASELINE
from benchmarks.programs import PROGRAMS
from benchmarks.ratios import Clock, Measure, grouped, ratio, typical
from benchmarks.record import EntryKey, Record, entry_key
from benchmarks.suites import label
from benchmarks.turns import Turns, by_label

DEEP = 12
_DEPTHS = (12, 96)
_PLAIN = "outermost_plain"
_CHOICES = (("nothing marked", _PLAIN), ("marked", "outermost_annotated"))


@dataclass(frozen=True)
class Goal:
    """A figure, and what it should be.

    Attributes:
        name: What is looked at.
        value: The figure.
        limit: What it has to be at least or at most.
        at_least: Which of the two.
        where: What the figure is made of or comes from.
    """

    name: str
    value: float
    limit: float
    at_least: bool
    where: str

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        verdict = "met" if self.is_met else "MISSED"
        return (
            f"{self.name}: {self.value:.3g}x, goal {bound} {self.limit}x: {verdict} ({self.where})"
        )


def goals(records: Sequence[Record], clock: Clock) -> list[Goal]:
    """All goals about cold starts that the records say something about."""
    found = []
    for name, contender in _CHOICES:
        deep = _ratios(records, contender, BASELINE, clock.cold, depth=DEEP)
        if deep:
            speed_ups = {entry: 1 / value for entry, value in deep.items()}
            mean = statistics.geometric_mean(speed_ups.values())
            best = statistics.geometric_mean(_fastest(records, clock)[entry] for entry in deep)
            each = ", ".join(f"{entry} {value:.3g}x" for entry, value in speed_ups.items())
            each = f"with the fastest contender of each, by hand or not, {best:.3g}x; {each}"
            found.append(Goal(f"cold speed-up of deep programs, {name}", mean, 6, True, each))
    compile_s = {layers: _compile_s(records, layers) for layers in _DEPTHS}
    if all(compile_s.values()):
        shallow, deepest = compile_s.values()
        where = f"XLA's part, {shallow:.3g} s and {deepest:.3g} s"
        name = "cold start of {1} layers against {0}, nothing marked".format(*_DEPTHS)
        found.append(Goal(name, deepest / shallow, 1.5, False, where))
    colds = _ratios(records, _PLAIN, BASELINE, clock.cold)
    if colds:
        found.append(_worst("longest cold start, nothing marked", colds, 1.05))
    for name, contender in _CHOICES:
        best = _best(records, contender, clock)
        if best:
            where = f"cold start against the better of flat and nested by hand, {name}"
            found.append(_worst(where, best, 1.1))
    return found


def run_goals(measured: Sequence[Turns], clock: Clock) -> list[Goal]:
    """All goals about run times that the measurements say something about."""
    found, entries = [], by_label(measured)
    for name, contender in _CHOICES:
        runs = {
            entry: statistics.median(turns.ratio(contender, clock) for turns in processes)
            for entry, processes in entries.items()
            if all(contender in turns.run_s for turns in processes)
            and processes[0].settings != PROGRAMS[processes[0].program].tiny
        }
        if runs:
            programs = f"geometric mean of {len(runs)} programs"
            found.append(_worst(f"longest run, {name}", runs, 1.02))
            mean = statistics.geometric_mean(runs.values())
            found.append(Goal(f"run time, {name}", mean, 1, False, programs))
    return found


def _worst(name: str, values: Mapping[str, float], limit: float) -> Goal:
    """A limit for every program; says which one is nearest to it, or which are beyond."""
    worst = sorted(values, key=lambda entry: -values[entry])
    beyond = [entry for entry in worst if values[entry] > limit]
    where = ", ".join(f"{entry} {values[entry]:.3g}x" for entry in beyond or worst[:1])
    return Goal(name, values[worst[0]], limit, False, where)


def _best(records: Sequence[Record], contender: str, clock: Clock) -> dict[str, float]:
    """Cold start against the better of `jit` and `nested_jit`, where there is the latter.

    A nested jit is a mark, and its second call is not traced: code without marks has to be.
    """
    flat = _ratios(records, contender, BASELINE, clock.cold)
    nested = _ratios(records, contender, "nested_jit", clock.cold)
    return {entry: max(value, nested.get(entry, 0.0)) for entry, value in flat.items()}


def _fastest(records: Sequence[Record], clock: Clock) -> dict[str, float]:
    """Label of an entry to the cold speed-up of whichever contender starts first."""
    fastest: dict[str, float] = {}
    for contender in {record.contender for record in records}:
        for entry, value in _ratios(records, contender, BASELINE, clock.cold).items():
            fastest[entry] = max(fastest.get(entry, 0.0), 1 / value)
    return fastest


def _ratios(
    records: Sequence[Record], ours: str, baseline: str, measure: Measure, depth: int = 0
) -> dict[str, float]:
    """Label of an entry to ours / baseline, for entries of at least a depth that have both."""
    found = {
        label(program, dict(settings)): ratio(
            contenders.get(ours, ()), contenders.get(baseline, ()), measure
        )
        for (program, settings), contenders in grouped(records).items()
        if _depth((program, settings)) >= depth and dict(settings) != PROGRAMS[program].tiny
    }
    return {entry: value for entry, value in found.items() if not math.isnan(value)}


def _compile_s(records: Sequence[Record], layers: int) -> float:
    """Seconds XLA takes for the transformer of so many layers; 0 where it was not measured."""
    settings = dict(PROGRAMS["transformer"].full) | {"layers": layers}
    ours = grouped(records).get(entry_key("transformer", settings), {}).get(_PLAIN)
    return typical(ours, lambda record: record.compile_s) if ours else 0.0


def _depth(entry: EntryKey) -> int:
    program, settings = entry
    return PROGRAMS[program].depth(dict(settings))


def summary(records: Sequence[Record], clock: Clock) -> str:
    """Returns one line for each goal."""
    lines = [str(goal) for goal in goals(records, clock)]
    if not lines:
        return "Goals: none is about what was measured here."
    return "\n".join([f"Goals, by {clock.name} seconds; ratios to {BASELINE}:", *lines])

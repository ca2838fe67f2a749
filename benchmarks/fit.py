"""Fits the policy's cost model to measurements: what compiling costs, and what a kept call costs.

    python -m benchmarks.fit results.jsonl [--cpu]

Compiling n equations costs a * n**p processor seconds, over all programs under `jax.jit`. A program
with kept calls compiles fewer equations; what it takes beyond the cost of those, divided by its
kept calls, is what a call costs the compiler, and its run time beyond that of `jax.jit` what a call
costs at run time (less than nothing where keeping calls saves work). Prints one table a platform.
Nothing is changed by it: the policy's constants are set by hand, after a look at this.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.contenders import BASELINE
from benchmarks.ratios import CPU, WALL, Clock, grouped, typical
from benchmarks.record import IncomparableError, Record, read, require_comparable
from benchmarks.regret import CHOSEN
from benchmarks.suites import label


@dataclass(frozen=True)
class PowerLaw:
    """Seconds = a * equations**p.

    Attributes:
        a: Processor seconds of one equation.
        p: How cost grows; 1 is in proportion.
        error: The typical factor by which a program's cost differs from the law.
        n_programs: How many programs it is fitted to.
    """

    a: float
    p: float
    error: float
    n_programs: int

    def __call__(self, n_equations: float) -> float:
        return self.a * n_equations**self.p


@dataclass(frozen=True)
class Boundary:
    """What the kept calls of one program cost.

    Attributes:
        entry: The program's label.
        contender: Who chose to keep them.
        n_calls: How many there are.
        compile_s: Processor seconds a call costs the compiler.
        run_s: Seconds that a call adds to a run, by the clock that was asked for.
    """

    entry: str
    contender: str
    n_calls: int
    compile_s: float
    run_s: float


def power_law(equations: Sequence[float], seconds: Sequence[float]) -> PowerLaw:
    """Fits the law in logarithms, so that each program counts alike whatever its size.

    Raises:
        ValueError: Fewer than three programs, or all of one size, which nothing can be fitted to.
    """
    if len(set(equations)) < 3:
        raise ValueError(
            f"a power law needs programs of three sizes or more, found {len(set(equations))}; "
            "measure more programs with both jit and outermost_plain, by `python -m benchmarks`"
        )
    x, y = np.log(equations), np.log(seconds)
    p, log_a = np.polyfit(x, y, 1)
    error = np.exp(np.median(np.abs(y - (p * x + log_a))))
    return PowerLaw(float(np.exp(log_a)), float(p), float(error), len(equations))


def fit(records: Sequence[Record], clock: Clock = WALL) -> tuple[PowerLaw, list[Boundary]]:
    """Fits the law to the records of one platform, and derives each program's boundary cost."""
    groups = {
        label(program, dict(settings)): contenders
        for (program, settings), contenders in grouped(
            r for r in records if r.compile_cpu_s
        ).items()
        if BASELINE in contenders
    }
    sizes = {
        entry: one.structure["equations"]
        for entry, contenders in groups.items()
        for name in CHOSEN
        for one in contenders.get(name, ())[:1]
        if one.structure.get("equations")
    }
    seconds = [typical(groups[entry][BASELINE], lambda r: r.compile_cpu_s) for entry in sizes]
    law = power_law(list(sizes.values()), seconds)
    boundaries = [
        _boundary(entry, name, groups[entry], law, clock)
        for entry in sizes
        for name in CHOSEN
        if name in groups[entry] and groups[entry][name][0].structure.get("kept_calls")
    ]
    return law, boundaries


def _boundary(
    entry: str,
    name: str,
    contenders: Mapping[str, Sequence[Record]],
    law: PowerLaw,
    clock: Clock,
) -> Boundary:
    ours, flat = contenders[name], contenders[BASELINE]
    structure = ours[0].structure
    n_calls = structure["kept_calls"]
    # The law misses by a factor that is the program's own, and the same for its parts.
    own_factor = typical(flat, lambda r: r.compile_cpu_s) / law(structure["equations"])
    expected_s = own_factor * law(structure["compiled_equations"])
    extra_run_s = typical(ours, clock.run) - typical(flat, clock.run)
    compile_s = (typical(ours, lambda r: r.compile_cpu_s) - expected_s) / n_calls
    return Boundary(entry, name, n_calls, compile_s, extra_run_s / n_calls)


def table(records: Sequence[Record], clock: Clock = WALL) -> str:
    """Returns the fit as text, under a line that says when, where and with what it was measured.

    Raises:
        IncomparableError: The records are of several machines.
        ValueError: There is too little to fit a law to.
    """
    require_comparable(records)
    law, boundaries = fit(records, clock)
    newest = max(records, key=lambda record: record.date)
    machine = ", ".join(f"{name} {value}" for name, value in newest.machine.items())
    versions = ", ".join(f"{name} {newest.versions[name]}" for name in ("jax", "jaxlib", "python"))
    lines = [
        f"platform {newest.machine['platform']}, measured until {newest.date}, {versions}, "
        f"commit {newest.commit}",
        machine,
        "",
        f"compile = {law.a:.3g} s * equations^{law.p:.2f}, typically within {law.error:.2f}x "
        f"({law.n_programs} programs)",
    ]
    if boundaries:
        compile_ms = 1e3 * statistics.median(one.compile_s for one in boundaries)
        run_us = 1e6 * statistics.median(one.run_s for one in boundaries)
        lines += [
            f"kept call, medians: {compile_ms:.3g} ms to compile, {run_us:.3g} us a run "
            f"({clock.name} time)",
            "",
            "| program | contender | kept calls | compile ms a call | run us a call |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {one.entry} | {one.contender} | {one.n_calls} | {one.compile_s * 1e3:.3g} "
            f"| {one.run_s * 1e6:.3g} |"
            for one in sorted(boundaries, key=lambda one: -one.run_s)
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--cpu", action="store_true", help="run times in processor time, as compiling always is"
    )
    options = parser.parse_args(arguments)
    by_platform: dict[str, list[Record]] = defaultdict(list)
    for record in read(options.files):
        by_platform[record.machine["platform"]].append(record)
    try:
        clock = CPU if options.cpu else WALL
        print("\n\n".join(table(group, clock) for group in by_platform.values()))
    except (IncomparableError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

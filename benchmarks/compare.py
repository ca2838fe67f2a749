"""Turns files of JSON lines into a table of ratios between contenders.

    python -m benchmarks.compare results.jsonl [--regret] [--plots DIR] [--cpu]

Contenders are compared round by round (`ratios`): a speed-up is the median over the rounds of
baseline / contender within a round, and its spread their smallest and largest. Below the table are
the goals that jitscope set itself, and on request what the policy's choices lose in hindsight.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import goals, plots, regret
from benchmarks.contenders import BASELINE, CONTENDERS
from benchmarks.programs import PROGRAMS, agrees
from benchmarks.ratios import CPU, WALL, Clock, Measure, grouped, ratios
from benchmarks.record import IncomparableError, Record, read, require_comparable
from benchmarks.suites import label


def mismatches(records: Iterable[Record]) -> list[str]:
    """Describes every contender whose result is not that of the baseline, or of the first one."""
    wrong = []
    for (program, settings), contenders in grouped(records).items():
        reference = BASELINE if BASELINE in contenders else next(iter(contenders))
        expected, tolerance = contenders[reference][0].digest, PROGRAMS[program].tolerance
        wrong += [
            f"{label(program, dict(settings))}: {name} disagrees with {reference}"
            for name, ours in contenders.items()
            if not all(agrees(one.digest, expected, tolerance) for one in ours)
        ]
    return wrong


def _spread(values: Sequence[float], unit: str) -> str:
    middle = f"{statistics.median(values):.3g}{unit}"
    return f"{middle} ({min(values):.3g}-{max(values):.3g})" if len(values) > 1 else middle


def _speed_up(baseline: Sequence[Record], ours: Sequence[Record], measure: Measure) -> str:
    if ours is baseline:
        return "1"
    found = ratios(baseline, ours, measure)
    return _spread(found, "x") if found else "-"


_COLUMNS = (
    *("program", "contender", "cold s", "cold speed-up", "cold CPU speed-up"),
    *("run ms", "run speed-up", "run CPU speed-up", "HLO instr.", "temp MB", "RSS MB"),
)


def _row(program: str, name: str, ours: Sequence[Record], baseline: Sequence[Record]) -> list[str]:
    last = ours[-1]
    compile_rss_bytes = last.rss_compiled_bytes - last.rss_before_bytes
    return [
        program,
        name,
        _spread([record.cold_s for record in ours], ""),
        _speed_up(baseline, ours, WALL.cold),
        _speed_up(baseline, ours, CPU.cold),
        _spread([record.median_run_s * 1e3 for record in ours], ""),
        _speed_up(baseline, ours, WALL.run),
        _speed_up(baseline, ours, CPU.run),
        str(last.n_instructions),
        f"{last.temp_bytes / 1e6:.3g}",
        f"+{compile_rss_bytes / 1e6:.0f}",
    ]


def table(records: Sequence[Record], baseline: str = BASELINE) -> str:
    """Returns a Markdown table: medians, with the smallest and largest value in brackets.

    Args:
        records: Measurements of one machine and one set of versions.
        baseline: The contender that the speed-ups are against.
    """
    order = list(CONTENDERS)
    rows = [list(_COLUMNS)]
    for (program, settings), contenders in grouped(records).items():
        for name in sorted(contenders, key=order.index):
            rows.append(
                _row(
                    label(program, dict(settings)),
                    name,
                    contenders[name],
                    contenders.get(baseline, []),
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"
        for row in rows
    )


def report(
    records: Sequence[Record],
    baseline: str = BASELINE,
    clock: Clock = WALL,
    with_regret: bool = False,
) -> str:
    """Returns a table for each set of versions, under a line that says where it was measured.

    Args:
        records: Measurements of one machine.
        baseline: The contender that the speed-ups of the table are against.
        clock: What goals and regret are judged by.
        with_regret: Whether to add what the policy's choices lose in hindsight.
    """
    require_comparable(records)
    by_versions: dict[tuple[tuple[str, str], ...], list[Record]] = defaultdict(list)
    for record in records:
        by_versions[tuple(record.versions.items())].append(record)
    parts = []
    for versions, group in by_versions.items():
        where = ", ".join(f"{name} {version}" for name, version in versions)
        commits = ", ".join(sorted({record.commit for record in group}))
        machine = ", ".join(f"{name} {value}" for name, value in group[0].machine.items())
        parts += [
            f"{where}; commit {commits}\n{machine}",
            table(group, baseline),
            goals.summary(group, clock),
            *([regret.table(group, clock)] if with_regret else []),
        ]
    return "\n\n".join([*parts, *(f"WRONG RESULT: {line}" for line in mismatches(records))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--baseline", choices=CONTENDERS, default=BASELINE)
    parser.add_argument("--regret", action="store_true", help="what the policy loses in hindsight")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw plots into a directory")
    parser.add_argument(
        "--cpu", action="store_true", help="judge by processor time, on a machine others use too"
    )
    options = parser.parse_args(arguments)
    missing = [str(path) for path in options.files if not path.is_file()]
    if missing:
        parser.error(
            f"no file {', '.join(missing)}. `python -m benchmarks --suite cpu --out FILE` writes "
            "one."
        )
    records, clock = read(options.files), CPU if options.cpu else WALL
    try:
        print(report(records, options.baseline, clock, options.regret))
        if options.plots:
            for path in plots.draw(records, options.plots, clock):
                print(f"drawn: {path}")
    except (IncomparableError, plots.PlotsUnavailableError) as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if mismatches(records) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs a suite: one process per measurement, contenders interleaved, one JSON line each.

    python -m benchmarks --suite cpu --out results.jsonl
    python -m benchmarks.compare results.jsonl

A measurement whose line is in the file already is not made again, so an interrupted run goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import environment
from benchmarks.compare import IncomparableError, mismatches, require_comparable
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.programs import PROGRAMS
from benchmarks.record import EntryKey, Record, read
from benchmarks.suites import SUITES, Entry

TaskKey = tuple[EntryKey, str, int]


@dataclass(frozen=True)
class Task:
    """One measurement to be made."""

    entry: Entry
    contender: Contender
    round: int

    @property
    def key(self) -> TaskKey:
        """What identifies the task in a file of results."""
        return self.entry.key, self.contender.name, self.round

    @property
    def command(self) -> list[str]:
        """The command that measures it."""
        settings = [f"{name}={value}" for name, value in self.entry.settings.items()]
        names = [self.entry.program.name, self.contender.name]
        return [
            *(sys.executable, "-m", "benchmarks.measure", *names),
            *("--round", str(self.round), "--set", *settings),
        ]


def tasks(entries: Sequence[Entry], contenders: Sequence[Contender], rounds: int) -> Iterator[Task]:
    """All measurements, in the order in which they are made.

    A round measures every contender of an entry directly after one another, so that a slow minute
    of the machine hits them alike; each round starts with another contender.
    """
    for round_number, entry in itertools.product(range(rounds), entries):
        turn = round_number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            if contender.covers(entry.program):
                yield Task(entry, contender, round_number)


def finished(records: Iterable[Record]) -> set[TaskKey]:
    """The tasks that some records are the results of, for the installed versions."""
    versions = environment.versions()
    return {
        (record.entry, record.contender, record.round)
        for record in records
        if record.versions == versions
    }


class _TimeLeft:
    """Estimates the time left from how long earlier measurements took."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[EntryKey, str], float] = {}

    def add(self, task: Task, seconds: float) -> None:
        self._seconds[task.entry.key, task.contender.name] = seconds

    def estimate(self, remaining: Iterable[Task]) -> str:
        if not self._seconds:
            return "time left unknown"
        mean_s = sum(self._seconds.values()) / len(self._seconds)
        left_s = sum(
            self._seconds.get((task.entry.key, task.contender.name), mean_s) for task in remaining
        )
        return f"about {left_s / 60:.1f} min left"


def run(todo: Sequence[Task], out: Path, timeout_s: float) -> int:
    """Makes the measurements and appends their lines to `out`; returns how many failed."""
    time_left, n_failed = _TimeLeft(), 0
    for number, task in enumerate(todo):
        name = f"{task.entry.label}, {task.contender.name}, round {task.round}"
        estimate = time_left.estimate(todo[number:])
        print(f"[{number + 1}/{len(todo)}, {estimate}] {name}: ", end="", flush=True)
        start = time.perf_counter()
        try:
            process = subprocess.run(
                task.command,
                cwd=environment.ROOT,
                capture_output=True,
                text=True,
                check=True,
                timeout=timeout_s,
            )
        except subprocess.SubprocessError as error:
            n_failed += 1
            print(f"FAILED\n{getattr(error, 'stderr', None) or error}", flush=True)
            continue
        time_left.add(task, time.perf_counter() - start)
        line = process.stdout.splitlines()[-1]
        with out.open("a") as file:
            file.write(line + "\n")
        record = Record.from_json(line)
        print(f"cold {record.cold_s:.2f} s, run {record.median_run_s * 1e3:.3g} ms", flush=True)
    return n_failed


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures programs under several ways to compile them.",
    )
    parser.add_argument("--suite", choices=SUITES, default="tiny")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for a measurement")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parse(arguments)
    entries = [e for e in SUITES[options.suite] if e.program.name in options.programs]
    contenders = [CONTENDERS[name] for name in options.contenders]
    earlier = read([options.out]) if options.out.exists() else []
    try:
        require_comparable(earlier, environment.machine())
    except IncomparableError as error:
        print(f"{options.out}: {error}", file=sys.stderr)
        return 2
    done = finished(earlier)
    todo = [t for t in tasks(entries, contenders, options.repeats) if t.key not in done]
    n_failed = run(todo, options.out, options.timeout)
    wrong = mismatches(read([options.out]) if options.out.exists() else [])
    for line in wrong:
        print(f"WRONG RESULT: {line}", file=sys.stderr)
    return 1 if n_failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs a suite: one process per measurement, contenders interleaved, one JSON line each.

    python -m benchmarks --suite cpu --out results.jsonl
    python -m benchmarks.compare results.jsonl

`--suite gpu` needs a GPU; `--suite gpu-target:h200` compiles its programs for a GPU that is not
there.
A measurement whose line is in the file already is not made again, so an interrupted run goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import environment, gpu_target
from benchmarks.compare import mismatches
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.programs import PROGRAMS
from benchmarks.record import (
    EntryKey,
    IncomparableError,
    Record,
    entry_key,
    read,
    require_comparable,
)
from benchmarks.suites import SUITES, Entry

TaskKey = tuple[EntryKey, str, int]
_TARGET = "gpu-target:"
_CANNOT_WORK_HERE = 2  # exit status of `gpu_target` where the compiler for the GPU is missing


@dataclass(frozen=True)
class Task:
    """One measurement to be made; with a `target`, a compilation for a GPU that is not there."""

    entry: Entry
    contender: Contender
    round: int
    target: str = ""

    @property
    def key(self) -> TaskKey:
        """What identifies the task in a file of results."""
        return self.entry.key, self.contender.name, self.round

    @property
    def command(self) -> list[str]:
        """The command that measures it."""
        settings = [f"{name}={value}" for name, value in self.entry.settings.items()]
        names = [self.entry.program.name, self.contender.name]
        if self.target:
            options = ["benchmarks.gpu_target", *names, "--target", self.target]
        else:
            options = ["benchmarks.measure", *names, "--round", str(self.round)]
        return [sys.executable, "-m", *options, "--set", *settings]

    def finish(self, line: str) -> tuple[str, str]:
        """The line to keep of a process that printed `line`, and the same in a few words."""
        if not self.target:
            record = Record.from_json(line)
            return line, f"cold {record.cold_s:.2f} s, run {record.median_run_s * 1e3:.3g} ms"
        found = json.loads(line) | {"round": self.round}
        cold_s, kernels = found["trace_s"] + found["compile_s"], sum(found["kernels"].values())
        return json.dumps(found), f"cold {cold_s:.2f} s, {kernels} kernels"


def tasks(
    entries: Sequence[Entry], contenders: Sequence[Contender], rounds: int, target: str = ""
) -> Iterator[Task]:
    """All measurements, in the order in which they are made.

    A round measures every contender of an entry directly after one another, so that a slow minute
    of the machine hits them alike; each round starts with another contender.
    """
    for round_number, entry in itertools.product(range(rounds), entries):
        turn = round_number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            enough = round_number >= entry.most_rounds.get(contender.name, rounds)
            if contender.covers(entry.program) and not enough:
                yield Task(entry, contender, round_number, target)


def finished(records: Iterable[Record]) -> set[TaskKey]:
    """The tasks that some records are the results of, for the installed versions."""
    versions = environment.versions()
    return {
        (record.entry, record.contender, record.round)
        for record in records
        if record.versions == versions
    }


def finished_targets(path: Path, target: str) -> set[TaskKey]:
    """As `finished`, for the lines of `gpu_target` about one target."""
    versions = environment.versions()
    lines: list[dict[str, Any]] = (
        [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        if path.exists()
        else []
    )
    return {
        (entry_key(line["program"], line["settings"]), line["contender"], line["round"])
        for line in lines
        if line.get("target") == target and line["versions"] == versions
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
            if task.target and getattr(error, "returncode", 0) == _CANNOT_WORK_HERE:
                break
            continue
        time_left.add(task, time.perf_counter() - start)
        line, in_words = task.finish(process.stdout.splitlines()[-1])
        with out.open("a") as file:
            file.write(line + "\n")
        print(in_words, flush=True)
    return n_failed


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures programs under several ways to compile them.",
    )
    targets = [_TARGET + target for target in gpu_target.TARGETS]
    parser.add_argument("--suite", choices=[*SUITES, *targets], default="tiny")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for a measurement")
    return parser.parse_args(arguments)


def _compile_for(target: str, options: argparse.Namespace) -> int:
    """Compiles the suite for a GPU that is not there; returns the exit status."""
    contenders = [CONTENDERS[name] for name in options.contenders]
    done = finished_targets(options.out, target)
    todo = [
        task
        for task in tasks(_entries("gpu", options), contenders, options.repeats, target)
        if task.key not in done
    ]
    return 1 if run(todo, options.out, options.timeout) else 0


def _entries(suite: str, options: argparse.Namespace) -> list[Entry]:
    return [entry for entry in SUITES[suite] if entry.program.name in options.programs]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parse(arguments)
    if options.suite.startswith(_TARGET):
        return _compile_for(options.suite.removeprefix(_TARGET), options)
    machine = environment.machine()
    if options.suite == "gpu" and machine["platform"] != "gpu":
        print(
            f"The suite gpu needs a GPU that JAX can use; JAX found {machine['platform']} "
            f"({machine['device']}). Install jax[cuda13] on a machine with a GPU, or compile the "
            f"same programs for one that is not there: --suite {_TARGET}h200",
            file=sys.stderr,
        )
        return 2
    contenders = [CONTENDERS[name] for name in options.contenders if CONTENDERS[name].runs]
    earlier = read([options.out]) if options.out.exists() else []
    try:
        require_comparable(earlier, machine)
    except IncomparableError as error:
        print(f"{options.out}: {error}", file=sys.stderr)
        return 2
    done = finished(earlier)
    todo = [
        task
        for task in tasks(_entries(options.suite, options), contenders, options.repeats)
        if task.key not in done
    ]
    n_failed = run(todo, options.out, options.timeout)
    wrong = mismatches(read([options.out]) if options.out.exists() else [])
    for line in wrong:
        print(f"WRONG RESULT: {line}", file=sys.stderr)
    return 1 if n_failed or wrong else 0


if __name__ == "__main__":
    # Or this process would take the memory of a GPU from those that measure.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(main())

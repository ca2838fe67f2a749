"""Measures run times alone, the contenders of a program by turns in one process.

    python -m benchmarks.turns --suite cpu --out turns.jsonl

Two processes that run one executable differ by some percent, and two copies of it in one process
still do, though less: by where their memory happens to lie, and by which came first. So a run ratio
near 1 is taken from here, over several processes, each compiling the contenders in another order;
what a cold start costs is measured by `python -m benchmarks`. A process is one line of JSON, and is
not measured again if it is in the file already.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks import environment
from benchmarks.contenders import BASELINE, CONTENDERS
from benchmarks.measure import calls_per_sample, sample
from benchmarks.programs import PROGRAMS, agrees, digest
from benchmarks.programs.program import Fun, Settings
from benchmarks.ratios import Clock
from benchmarks.record import EntryKey, IncomparableError, entry_key, require_comparable
from benchmarks.suites import SUITES, Entry, label

_CONTENDERS = (BASELINE, "outermost_plain", "outermost_annotated")
_TURNS, _ROUNDS = 15, 3


@dataclass(frozen=True)
class Turns:
    """The run times of one program in one process.

    Attributes:
        program: The program's name.
        settings: The program's settings.
        round: Which of the processes that measured it this one is.
        calls_per_turn: How many calls, one after another, each number averages.
        run_s: Contender to seconds a call, until its result was ready, one number a turn.
        run_cpu_s: Contender to processor seconds a call, likewise.
        machine: What must be equal for two lines to be compared.
        versions: Versions of Python, JAX, jitscope and the packages that programs use.
        commit: The checkout's commit, with `+` behind it if files differ from it.
        date: The UTC time at the end of the measurement, ISO 8601.
    """

    program: str
    settings: Mapping[str, int]
    round: int
    calls_per_turn: int
    run_s: Mapping[str, list[float]]
    run_cpu_s: Mapping[str, list[float]]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    commit: str
    date: str

    @property
    def entry(self) -> EntryKey:
        """The program with its settings, as a key."""
        return entry_key(self.program, self.settings)

    @property
    def label(self) -> str:
        """The program's name, with the settings in which it differs from its full size."""
        return label(self.program, self.settings)

    def ratio(self, contender: str, clock: Clock) -> float:
        """Contender / `jax.jit`, the median over the turns; less is faster."""
        seconds = {"wall": self.run_s, "CPU": self.run_cpu_s}[clock.name]
        pairs = zip(seconds[contender], seconds[BASELINE], strict=True)
        return statistics.median(ours / baseline for ours, baseline in pairs)


def by_label(measured: Iterable[Turns]) -> dict[str, list[Turns]]:
    """Label of an entry to its processes."""
    found: dict[str, list[Turns]] = {}
    for turns in measured:
        found.setdefault(turns.label, []).append(turns)
    return found


def read(path: Path) -> list[Turns]:
    """Reads a file of lines; an empty list where there is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Turns(**json.loads(line)) for line in lines if line.strip()]


def measure(
    program: str, settings: Settings, contenders: Sequence[str], n_turns: int, round_number: int = 0
) -> Turns:
    """Compiles a program under every contender, checks the results, and runs them by turns.

    Args:
        program: The program's name.
        settings: Its settings, all of them.
        contenders: Names of contenders, in the order in which they are compiled; `jit` is among
            them.
        n_turns: How many turns each contender has.
        round_number: What to note as the round.

    Returns:
        What was measured.

    Raises:
        ValueError: A contender's result is not that of `jax.jit`.
    """
    compiled: dict[str, tuple[Fun, tuple[Any, ...]]] = {}
    digests = {}
    for name in contenders:
        case = CONTENDERS[name].case(PROGRAMS[program], settings)
        fun = case.fun.lower(*case.args).compile()
        digests[name] = digest(case.finish(fun(*case.args)))
        compiled[name] = fun, case.args
    for name, ours in digests.items():
        if not agrees(ours, digests[BASELINE], PROGRAMS[program].tolerance):
            raise ValueError(f"{label(program, settings)}: {name} disagrees with {BASELINE}")
    n_calls = max(calls_per_sample(fun, args) for fun, args in compiled.values())
    turns: dict[str, list[Any]] = {name: [] for name in contenders}
    for number in range(n_turns):
        # Back and forth, so that no contender always follows the same one.
        for name in contenders if number % 2 else reversed(contenders):
            turns[name].append(sample(*compiled[name], n_calls))
    return Turns(
        program=program,
        settings=dict(settings),
        round=round_number,
        calls_per_turn=n_calls,
        run_s={name: [one.run_s for one in samples] for name, samples in turns.items()},
        run_cpu_s={name: [one.cpu_s for one in samples] for name, samples in turns.items()},
        **environment.where(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


@dataclass(frozen=True)
class _Task:
    """One process to be."""

    entry: Entry
    contenders: Sequence[str]
    round: int

    def __str__(self) -> str:
        return f"{self.entry.label}, round {self.round}"

    def run(self, n_turns: int) -> Turns:
        """Measures in a process that has done nothing else."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, environment.prepare_process) as pool:
            return pool.submit(
                measure,
                self.entry.program.name,
                dict(self.entry.settings),
                self.contenders,
                n_turns,
                self.round,
            ).result()


def _tasks(
    entries: Iterable[Entry], contenders: Sequence[str], rounds: int, done: Iterable[Turns]
) -> Iterator[_Task]:
    """What can be measured here, and was not with the installed versions."""
    versions = environment.versions()
    finished = {(turns.entry, turns.round) for turns in done if turns.versions == versions}
    for entry, number in itertools.product(entries, range(rounds)):
        names = [name for name in contenders if CONTENDERS[name].covers(entry.program)]
        enough = number >= entry.most_rounds.get(BASELINE, rounds)
        if BASELINE in names and not enough and (entry.key, number) not in finished:
            turn = number % len(names)
            yield _Task(entry, [*names[turn:], *names[:turn]], number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turns",
        description="Measures run times, contenders by turns in one process.",
    )
    runnable = [name for name, contender in CONTENDERS.items() if contender.runs]
    parser.add_argument("--suite", choices=SUITES, default="tiny")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--contenders", nargs="+", choices=runnable, default=list(_CONTENDERS))
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"default: {_ROUNDS}")
    parser.add_argument("--turns", type=int, default=_TURNS, help=f"default: {_TURNS}")
    parser.add_argument("--out", type=Path, default=Path("turns.jsonl"))
    options = parser.parse_args(arguments)
    if options.suite == "gpu" and jax.default_backend() != "gpu":
        parser.error(f"the suite gpu needs a GPU; JAX found {jax.default_backend()}")
    names = [BASELINE, *(name for name in options.contenders if name != BASELINE)]
    entries = [e for e in SUITES[options.suite] if e.program.name in options.programs]
    earlier = read(options.out)
    try:
        require_comparable(earlier, environment.machine())
    except IncomparableError as error:
        parser.error(f"{options.out}: {error}")
    n_failed = 0
    for task in _tasks(entries, names, options.rounds, earlier):
        print(f"{task}: ", end="", flush=True)
        try:
            turns = task.run(options.turns)
        except Exception as error:  # noqa: BLE001 - the next program may still be measured
            n_failed += 1
            print(f"FAILED\n{error}", flush=True)
            continue
        with options.out.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(turns)) + "\n")
        print(f"{statistics.median(turns.run_s[BASELINE]) * 1e3:.3g} ms", flush=True)
    return 1 if n_failed else 0


if __name__ == "__main__":
    # Or this process would take the memory of a GPU from those that measure.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(main())

"""Measures one program under one contender, once, and prints one JSON line.

Run one process for each measurement: JAX caches what it traced and compiled, and a cold start is
only cold once.

    python -m benchmarks.measure transformer outermost_annotated --set layers=4
"""

from __future__ import annotations

import argparse
import datetime
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from benchmarks import environment
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.programs import PROGRAMS, Program, digest
from benchmarks.programs.program import Fun, Settings
from benchmarks.record import Record

# A sample shorter than this measures the clock and the scheduler more than the program.
_MIN_SAMPLE_S = 0.005
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.MULTILINE)


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def _run_times(fun: Fun, args: Sequence[Any], repeats: int) -> tuple[int, list[float], list[float]]:
    """Returns calls per sample, seconds per call, and seconds until a call returned."""

    def sample(n_calls: int) -> tuple[float, float]:
        dispatch_s, start = 0.0, time.perf_counter()
        for _ in range(n_calls):
            call_start = time.perf_counter()
            result = fun(*args)
            dispatch_s += time.perf_counter() - call_start
            jax.block_until_ready(result)
        return (time.perf_counter() - start) / n_calls, dispatch_s / n_calls

    warm_s, _ = sample(1)
    n_calls = max(1, int(_MIN_SAMPLE_S / warm_s))
    samples = [sample(n_calls) for _ in range(repeats)]
    return n_calls, [run_s for run_s, _ in samples], [dispatch_s for _, dispatch_s in samples]


def measure(
    program: Program,
    contender: Contender,
    settings: Settings,
    *,
    round_number: int = 0,
    run_repeats: int = 5,
) -> Record:
    """Compiles and runs a program; a cold start only where the process has not done so before.

    Args:
        program: What to run.
        contender: How to compile it.
        settings: The program's settings, all of them.
        round_number: Which of the interleaved repetitions this one is.
        run_repeats: How many samples of the run time to take.

    Returns:
        The record of the measurement.
    """
    case = contender.case(program, settings)
    jax.block_until_ready(case.args)
    rss_before_bytes = environment.peak_rss_bytes()
    traced, trace_s = _timed(lambda: case.fun.trace(*case.args))
    lowered, lower_s = _timed(traced.lower)
    compiled, compile_s = _timed(lowered.compile)
    rss_compiled_bytes = environment.peak_rss_bytes()
    # JAX finds the executable that `compile` made, so this call compiles nothing.
    result, first_call_s = _timed(lambda: jax.block_until_ready(case.fun(*case.args)))
    n_calls, run_s, dispatch_s = _run_times(case.fun, case.args, run_repeats)
    return Record(
        program=program.name,
        contender=contender.name,
        settings=dict(settings),
        round=round_number,
        trace_s=trace_s,
        lower_s=lower_s,
        compile_s=compile_s,
        first_call_s=first_call_s,
        run_s=run_s,
        calls_per_sample=n_calls,
        dispatch_s=dispatch_s,
        n_instructions=len(_INSTRUCTION.findall(compiled.as_text())),
        temp_bytes=compiled.memory_analysis().temp_size_in_bytes,
        rss_before_bytes=rss_before_bytes,
        rss_compiled_bytes=rss_compiled_bytes,
        digest=digest(case.finish(result)),
        machine=environment.machine(),
        versions=environment.versions(),
        commit=environment.commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _setting(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, int(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--set", type=_setting, nargs="*", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--run-repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    program, contender = PROGRAMS[options.program], CONTENDERS[options.contender]
    unknown = dict(options.set).keys() - program.full.keys()
    if unknown:
        parser.error(
            f"{program.name} has no setting {', '.join(sorted(unknown))}; "
            f"it has {', '.join(program.full)}"
        )
    if not contender.covers(program):
        parser.error(f"{contender.name} cannot compile {program.name} on JAX {jax.__version__}")
    settings = dict(program.full) | dict(options.set)
    environment.prepare_process()
    record = measure(
        program,
        contender,
        settings,
        round_number=options.round,
        run_repeats=options.run_repeats,
    )
    print(record.to_json(), flush=True)


if __name__ == "__main__":
    main()

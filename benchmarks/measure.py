"""Measures one program under one contender, once, and prints one JSON line.

Run one process for each measurement: JAX caches what it traced and compiled, and a cold start is
only cold once.

    python -m benchmarks.measure transformer outermost_annotated --set layers=4
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from benchmarks import environment
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.programs import PROGRAMS, Program, digest
from benchmarks.programs.program import Fun, Settings
from benchmarks.record import Record
from jitscope.hlo import look_into

# A sample shorter than this measures the clock and the scheduler more than the program.
_MIN_SAMPLE_S = 0.005
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.MULTILINE)


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


class Sample(NamedTuple):
    """A few calls one after another: seconds a call, seconds until it returned, CPU seconds."""

    run_s: float
    dispatch_s: float
    cpu_s: float


def sample(fun: Fun, args: Sequence[Any], n_calls: int) -> Sample:
    """Calls a compiled function, each time until its result is ready."""
    dispatch_s, cpu_start, start = 0.0, time.process_time(), time.perf_counter()
    for _ in range(n_calls):
        call_start = time.perf_counter()
        result = fun(*args)
        dispatch_s += time.perf_counter() - call_start
        jax.block_until_ready(result)
    run_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    return Sample(run_s / n_calls, dispatch_s / n_calls, cpu_s / n_calls)


def calls_per_sample(fun: Fun, args: Sequence[Any]) -> int:
    """How many calls a sample needs in order to last long enough."""
    return max(1, int(_MIN_SAMPLE_S / sample(fun, args, 1).run_s))


def _structure(fun: Any) -> dict[str, int]:
    """What `outermost_jit` made of a program that it has traced; nothing for other functions."""
    if not hasattr(fun, "reuse"):
        return {}
    reuse = fun.reuse()
    (report,) = reuse.report(details=False).programs
    return {
        "equations": report.n_equations,
        "compiled_equations": report.n_compiled,
        "kept_calls": reuse.n_shared_calls,
    }


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
    rss_before_bytes, cpu_start = environment.peak_rss_bytes(), time.process_time()
    traced, trace_s = _timed(lambda: case.fun.trace(*case.args))
    lowered, lower_s = _timed(traced.lower)
    lowered_cpu = time.process_time()
    compiled, compile_s = _timed(lowered.compile)
    compiled_cpu = time.process_time()
    rss_compiled_bytes = environment.peak_rss_bytes()
    # JAX finds the executable that `compile` made, so this call compiles nothing.
    result, first_call_s = _timed(lambda: jax.block_until_ready(case.fun(*case.args)))
    text = compiled.as_text()
    kernels = {} if jax.default_backend() == "cpu" else dataclasses.asdict(look_into(text))
    n_calls = calls_per_sample(case.fun, case.args)
    samples = [sample(case.fun, case.args, n_calls) for _ in range(run_repeats)]
    return Record(
        program=program.name,
        contender=contender.name,
        settings=dict(settings),
        round=round_number,
        trace_s=trace_s,
        lower_s=lower_s,
        compile_s=compile_s,
        first_call_s=first_call_s,
        run_s=[one.run_s for one in samples],
        calls_per_sample=n_calls,
        dispatch_s=[one.dispatch_s for one in samples],
        cold_cpu_s=compiled_cpu - cpu_start,
        run_cpu_s=[one.cpu_s for one in samples],
        n_instructions=len(_INSTRUCTION.findall(text)),
        temp_bytes=compiled.memory_analysis().temp_size_in_bytes,
        rss_before_bytes=rss_before_bytes,
        rss_compiled_bytes=rss_compiled_bytes,
        digest=digest(case.finish(result)),
        machine=environment.machine(),
        versions=environment.versions(),
        commit=environment.commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        compile_cpu_s=compiled_cpu - lowered_cpu,
        structure=_structure(case.fun),
        kernels=kernels,
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
    if not contender.runs:
        parser.error(f"{contender.name} can only be compiled: python -m benchmarks.gpu_target")
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

"""Measures what a nested `jax.jit` does, one effect at a time; no jitscope in it.

    python -m benchmarks.nested_jit

prints one JSON line a measurement, all in one process: tracing, lowering and XLA by size of the
body and number of its calls, a nested call under a trace, and `vmap` inside and outside of `jit`.
Seconds are processor seconds of this process, medians of interleaved repetitions.
`docs/nested-jit.md` shows the lines of `results/nested-jit-effects.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import environment

Fun = Callable[..., Any]
Line = dict[str, Any]


def body(n_equations: int) -> Fun:
    """A new function of so many equations; a new one, since JAX remembers what it traced."""

    def chain(x: jax.Array) -> jax.Array:
        for i in range(n_equations):
            x = lax.sin(x) if i % 2 else lax.mul(x, 0.5)
        return x

    return chain


def caller(called: Fun, n_calls: int) -> Fun:
    """A new function that calls another so many times, one after the other."""

    def program(x: jax.Array) -> jax.Array:
        for _ in range(n_calls):
            x = called(x)
        return x

    return program


def _cpu_s(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def optimised(compiled: Any) -> str:
    """Optimised HLO without names, numbers of instructions and metadata."""
    text = re.sub(r", metadata=\{[^}]*\}", "", compiled.as_text())
    text = text.partition("\n\n")[2].partition("FileNames")[0]
    names: dict[str, str] = {}
    return re.sub(r"%[\w.\-]+", lambda found: names.setdefault(found[0], f"%{len(names)}"), text)


def sizes(repeats: int, pairs: Sequence[tuple[int, int]]) -> Iterator[Line]:
    """Tracing and lowering, and compiling, without and with `jit` on the body."""
    x = jnp.ones(8)
    for n_calls, n_equations in pairs:
        seconds: dict[str, list[float]] = {
            key: [] for key in ("flat_front_s", "nested_front_s", "flat_xla_s", "nested_xla_s")
        }
        texts = set()
        for repeat in range(repeats + 1):
            for kind in ("flat", "nested"):
                inner = body(n_equations)
                program = caller(jax.jit(inner) if kind == "nested" else inner, n_calls)
                front_s, lowered = _cpu_s(lambda program=program: jax.jit(program).lower(x))
                # XLA's share of a large program is long and hardly varies with the nesting.
                xla_s, compiled = _cpu_s(lowered.compile)
                texts.add(optimised(compiled))
                if repeat:  # the first fills caches of JAX that both share
                    seconds[f"{kind}_front_s"].append(front_s)
                    seconds[f"{kind}_xla_s"].append(xla_s)
        yield {
            "measurement": "size",
            "n_calls": n_calls,
            "n_equations": n_equations,
            **{key: statistics.median(values) for key, values in seconds.items()},
            "front_ratio": _ratio(seconds["nested_front_s"], seconds["flat_front_s"]),
            "xla_ratio": _ratio(seconds["nested_xla_s"], seconds["flat_xla_s"]),
            "same_optimised_hlo": len(texts) == 1,
        }


def _ratio(ours: Sequence[float], baseline: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, baseline, strict=True))


def nested_calls(repeats: int, n_calls: int = 400) -> Line:
    """What one more call of a traced function costs under a trace, and in lowering."""
    x, inner = jnp.ones(8), jax.jit(body(64))
    inner(x)
    trace_s, lower_s = [], []
    for _ in range(repeats):
        program = jax.jit(caller(inner, n_calls))
        seconds, traced = _cpu_s(lambda program=program: program.trace(x))
        trace_s.append(seconds / n_calls)
        lower_s.append(_cpu_s(traced.lower)[0] / n_calls)
    return {
        "measurement": "nested call",
        "n_calls": n_calls,
        "trace_us": statistics.median(trace_s) * 1e6,
        "lower_us": statistics.median(lower_s) * 1e6,
    }


def vmaps(repeats: int, n_calls: int = 50) -> Iterator[Line]:
    """`vmap(f)`, `vmap(jit(f))`, `jit(vmap(f))` and both, called again and again."""
    n_runs: dict[str, int] = {}

    def counted(kind: str) -> Fun:
        chain = body(16)

        def f(x: jax.Array) -> jax.Array:
            n_runs[kind] = n_runs.get(kind, 0) + 1
            return chain(x)

        return f

    x = jnp.ones((16, 8))
    functions = {
        "vmap(f)": jax.vmap(counted("vmap(f)")),
        "vmap(jit(f))": jax.vmap(jax.jit(counted("vmap(jit(f))"))),
        "jit(vmap(f))": jax.jit(jax.vmap(counted("jit(vmap(f))"))),
        "jit(vmap(jit(f)))": jax.jit(jax.vmap(jax.jit(counted("jit(vmap(jit(f)))")))),
    }
    call_s: dict[str, list[float]] = {kind: [] for kind in functions}
    for fun in functions.values():
        jax.block_until_ready(fun(x))
    for _ in range(repeats):
        for kind, fun in functions.items():
            seconds, _ = _cpu_s(lambda fun=fun: [fun(x) for _ in range(n_calls)])
            call_s[kind].append(seconds / n_calls)
    for kind, fun in functions.items():
        compiled = jax.jit(lambda x, fun=fun: fun(x)).lower(x).compile()
        yield {
            "measurement": "vmap",
            "kind": kind,
            "call_us": statistics.median(call_s[kind]) * 1e6,
            "python_runs": n_runs[kind],
            "calls": 1 + repeats * n_calls,
            "n_instructions": (compiled.as_text() or "").count(" = "),
        }


_PAIRS = tuple((calls, size) for calls in (1, 2, 4, 16, 64) for size in (1, 4, 16, 64, 256))


def measure(repeats: int, pairs: Sequence[tuple[int, int]] = _PAIRS) -> Iterator[Line]:
    """All measurements, one record each."""
    yield from sizes(repeats, pairs)
    yield nested_calls(repeats)
    yield from vmaps(repeats)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nested_jit")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(arguments)
    environment.prepare_process()
    where = {
        "machine": environment.machine(),
        "versions": environment.versions(),
        "commit": environment.commit(),
    }
    for line in measure(options.repeats):
        print(json.dumps(line | where), flush=True)


if __name__ == "__main__":
    main()

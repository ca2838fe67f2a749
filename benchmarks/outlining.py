"""Measures what finding repeats adds to tracing, for programs of 1,000 to 100,000 equations.

    python -m benchmarks.outlining

Two programs of each size: a deep network's gradient, which repeats, and one in which nothing does,
since every operation is drawn at random. Each is traced by `jax.jit`, by `outermost_jit`, and by
`outermost_jit(outline=False)`, in turn; the last two differ in outlining and in what becomes of its
calls. Seconds are the processor's: tracing is one thread's work, whatever else the machine does.
Prints a table, and with --json one line for each program.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jitscope
from benchmarks import environment
from benchmarks.programs.layers import layer_norm
from benchmarks.programs.program import Fun

SIZES = (1_000, 10_000, 100_000)
_WIDTH = 8
_EQUATIONS_A_LAYER = 40  # of the network with its gradient; only the program's size depends on it


@dataclass(frozen=True)
class Outlining:
    """Processor seconds to trace one program, one number a turn.

    Attributes:
        program: Which one.
        n_equations: How many equations it has.
        plain_s: Under `jax.jit`.
        structured_s: Under `outermost_jit(outline=False)`.
        outlined_s: Under `outermost_jit`.
    """

    program: str
    n_equations: int
    plain_s: list[float]
    structured_s: list[float]
    outlined_s: list[float]

    @property
    def outlining_s(self) -> float:
        """Seconds that outlining adds to a trace."""
        return self._median_difference(self.outlined_s, self.structured_s)

    @property
    def jitscope_s(self) -> float:
        """Seconds that all of jitscope adds to a trace."""
        return self._median_difference(self.outlined_s, self.plain_s)

    @property
    def share(self) -> float:
        """What outlining adds, relative to plain tracing."""
        return self.outlining_s / statistics.median(self.plain_s)

    @property
    def us_per_equation(self) -> float:
        """Microseconds that outlining adds for each equation."""
        return self.outlining_s / self.n_equations * 1e6

    @staticmethod
    def _median_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
        return statistics.median(a - b for a, b in zip(ours, theirs, strict=True))


def repetitive(n_equations: int) -> tuple[Fun, tuple[Any, ...]]:
    """The gradient of a network of equal layers, about `n_equations` long."""
    n_layers = max(1, n_equations // _EQUATIONS_A_LAYER)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for matrix in weights:
            x = x + jnp.tanh(layer_norm(x) @ matrix)
        return (x**2).mean()

    weights = [jnp.eye(_WIDTH)] * n_layers
    return jax.value_and_grad(loss), (weights, jnp.ones((2, _WIDTH)))


def irregular(n_equations: int) -> tuple[Fun, tuple[Any, ...]]:
    """A chain of `n_equations` operations in random order."""
    operations: tuple[Callable[[jax.Array, jax.Array], jax.Array], ...] = (
        lambda x, y: x + y,
        lambda x, y: x * y,
        lambda x, y: jnp.sin(x),
        lambda x, y: -y,
        lambda x, y: x - y,
        lambda x, y: jnp.maximum(x, y),
        lambda x, y: jnp.cos(y),
        lambda x, y: jnp.tanh(x),
    )
    order = random.Random(0).choices(operations, k=n_equations)

    def chain(x: jax.Array, y: jax.Array) -> jax.Array:
        for operation in order:
            x, y = y, operation(x, y)
        return y

    return chain, (jnp.ones(_WIDTH), jnp.ones(_WIDTH))


PROGRAMS = {"repetitive": repetitive, "irregular": irregular}


def _trace_s(wrap: Callable[[Fun], Any], fun: Fun, args: tuple[Any, ...]) -> float:
    # A function object of its own, since JAX remembers the traces of the ones that it has seen.
    def fresh(*args: Any) -> Any:
        return fun(*args)

    wrapped = wrap(fresh)
    start = time.process_time()
    wrapped.trace(*args)
    return time.process_time() - start


def measure(program: str, n_equations: int, turns: int = 3) -> Outlining:
    """Traces a program in turn under all three.

    Args:
        program: One of `PROGRAMS`.
        n_equations: About how many equations it is to have.
        turns: How many samples of each.
    """
    fun, args = PROGRAMS[program](n_equations)
    contenders: dict[str, Callable[[Fun], Any]] = {
        "plain_s": jax.jit,
        "structured_s": lambda fun: jitscope.outermost_jit(fun, outline=False),
        "outlined_s": jitscope.outermost_jit,
    }
    # What is traced first in a process pays for what later traces find in place.
    small, small_args = PROGRAMS[program](100)
    for wrap in contenders.values():
        _trace_s(wrap, small, small_args)
    found = len(jax.make_jaxpr(fun)(*args).jaxpr.eqns)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, wrap in contenders.items():
            times[name].append(_trace_s(wrap, fun, args))
    return Outlining(program, found, **times)


def table(found: Sequence[Outlining]) -> str:
    """Returns the medians as a table."""
    head = ("program", "equations", "trace s", "outlining s", "share", "us/equation", "jitscope s")
    lines = ["".join(f"{name:>14}" for name in head)]
    for one in found:
        cells = (
            one.program,
            str(one.n_equations),
            f"{statistics.median(one.plain_s):.3f}",
            f"{one.outlining_s:.3f}",
            f"{one.share:.1%}",
            f"{one.us_per_equation:.2f}",
            f"{one.jitscope_s:.3f}",
        )
        lines.append("".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outlining")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="EQUATIONS")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args(arguments)
    found = [
        measure(program, size, options.turns)
        for size in options.sizes
        for program in options.programs
    ]
    if not options.json:
        print(table(found))
        return
    for one in found:
        print(json.dumps(asdict(one) | environment.where()))


if __name__ == "__main__":
    main()

"""Measures what a call of an already compiled function costs, against `jax.jit`'s.

    python -m benchmarks.dispatch

The functions do next to nothing, so a call's time is its dispatch. All contenders run in one
process, in short turns one after another: the differences looked for are far smaller than the drift
of a machine within a second. Prints a table, and with --json one line for each case and contender.

The last case is what a staged program costs the host: layers that take and give the arrays of a
train step, and whose work XLA folds away.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jitscope
from benchmarks import environment
from benchmarks.programs.program import Fun

_TURN_S = 0.002


@dataclass(frozen=True)
class Dispatch:
    """Microseconds a call, one number a turn.

    `baseline_us` holds the turns of `jax.jit` that directly preceded those in `call_us`.
    """

    case: str
    contender: str
    call_us: list[float]
    baseline_us: list[float]

    @property
    def median_us(self) -> float:
        """Microseconds of a typical call."""
        return statistics.median(self.call_us)

    @property
    def extra_us(self) -> float:
        """How many microseconds more than `jax.jit` a call typically takes."""
        pairs = zip(self.call_us, self.baseline_us, strict=True)
        return statistics.median(ours - baseline for ours, baseline in pairs)

    @property
    def ratio(self) -> float:
        """How many times as long as with `jax.jit` a call typically takes."""
        pairs = zip(self.call_us, self.baseline_us, strict=True)
        return statistics.median(ours / baseline for ours, baseline in pairs)


def _one_array(x: jax.Array) -> jax.Array:
    return x + 1


def _six_arrays(
    a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array, e: jax.Array, f: jax.Array
) -> jax.Array:
    return a + f


def _tree(leaves: dict[str, jax.Array]) -> jax.Array:
    return leaves["leaf_0"] + 1


_N_WEIGHTS, _N_RESIDUALS = 8, 6


def _layer(weights: Sequence[jax.Array], x: jax.Array) -> list[jax.Array]:
    # Products are not made again in another stage, and XLA knows that those of integer zeros of
    # this shape are zeros.
    return [(x * 0) @ weights[i] for i in range(1 + _N_RESIDUALS)]


def _layer_gradient(
    weights: Sequence[jax.Array], residuals: Sequence[jax.Array], gradient: jax.Array
) -> list[jax.Array]:
    zero = sum(residuals, gradient) * 0
    return [zero @ weight for weight in (weights[0], *weights)]


def _train_step(params: Sequence[Sequence[jax.Array]], x: jax.Array) -> list[list[jax.Array]]:
    saved, gradients = [], []
    for weights in params:
        x, *residuals = _layer(weights, x)
        saved.append(residuals)
    gradient = x
    for weights, residuals in zip(reversed(params), reversed(saved), strict=True):
        gradient, *of_weights = _layer_gradient(weights, residuals, gradient)
        gradients.append(of_weights)
    return gradients


def _copy(fun: Any) -> Fun:
    # A function object of its own, since JAX shares caches between wrappers of one function.
    return types.FunctionType(fun.__code__, fun.__globals__, fun.__name__)


def _contenders(fun: Fun) -> dict[str, Fun]:
    if fun is _train_step:
        return {"jit": jax.jit(fun), "staged": jitscope.outermost_jit(fun, staged=True)}
    return {
        # Twice: the difference of the first two is what the measurement itself cannot tell.
        "jit": jax.jit(_copy(fun)),
        "jit_again": jax.jit(_copy(fun)),
        "outermost_jit": jitscope.outermost_jit(_copy(fun)),
        "shared_subroutine": jitscope.shared_subroutine(_copy(fun)),
    }


def cases(leaves: int, layers: int) -> dict[str, tuple[Fun, tuple[Any, ...]]]:
    """Name to a function and its arguments.

    Args:
        leaves: How many leaves the large argument has.
        layers: How many layers of eight parameters the program has that is also staged.
    """
    x, one = jnp.ones(8), jnp.ones((1, 1), jnp.int32)
    params = [[one + i for i in range(_N_WEIGHTS)] for _ in range(layers)]
    return {
        "1 small array": (_one_array, (x,)),
        "6 arrays": (_six_arrays, tuple(x + i for i in range(6))),
        f"tree of {leaves} leaves": (_tree, ({f"leaf_{i}": x + i for i in range(leaves)},)),
        f"{layers} layers": (_train_step, (params, one)),
    }


def _turn(fun: Fun, arguments: tuple[Any, ...], n_calls: int) -> float:
    result: Any = None
    start = time.perf_counter()
    for _ in range(n_calls):
        result = fun(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / n_calls * 1e6


def measure(
    turns: int = 200, leaves: int = 500, layers: int = 48, n_calls: int | None = None
) -> list[Dispatch]:
    """Measures every case under every contender.

    Args:
        turns: How many samples of each.
        leaves: How many leaves the large argument has.
        layers: How many layers of eight parameters the staged program has.
        n_calls: Calls a turn; by default as many as fill two milliseconds.

    Returns:
        One record for each case and contender, `jax.jit` first.
    """
    found = []
    for case, (function, arguments) in cases(leaves, layers).items():
        contenders = _contenders(function)
        for fun in contenders.values():
            jax.block_until_ready(fun(*arguments))
        warm_us = _turn(contenders["jit"], arguments, 20)
        calls = n_calls or max(1, int(_TURN_S * 1e6 / warm_us))
        call_us: Mapping[str, list[float]] = {name: [] for name in contenders}
        for _ in range(turns):
            for name, fun in contenders.items():
                call_us[name].append(_turn(fun, arguments, calls))
        found += [Dispatch(case, name, times, call_us["jit"]) for name, times in call_us.items()]
    return found


def table(found: Sequence[Dispatch]) -> str:
    """Returns the medians as a table, with the quarter and three-quarter points in brackets."""
    lines = [f"{'argument':20}{'contender':20}{'us a call':>24}{'extra us':>10}{'ratio':>8}"]
    for one in found:
        low, _, high = statistics.quantiles(one.call_us, n=4)
        spread = f"{one.median_us:.2f} ({low:.2f}-{high:.2f})"
        lines.append(
            f"{one.case:20}{one.contender:20}{spread:>24}{one.extra_us:>+10.2f}{one.ratio:>8.3f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatch")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args(arguments)
    found = measure(options.turns)
    if not options.json:
        print(table(found))
        return
    for one in found:
        print(json.dumps(asdict(one) | environment.where()))


if __name__ == "__main__":
    main()

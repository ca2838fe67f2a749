"""A perceptron of 100 layers, and its gradient: many bodies of a handful of equations each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.layers import Runner, Weights, in_a_row, in_a_scan, stack, unstack
from benchmarks.programs.program import Case, Fun, Program, Share

Params = dict[str, jax.Array]


def _layer(params: Params, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["weights"] + params["bias"])


def _gradient(run: Runner) -> Fun:
    def loss(layers: Any, x: jax.Array, targets: jax.Array) -> jax.Array:
        return ((run(layers, x) - targets) ** 2).mean()

    return jax.value_and_grad(loss)


def _arguments(layers: int, width: int, batch: int) -> tuple[list[Params], jax.Array, jax.Array]:
    weights = Weights()
    params = [
        # The gain makes up for what tanh takes off the signal, which a hundred layers would lose.
        {"weights": weights.matrix(width, width, gain=1.2), "bias": jnp.zeros(width)}
        for _ in range(layers)
    ]
    return params, weights.normal(batch, width), weights.normal(batch, width)


def make(share: Share, **settings: int) -> Case:
    """The gradient with its layers in a Python loop."""
    return Case(_gradient(in_a_row(share(_layer))), _arguments(**settings))


def make_scan(**settings: int) -> Case:
    """The gradient with its layers in a scan."""
    params, *rest = _arguments(**settings)

    def finish(result: Any) -> Any:
        return result[0], unstack(result[1])

    return Case(_gradient(in_a_scan(_layer)), (stack(params), *rest), finish)


PROGRAM = Program(
    "mlp",
    full={"layers": 100, "width": 128, "batch": 32},
    tiny={"layers": 8, "width": 8, "batch": 4},
    make=make,
    make_scan=make_scan,
)

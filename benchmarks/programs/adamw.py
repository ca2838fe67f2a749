"""AdamW over 400 leaves: one element-wise update, again and again, none of which feeds another.

The leaves are those of 100 layers with four kinds of parameters, of three shapes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import Weights, stack, unstack
from benchmarks.programs.program import Case, Program, Share

Leaf = dict[str, jax.Array]
_RATE, _DECAY = 1e-3, 0.01


def _update(leaf: Leaf, step: jax.Array) -> Leaf:
    """One leaf's parameter with its two moments, after a step along its gradient."""
    gradient = leaf["gradient"]
    mean = 0.9 * leaf["mean"] + 0.1 * gradient
    square = 0.999 * leaf["square"] + 0.001 * gradient**2
    mean_hat, square_hat = mean / (1 - 0.9**step), square / (1 - 0.999**step)
    direction = mean_hat / (jnp.sqrt(square_hat) + 1e-8) + _DECAY * leaf["parameter"]
    return {
        "parameter": leaf["parameter"] - _RATE * direction,
        "mean": mean,
        "square": square,
    }


def _leaves(layers: int, width: int) -> list[dict[str, Leaf]]:
    weights = Weights()
    shapes = {"up": (width, 4 * width), "down": (4 * width, width), "scale": (width,)}
    shapes |= {"bias": (width,)}

    def leaf(shape: tuple[int, ...]) -> Leaf:
        return {
            "parameter": weights.normal(*shape),
            "gradient": weights.normal(*shape),
            "mean": weights.normal(*shape, scale=0.1),
            "square": weights.normal(*shape) ** 2,
        }

    return [{name: leaf(shape) for name, shape in shapes.items()} for _ in range(layers)]


def make(share: Share, *, layers: int, width: int) -> Case:
    """The update with its leaves in a Python loop."""
    update = share(_update)

    def update_all(step: jax.Array, layers: list[dict[str, Leaf]]) -> Any:
        new = [{name: update(leaf, step) for name, leaf in layer.items()} for layer in layers]
        return step + 1, new

    return Case(update_all, (jnp.float32(3), _leaves(layers, width)))


def make_scan(*, layers: int, width: int) -> Case:
    """The update with its layers in a scan."""

    def update_all(step: jax.Array, stacked: dict[str, Leaf]) -> Any:
        def body(carry: None, layer: dict[str, Leaf]) -> tuple[None, dict[str, Leaf]]:
            return carry, {name: _update(leaf, step) for name, leaf in layer.items()}

        return step + 1, lax.scan(body, None, stacked)[1]

    def finish(result: Any) -> Any:
        return result[0], unstack(result[1])

    return Case(update_all, (jnp.float32(3), stack(_leaves(layers, width))), finish)


PROGRAM = Program(
    "adamw",
    full={"layers": 100, "width": 32},
    tiny={"layers": 6, "width": 2},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: 1,
)

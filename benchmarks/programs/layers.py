"""What several programs are made of: random weights, runs of equal layers, a norm, an optimiser.

A run of layers is a loop in Python over a list of parameters, or a scan over their stack; a program
that is written for either takes the runner as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Layer = Callable[[Any, Any], Any]
"""Parameters and state to the new state."""
Runner = Callable[[Any, Any], Any]
"""All layers' parameters and state to the state behind the last layer."""


class Weights:
    """Random arrays, equal in every process."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> jax.Array:
        """Independent normal values."""
        return jnp.asarray(self._random.normal(0.0, scale, shape), jnp.float32)

    def matrix(self, *shape: int, gain: float = 1.0) -> jax.Array:
        """Weights of a dense layer or convolution (inputs first) that keep the signal's size."""
        return self.normal(*shape, scale=gain * float(np.prod(shape[:-1])) ** -0.5)

    def integers(self, below: int, *shape: int) -> jax.Array:
        """Independent numbers from 0 on."""
        return jnp.asarray(self._random.integers(below, size=shape), jnp.int32)


def in_a_row(layer: Layer) -> Runner:
    """Runs layers in a Python loop over a list of their parameters."""

    def run(layers: Sequence[Any], x: Any) -> Any:
        for params in layers:
            x = layer(params, x)
        return x

    return run


def in_a_scan(layer: Layer) -> Runner:
    """Runs layers in a scan over the stack of their parameters."""

    def run(stacked: Any, x: Any) -> Any:
        return lax.scan(lambda x, params: (layer(params, x), None), x, stacked)[0]

    return run


def stack(layers: Sequence[Any]) -> Any:
    """One tree for a list of like trees; its leaves have a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def unstack(stacked: Any) -> list[Any]:
    """The list that `stack` made the tree from."""
    n_layers = len(jax.tree.leaves(stacked)[0])
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(n_layers)]


def layer_norm(x: jax.Array) -> jax.Array:
    """Centres the last axis and scales it to unit variance."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def momentum_step(params: Any, momentum: Any, gradients: Any) -> tuple[Any, Any]:
    """Stochastic gradient descent with momentum: new parameters, new momentum."""
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum

"""A train step in which nothing repeats: every layer has other shapes than every other.

What counting and planning cost shows here, since they cannot gain anything.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.programs.program import Case, Program, Share

LayerParams = tuple[jax.Array, jax.Array]
_ACTIVATIONS = (jax.nn.gelu, jnp.tanh, jax.nn.silu, jax.nn.softplus, jnp.sin)


def make(share: Share, *, layers: int, width: int, step: int, batch: int) -> Case:
    """A perceptron whose layer widths grow by `step` from layer to layer."""
    widths = [width + step * i for i in range(layers + 1)]
    random = np.random.default_rng(0)
    params = [
        (jnp.asarray(random.normal(0, n_in**-0.5, (n_in, n_out)), jnp.float32), jnp.zeros(n_out))
        for n_in, n_out in itertools.pairwise(widths)
    ]

    def dense(params: LayerParams, x: jax.Array) -> jax.Array:
        weights, bias = params
        centred = x - x.mean(-1, keepdims=True)
        normalised = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return normalised @ weights + bias

    shared_dense = share(dense)

    def loss(params: list[LayerParams], x: jax.Array) -> jax.Array:
        for layer_params, activation in zip(params, itertools.cycle(_ACTIVATIONS), strict=False):
            x = activation(shared_dense(layer_params, x))
        return (x**2).mean()

    x = jnp.asarray(random.normal(size=(batch, width)), jnp.float32)
    return Case(jax.value_and_grad(loss), (params, x))


PROGRAM = Program(
    "nothing_shared",
    full={"layers": 40, "width": 64, "step": 4, "batch": 32},
    tiny={"layers": 3, "width": 8, "step": 2, "batch": 4},
    make=make,
    depth=lambda settings: 1,
)

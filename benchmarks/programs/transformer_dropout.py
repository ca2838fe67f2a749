"""The train step of the transformer with dropout behind attention and feed-forward.

The keys of the layers come from one key, so results are the same under every contender.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs import transformer
from benchmarks.programs.program import Case, Fun, Program, Share

Array = jax.Array
Params = dict[str, Any]
_KEPT = 0.9


def _dropout(key: Array, x: Array) -> Array:
    return jnp.where(jax.random.bernoulli(key, _KEPT, x.shape), x / _KEPT, 0)


def _layer(params: Params, key: Array, x: Array) -> Array:
    attention_key, feed_forward_key = jax.random.split(key)
    norm = transformer.layer_norm(params["attention_norm"], x)
    x = x + _dropout(attention_key, transformer.attention(params, norm))
    norm = transformer.layer_norm(params["feed_forward_norm"], x)
    hidden = jax.nn.gelu(norm @ params["up"])
    return x + _dropout(feed_forward_key, hidden @ params["down"])


def make(share: Share, **settings: int) -> Case:
    """The train step with its layers in a Python loop."""
    layer: Fun = share(_layer)

    def loss(params: Params, key: Array, tokens: Array) -> Array:
        x = transformer.embed(params, tokens[:, :-1])
        keys = jax.random.split(key, len(params["layers"]))
        for i, layer_params in enumerate(params["layers"]):
            x = layer(layer_params, keys[i], x)
        return transformer.next_token_loss(params, x, tokens[:, 1:])

    params, tokens = transformer.make(share, **settings).args
    return Case(jax.value_and_grad(loss), (params, jax.random.key(0), tokens))


def make_scan(**settings: int) -> Case:
    """The train step with its layers in a scan, and its gradients as a list like the others'."""

    def loss(params: Params, key: Array, tokens: Array) -> Array:
        def step(x: Array, operands: tuple[Params, Array]) -> tuple[Array, None]:
            return _layer(*operands, x), None

        keys = jax.random.split(key, settings["layers"])
        x = transformer.embed(params, tokens[:, :-1])
        x, _ = lax.scan(step, x, (params["layers"], keys))
        return transformer.next_token_loss(params, x, tokens[:, 1:])

    plain = transformer.make_scan(**settings)
    params, tokens = plain.args
    return Case(jax.value_and_grad(loss), (params, jax.random.key(0), tokens), finish=plain.finish)


PROGRAM = Program(
    "transformer_dropout",
    full=transformer.PROGRAM.full,
    tiny=transformer.PROGRAM.tiny,
    make=make,
    make_scan=make_scan,
)

"""A decoder-only transformer language model's train step: many equal layers.

Pre-norm, causal, multi-head attention, tied embeddings, float32. The step is `value_and_grad` of
the mean next-token loss, without an optimizer. The model functions also serve the demo.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.programs.program import Case, Fun, Program, Share

Array = jax.Array
Params = dict[str, Any]


def init_params(
    *, layers: int, width: int, heads: int, feed_forward: int, vocabulary: int, sequence: int
) -> Params:
    """Returns random parameters; `params["layers"]` is a list with one entry a layer."""
    random = np.random.default_rng(0)

    def normal(*shape: int, fan_in: int) -> Array:
        return jnp.asarray(random.normal(0.0, fan_in**-0.5, shape), jnp.float32)

    def norm() -> Params:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def layer_params() -> Params:
        return {
            "attention_norm": norm(),
            "qkv": normal(3, width, heads, width // heads, fan_in=width),
            # Scaled down with depth, so that the residual stream keeps its size in deep models.
            "out": normal(heads, width // heads, width, fan_in=2 * layers * width),
            "feed_forward_norm": norm(),
            "up": normal(width, feed_forward, fan_in=width),
            "down": normal(feed_forward, width, fan_in=2 * layers * feed_forward),
        }

    return {
        "embedding": normal(vocabulary, width, fan_in=width),
        "position": normal(sequence, width, fan_in=width),
        "layers": [layer_params() for _ in range(layers)],
        "final_norm": norm(),
    }


def layer_norm(params: Params, x: Array) -> Array:
    """Normalises the last axis of x, then scales and shifts it."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]


def attention(params: Params, x: Array) -> Array:
    """Causal self-attention over the middle axis of x: (batch, sequence, width)."""
    query, key, value = jnp.einsum("bsw,nwhd->nbhsd", x, params["qkv"])
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    causal = jnp.tri(x.shape[1], dtype=bool)
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
    return jnp.einsum("bhqk,bhkd,hdw->bqw", weights, value, params["out"])


def layer(params: Params, x: Array) -> Array:
    """One transformer layer: attention and feed-forward, each added to the residual stream."""
    x = x + attention(params, layer_norm(params["attention_norm"], x))
    hidden = jax.nn.gelu(layer_norm(params["feed_forward_norm"], x) @ params["up"])
    return x + hidden @ params["down"]


def embed(params: Params, tokens: Array) -> Array:
    """Maps token numbers (batch, sequence) to the residual stream (batch, sequence, width)."""
    # Tied to the output layer, its entries are small; unscaled, the layers would drown them.
    scale = params["embedding"].shape[1] ** 0.5
    return (params["embedding"][tokens] + params["position"][: tokens.shape[1]]) * scale


def next_token_loss(params: Params, x: Array, targets: Array) -> Array:
    """The mean cross entropy, in nats, of the targets under the model's last residual stream."""
    logits = layer_norm(params["final_norm"], x) @ params["embedding"].T
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probabilities, targets[..., None], -1).mean()


def loss(params: Params, tokens: Array, layer: Fun) -> Array:
    """The loss of predicting each of `tokens` (batch, sequence + 1) from those before it."""
    x = embed(params, tokens[:, :-1])
    for layer_params in params["layers"]:
        x = layer(layer_params, x)
    return next_token_loss(params, x, tokens[:, 1:])


def scan_loss(params: Params, tokens: Array) -> Array:
    """As `loss`, for parameters whose layers are stacked along a new first axis."""

    def step(x: Array, layer_params: Params) -> tuple[Array, None]:
        return layer(layer_params, x), None

    x, _ = lax.scan(step, embed(params, tokens[:, :-1]), params["layers"])
    return next_token_loss(params, x, tokens[:, 1:])


def _arguments(batch: int, **sizes: int) -> tuple[Params, Array]:
    tokens = np.random.default_rng(1).integers(
        sizes["vocabulary"], size=(batch, sizes["sequence"] + 1)
    )
    return init_params(**sizes), jnp.asarray(tokens, jnp.int32)


def make(share: Share, **settings: int) -> Case:
    """The train step with its layers in a Python loop."""
    shared_layer = share(layer)

    def train_step(params: Params, tokens: Array) -> tuple[Array, Params]:
        return jax.value_and_grad(loss)(params, tokens, shared_layer)

    return Case(train_step, _arguments(**settings))


def make_scan(**settings: int) -> Case:
    """The train step with its layers in a scan, and its gradients as a list like the others'."""
    params, tokens = _arguments(**settings)
    n_layers = settings["layers"]

    def train_step(params: Params, tokens: Array) -> tuple[Array, Params]:
        return jax.value_and_grad(scan_loss)(params, tokens)

    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])

    def unstack(result: tuple[Array, Params]) -> tuple[Array, Params]:
        value, gradients = result
        layers = [
            jax.tree.map(lambda leaf, i=i: leaf[i], gradients["layers"]) for i in range(n_layers)
        ]
        return value, gradients | {"layers": layers}

    return Case(train_step, (params | {"layers": stack}, tokens), finish=unstack)


_FULL = {
    "layers": 12,
    "width": 256,
    "heads": 4,
    "feed_forward": 1024,
    "vocabulary": 512,
    "batch": 4,
    "sequence": 64,
}
_TINY = {
    "layers": 6,
    "width": 16,
    "heads": 2,
    "feed_forward": 32,
    "vocabulary": 11,
    "batch": 2,
    "sequence": 8,
}

PROGRAM = Program("transformer", full=_FULL, tiny=_TINY, make=make, make_scan=make_scan)

"""A mixture of experts' train step: in every layer, each expert works on the tokens it chooses.

Expert choice routing: an expert takes the `capacity` tokens that its router scores highest, and
adds its weighted output to theirs. `share` is put on the expert; all experts of all layers are
equal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import Weights, layer_norm, stack, unstack
from benchmarks.programs.program import Case, Fun, Program, Share

Params = dict[str, Any]


def _expert(params: Params, tokens: jax.Array, scores: jax.Array, capacity: int) -> jax.Array:
    """What one expert adds to each of the tokens."""
    weights, chosen = lax.top_k(scores, capacity)
    hidden = jax.nn.gelu(tokens[chosen] @ params["up"] + params["bias"])
    output = weights[:, None] * (hidden @ params["down"])
    return jnp.zeros_like(tokens).at[chosen].add(output)


def _loss(experts: Fun, layers: list[Params], tokens: jax.Array, targets: jax.Array) -> jax.Array:
    for params in layers:
        normalised = layer_norm(tokens)
        scores = jax.nn.softmax(normalised @ params["router"]).T
        tokens = tokens + experts(params["experts"], normalised, scores)
    return ((layer_norm(tokens) - targets) ** 2).mean()


def _train_step(experts: Fun) -> Fun:
    def train_step(layers: list[Params], tokens: jax.Array, targets: jax.Array) -> Any:
        return jax.value_and_grad(_loss, argnums=1)(experts, layers, tokens, targets)

    return train_step


def _arguments(
    layers: int, experts: int, width: int, tokens: int
) -> tuple[list[Params], jax.Array, jax.Array]:
    weights = Weights()

    def expert() -> Params:
        return {
            "up": weights.matrix(width, 2 * width),
            "bias": jnp.zeros(2 * width),
            "down": weights.matrix(2 * width, width),
        }

    params = [
        {
            "router": weights.matrix(width, experts),
            "experts": [expert() for _ in range(experts)],
        }
        for _ in range(layers)
    ]
    return params, weights.normal(tokens, width), weights.normal(tokens, width)


def _capacity(tokens: jax.Array, n_experts: int) -> int:
    # Two experts a token, on average.
    return min(tokens.shape[0], 2 * tokens.shape[0] // n_experts)


def make(share: Share, **settings: int) -> Case:
    """The train step with its experts in a Python loop."""
    params, tokens, targets = _arguments(**settings)
    capacity = _capacity(tokens, settings["experts"])

    def expert(params: Params, tokens: jax.Array, scores: jax.Array) -> jax.Array:
        return _expert(params, tokens, scores, capacity)

    shared_expert = share(expert)

    def experts(all_params: list[Params], tokens: jax.Array, scores: jax.Array) -> jax.Array:
        total = jnp.zeros_like(tokens)
        for i, params in enumerate(all_params):
            total = total + shared_expert(params, tokens, scores[i])
        return total

    return Case(_train_step(experts), (params, tokens, targets))


def make_scan(**settings: int) -> Case:
    """The train step with the experts of each layer in a scan."""
    params, tokens, targets = _arguments(**settings)
    capacity = _capacity(tokens, settings["experts"])

    def experts(stacked: Params, tokens: jax.Array, scores: jax.Array) -> jax.Array:
        def step(total: jax.Array, expert: tuple[Params, jax.Array]) -> tuple[jax.Array, None]:
            params, expert_scores = expert
            return total + _expert(params, tokens, expert_scores, capacity), None

        return lax.scan(step, jnp.zeros_like(tokens), (stacked, scores))[0]

    def each_layer(layers: list[Params], change: Any) -> list[Params]:
        return [params | {"experts": change(params["experts"])} for params in layers]

    def finish(result: Any) -> Any:
        return result[0], each_layer(result[1], unstack)

    return Case(_train_step(experts), (each_layer(params, stack), tokens, targets), finish)


PROGRAM = Program(
    "mixture_of_experts",
    full={"layers": 6, "experts": 8, "width": 128, "tokens": 256},
    tiny={"layers": 2, "experts": 4, "width": 8, "tokens": 16},
    make=make,
    make_scan=make_scan,
)

"""ResNet-50's train step: convolutions, in four groups of bottleneck blocks, 3-4-6-3.

Batch norm with the batch's own statistics (running averages are left out), cross entropy, gradient
descent with momentum. The first block of a group changes the shape; the others are equal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import (
    Runner,
    Weights,
    in_a_row,
    in_a_scan,
    momentum_step,
    stack,
    unstack,
)
from benchmarks.programs.program import Case, Program, Settings, Share

Params = dict[str, Any]
_BLOCKS = (3, 4, 6, 3)
_N_CLASSES = 10


def _init(weights: Weights, groups: int, channels: int) -> Params:
    def norm(n: int) -> Params:
        return {"scale": jnp.ones(n), "bias": jnp.zeros(n)}

    def block(n_in: int, n: int) -> Params:
        return {
            "reduce": weights.matrix(1, 1, n_in, n),
            "spatial": weights.matrix(3, 3, n, n),
            "expand": weights.matrix(1, 1, n, 4 * n),
            "norms": [norm(n), norm(n), norm(4 * n)],
        }

    all_groups, n_in = [], channels
    for i, n_blocks in enumerate(_BLOCKS[:groups]):
        n, n_out = channels * 2**i, channels * 2 ** (i + 2)
        shortcut = {"shortcut": weights.matrix(1, 1, n_in, n_out), "shortcut_norm": norm(n_out)}
        rest = [block(n_out, n) for _ in range(n_blocks - 1)]
        all_groups.append({"first": block(n_in, n) | shortcut, "rest": rest})
        n_in = n_out
    return {
        "stem": weights.matrix(3, 3, 3, channels),
        "stem_norm": norm(channels),
        "groups": all_groups,
        "head": weights.matrix(n_in, _N_CLASSES),
    }


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)


def _batch_norm(params: Params, x: jax.Array) -> jax.Array:
    centred = x - x.mean((0, 1, 2))
    normalised = centred * lax.rsqrt((centred**2).mean((0, 1, 2)) + 1e-5)
    return normalised * params["scale"] + params["bias"]


def _residual(params: Params, x: jax.Array, stride: int) -> jax.Array:
    norms = params["norms"]
    x = jax.nn.relu(_batch_norm(norms[0], _convolve(x, params["reduce"])))
    x = jax.nn.relu(_batch_norm(norms[1], _convolve(x, params["spatial"], stride)))
    return _batch_norm(norms[2], _convolve(x, params["expand"]))


def _block(params: Params, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x + _residual(params, x, 1))


def _first_block(params: Params, x: jax.Array, stride: int) -> jax.Array:
    shortcut = _batch_norm(params["shortcut_norm"], _convolve(x, params["shortcut"], stride))
    return jax.nn.relu(shortcut + _residual(params, x, stride))


def _loss(params: Params, images: jax.Array, labels: jax.Array, run: Runner) -> jax.Array:
    x = jax.nn.relu(_batch_norm(params["stem_norm"], _convolve(images, params["stem"])))
    for i, group in enumerate(params["groups"]):
        x = run(group["rest"], _first_block(group["first"], x, 1 if i == 0 else 2))
    log_probabilities = jax.nn.log_softmax(x.mean((1, 2)) @ params["head"])
    return -jnp.take_along_axis(log_probabilities, labels[:, None], -1).mean()


def _case(run: Runner, settings: Settings, *, scan: bool = False) -> Case:
    weights, size, batch = Weights(), settings["size"], settings["batch"]
    params = _init(weights, settings["groups"], settings["channels"])
    images, labels = weights.normal(batch, size, size, 3), weights.integers(_N_CLASSES, batch)

    def train_step(params: Params, momentum: Params, images: jax.Array, labels: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(_loss)(params, images, labels, run)
        return value, *momentum_step(params, momentum, gradients)

    def each_group(params: Params, change: Any) -> Params:
        groups = [group | {"rest": change(group["rest"])} for group in params["groups"]]
        return params | {"groups": groups}

    def finish(result: Any) -> Any:
        return result[0], *(each_group(params, unstack) for params in result[1:])

    if scan:
        params = each_group(params, stack)
    args = (params, jax.tree.map(jnp.zeros_like, params), images, labels)
    return Case(train_step, args, finish) if scan else Case(train_step, args)


def make(share: Share, **settings: int) -> Case:
    """The train step with its blocks in Python loops."""
    return _case(in_a_row(share(_block)), settings)


def make_scan(**settings: int) -> Case:
    """The train step with the equal blocks of each group in a scan."""
    return _case(in_a_scan(_block), settings, scan=True)


PROGRAM = Program(
    "resnet50",
    # The network has all four groups; `channels` of its first inner convolutions are 64 as a rule.
    full={"groups": 4, "channels": 16, "size": 32, "batch": 8},
    tiny={"groups": 1, "channels": 2, "size": 4, "batch": 2},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: sum(_BLOCKS[: settings["groups"]]),
)

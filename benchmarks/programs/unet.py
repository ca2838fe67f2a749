"""A U-Net denoiser's train step: residual blocks at several resolutions, joined by skips.

The network is shown an image with noise of a random strength and predicts the noise, as in
denoising diffusion. `share` is put on the residual block; blocks at one resolution are equal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import Runner, Weights, in_a_row, in_a_scan, stack, unstack
from benchmarks.programs.program import Case, Fun, Program, Share

Params = dict[str, Any]
_N_GROUPS = 4


def _init(weights: Weights, channels: int, levels: int, blocks: int) -> Params:
    def block(n: int) -> Params:
        return {
            "first": weights.matrix(3, 3, n, n),
            "second": weights.matrix(3, 3, n, n, gain=0.5),
            "strength": weights.matrix(channels, n),
            "scale": jnp.ones((2, n)),
            "bias": jnp.zeros((2, n)),
        }

    def run(n: int) -> list[Params]:
        return [block(n) for _ in range(blocks)]

    sizes = [channels * 2**i for i in range(levels)]
    return {
        "stem": weights.matrix(3, 3, 3, channels),
        "strength": weights.matrix(channels, channels),
        "down": [{"blocks": run(n), "resample": weights.matrix(3, 3, n, 2 * n)} for n in sizes],
        "middle": {"blocks": run(2 * sizes[-1])},
        "up": [{"blocks": run(n), "resample": weights.matrix(3, 3, 3 * n, n)} for n in sizes],
        "head": weights.matrix(3, 3, channels, 3),
    }


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)


def _group_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    grouped = x.reshape(*x.shape[:3], _N_GROUPS, -1)
    centred = grouped - grouped.mean((1, 2, 4), keepdims=True)
    variance = (centred**2).mean((1, 2, 4), keepdims=True)
    return (centred * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + bias


def _block(params: Params, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    x, strength = state
    (scale, second_scale), (bias, second_bias) = params["scale"], params["bias"]
    y = _convolve(jax.nn.silu(_group_norm(x, scale, bias)), params["first"])
    y = y + (strength @ params["strength"])[:, None, None, :]
    y = _convolve(jax.nn.silu(_group_norm(y, second_scale, second_bias)), params["second"])
    return x + y, strength


def _denoise(params: Params, x: jax.Array, strength: jax.Array, run: Runner) -> jax.Array:
    frequencies = jnp.exp(jnp.linspace(0.0, 4.0, params["strength"].shape[0] // 2))
    angles = strength[:, None] * frequencies
    embedded = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
    embedded = jax.nn.silu(embedded @ params["strength"])
    x, skips = _convolve(x, params["stem"]), []
    for level in params["down"]:
        x, _ = run(level["blocks"], (x, embedded))
        skips.append(x)
        x = _convolve(x, level["resample"], stride=2)
    x, _ = run(params["middle"]["blocks"], (x, embedded))
    for level, skip in zip(reversed(params["up"]), reversed(skips), strict=True):
        x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        x = _convolve(jnp.concatenate([x, skip], -1), level["resample"])
        x, _ = run(level["blocks"], (x, embedded))
    return _convolve(x, params["head"])


def _train_step(run: Runner) -> Fun:
    def loss(params: Params, images: jax.Array, noise: jax.Array, strength: jax.Array) -> Any:
        angle = strength[:, None, None, None] * (jnp.pi / 2)
        noisy = jnp.cos(angle) * images + jnp.sin(angle) * noise
        return ((_denoise(params, noisy, strength, run) - noise) ** 2).mean()

    return jax.value_and_grad(loss)


def _each_run(params: Params, change: Any) -> Params:
    def changed(level: Params) -> Params:
        return level | {"blocks": change(level["blocks"])}

    return params | {
        "down": [changed(level) for level in params["down"]],
        "middle": changed(params["middle"]),
        "up": [changed(level) for level in params["up"]],
    }


def _arguments(
    channels: int, levels: int, blocks: int, size: int, batch: int
) -> tuple[Params, jax.Array, jax.Array, jax.Array]:
    weights = Weights()
    params = _init(weights, channels, levels, blocks)
    images, noise = (weights.normal(batch, size, size, 3) for _ in range(2))
    return params, images, noise, jnp.linspace(0.1, 0.9, batch)


def make(share: Share, **settings: int) -> Case:
    """The train step with its blocks in Python loops."""
    return Case(_train_step(in_a_row(share(_block))), _arguments(**settings))


def make_scan(**settings: int) -> Case:
    """The train step with each run of equal blocks in a scan."""
    params, *rest = _arguments(**settings)

    def finish(result: Any) -> Any:
        return result[0], _each_run(result[1], unstack)

    return Case(_train_step(in_a_scan(_block)), (_each_run(params, stack), *rest), finish)


PROGRAM = Program(
    "unet",
    full={"channels": 16, "levels": 3, "blocks": 3, "size": 32, "batch": 2},
    tiny={"channels": 4, "levels": 1, "blocks": 2, "size": 4, "batch": 1},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: settings["blocks"] * (2 * settings["levels"] + 1),
)

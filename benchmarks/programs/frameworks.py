"""Programs that nobody wrote with jitscope in mind: models of other libraries, as they are.

Their layers are not marked, so `share` has nothing to be put on, and only contenders that need no
marks cover them. Weights are random, made from the shapes alone: an initialiser would take longer
to compile than some of the models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs.program import (
    Case,
    Program,
    Settings,
    Share,
    layers_setting,
)

# In the first step, Adam divides a gradient by its own size, so that where a gradient is zero up to
# rounding (the bias of attention's keys) only this keeps rounding from deciding the sign of a step.
_ADAM_EPS = 1e-3


def _filled(shapes: Any) -> Any:
    """Arrays of the given shapes: matrices random, everything of one dimension or none ones."""
    random = np.random.default_rng(0)

    def fill(leaf: Any) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros(leaf.shape, leaf.dtype)
        if len(leaf.shape) < 2:
            return jnp.ones(leaf.shape, leaf.dtype)
        fan_in = np.prod(leaf.shape[:-1])
        return jnp.asarray(random.normal(0, fan_in**-0.5, leaf.shape), leaf.dtype)

    return jax.tree.map(fill, shapes)


def _tokens(batch: int, sequence: int, vocabulary: int) -> jax.Array:
    tokens = np.random.default_rng(1).integers(vocabulary, size=(batch, sequence + 1))
    return jnp.asarray(tokens, jnp.int32)


def _normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(2).normal(size=shape), jnp.float32)


# --- transformers and perceptrons -----------------------------------------------------------------


def flax_linen(share: Share, **settings: int) -> Case:
    """A train step of a Flax Linen decoder with AdamW of Optax."""
    return _flax_linen(0.0, **settings)


def flax_dropout(share: Share, **settings: int) -> Case:
    """The same with dropout behind attention and feed-forward, as most are trained."""
    return _flax_linen(0.1, **settings)


def _flax_linen(
    rate: float,
    *,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    batch: int,
    sequence: int,
) -> Case:
    import optax
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            mixed = nn.MultiHeadDotProductAttention(heads)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dropout(rate, deterministic=False)(mixed)
            hidden = nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))
            return x + nn.Dropout(rate, deterministic=False)(hidden)

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            embed = nn.Embed(vocabulary, width)
            x, mask = embed(tokens), nn.make_causal_mask(tokens)
            for _ in range(layers):
                x = Block()(x, mask)
            return embed.attend(nn.LayerNorm()(x))

    model, optimiser = Decoder(), optax.adamw(1e-3, eps=_ADAM_EPS)
    tokens = _tokens(batch, sequence, vocabulary)
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    params = _filled(jax.eval_shape(model.init, keys, tokens[:, :-1]))

    def loss(params: Any, key: jax.Array, tokens: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens[:, :-1], rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(params: Any, state: Any, key: jax.Array, tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, key, tokens)
        updates, state = optimiser.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    return Case(train_step, (params, optimiser.init(params), jax.random.key(1), tokens))


def flax_nnx(
    share: Share, *, layers: int, width: int, heads: int, vocabulary: int, batch: int, sequence: int
) -> Case:
    """A train step of a Flax NNX decoder with AdamW of Optax, between `split` and `merge`."""
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            x = x + self.attention(self.attention_norm(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm(x))))

    class Decoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(layers)])
            self.norm = nnx.LayerNorm(width, rngs=rngs)

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x, mask = self.embed(tokens), nnx.make_causal_mask(tokens)
            for block in self.blocks:
                x = block(x, mask)
            return self.embed.attend(self.norm(x))

    def make() -> tuple[Any, Any]:
        model = Decoder(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3, eps=_ADAM_EPS), wrt=nnx.Param)

    def loss(model: Any, tokens: jax.Array) -> jax.Array:
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    graph, state = nnx.split(make())

    def train_step(state: Any, tokens: jax.Array) -> Any:
        model, optimiser = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, tokens)
        optimiser.update(model, gradients)
        return value, nnx.state((model, optimiser))

    return Case(train_step, (state, _tokens(batch, sequence, vocabulary)))


def equinox_mlp(share: Share, *, layers: int, width: int, batch: int) -> Case:
    """The gradient of a deep perceptron of Equinox."""
    import equinox as eqx

    mlp = eqx.nn.MLP(width, width, width, layers, jax.nn.gelu, key=jax.random.key(0))
    return _equinox_gradient(mlp, lambda mlp, x: (jax.vmap(mlp)(x) ** 2).mean(), batch, width)


def equinox_transformer(
    share: Share, *, layers: int, width: int, heads: int, batch: int, sequence: int
) -> Case:
    """The gradient of a transformer encoder of Equinox, vectorised over its batch."""
    import equinox as eqx

    class Block(eqx.Module):
        attention: Any
        feed_forward: Any
        norms: Any

        def __init__(self, key: jax.Array) -> None:
            self.attention = eqx.nn.MultiheadAttention(heads, width, key=key)
            self.feed_forward = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=key)
            self.norms = [eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)]

        def __call__(self, x: jax.Array) -> jax.Array:
            normed = jax.vmap(self.norms[0])(x)
            x = x + self.attention(normed, normed, normed)
            return x + jax.vmap(self.feed_forward)(jax.vmap(self.norms[1])(x))

    blocks = [Block(key) for key in jax.random.split(jax.random.key(0), layers)]

    def encode(blocks: list[Any], x: jax.Array) -> jax.Array:
        for block in blocks:
            x = block(x)
        return x

    def loss(blocks: list[Any], x: jax.Array) -> jax.Array:
        return (jax.vmap(encode, (None, 0))(blocks, x) ** 2).mean()

    return _equinox_gradient(blocks, loss, batch, sequence, width)


def _equinox_gradient(model: Any, loss: Callable[[Any, jax.Array], Any], *shape: int) -> Case:
    import equinox as eqx

    arrays, static = eqx.partition(model, eqx.is_array)

    def gradient(arrays: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(lambda arrays: loss(eqx.combine(arrays, static), x))(arrays)

    return Case(gradient, (arrays, _normal(*shape)))


# --- convolutions ---------------------------------------------------------------------------------


def haiku_resnet50(share: Share, *, channels: int, size: int, batch: int) -> Case:
    """A train step of Haiku's ResNet-50, with the state of its batch norms and momentum.

    `channels` of the first group of blocks; the usual network has 256.
    """
    import haiku as hk
    import optax

    groups = {**hk.nets.ResNet.CONFIGS[50]} | {
        "channels_per_group": tuple(channels * 2**i for i in range(4))
    }
    model = hk.transform_with_state(lambda x: hk.nets.ResNet(num_classes=10, **groups)(x, True))
    optimiser = optax.sgd(1e-3, momentum=0.9)
    images = _normal(batch, size, size, 3)
    labels = jnp.arange(batch) % 10
    shapes, state_shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    params = _filled(shapes)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state_shapes)

    def loss(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> Any:
        logits, state = model.apply(params, state, None, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state

    def train_step(params: Any, state: Any, momentum: Any, images: Any, labels: Any) -> Any:
        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(
            params, state, images, labels
        )
        updates, momentum = optimiser.update(gradients, momentum)
        return value, optax.apply_updates(params, updates), state, momentum

    return Case(train_step, (params, state, optimiser.init(params), images, labels))


# --- simulation and inference ---------------------------------------------------------------------


def diffrax_unrolled(share: Share, *, steps: int, width: int, depth: int, batch: int) -> Case:
    """The gradient through an unrolled Tsit5 solve of a neural differential equation."""
    import diffrax
    import equinox as eqx

    field = eqx.nn.MLP(width, width, 2 * width, depth, jnp.tanh, key=jax.random.key(0))
    solver = diffrax.Tsit5()

    def loss(field: Any, y: jax.Array) -> jax.Array:
        term = diffrax.ODETerm(lambda t, y, args: jax.vmap(field)(y))
        times = np.linspace(0, 1, steps + 1, dtype=np.float32)
        state = solver.init(term, times[0], times[1], y, None)
        for start, end in zip(times[:-1], times[1:], strict=True):
            y, _, _, state, _ = solver.step(term, start, end, y, None, state, made_jump=False)
        return (y**2).mean()

    return _equinox_gradient(field, loss, batch, width)


def mjx_step(share: Share, *, legs: int) -> Case:
    """One step of MuJoCo MJX: a body on two-part legs, with contacts of all feet."""
    import mujoco
    from mujoco import mjx

    leg = """
      <body pos="{x:.3f} {y:.3f} 0">
        <joint type="hinge" axis="0 0 1" damping="1"/>
        <geom type="capsule" fromto="0 0 0 {x:.3f} {y:.3f} 0" size=".05"/>
        <body pos="{x:.3f} {y:.3f} 0">
          <joint type="hinge" axis="{y:.3f} {z:.3f} 0" damping="1" range="-1 1"/>
          <geom type="capsule" fromto="0 0 0 {x:.3f} {y:.3f} -.3" size=".05"/>
        </body>
      </body>"""
    angles = [2 * np.pi * i / legs for i in range(legs)]
    all_legs = "".join(
        leg.format(x=0.3 * np.cos(a), y=0.3 * np.sin(a), z=-0.3 * np.cos(a)) for a in angles
    )
    model = mujoco.MjModel.from_xml_string(f"""
      <mujoco>
        <option timestep=".005"/>
        <default><geom contype="0" conaffinity="1"/></default>
        <worldbody>
          <geom type="plane" size="5 5 1" contype="1" conaffinity="0"/>
          <body pos="0 0 .32"><freejoint/><geom type="sphere" size=".2"/>{all_legs}</body>
        </worldbody>
      </mujoco>""")
    device_model = mjx.put_model(model, impl="jax")
    data = mjx.put_data(model, mujoco.MjData(model), impl="jax")

    def step(data: Any) -> Any:
        return mjx.step(device_model, data)

    return Case(step, (data,))


def numpyro_potential(share: Share, *, groups: int, points: int) -> Case:
    """The gradient of a hierarchical regression's potential energy, a statement for each group."""
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer.util import potential_energy

    x, y = _normal(groups, points), _normal(groups, points) + 1

    def model(x: jax.Array, y: jax.Array) -> None:
        centre = numpyro.sample("centre", dist.Normal(0, 1).expand([2]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
        for group in range(groups):
            offset = numpyro.sample(f"offset_{group}", dist.Normal(centre[0], spread[0]))
            slope = numpyro.sample(f"slope_{group}", dist.Normal(centre[1], spread[1]))
            noise = numpyro.sample(f"noise_{group}", dist.HalfNormal(1))
            mean = offset + slope * x[group]
            numpyro.sample(f"y_{group}", dist.StudentT(4, mean, noise), obs=y[group])

    names = [f"{name}_{group}" for group in range(groups) for name in ("offset", "slope", "noise")]
    values = _normal(len(names), 1)
    params = {name: value[0] for name, value in zip(names, values, strict=True)}
    params |= {"centre": jnp.ones(2), "spread": jnp.ones(2)}

    def gradient(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
        def energy(params: dict[str, jax.Array]) -> Any:
            return potential_energy(model, (x, y), {}, params)

        return jax.value_and_grad(energy)(params)

    return Case(gradient, (params, x, y))


# --- the programs ---------------------------------------------------------------------------------

_DECODER = {"layers": 12, "width": 128, "heads": 4, "vocabulary": 256, "batch": 2, "sequence": 32}
_TINY_DECODER = {"layers": 6, "width": 16, "heads": 2, "vocabulary": 11, "batch": 2, "sequence": 8}


def _program(
    make: Callable[..., Case],
    packages: tuple[str, ...],
    full: Settings,
    tiny: Settings,
    depth: Callable[[Settings], int] = layers_setting,
) -> Program:
    return Program(
        make.__name__,
        full=full,
        tiny=tiny,
        make=make,
        depth=depth,
        has_marks=False,
        packages=packages,
    )


PROGRAMS = (
    _program(flax_linen, ("flax", "optax"), _DECODER, _TINY_DECODER),
    _program(flax_dropout, ("flax", "optax"), _DECODER, _TINY_DECODER),
    _program(flax_nnx, ("flax", "optax"), _DECODER, _TINY_DECODER),
    _program(
        equinox_mlp,
        ("equinox",),
        full={"layers": 32, "width": 128, "batch": 32},
        tiny={"layers": 8, "width": 8, "batch": 4},
    ),
    _program(
        equinox_transformer,
        ("equinox",),
        full={"layers": 12, "width": 128, "heads": 4, "batch": 2, "sequence": 32},
        tiny={"layers": 6, "width": 16, "heads": 2, "batch": 2, "sequence": 4},
    ),
    _program(
        diffrax_unrolled,
        ("diffrax", "equinox"),
        full={"steps": 12, "width": 32, "depth": 3, "batch": 32},
        tiny={"steps": 6, "width": 4, "depth": 1, "batch": 2},
        depth=lambda settings: settings["steps"],
    ),
    _program(
        haiku_resnet50,
        ("haiku", "optax"),
        full={"channels": 64, "size": 32, "batch": 8},
        tiny={"channels": 8, "size": 8, "batch": 4},
        depth=lambda settings: 16,
    ),
    _program(mjx_step, ("mujoco", "mujoco.mjx"), full={"legs": 6}, tiny={"legs": 4}),
    _program(
        numpyro_potential,
        ("numpyro",),
        full={"groups": 32, "points": 100},
        tiny={"groups": 12, "points": 5},
    ),
)

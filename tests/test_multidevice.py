"""Sharded programs on eight devices: values, shardings and collectives are those of plain JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, body_uses, collectives, fresh, share_all_policy, tagged_calls
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from programs import normal, plain

import jitscope

N_LAYERS = 5
BATCH, WIDTH, HIDDEN = 8, 8, 16

pytestmark = pytest.mark.skipif(
    jax.device_count() < 8, reason="needs --xla_force_host_platform_device_count=8"
)


def mesh(shape: tuple[int, ...], names: tuple[str, ...], kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def params() -> list[dict[str, jax.Array]]:
    def layer(i: int) -> dict[str, jax.Array]:
        return {"up": normal(i, WIDTH, HIDDEN), "down": normal(i + 50, HIDDEN, WIDTH)}

    return [layer(i) for i in range(N_LAYERS)]


def mlp(shared: Any, *, around: Callable = lambda x: x, hidden: Callable = lambda x: x) -> Any:
    """A residual network; `around` and `hidden` are applied to activations inside the body."""

    @shared
    def block(p, x):
        return around(x + hidden(jnp.tanh(x @ p["up"])) @ p["down"] * 0.3)

    def net(ps, x):
        for p in ps:
            x = block(p, x)
        return x

    return net


@dataclass(frozen=True)
class Layout:
    """A program with the shardings of its arguments.

    Attributes:
        build: From the decorator and the mesh to a function of parameters and input.
        mesh: Devices and axes.
        up, down, x: Partition of the two weights and of the input.
        set_mesh: The mesh is the context's, as explicit axes require.
    """

    build: Callable[[Any, Mesh], Callable[..., Any]]
    mesh: Callable[[], Mesh]
    up: P = P()
    down: P = P()
    x: P = P()
    set_mesh: bool = False

    def place(self, mesh: Mesh) -> tuple[Any, Any]:
        put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
        specs = {"up": self.up, "down": self.down}
        ps = [{name: put(w, specs[name]) for name, w in p.items()} for p in params()]
        return ps, put(normal(99, BATCH, WIDTH), self.x)

    def context(self, mesh: Mesh) -> Any:
        return jax.set_mesh(mesh) if self.set_mesh else contextlib.nullcontext()


def constrained(shared, mesh):
    sharded = lambda spec: lambda x: lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    return mlp(shared, around=sharded(P("data", None)), hidden=sharded(P("data", "model")))


def shard_map_inside(shared, mesh):
    """Every body is a hand-written tensor-parallel layer."""

    @shared
    def block(p, x):
        def local(up, down, x):
            return lax.psum(jnp.tanh(x @ up) @ down, "model")

        specs = (P(None, "model"), P("model", None), P("data", None))
        y = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("data", None))(
            p["up"], p["down"], x
        )
        return x + y * 0.3

    def net(ps, x):
        for p in ps:
            x = block(p, x)
        return x

    return net


def shard_map_outside(shared, mesh):
    """All bodies, with collectives in them, are called on the shards."""

    @shared
    def block(p, x):
        return x + lax.psum(jnp.tanh(x @ p["up"]) @ p["down"], "model") * 0.3

    def net(ps, x):
        for p in ps:
            x = block(p, x)
        return x

    spec = {"up": P(None, "model"), "down": P("model", None)}
    return jax.shard_map(
        net, mesh=mesh, in_specs=([spec] * N_LAYERS, P("data")), out_specs=P("data")
    )


def shard_map_over_one_axis(shared, mesh):
    """The batch axis is manual, the model axis is left to the partitioner."""
    return jax.shard_map(
        mlp(shared, around=lambda x: x - 0.1 * lax.pmean(x, "data")),
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=P("data"),
        axis_names={"data"},
    )


def explicit_tensor_parallel(shared, mesh):
    @shared
    def block(p, x):
        h = jnp.tanh(jnp.einsum("bi,ih->bh", x, p["up"]))
        return x + jnp.einsum("bh,ho->bo", h, p["down"], out_sharding=P("data", None)) * 0.3

    def net(ps, x):
        for p in ps:
            x = block(p, x)
        return x

    return net


auto_1d = lambda: mesh((8,), ("data",))
auto_2d = lambda: mesh((4, 2), ("data", "model"))
explicit_1d = lambda: mesh((8,), ("data",), AxisType.Explicit)
explicit_2d = lambda: mesh((4, 2), ("data", "model"), AxisType.Explicit)
unconstrained = lambda shared, mesh: mlp(shared)
split_weights = {"up": P(None, "model"), "down": P("model", None)}

LAYOUTS = {
    "replicated": Layout(unconstrained, auto_1d),
    "data_parallel": Layout(unconstrained, auto_1d, x=P("data")),
    "weights_sharded_over_data": Layout(
        unconstrained, auto_1d, up=P("data"), down=P("data"), x=P("data")
    ),
    "tensor_parallel": Layout(unconstrained, auto_2d, **split_weights),
    "data_and_tensor_parallel": Layout(unconstrained, auto_2d, **split_weights, x=P("data")),
    "features_sharded": Layout(unconstrained, auto_2d, x=P(None, "model")),
    "constraint_inside": Layout(constrained, auto_2d, x=P("data")),
    "constraint_inside_input_split": Layout(constrained, auto_2d, x=P("data", "model")),
    "constraint_inside_tensor_parallel": Layout(constrained, auto_2d, **split_weights),
    "shard_map_inside": Layout(shard_map_inside, auto_2d, **split_weights, x=P("data")),
    "shard_map_outside": Layout(shard_map_outside, auto_2d, **split_weights, x=P("data")),
    "shard_map_over_one_axis": Layout(
        shard_map_over_one_axis, auto_2d, **split_weights, x=P("data")
    ),
    "explicit_data_parallel": Layout(unconstrained, explicit_1d, x=P("data"), set_mesh=True),
    "explicit_tensor_parallel": Layout(
        explicit_tensor_parallel, explicit_2d, **split_weights, x=P("data"), set_mesh=True
    ),
    "auto_axes_in_context": Layout(
        unconstrained, auto_2d, **split_weights, x=P("data"), set_mesh=True
    ),
}


def value(f):
    return f


def gradient(f):
    return jax.value_and_grad(lambda ps, x: (f(ps, x) ** 2).mean(), argnums=(0, 1))


def assert_same_shardings(actual: Any, expected: Any) -> None:
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert got.sharding.is_equivalent_to(want.sharding, want.ndim), (got, want)
        assert got.committed == want.committed


@pytest.mark.parametrize("transform", [value, gradient])
@pytest.mark.parametrize("name", LAYOUTS)
def test_sharded_program_is_that_of_plain_jit(name, transform):
    layout = LAYOUTS[name]
    devices = layout.mesh()
    with layout.context(devices):
        args = layout.place(devices)
        plain_program = transform(layout.build(plain, devices))
        expected = jax.jit(plain_program).lower(*args).compile()
        structured = jitscope.outermost_jit(
            transform(layout.build(jitscope.shared_subroutine, devices)),
            policy=share_all_policy(),
        )
        compiled = structured.lower(*args).compile()
        result, wanted = compiled(*args), expected(*args)
        assert_same(result, wanted)
        assert_same_shardings(result, wanted)
        assert collectives(compiled.as_text()) == collectives(expected.as_text())
        if transform is value:
            assert body_uses(structured)["block"] == (N_LAYERS,)


@pytest.mark.parametrize(
    ("name", "has_loops"),
    [
        ("data_parallel", True),
        ("weights_sharded_over_data", True),
        ("data_and_tensor_parallel", True),
        ("features_sharded", True),
        ("constraint_inside", False),
        ("constraint_inside_input_split", False),
        ("constraint_inside_tensor_parallel", False),
        ("shard_map_inside", True),
        ("shard_map_outside", False),
        ("explicit_tensor_parallel", False),
        ("auto_axes_in_context", True),
    ],
)
def test_rolled_gradient_of_a_sharded_program_is_that_of_plain_jit(name, has_loops):
    layout = LAYOUTS[name]
    devices = layout.mesh()
    with layout.context(devices):
        args = layout.place(devices)
        policy = jitscope.Policy(
            rolled=True,
            min_equations=1,
            min_equations_per_product=1,
            min_saved=1,
            min_uses_steady=2,
            min_saved_growing=1,
            min_saved_per_copy=1,
        )
        structured = jitscope.outermost_jit(
            gradient(layout.build(jitscope.shared_subroutine, devices)), policy=policy
        )
        result = structured(*args)
        wanted = jax.jit(gradient(layout.build(plain, devices)))(*args)
        assert_same(result, wanted)
        assert_same_shardings(result, wanted)
        plan = str(structured.reuse().plan)
        assert ("ROLLED" in plan) == has_loops
        assert ("its body constrains shardings" in plan) == name.startswith("constraint_inside")


@pytest.mark.parametrize("name", ["data_and_tensor_parallel", "explicit_tensor_parallel"])
def test_eager_gradient_of_a_sharded_program(name):
    layout = LAYOUTS[name]
    devices = layout.mesh()
    with layout.context(devices):
        args = layout.place(devices)
        structured = jitscope.outermost_jit(
            layout.build(jitscope.shared_subroutine, devices), policy=share_all_policy()
        )
        result = gradient(structured)(*args)
        wanted = gradient(jax.jit(layout.build(plain, devices)))(*args)
        assert_same(result, wanted)
        assert_same_shardings(result, wanted)


@pytest.mark.parametrize("transform", [value, gradient])
def test_one_function_serves_one_device_then_many(transform):
    structured = jitscope.outermost_jit(
        transform(mlp(jitscope.shared_subroutine)), policy=share_all_policy()
    )
    reference = jax.jit(transform(mlp(plain)))
    single = params(), normal(99, BATCH, WIDTH)
    layout = LAYOUTS["data_and_tensor_parallel"]
    sharded = layout.place(layout.mesh())
    for args in [single, sharded, single, LAYOUTS["data_parallel"].place(auto_1d())]:
        result, wanted = structured(*args), reference(*args)
        assert_same(result, wanted)
        assert_same_shardings(result, wanted)
    # What is kept is decided for the devices of each lowering, not when the program is traced.
    assert tagged_calls(structured.lower(*single).as_text()) >= N_LAYERS
    compiled = structured.lower(*sharded).compile().as_text()
    assert collectives(compiled) == collectives(reference.lower(*sharded).compile().as_text())


def test_shardings_given_as_options():
    devices = auto_2d()
    replicated, by_batch = NamedSharding(devices, P()), NamedSharding(devices, P("data"))
    options = {"in_shardings": (replicated, by_batch), "out_shardings": by_batch}
    args = params(), normal(99, BATCH, WIDTH)
    structured = jitscope.outermost_jit(
        mlp(jitscope.shared_subroutine), policy=share_all_policy(), **options
    )
    result, wanted = structured(*args), jax.jit(mlp(plain), **options)(*args)
    assert_same(result, wanted)
    assert_same_shardings(result, wanted)


def test_donated_shards_are_given_up():
    layout = LAYOUTS["data_and_tensor_parallel"]
    ps, x = layout.place(layout.mesh())
    wanted = jax.jit(mlp(plain))(ps, x)
    donated = fresh(x)
    structured = jitscope.outermost_jit(
        mlp(jitscope.shared_subroutine), policy=share_all_policy(), donate_argnums=1
    )
    assert_same(structured(ps, donated), wanted)
    assert donated.is_deleted()


def test_bodies_on_other_devices_than_the_first():
    device = jax.devices()[5]
    args = jax.device_put((params(), normal(99, BATCH, WIDTH)), device)
    structured = jitscope.outermost_jit(mlp(jitscope.shared_subroutine), policy=share_all_policy())
    result = structured(*args)
    assert_same(result, jax.jit(mlp(plain))(*args))
    assert result.devices() == {device}


def test_random_bits_do_not_depend_on_sharding():
    @jitscope.shared_subroutine
    def block(key, x):
        return x + jax.random.normal(key, x.shape)

    def net(key, x):
        for k in jax.random.split(key, N_LAYERS):
            x = block(k, x)
        return x

    structured = jitscope.outermost_jit(net, policy=share_all_policy())
    x = jnp.zeros((BATCH, WIDTH))
    sharded = jax.device_put(x, NamedSharding(auto_1d(), P("data")))
    key = jax.random.key(1)
    np.testing.assert_allclose(
        np.asarray(structured(key, sharded)), np.asarray(structured(key, x)), atol=1e-6
    )

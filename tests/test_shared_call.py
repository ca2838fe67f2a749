"""The one primitive: attributes by target, and a nested jit to everything else."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    assert_same,
    compiled_kernels,
    kept_calls,
    share_all_policy,
    tagged_calls,
)
from jax import export, lax
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jitscope
from jitscope import _jax
from jitscope.structuring.shared_call import attributes, shared_call_p, shared_call_params
from jitscope.structuring.variants import Cover

X = np.linspace(0.1, 0.9, 8, dtype=np.float32)
UNIT = "block_0123456789ab"


@jax.jit
def block(x):
    return jnp.sin(x) * 2 + jnp.cos(x)


def shared(fun, unit=UNIT, cover=None):
    """A function of one operand whose every call is a shared call of one body."""
    bodies = {}

    def call(x):
        x = jnp.asarray(x)
        (eqn,) = _jax.equations(jax.make_jaxpr(fun)(x))
        body = bodies.setdefault(jax.typeof(x), eqn.params["jaxpr"])
        return shared_call_p.bind(x, **shared_call_params(eqn.params, body, unit, cover))[0]

    return call


def stack(f):
    return lambda x: f(f(f(x)))


def on_eight_devices(x):
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec("i")))


# --- attributes -----------------------------------------------------------------------------------


def target(platforms=("cpu",), n_devices=1, *, manual=False):
    return _jax.Target(platforms, n_devices, manual)


def test_call_on_one_cpu_device_is_kept_and_compiled_as_a_unit():
    assert attributes(target(), UNIT) == {"inlineable": "false", "compilation_unit": UNIT}


def test_units_are_not_used_on_several_devices():
    assert "compilation_unit" not in attributes(target(n_devices=8), UNIT)
    assert "compilation_unit" not in attributes(target(n_devices=8, manual=True), UNIT)
    assert "compilation_unit" not in attributes(target(manual=True), UNIT)


@pytest.mark.parametrize("platforms", [("cuda",), ("rocm",), ("tpu",), ("cpu", "cuda"), ()])
def test_call_for_another_platform_or_for_several_is_plain(platforms):
    assert attributes(target(platforms), UNIT) == {}


def test_call_without_a_unit_is_plain():
    assert attributes(target(), "") == {}


# --- lowering -------------------------------------------------------------------------------------


def test_calls_are_tagged_for_one_cpu_device():
    lowered = jax.jit(stack(shared(block))).lower(X)
    assert tagged_calls(lowered.as_text()) == 3
    assert kept_calls(lowered.compile().as_text()) == {UNIT: 3}


def test_calls_are_calls_of_one_function():
    text = jax.jit(stack(shared(block))).lower(X).as_text()
    assert text.count("func.func private") == 1


def test_call_without_a_unit_is_lowered_as_a_nested_jit():
    text = jax.jit(stack(shared(block, unit=""))).lower(X).as_text()
    assert tagged_calls(text) == 0
    assert len(re.findall(r"\bcall @", text)) == 3


def test_units_are_not_asked_for_on_eight_devices():
    lowered = jax.jit(stack(shared(block))).lower(on_eight_devices(X))
    assert "compilation_unit" not in lowered.as_text()
    assert lowered.compile()(on_eight_devices(X)).sharding == on_eight_devices(X).sharding


def test_calls_inside_shard_map_are_plain():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("i")
    fun = jax.shard_map(stack(shared(block)), mesh=mesh, in_specs=spec, out_specs=spec)
    lowered = jax.jit(fun).lower(X)
    assert "compilation_unit" not in lowered.as_text()
    np.testing.assert_allclose(lowered.compile()(X), stack(block)(X), rtol=1e-5)


def test_one_traced_function_works_on_one_device_and_then_sharded():
    fun = jax.jit(stack(shared(block)))
    single = fun(X)
    several = fun(on_eight_devices(X))
    again = fun(X)
    assert len(several.sharding.device_set) == 8
    for result in (single, several, again):
        np.testing.assert_allclose(result, stack(block)(X), rtol=1e-5)


@pytest.mark.parametrize("platforms", [("tpu",), ("cpu", "tpu"), ("cuda", "cpu"), ("cuda",)])
def test_exported_calls_for_other_or_several_platforms_are_plain(platforms):
    exported = export.export(jax.jit(stack(shared(block))), platforms=platforms)(X)
    assert tagged_calls(exported.mlir_module()) == 0


def test_program_exported_for_one_cpu_device_runs_where_it_is_imported():
    exported = export.export(jax.jit(stack(shared(block))))(X)
    for x in (jnp.asarray(X), on_eight_devices(X)):
        np.testing.assert_allclose(jax.jit(exported.call)(x), stack(block)(X), rtol=1e-5)


def test_program_is_exported_with_symbolic_shapes():
    (n,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(stack(shared(block))))(jax.ShapeDtypeStruct((n,), "f4"))
    for x in (X, X[:3]):
        np.testing.assert_allclose(exported.call(x), stack(block)(x), rtol=1e-5)


def test_cover_picks_operands_and_results():
    @jax.jit
    def narrow(x, y):
        return jnp.cos(y)

    @jax.jit
    def wide(y):
        return jnp.sin(y), jnp.cos(y)

    (site,) = _jax.equations(jax.make_jaxpr(narrow)(X, X))
    (body,) = _jax.equations(jax.make_jaxpr(wide)(X))
    cover = Cover("digest", operands=(1,), results=(1,))
    params = shared_call_params(site.params, body.params["jaxpr"], UNIT, cover)
    fun = jax.jit(lambda x, y: shared_call_p.bind(x, y, **params)[0])
    np.testing.assert_allclose(fun(X, 2 * X), np.cos(2 * X), rtol=1e-6)
    assert tagged_calls(fun.lower(X, X).as_text()) == 1


# --- source lines in kept bodies ------------------------------------------------------------------


@jax.jit
def draw(key):
    first, second = jax.random.split(key)
    return jax.random.normal(second) + jax.random.uniform(first)


def test_kept_body_that_calls_others_is_compiled():
    """XLA followed lines of inlined calls in circles, and never came back."""
    fun = jax.jit(shared(draw))
    lowered = fun.lower(jax.random.key(0))
    assert kept_calls(lowered.compile().as_text()) == {UNIT: 1}
    np.testing.assert_allclose(fun(jax.random.key(0)), draw(jax.random.key(0)), rtol=1e-6)


def lines_in(function: str, text: str) -> list[str]:
    """Source locations of operations in a function of a lowered program, and in what it calls."""
    _, body = re.search(rf"(func\.func private @{function}\(.*?)\n(.*?\n  }})", text, re.S).groups()
    found = re.findall(r'"[^"]*\.py":\d+', body)
    for callee in re.findall(r"\bcall @(\w+)", body):
        found += lines_in(callee, text)
    return found


@pytest.mark.parametrize("in_body", [lambda x: (jnp.sin(x), x + 1), jnp.linalg.qr])
def test_results_of_kept_bodies_can_be_wanted_in_another_layout(in_body):
    """LAPACK wants its matrices by columns; XLA aborted if it could choose that for the call."""
    body = jitscope.shared_subroutine(in_body)

    def fun(a, b):
        for _ in range(2):
            first, second = body(a)
            b = b + lax.linalg.triangular_solve(second, first, left_side=True)
            a = a * 2
        return b

    args = jnp.eye(4) * 2 + 0.1, jnp.ones((4, 4))
    function = jitscope.outermost_jit(fun, policy=share_all_policy())
    lowered = function.lower(*args)
    assert tagged_calls(lowered.as_text()) == 2
    assert "LayoutConstraint" not in lowered.compile().as_text()
    assert_same(function(*args), jax.jit(fun)(*args))

    exported = export.export(function)(*args)  # in which JAX allows no layouts
    assert tagged_calls(exported.mlir_module()) == 0
    assert_same(exported.call(*args), jax.jit(fun)(*args))


def test_kept_bodies_and_what_they_call_have_names_and_no_lines():
    lowered = jax.jit(shared(draw)).lower(jax.random.key(0))
    text = lowered.compiler_ir().operation.get_asm(enable_debug_info=True, use_local_scope=True)
    assert lines_in("draw", text) == []
    assert "jit(draw)" in text
    assert "test_shared_call.py" in text  # at the call


# --- random bits in kept bodies -------------------------------------------------------------------


def dropout_layer(key, w, x):
    first, second = jax.random.split(key)
    x = jnp.where(jax.random.bernoulli(first, 0.9, x.shape), x, 0) @ w
    return jnp.tanh(x) * jax.random.normal(second, x.shape)


def dropout_step(layer):
    def loss(weights, keys, x):
        for w, key in zip(weights, keys, strict=True):
            x = layer(key, w, x)
        return (x**2).sum()

    return jax.value_and_grad(loss)


def dropout_arguments(n_layers, impl=None):
    keys = [jax.random.key(i, impl=impl) for i in range(n_layers)]
    return [jnp.eye(8) + i for i in range(n_layers)], keys, jnp.ones((4, 8))


def kept(fun):
    return jitscope.shared_subroutine(fun, structure="shared")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_draws_of_kept_bodies_are_compiled_once(impl, tmp_path):
    n_kernels = []
    for n_layers in (6, 12):
        step = jitscope.outermost_jit(dropout_step(kept(dropout_layer)))
        lowered = step.lower(*dropout_arguments(n_layers, impl))
        assert tagged_calls(lowered.as_text()) == 2 * n_layers
        (directory := tmp_path / str(n_layers)).mkdir()
        n_kernels.append(compiled_kernels(lowered, directory))
    assert n_kernels[0] == n_kernels[1] > 0


def test_layers_with_random_draws_compute_the_same_kept():
    arguments = dropout_arguments(4)
    actual = jitscope.outermost_jit(dropout_step(kept(dropout_layer)))(*arguments)
    assert_same(actual, jax.jit(dropout_step(dropout_layer))(*arguments))


DRAWS = {
    "bits": lambda key: jax.random.bits(key, (33, 7)),
    "bits of a byte": lambda key: jax.random.bits(key, (5,), "uint8"),
    "one": lambda key: jax.random.bits(key),
    "split": lambda key: jax.random.key_data(jax.random.split(key, 3)),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 5)),
    "randint": lambda key: jax.random.randint(key, (16,), 0, 17),
    "permutation": lambda key: jax.random.permutation(key, 20),
    "mapped": lambda key: jax.vmap(jax.random.bits)(jax.random.split(key, 5)),
    "in a loop": lambda key: lax.map(
        lambda i: jax.random.bits(jax.random.fold_in(key, i)), jnp.arange(5)
    ),
    "an old key": lambda key: jax.random.bits(jax.random.key_data(key), (4,)),
}


@pytest.mark.parametrize("partitionable", [True, False])
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_of_kept_bodies_are_those_of_jax(name, partitionable):
    draw, keys = DRAWS[name], [jax.random.key(1), jax.random.key(2)]

    def both(f):
        return lambda keys: [f(key) for key in keys]

    with jax.threefry_partitionable(partitionable):
        fun = jitscope.outermost_jit(both(kept(draw)))
        assert tagged_calls(fun.lower(keys).as_text()) == 2
        for actual, expected in zip(fun(keys), jax.jit(both(draw))(keys), strict=True):
            np.testing.assert_array_equal(actual, expected)


def noisy_steps(keys, x):
    """Steps no two of which are equal, but for what they draw."""
    for i, key in enumerate(keys):
        x = (jnp.sin, jnp.cos, jnp.tanh, jnp.exp)[i % 4](x / (i + 1))
        x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0)
    return x


@pytest.mark.parametrize("differentiate", [lambda f: f, lambda f: jax.grad(f, argnums=1)])
def test_draws_are_kept_by_themselves_where_layers_are_not(differentiate):
    def fun(keys, x):
        return noisy_steps(keys, x).sum()

    fun, args = differentiate(fun), (jax.random.split(jax.random.key(0), 6), jnp.ones((4, 8)))
    ours = jitscope.outermost_jit(fun)
    lowered = ours.lower(*args)
    assert tagged_calls(lowered.as_text()) == 6
    assert " while(" not in lowered.compile().as_text()
    assert_same(ours(*args), jax.jit(fun)(*args))
    (decision,) = [d for d in ours.reuse().plan.decisions.values() if "draw" in d.reason]
    assert decision.reason.startswith("6 uses that draw random numbers")


@pytest.mark.parametrize("n_draws, impl", [(3, None), (6, "rbg"), (6, "old")])
def test_few_draws_and_those_without_loops_are_left_alone(n_draws, impl):
    keys = jax.random.split(jax.random.key(0, impl=None if impl == "old" else impl), n_draws)
    with jax.threefry_partitionable(impl != "old"):
        lowered = jitscope.outermost_jit(noisy_steps).lower(keys, jnp.ones((4, 8)))
    assert tagged_calls(lowered.as_text()) == 0


def test_draws_of_kept_layers_are_a_part_of_them():
    arguments = dropout_arguments(8)
    step = jitscope.outermost_jit(dropout_step(kept(dropout_layer)))
    assert tagged_calls(step.lower(*arguments).as_text()) == 16
    staged = jitscope.outermost_jit(noisy_steps, staged=True)
    assert not hasattr(staged.lower(arguments[1], arguments[2]), "n_runs")


def test_lowering_rules_of_the_user_hold_in_kept_bodies():
    def zeros(*operands):
        return [jnp.zeros_like(bits) for bits in operands[2:]]

    rule = (threefry2x32_p, mlir.lower_fun(zeros, multiple_results=True))
    keys = [jax.random.key_data(jax.random.key(i)) for i in range(2)]
    draw = kept(lambda key: jax.random.bits(key, (8,)))
    exported = export.export(
        jitscope.outermost_jit(lambda keys: [draw(key) for key in keys]),
        platforms=["cpu"],
        _override_lowering_rules=(rule,),
    )(keys)
    assert tagged_calls(exported.mlir_module()) == 2
    assert not np.any(exported.call(keys))


def test_random_bits_outside_of_kept_bodies_are_lowered_as_ever():
    draw = jax.random.bits
    alone = jax.jit(lambda key: draw(key, (8,))).lower(jax.random.key(0)).as_text()
    fun = jitscope.outermost_jit(lambda key: kept(lambda k: draw(k, (8,)))(key) + draw(key, (8,)))
    beside = fun.lower(jax.random.key(0)).as_text()
    assert tagged_calls(beside) == 1
    assert beside.count("stablehlo.while") == alone.count("stablehlo.while") == 1


# --- transformations ------------------------------------------------------------------------------


def loss(f):
    return lambda x: (stack(f)(x) ** 2).sum()


TRANSFORMED = {
    "value": stack,
    "grad": lambda f: jax.grad(loss(f)),
    "value_and_grad": lambda f: jax.value_and_grad(loss(f)),
    "jvp": lambda f: lambda x: jax.jvp(stack(f), (x,), (x,)),
    "vjp": lambda f: lambda x: jax.vjp(stack(f), x)[1](x),
    "linearize": lambda f: lambda x: jax.linearize(stack(f), x)[1](x),
    "hessian": lambda f: jax.hessian(loss(f)),
    "jacfwd": lambda f: jax.jacfwd(stack(f)),
    "jacrev": lambda f: jax.jacrev(stack(f)),
    "vmap": lambda f: jax.vmap(stack(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(stack(f))),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(stack(f))(x).sum()),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(loss(f))),
    "checkpoint with a policy": lambda f: jax.grad(
        jax.checkpoint(loss(f), policy=jax.checkpoint_policies.dots_saveable)
    ),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), c), x, length=3),
    "grad of scan": lambda f: jax.grad(
        lambda x: lax.scan(lambda c, _: (f(c), None), x, length=3)[0].sum()
    ),
    "while": lambda f: lambda x: lax.while_loop(lambda c: c.sum() < 20, lambda c: f(c) + 1, x),
    "cond": lambda f: lambda x: lax.cond(x[0] > 0, f, stack(f), x),
    "map": lambda f: lambda x: lax.map(f, x),
    "custom_jvp around": lambda f: custom(f),
    "remat of jit": lambda f: jax.grad(lambda x: jax.checkpoint(jax.jit(stack(f)))(x).sum()),
    "stop_gradient": lambda f: jax.grad(lambda x: (lax.stop_gradient(f(x)) * f(x)).sum()),
    "float0 tangents": lambda f: (
        lambda x: jax.jvp(lambda x, i: f(x) * i, (x, 2), (x, np.zeros((), jax.dtypes.float0)))
    ),
    "linear_transpose": lambda f: lambda x: jax.linear_transpose(lambda y: 2 * y, x)(f(x)),
    "eval_shape": lambda f: (
        lambda x: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(stack(f), x))
    ),
}


def custom(f):
    g = jax.custom_jvp(stack(f))
    g.defjvp(lambda primals, tangents: (g(*primals), f(*tangents)))
    return lambda x: jax.jvp(g, (x,), (x,))


@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.parametrize("outside", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_transformed_calls_equal_those_of_a_nested_jit(name, outside):
    transform = TRANSFORMED[name]
    assert_same(outside(transform(shared(block)))(X), outside(transform(block))(X))


def test_derivatives_are_those_of_the_call_site():
    """The body that is lowered may be of another site, with other rules."""

    def with_rule(factor):
        @jax.custom_jvp
        def f(x):
            return jnp.sin(x)

        f.defjvp(lambda primals, tangents: (f(*primals), factor * tangents[0]))
        return jax.jit(lambda x: f(x) * 1.0)

    (site,) = _jax.equations(jax.make_jaxpr(with_rule(3.0))(X))
    (other,) = _jax.equations(jax.make_jaxpr(with_rule(5.0))(X))
    params = shared_call_params(site.params, other.params["jaxpr"], UNIT, None)
    gradient = jax.grad(lambda x: shared_call_p.bind(x, **params)[0].sum())(X)
    np.testing.assert_allclose(gradient, np.full(8, 3.0), rtol=1e-6)


def test_call_has_the_effects_of_its_body():
    def printing(x):
        jax.debug.print("{}", x)
        return x

    (site,) = _jax.equations(jax.make_jaxpr(jax.jit(printing))(X))
    params = shared_call_params(site.params, site.params["jaxpr"], "", None)
    jaxpr = jax.make_jaxpr(lambda x: shared_call_p.bind(x, **params))(X)
    assert _jax.opened(jaxpr).effects == _jax.opened(site.params["jaxpr"]).effects != set()

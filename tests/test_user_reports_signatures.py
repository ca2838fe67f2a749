"""What people report about calls whose arguments or place make another trace.

Each test is a public report in our words; the comment tells where it was made.
"""

from __future__ import annotations

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same
from programs import normal
from user_programs import Runs

import jitscope
from jitscope import outermost_jit, shared_subroutine

X = normal(0, 2, 3)


def applied(layers, x):
    return functools.reduce(lambda x, layer: layer(x), layers, x)


# --- arguments ---------------------------------------------------------------------------------


def test_python_scalar_and_then_an_array_is_told():
    # jax#3163, mujoco#2306, jaxopt#451, numpyro#463: the carry is weakly typed at first.
    counts = Runs(), Runs()

    def make(count):
        def step(x, size):
            count()
            return x * size, size * 0.5 + jnp.float32(0)

        return step

    ours, theirs = shared_subroutine(make(counts[0])), jax.jit(make(counts[1]))
    for f in (ours, theirs):
        x, size = X, 1.0
        for _ in range(4):
            x, size = f(x, size)
    assert (counts[0].n, counts[1].n) == (2, 2)
    (reason,) = ours.stats().retrace_reasons
    assert "weak_type of argument size" in reason


def test_positional_keyword_and_default_are_one_call():  # jax#523, jax#10724
    def traces_with(decorate):
        count = Runs()

        def f(x, power=2):
            count()
            return x**power

        f = decorate(f)
        return count, (f(X), f(X, 2), f(X, power=2), f(x=X, power=2))

    ours = traces_with(shared_subroutine)
    theirs = traces_with(functools.partial(jax.jit, static_argnames="power"))
    assert ours[0].n == 1 < theirs[0].n
    assert_same(ours[1], theirs[1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Indexed:
    w: jax.Array
    idx: int = dataclasses.field(metadata=dict(static=True))

    def __call__(self, x):
        for _ in range(4):
            x = jnp.tanh(x @ self.w) * 1.25
        return x


def test_layers_that_differ_in_an_unused_static_field_are_one_body():  # jax#33043
    call = shared_subroutine(Indexed.__call__)

    def model(ws, x):
        return applied([functools.partial(call, Indexed(w, i)) for i, w in enumerate(ws)], x)

    ws = [jnp.eye(3) * 0.9] * 12
    structured = outermost_jit(model)
    assert_same(structured(ws, X), jax.jit(model)(ws, X))
    (body,) = structured.reuse().census.bodies
    assert body.n_uses == 12
    # Python code may read the field, so it is traced for each: the reason shows the two values.
    assert call.stats().n_traces == 12
    assert call.stats().retrace_reasons[0] == "static field idx of Indexed: 1 against 0"


def test_static_index_of_a_layer_that_is_left_out_makes_one_trace():  # jax#33043
    @shared_subroutine(static_argnames="idx")
    def with_index(w, x, idx):
        return jnp.tanh(x @ w) * 1.125

    for idx in range(12):
        with_index(jnp.eye(3), X, idx)
    assert with_index.stats().n_traces == 12
    assert all("static value idx" in reason for reason in with_index.stats().retrace_reasons)
    without = shared_subroutine(lambda w, x: with_index.__wrapped__(w, x, 0))
    for _ in range(12):
        without(jnp.eye(3), X)
    assert without.stats().n_traces == 1


def test_unhashable_static_value_is_named_with_what_to_do():  # jax#3701, jax#4712
    @shared_subroutine(static_argnames="sizes")
    def reshape(x, sizes):
        return x.reshape(sizes)

    with pytest.raises(TypeError, match=r"sizes \(a list\).*tuple"):
        reshape(X, [3, 2])
    assert reshape(X, (3, 2)).shape == (3, 2)


def test_static_values_that_python_calls_equal_are_told_apart():  # jax#2813
    @shared_subroutine(static_argnames="n")
    def power(x, n):
        return jnp.full_like(x, n, dtype=type(n))

    plain = jax.jit(power.__wrapped__, static_argnames="n")
    for n in (1, 1.0, True, 1):
        assert_same(power(X, n=n), plain(X, n=n))
    assert power.stats().n_traces == 3


class Model:
    """Neither hashable nor a pytree."""

    __hash__ = None
    scale = 3.0

    def __init__(self, w):
        self.w = w

    def __eq__(self, other):
        return False

    @shared_subroutine
    def forward(self, x):
        return jnp.tanh(x @ self.w)

    @classmethod
    @shared_subroutine
    def scaled(cls, x):
        return x * cls.scale

    @staticmethod
    @shared_subroutine
    def halved(x):
        return x / 2


def test_decorator_works_on_methods_of_ordinary_classes():  # jax#5595, jax#15727, jax#17158
    with pytest.raises((TypeError, ValueError)):
        jax.jit(Model.forward.__wrapped__)(Model(jnp.eye(3)), X)
    a, b = Model(jnp.eye(3)), Model(jnp.eye(3) * 2)

    def run(a, b, x, forward, scaled, halved):
        return [halved(scaled(forward(m, forward(m, x)))) for m in (a, b, a)]

    plain = functools.partial(
        run,
        a,
        b,
        forward=Model.forward.__wrapped__,
        scaled=lambda x: x * 3.0,
        halved=lambda x: x / 2,
    )
    ours = functools.partial(
        run, a, b, forward=lambda m, x: m.forward(x), scaled=Model.scaled, halved=a.halved
    )
    assert_same(outermost_jit(ours)(X), jax.jit(plain)(X))
    # An instance that JAX knows nothing of counts as itself: one trace each, and said so.
    assert Model.forward.stats().n_traces == 2
    assert any("self" in reason for reason in Model.forward.stats().retrace_reasons)


# --- the place a call is made in -----------------------------------------------------------------


def test_calls_are_counted_apart_from_traces_also_where_there_is_a_callback():
    # jax#31319, jax#39289: a function with a callback leaves the fast path, and no tool shows it.
    seen = []

    @shared_subroutine
    def measured(x):
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda x: (seen.append(0), np.asarray(x) + 1)[1], result, x)

    model = jax.jit(lambda x: measured(measured(measured(x))))
    for _ in range(2):
        np.testing.assert_allclose(model(X), X + 3)
    stats = measured.stats()
    assert (stats.n_calls, stats.n_traces, stats.n_reused) == (3, 1, 2)
    assert len(seen) >= 6


def test_inputs_of_other_shardings_share_the_trace_where_their_types_are_equal():  # jax#31250
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    count = Runs()

    @shared_subroutine
    def layer(x):
        count()
        return jnp.sin(x) * 2.25

    model = outermost_jit(lambda x: layer(layer(x)))
    x = jnp.arange(16.0)
    inputs = [x, jax.device_put(x, jax.devices()[1])] + [
        jax.device_put(x, jax.NamedSharding(mesh, spec)) for spec in (jax.P("i"), jax.P())
    ]
    expected = jax.jit(lambda x: jnp.sin(jnp.sin(x) * 2.25) * 2.25)(x)
    for one in inputs:
        np.testing.assert_allclose(model(one), expected, rtol=1e-5, atol=1e-6)
    assert count.n <= 2


def test_explicit_sharding_and_mesh_are_given_as_reasons():
    # jax#31250, jax#6483, tpu-inference#2036, marin#1906: precompiled outside of the mesh.
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    layer = shared_subroutine(lambda x: jnp.cos(x) * 2.125)
    x = jnp.arange(8.0)
    jax.jit(lambda x: layer(layer(x)))(x)
    with jax.set_mesh(mesh):
        jax.jit(lambda x: layer(layer(x)))(jax.device_put(x, jax.P("i")))
    (reason,) = layer.stats().retrace_reasons
    assert "sharding" in reason or "mesh" in reason
    with jax.set_mesh(mesh):  # entered again: nothing new
        jax.jit(lambda x: layer(layer(x)) + 0)(jax.device_put(x, jax.P("i")))
    assert layer.stats().n_traces == 2


def test_helper_of_a_derivative_rule_in_a_scan_is_traced_once():  # jax#40654, jax#40666
    count = Runs()

    @shared_subroutine
    def helper(x):
        count()
        return jnp.tanh(x) * 1.75

    def rule_of(helper):
        @jax.custom_vjp
        def f(x):
            return helper(x)

        f.defvjp(lambda x: (helper(x), x), lambda x, g: (g * helper(x),))
        return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 4)[0].sum()

    ours, plain = (jax.jit(jax.grad(rule_of(h))) for h in (helper, helper.__wrapped__))
    result = ours(X)
    n_ours = count.n
    assert_same(result, plain(X))
    # JAX 0.10 still traces it for two types that differ in nothing that is shown.
    assert n_ours <= 2 < count.n - n_ours


def test_primal_of_a_custom_jvp_is_traced_less_often_when_nested():  # jax#12775
    def traces_with(decorate):
        count = Runs()

        @jax.custom_jvp
        def f(x):
            count()
            return jnp.sin(x) / (1 + x**2)

        @f.defjvp
        def rule(primals, tangents):
            (x,), (t,) = primals, tangents
            return f(x), t * jnp.cos(x)

        layer = decorate(lambda x: f(x) * 2)
        result = jax.jit(jax.grad(lambda x: applied([layer] * 6, x).sum()))(X)
        return count.n, result

    ours, flat = traces_with(shared_subroutine), traces_with(lambda f: f)
    assert ours[0] < flat[0]
    assert_same(ours[1], flat[1])


def test_named_axis_is_given_as_the_reason():  # jax#34801, jax#1347
    layer = shared_subroutine(lambda x: jax.lax.psum(x, "i") * 1.5)
    for size in (2, 4):
        jax.vmap(lambda x: layer(layer(x)), axis_name="i")(jnp.ones((size, 3)))
    (reason,) = layer.stats().retrace_reasons
    assert "named axes: {'i': 4} against {'i': 2}" in reason


# --- is it told? -----------------------------------------------------------------------------


def test_every_function_has_public_counts_signatures_and_reasons():
    # jax#4274: "why is it recompiling?"; and the users who count by a private _cache_size.
    @shared_subroutine
    def f(x, mode):
        return x * 1.0625

    jax.jit(lambda x: f(f(x, "train"), "train") + f(x, "test") + f(x[:1], "train"))(X)
    stats = f.stats()
    assert (stats.n_calls, stats.n_traces, stats.n_reused) == (4, 3, 1)
    assert len(stats.signatures) == 3 and len(stats.retrace_reasons) == 2
    assert "static value mode: 'test' against 'train'" in str(stats)
    assert "shape of argument x: (1, 3) against (2, 3)" in str(stats)


def test_changed_leaf_of_a_module_is_named_by_its_path():  # equinox#945, equinox#686
    @shared_subroutine
    def f(model, x):
        return model["head"]["act"](x @ model["w"]) * 1.03125

    f({"w": jnp.eye(3), "head": {"act": jnp.tanh}}, X)
    f({"w": jnp.eye(3), "head": {"act": jnp.sin}}, X)
    (reason,) = f.stats().retrace_reasons
    assert reason.startswith("static value model['head']['act']: sin against tanh")


def test_seconds_of_every_phase_are_known_for_a_block_of_code():
    # jax#29809, jax#5700, jax#9347, equinox#945: where does the time go, tracing included?
    with jitscope.recording() as record:
        program = outermost_jit(lambda x: applied([lambda x: jnp.sin(x) * 1.015625] * 3, x))
        program(X)
    report = record.report()
    (mine,) = report.programs
    assert min(mine.seconds.trace_s, mine.seconds.lower_s, mine.seconds.compile_s) > 0
    assert report.seconds.cold_s >= mine.seconds.cold_s
    assert "compile" in str(record)


def test_seconds_to_trace_are_known_for_every_subroutine():
    # mujoco#2441, brax#95, squishyplanet#24: which function takes the minutes?
    @shared_subroutine
    def slow(x):
        time.sleep(0.12)
        return jnp.sin(x)

    @shared_subroutine
    def around(x):
        return slow(slow(x))

    with jitscope.recording() as record:
        outermost_jit(lambda x: around(around(x))).trace(X)
    assert around.stats().trace_s >= slow.stats().trace_s >= 0.12  # asleep
    shown = [
        s.split(":")[0] for s in str(record).splitlines() if s.startswith(("slow:", "around:"))
    ]
    assert shown == ["around", "slow"]  # the slowest first
    assert "traced in 0." in str(slow.stats())


def test_wrapped_solver_is_shown_to_be_traced_once():  # lineax#169
    @shared_subroutine
    def solve(matrix, vector):
        return jnp.linalg.solve(matrix + 3 * jnp.eye(3), vector)

    class Solver:
        def __call__(self, matrix, vector):
            return solve(matrix, vector)

    def model(solve, matrix, vector):
        for _ in range(5):
            vector = solve(matrix, vector)
        return vector

    args = normal(1, 3, 3), X[0]
    result = outermost_jit(functools.partial(model, Solver()))(*args)
    assert_same(result, jax.jit(functools.partial(model, solve.__wrapped__))(*args))
    assert (solve.stats().n_calls, solve.stats().n_traces) == (5, 1)


def test_methods_of_equinox_modules_are_traced_once():
    # equinox#973, equinox#980, equinox#983, LINX#7: filter_jit of bound methods.
    eqx = pytest.importorskip("equinox")
    count = Runs()

    class Layer(eqx.Module):
        w: jax.Array

        def forward(self, x):
            count()
            return jnp.tanh(x @ self.w)

    def model(layers, x):
        return applied([shared_subroutine(layer.forward) for layer in layers], x)

    layers = [Layer(jnp.eye(3) * i) for i in range(1, 7)]
    result = outermost_jit(model)(layers, X)
    assert count.n == 1
    assert_same(result, jax.jit(lambda ls, x: applied([m.forward for m in ls], x))(layers, X))

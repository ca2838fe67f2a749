"""What people report about nested functions that change what a program means.

Values that turn into tracers, stale captures, frozen randomness, derivatives, side effects. Each
test is a public report in our words; the comment tells where it was made.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, share_all_policy
from programs import normal
from user_programs import repeated

import jitscope
from jitscope import outermost_jit, shared_subroutine

X = normal(0, 2, 3)


# --- Python values -----------------------------------------------------------------------------


def test_python_results_of_a_nested_function_stay_python_values():  # jax#14666, jax#35090
    def split(x):
        half = x.shape[-1] // 2
        return x[..., :half], half, "left"

    def model(split, x):
        left, half, side = split(x)
        # Under a nested jax.jit, `half` is a tracer that cannot be a shape.
        return left.reshape(half, -1) if side == "left" else x

    with pytest.raises((TypeError, jax.errors.JAXTypeError)):
        jax.jit(functools.partial(model, jax.jit(split)))(X)
    structured = outermost_jit(functools.partial(model, shared_subroutine(split)))
    assert_same(structured(X), jax.jit(functools.partial(model, split))(X))


def summed(x, lower, upper):
    if lower < 1:
        x = x * 2
    return jax.lax.fori_loop(lower, upper, lambda i, acc: acc + x[i].sum(), jnp.float32(0))


def test_python_bounds_of_a_loop_are_named_where_they_cannot_be_traced():  # jax#9298
    nested = shared_subroutine(summed)
    with pytest.raises(TypeError) as error:
        jax.jit(lambda x: nested(x, 0, 2))(X)
    notes = " ".join(error.value.__notes__)
    assert "lower=0" in notes and "static_argnames=('lower', 'upper',)" in notes


@pytest.mark.parametrize(
    "cure",
    [
        shared_subroutine(static_argnames=("lower", "upper")),
        lambda f: shared_subroutine(lambda x, lower=0, upper=2: f(x, lower, upper)),
    ],
    ids=["static", "default"],
)
def test_static_bounds_keep_reverse_mode_through_a_loop(cure):  # jax#9298
    # With traced bounds the loop is a while loop, which has no reverse mode.
    with pytest.raises(ValueError, match="[Rr]everse-mode"):
        jax.grad(
            lambda x: jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda i, c: c * 2, x))(x, 3)
        )(1.0)
    nested = cure(summed)
    ours = outermost_jit(jax.grad(lambda x: nested(x, 0, 2) + nested(x, lower=0, upper=2)))
    plain = jax.jit(jax.grad(lambda x: summed(x, 0, 2) * 2))
    assert_same(ours(X), plain(X))


# --- what a function captured -----------------------------------------------------------------


def test_tracer_of_another_trace_is_never_found_in_a_cache():  # jax#38460
    def model(x, scale):
        layer = shared_subroutine(lambda x: jnp.sin(x) * scale)
        return repeated(layer, 3, x)

    plain = lambda x, scale: repeated(lambda x: jnp.sin(x) * scale, 3, x)
    for scale in (2.0, 3.0):
        for wrap in (
            outermost_jit,
            jax.jit,
            lambda f: jax.jit(jax.vmap(f, (0, None))),
            lambda f: jax.jit(jax.grad(lambda x, s: f(x, s).sum(), argnums=1)),
        ):
            expected = wrap(plain) if wrap is not outermost_jit else jax.jit(plain)
            assert_same(wrap(model)(X, scale), expected(X, scale))


def test_nesting_can_be_switched_off_to_look_at_values():  # jax#38460
    seen = []

    @shared_subroutine
    def layer(x):
        seen.append(isinstance(x, jax.core.Tracer))  # where a debugger would stop
        return x * 2

    with jitscope.disabled():
        np.testing.assert_allclose(repeated(layer, 3, X), X * 8)
    assert seen == [False] * 3


def test_captured_flag_that_changes_after_the_first_trace_is_seen():  # jax#1426, jax#40609
    training = True

    @shared_subroutine
    def layer(x):
        return x * 2 if training else x

    first = jax.jit(lambda x: layer(x))(X)
    training = False
    second = jax.jit(lambda x: layer(x))(X)
    np.testing.assert_allclose(first, X * 2)
    np.testing.assert_allclose(second, X)


SETTINGS = {"factor": 2.0}


@pytest.mark.parametrize("subject", ["a global", "an attribute"])
def test_audit_names_a_body_that_depends_on_hidden_state(subject):
    # jax#1426, jax#40609: a flag that changed after the first trace is ignored;
    # scvi-tools#1385: a captured variable is stale; pytorch#192009: the same for regions.
    holder = type("Holder", (), {"factor": 2.0})()

    @shared_subroutine
    def scaled(x):
        return x * (SETTINGS["factor"] if subject == "a global" else holder.factor)

    def model(x):
        x = scaled(x)
        holder.factor = 3.0
        SETTINGS["factor"] = 3.0
        return scaled(x)

    try:
        (finding,) = jitscope.audit(model, X).findings
    finally:
        SETTINGS["factor"] = 2.0
    assert (finding.name, finding.n_calls, finding.n_distinct) == ("scaled", 2, 2)
    assert any("3.0 against 2.0" in text for text in finding.differences)

    def passed(x):
        layer = shared_subroutine(lambda x, factor: x * factor)
        return layer(layer(x, jnp.float32(2)), jnp.float32(3))

    assert jitscope.audit(passed, X).is_clean


class GlobalGenerator:
    """A seed generator in the way of Keras and Axon: state outside of JAX."""

    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        return jax.random.fold_in(jax.random.key(0, impl="rbg"), self.count)


def test_frozen_noise_of_a_global_generator_is_found_and_passed_keys_are_not():
    # autoray#27, keras-core#650, keras-core#762, axon#423: the same noise at each call.
    generator = GlobalGenerator()

    @shared_subroutine
    def dropout(x):
        return x * jax.random.bernoulli(generator.next(), 0.5, x.shape)

    def masks(x):
        return [dropout(x) for _ in range(4)]

    ones = jnp.ones((8, 8))
    frozen = {np.asarray(mask).tobytes() for mask in jax.jit(masks)(ones)}
    assert len(frozen) == 1, "the report holds: one mask for four layers"
    (finding,) = jitscope.audit(masks, ones).findings
    # Four calls traced anew, and the trace that `jax.jit` left.
    assert (finding.name, finding.n_calls, finding.n_distinct) == ("dropout", 4, 5)
    with pytest.warns(RuntimeWarning, match="dropout"):
        outermost_jit(masks, audit=True)(ones)

    @shared_subroutine
    def dropout_with_key(key, x):
        return x * jax.random.bernoulli(key, 0.5, x.shape)

    def fresh_masks(x):
        return [dropout_with_key(generator.next(), x) for _ in range(4)]

    assert jitscope.audit(fresh_masks, ones).is_clean
    assert len({np.asarray(mask).tobytes() for mask in outermost_jit(fresh_masks)(ones)}) == 4


# --- derivatives ----------------------------------------------------------------------------------


def n_residuals(loss, *args):
    """Bytes that the forward pass hands to the backward pass."""
    _, pullback = jax.vjp(loss, *args)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(pullback) if hasattr(leaf, "nbytes"))


def test_gradient_of_a_nested_function_keeps_no_inputs_that_it_does_not_need():  # jax#11151
    def layer(w, x):
        return jnp.tanh(x @ w) + x

    def loss(layer, ws, x):
        return stack_of(layer, ws, x).sum()

    def stack_of(layer, ws, x):
        for w in ws:
            x = layer(w, x)
        return x

    args = [jnp.eye(64) * 0.1] * 6, jnp.ones((16, 64))
    nested = shared_subroutine(layer, structure="nested")
    assert n_residuals(functools.partial(loss, nested), *args) <= n_residuals(
        functools.partial(loss, jax.jit(layer)), *args
    )
    temporary = {}
    for kind, f in {"flat": layer, "nested": nested}.items():
        gradient = outermost_jit(jax.grad(functools.partial(loss, f)), outline=False)
        memory = gradient.lower(*args).compile().memory_analysis()
        temporary[kind] = memory.temp_size_in_bytes
    assert temporary["nested"] <= temporary["flat"]


def test_residuals_of_a_shared_layer_do_not_grow_with_the_number_of_layers():  # jax#11151
    def loss(ws, x):
        for w in ws:
            x = layer(w, x)
        return x.sum()

    layer = shared_subroutine(lambda w, x: jnp.tanh(x @ w) + x)
    sizes = {}
    for n in (4, 8):
        step = outermost_jit(jax.grad(loss), policy=share_all_policy())
        step.trace([jnp.eye(3)] * n, X)
        sizes[n] = max(body.result_bytes for body in step.reuse().census.bodies)
    assert sizes[4] == sizes[8]


@pytest.mark.slow
def test_custom_derivative_on_methods_leaks_no_tracer():  # jax#2884
    class Energy:
        def __init__(self, w):
            self.w = w

        @shared_subroutine
        def inner(self, x):
            return jnp.sin(x @ self.w)

        @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
        def value(self, x):
            return self.inner(x).sum()

        def forward(self, x):
            return Energy.value(self, x), x

        def backward(self, x, g):
            return (g * self.inner(x) * 5.0,)

        value.defvjp(forward, backward)

        @shared_subroutine
        def total(self, x):
            return Energy.value(self, x) + Energy.value(self, x * 2)

    energy = Energy(jnp.eye(3))
    with jax.checking_leaks():
        result = jax.jit(jax.grad(energy.total))(X)
    np.testing.assert_allclose(result, 5 * jnp.sin(X) + 10 * jnp.sin(X * 2), rtol=1e-5)
    assert_same(outermost_jit(jax.grad(energy.total))(X), result)


def test_gradient_has_rows_of_its_own_beside_the_function():  # squishyplanet#24
    @shared_subroutine
    def flux(x):
        for i in range(1, 7):
            x = x + jnp.sin(x * i) / (1 + x**2)
        return x

    step = outermost_jit(jax.grad(lambda x: repeated(flux, 6, x).sum()))
    step.trace(X)
    (program,) = step.reuse().report().programs
    rows = [body for body in program.bodies if body.name == "flux" and body.n_equations > 20]
    assert sorted((body.is_backward, body.n_uses) for body in rows) == [(False, 6), (True, 6)]


# --- meshes and collectives -------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["inline", "nested", "shared", None])
def test_axis_names_and_collectives_are_bound_within_a_subroutine(structure):
    # jax#34801, jax#28666, jax#1347: the axis name or the mesh is unbound inside jit.
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    traces = []

    def normalise(x):
        traces.append("")
        return x / jax.lax.psum(jnp.abs(x).sum(), "i") + jax.lax.axis_index("i")

    def mapped(layer):
        return jax.shard_map(
            lambda x: repeated(layer, 3, x), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i")
        )

    def named(layer):
        return jax.vmap(lambda x: repeated(layer, 3, x), axis_name="i")

    layer = shared_subroutine(normalise, structure=structure)
    x = jnp.arange(1.0, 9.0)
    ours = outermost_jit(mapped(layer))(x), outermost_jit(named(layer))(X)
    assert len(traces) == 2  # within the mesh and within vmap
    assert_same(ours, (jax.jit(mapped(normalise))(x), jax.jit(named(normalise))(X)))


@pytest.mark.parametrize("structure", ["inline", "nested", "shared", None])
def test_sharding_constraints_within_a_subroutine_are_kept(structure):  # jax#17422, jax#26946
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def constrained(x):
        x = jax.lax.with_sharding_constraint(x * 2, jax.NamedSharding(mesh, jax.P("data", "model")))
        return jnp.sin(x)

    x = jax.device_put(jnp.ones((4, 8)), jax.NamedSharding(mesh, jax.P("data")))
    layer = shared_subroutine(constrained, structure=structure)
    structured = outermost_jit(lambda x: repeated(layer, 4, x))
    result, expected = structured(x), jax.jit(lambda x: repeated(constrained, 4, x))(x)
    assert_same(result, expected)
    assert result.sharding.is_equivalent_to(expected.sharding, 2)
    assert result.sharding.spec == jax.P("data", "model")
    # On several devices no call is kept: XLA would add collectives at each.
    assert "inlineable" not in structured.lower(x).as_text()

"""Which chains of layers XLA fuses into ever larger kernels, as predicted and as compiled."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jitscope
from jitscope.structuring.growth import grows

WIDTH = 16


def layer_norm(x):
    deviation = x - x.mean(-1, keepdims=True)
    return deviation * lax.rsqrt((deviation**2).mean(-1, keepdims=True) + 1e-5)


def root_mean_square_norm(x):
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def residual(norm):
    return lambda w, x: x + jnp.tanh(norm(x) @ w)


def without_residual(w, x):
    return jnp.tanh(layer_norm(x) @ w)


LAYERS = {
    "layer norm": residual(layer_norm),
    "root mean square norm": residual(root_mean_square_norm),
    "no norm": residual(lambda x: x),
    "no residual": without_residual,
}


def chain(layer, n_layers, *, gradient):
    def loss(weights, x):
        for w in weights:
            x = layer(w, x)
        return (x**2).mean()

    args = [jnp.ones((WIDTH, WIDTH))] * n_layers, jnp.ones((2, 4, WIDTH))
    return (jax.grad(loss) if gradient else loss), args


def predicted(layer, *, gradient):
    fun, args = chain(jitscope.shared_subroutine(layer), 8, gradient=gradient)
    outermost = jitscope.outermost_jit(fun)
    outermost.trace(*args)
    bodies = [b for b in outermost.reuse().census.bodies if b.n_chained]
    assert len(bodies) == 1 + gradient
    return any(body.grows for body in bodies)


def largest_kernel(layer, n_layers, *, gradient):
    """Instructions of the largest fused computation that plain `jax.jit` compiles to."""
    fun, args = chain(layer, n_layers, gradient=gradient)
    text = jax.jit(fun).lower(*args).compile().as_text()
    kernels = re.split(r"\n(?=(?:ENTRY )?%\S+ \()", text)
    return max(k.count(" = ") for k in kernels if not k.startswith(("ENTRY", "HloModule")))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_prediction_agrees_with_what_is_compiled(name, gradient):
    layer = LAYERS[name]
    few, many = (largest_kernel(layer, n, gradient=gradient) for n in (4, 8))
    assert predicted(layer, gradient=gradient) == (many > 1.5 * few)


def test_only_the_gradient_of_layers_with_a_layer_norm_grows():
    assert predicted(LAYERS["layer norm"], gradient=True)
    assert not predicted(LAYERS["layer norm"], gradient=False)
    assert not predicted(LAYERS["no norm"], gradient=True)


def body_of(fun, *args):
    return jax.make_jaxpr(fun)(*args)


def test_element_wise_state_that_nothing_needs_in_memory_grows():
    body = body_of(lambda c, x: 0.5 * c + x, jnp.ones(3), jnp.ones(3))
    assert grows(body, [(0, 0)])


def test_state_that_a_product_reads_does_not_grow():
    body = body_of(lambda x, w: x + x @ w, jnp.ones((3, 3)), jnp.ones((3, 3)))
    assert not grows(body, [(0, 0)])


def test_state_grows_where_the_last_of_its_operands_is_small():
    body = body_of(lambda x, w, b: (x + x @ w) + b, jnp.ones((3, 3)), jnp.ones((3, 3)), jnp.ones(3))
    assert grows(body, [(0, 0)])


def test_a_sliver_of_a_body_that_is_repeated_is_no_growth():
    def layer(c, x, n_other):
        return 0.5 * c + x, [x @ x for _ in range(n_other)]

    args = jnp.ones((3, 3)), jnp.ones((3, 3))
    assert grows(body_of(lambda c, x: layer(c, x, 40), *args), [(0, 0)])
    assert not grows(body_of(lambda c, x: layer(c, x, 80), *args), [(0, 0)])


def test_calls_in_a_body_are_looked_into_each_time():
    half = jax.jit(lambda x: 0.5 * x)
    body = body_of(lambda c: half(half(c)), jnp.ones(3))
    assert grows(body, [(0, 0)])
    behind_a_product = body_of(lambda c, w: half(half(c) @ w), jnp.ones((3, 3)), jnp.ones((3, 3)))
    assert not grows(behind_a_product, [(0, 0)])


def test_results_that_are_operands_or_literals_do_not_grow():
    body = body_of(lambda x: (x, jnp.float32(1.0)), jnp.ones(()))
    assert not grows(body, [(0, 0), (1, 0)])


@pytest.mark.parametrize("name", LAYERS)
def test_prediction_sees_through_what_lies_between_the_layers(name):
    # The gradient's calls wait for what was added to a layer's result by nobody's layer.
    subroutine = jitscope.shared_subroutine(LAYERS[name])

    def between(w, x):
        return 0.5 * subroutine(w, x) + 0.1

    fun, args = chain(between, 8, gradient=True)
    outermost = jitscope.outermost_jit(fun, outline=False)
    outermost.trace(*args)
    bodies = outermost.reuse().census.bodies
    assert [b.n_chained for b in bodies if b.n_uses > 1] == [0, 0]
    few, many = (
        largest_kernel(lambda w, x: 0.5 * LAYERS[name](w, x) + 0.1, n, gradient=True)
        for n in (4, 8)
    )
    assert any(body.grows for body in bodies) == (many > 1.5 * few)


def test_nothing_is_said_of_calls_that_do_not_wait_for_each_other_or_for_much_else():
    subroutine = jitscope.shared_subroutine(LAYERS["layer norm"])
    w, x = jnp.ones((WIDTH, WIDTH)), jnp.ones((2, 4, WIDTH))

    def apart(w, x):
        return [subroutine(w, x + i) for i in range(4)]

    def far(w, x):
        for _ in range(4):
            x = subroutine(w, x)
            for _ in range(40):
                x = jnp.sin(x)
        return x

    for fun in (apart, far):
        outermost = jitscope.outermost_jit(fun, outline=False)
        outermost.trace(w, x)
        assert [b.grows for b in outermost.reuse().census.bodies] == [None]


def test_a_body_that_is_not_called_in_a_chain_does_not_grow():
    assert not grows(body_of(lambda c: 0.5 * c, jnp.ones(3)), [])

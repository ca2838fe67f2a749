"""Work that a call repeats of the call before it, which kept calls would hide from XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tagged_calls

import jitscope
from jitscope.structuring.plan import Structure

X = jnp.linspace(-1, 1, 16).reshape(4, 4)


def force(position, data):
    return jax.grad(lambda position: jnp.tanh(jnp.cos(position @ data) ** 3).sum())(position)


def leapfrog(position, momentum, data):
    momentum = momentum + 0.1 * force(position, data)
    position = position + 0.1 * momentum
    return position, momentum + 0.1 * force(position, data)


def integrated(step):
    def integrate(position, momentum, data):
        for _ in range(20):
            position, momentum = step(position, momentum, data)
        return position, momentum

    return integrate


def only_body(fun, *args):
    outermost = jitscope.outermost_jit(fun, outline=False)
    outermost.lower(*args)
    reuse = outermost.reuse()
    (body,) = [body for body in reuse.census.bodies if body.n_uses > 1]
    return body, reuse.plan[body.fingerprint.digest]


def test_steps_that_begin_with_what_the_last_one_ended_with_are_not_kept():
    body, decision = only_body(integrated(jitscope.shared_subroutine(leapfrog)), X, X, X)
    assert body.n_done_before == body.n_heavy / 2 == 2
    assert decision.structure is Structure.NESTED
    assert decision.reason.startswith("the call before has done 2 of its matrix products")


def test_what_is_asked_for_is_kept_all_the_same():
    step = jitscope.shared_subroutine(leapfrog, structure="shared")
    assert tagged_calls(jitscope.outermost_jit(integrated(step)).lower(X, X, X).as_text()) == 20


def test_compiled_program_does_that_work_once():
    def n_products(fun):
        return fun.lower(X, X, X).compile().as_text().count(" dot(")

    plain = jax.jit(integrated(leapfrog))
    marked = jitscope.outermost_jit(integrated(jitscope.shared_subroutine(leapfrog)))
    assert n_products(marked) == n_products(plain) == 42  # 21 gradients
    for ours, expected in zip(marked(X, X, X), plain(X, X, X), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def chain(layer, n=4):
    def fun(x, weights):
        for i in range(n):
            x = layer(x, weights[i])
        return x

    return fun, X, [X + i for i in range(n)]


CHAINS = {
    "other weights": (lambda x, w: jnp.tanh(x @ w), 0),
    "another state": (lambda x, w: jnp.tanh(x @ x), 0),
    "an equal product within one call": (lambda x, w: x @ w + jnp.sin(x @ w), 0),
}


@pytest.mark.parametrize("name", CHAINS)
def test_only_equal_products_of_equal_values_are_done_before(name):
    layer, n_done = CHAINS[name]
    body, _ = only_body(*chain(jax.jit(layer)))
    assert body.n_done_before == n_done


def test_equal_operands_may_come_from_anywhere():
    inner = jax.jit(lambda w: w @ w)
    layer = jax.jit(lambda x, w: jnp.tanh(x + inner(w)))

    def fun(x, w):
        for _ in range(4):
            x = layer(x, w)
        return x

    outermost = jitscope.outermost_jit(fun, outline=False)
    outermost.lower(X, X)
    around = outermost.reuse().census.bodies[0]
    assert (around.n_uses, around.n_done_before) == (4, 1)

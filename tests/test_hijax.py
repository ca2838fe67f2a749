"""Functions that trace to equations which are expanded only when a program is lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitscope

X = jnp.asarray([0.0, 2.0, 0.0, 3.0])


def direct(x):
    return jnp.nonzero(x, size=3)[0]


def in_a_subroutine(x):
    layer = jitscope.shared_subroutine(lambda x: x + jnp.nonzero(x, size=4)[0])
    for _ in range(3):
        x = layer(x)
    return x


def repeated(x):
    for _ in range(12):
        x = jnp.sin(x) + jnp.nonzero(jnp.cos(x) - x, size=4)[0] * jnp.tanh(x)
    return x


def in_a_scan(x):
    return jax.lax.scan(lambda c, _: (c + jnp.nonzero(c, size=4)[0], None), x, length=2)[0]


def under_a_gradient(x):
    return jax.grad(lambda x: (x * jnp.nonzero(x, size=4)[0]).sum())(x)


@pytest.mark.parametrize(
    "fun",
    [direct, in_a_subroutine, repeated, in_a_scan, under_a_gradient],
    ids=lambda fun: fun.__name__,
)
def test_result_is_that_of_jit(fun):
    expected = jax.jit(fun)(X)
    np.testing.assert_allclose(jitscope.outermost_jit(fun)(X), expected, rtol=1e-5)
    for wrap in (lambda f: f, jax.jit):
        (program,) = jitscope.explain(wrap(fun), X).programs
        assert program.compiled.n_instructions > 0

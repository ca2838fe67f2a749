"""Numbers in which bodies differ become operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitscope
from jitscope import _jax
from jitscope.ir.constants import hoisted
from jitscope.ir.fingerprint import fingerprint
from jitscope.ir.literals import with_literals_lifted
from jitscope.ir.program import capture

X = np.linspace(0.1, 1.0, 16, dtype=np.float32).reshape(4, 4)
N = 8


def program_of(fun, *args):
    return hoisted(capture(fun, args or (X,), {}, {}))


def calls(jaxpr):
    """Every nested call of a jaxpr of some size, at any depth."""
    found = []
    for eqn in _jax.equations(jaxpr):
        for sub in _jax.sub_jaxprs(eqn):
            if eqn.primitive is _jax.jit_p and len(_jax.equations(sub)) >= 12:
                found.append(eqn)
            found += calls(sub)
    return found


def digests(jaxpr):
    return {fingerprint(eqn.params["jaxpr"]).digest for eqn in calls(jaxpr)}


def chain(x, n=10):
    for _ in range(n):
        x = x + 0.1 * jnp.sin(x @ x)
    return x


def static_index(x):
    @jitscope.shared_subroutine(static_argnames="i")
    def layer(x, i):
        return chain(x) * (1.0 + i)

    for i in range(N):
        x = layer(x, i=i)
    return x


def closure_made_anew(x):
    for i in range(N):
        x = jitscope.shared_subroutine(lambda x, i=i: chain(x) * (1.0 + i))(x)
    return x


def plain_jit(x):
    for i in range(N):
        x = jax.jit(lambda x, i=i: chain(x) + i)(x)
    return x


def of_a_gradient(x):
    return jax.grad(lambda x: static_index(x).sum())(x)


def within_a_loop(x):
    return jax.lax.fori_loop(0, 2, lambda _, x: static_index(x), x)


def body_in_a_body(x):
    def inner(x, i):
        return chain(x) * i

    for i in range(N):
        x = jax.jit(lambda x, i=i: jax.jit(inner, static_argnums=1)(chain(x), i) - 1)(x)
    return x


MERGED = [
    static_index,
    closure_made_anew,
    plain_jit,
    of_a_gradient,
    within_a_loop,
    body_in_a_body,
]


@pytest.mark.parametrize("fun", MERGED)
def test_bodies_that_differ_in_a_number_are_one_body(fun):
    program = program_of(fun)
    n_calls = len(calls(program.jaxpr))
    lifted = with_literals_lifted(program)
    assert len(calls(lifted.jaxpr)) == n_calls >= N
    n_kinds = {of_a_gradient: 3, body_in_a_body: 2}.get(fun, 1)  # the first layer has no gradient
    assert len(digests(program.jaxpr)) >= N > n_kinds >= len(digests(lifted.jaxpr))


@pytest.mark.parametrize("fun", MERGED)
def test_values_are_those_of_jit(fun):
    expected = jax.jit(fun)(X)
    np.testing.assert_allclose(jitscope.outermost_jit(fun)(X), expected, rtol=2e-5)


@pytest.mark.parametrize("fun", [static_index, closure_made_anew, plain_jit, of_a_gradient])
def test_calls_that_differ_in_a_number_count_as_uses_of_one_body(fun):
    step = jitscope.outermost_jit(fun)
    step.trace(X)
    (program,) = step.reuse().report().programs
    assert max(body.n_uses for body in program.bodies) >= N - 1


def test_program_without_such_bodies_is_returned_as_it_is():
    layer = jax.jit(chain)
    program = program_of(lambda x: layer(layer(layer(layer(x)))))
    assert len(calls(program.jaxpr)) == 4
    assert with_literals_lifted(program) is program


def test_few_calls_stay_as_they_are():
    program = program_of(lambda x: [jax.jit(lambda x, i=i: chain(x) * i)(x) for i in range(3)])
    assert len(digests(program.jaxpr)) == 3
    assert with_literals_lifted(program) is program


@pytest.mark.parametrize(
    "last",
    [
        lambda y, i: (y, float(i)),  # a result
        lambda y, i: jnp.roll(y, i),  # a setting
    ],
)
def test_bodies_that_differ_in_more_stay_apart(last):
    program = program_of(lambda x: [jax.jit(lambda x, i=i: last(chain(x), i))(x) for i in range(4)])
    before = digests(program.jaxpr)
    assert len(before) > 1
    assert digests(with_literals_lifted(program).jaxpr) == before


def test_equal_numbers_of_a_body_are_one_operand():
    program = program_of(
        lambda x: [jax.jit(lambda x, i=i: chain(x * i) * i + 2.0)(x) for i in range(2, 8)]
    )
    lifted = calls(with_literals_lifted(program).jaxpr)
    assert len(lifted) == 6
    assert {len(eqn.invars) for eqn in lifted} == {2}


def test_derivative_rules_stay_those_of_each_call():
    def scaled(i):
        @jax.custom_jvp
        def same(x):
            return x * 1.0

        same.defjvp(lambda primals, tangents: (primals[0], tangents[0] * (i + 1.0)))
        return same

    def fun(x):
        for i in range(5):
            x = jax.jit(lambda x, i=i: scaled(i)(chain(x)) + i)(x)
        return x.sum()

    program = program_of(fun)
    assert with_literals_lifted(program) is not program
    expected = jax.grad(fun)(X)
    actual = jax.grad(jitscope.outermost_jit(fun))(X)
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(actual, expected, rtol=2e-5)

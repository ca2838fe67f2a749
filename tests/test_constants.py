"""Captured constants of nested jits become operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import core

from jitscope import _jax
from jitscope.ir.constants import hoisted
from jitscope.ir.fingerprint import fingerprint
from jitscope.ir.program import capture
from jitscope.structuring.restructure import restructure

X = np.ones(64, np.float32)


def program_of(fun, *args):
    return capture(fun, args, {}, {})


def adding(constant):
    """A body that captures an array."""
    return jax.jit(lambda x: jnp.sin(x) + constant)


def bodies(jaxpr):
    return [e.params["jaxpr"] for e in _jax.equations(jaxpr) if e.primitive is _jax.jit_p]


def evaluate(program, *args):
    return jax.jit(lambda *args: program.emit(args))(*args)


def arrays(n: int):
    return [jnp.arange(64, dtype=jnp.float32) * i for i in range(1, n + 1)]


def test_program_that_captures_nothing_is_returned_as_it_is():
    program = program_of(jax.jit(lambda x: jnp.sin(x) + 1), X)
    assert hoisted(program) is program


def test_constants_of_bodies_become_constants_of_the_program():
    program = hoisted(program_of(adding(arrays(1)[0]), X))
    (body,) = bodies(program.jaxpr)
    assert len(_jax.consts(body)) == 0
    assert len(_jax.consts(program.jaxpr)) == 1


def test_bodies_that_differ_in_captured_arrays_are_one_body():
    functions = [adding(c) for c in arrays(3)]

    def fun(x):
        for f in functions:
            x = f(x)
        return x

    program = hoisted(program_of(fun, X))
    assert len({fingerprint(body) for body in bodies(program.jaxpr)}) == 1
    np.testing.assert_allclose(evaluate(program, X), jax.jit(fun)(X), rtol=1e-5)


def test_calls_of_one_body_stay_calls_of_one_jaxpr():
    f = adding(arrays(1)[0])
    program = hoisted(program_of(lambda x: f(f(f(x))), X))
    assert len(set(map(id, bodies(program.jaxpr)))) == 1


def test_one_array_is_one_constant_however_many_bodies_capture_it():
    constant = arrays(1)[0]
    f, g = adding(constant), jax.jit(lambda x: jnp.cos(x) * constant)
    program = hoisted(program_of(lambda x: g(f(x)) + constant, X))
    assert len(_jax.consts(program.jaxpr)) == 1


def test_constants_of_nested_bodies_rise_to_the_program():
    constant = arrays(1)[0]
    inner = adding(constant)
    outer = jax.jit(lambda x: inner(inner(x)) * 2)
    program = hoisted(program_of(lambda x: outer(outer(x)), X))
    assert len(_jax.consts(program.jaxpr)) == 1
    (outer_body, _) = bodies(program.jaxpr)
    assert not _jax.consts(outer_body)
    assert not any(map(len, map(_jax.consts, bodies(outer_body))))
    np.testing.assert_allclose(
        evaluate(program, X), jax.jit(lambda x: outer(outer(x)))(X), rtol=1e-5
    )


def test_hoisted_program_is_valid_and_hoisting_it_again_changes_nothing():
    f, g = map(adding, arrays(2))
    program = hoisted(program_of(lambda x: g(f(x)), X))
    core.check_jaxpr(_jax.opened(program.jaxpr))
    assert hoisted(program) is program


def test_call_with_shardings_of_its_own_keeps_its_constants():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    f = jax.jit(adding(arrays(1)[0]).__wrapped__, out_shardings=sharding)
    program = program_of(lambda x: f(x) + 1, X)
    assert hoisted(program) is program


@pytest.mark.parametrize(
    "around",
    [
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, length=2)[0],
        lambda f: lambda x: lax.cond(x[0] > 0, f, jnp.sin, x),
        lambda f: lambda x: jax.checkpoint(f)(x),
        lambda f: jax.vmap(lambda x: f(x).sum()),
    ],
    ids=["scan", "cond", "checkpoint", "vmap"],
)
def test_values_are_the_same_whatever_surrounds_the_body(around):
    fun = around(adding(arrays(1)[0]))
    program = hoisted(program_of(fun, X))
    np.testing.assert_allclose(evaluate(program, X), jax.jit(fun)(X), rtol=1e-5)


def test_gradients_of_hoisted_programs_are_the_same():
    f = adding(arrays(1)[0])

    def fun(x):
        return f(f(x)).sum()

    program = hoisted(program_of(fun, X))
    gradient = jax.grad(lambda x: _jax.emit(program.jaxpr, [x], "f")[0])(X)
    np.testing.assert_allclose(gradient, jax.grad(fun)(X), rtol=1e-5)


def test_refs_of_a_body_stay_its_own():
    constant = arrays(1)[0]

    @jax.jit
    def f(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] + constant
        return ref[...]

    program = hoisted(program_of(lambda x: f(f(x)), X))
    np.testing.assert_allclose(evaluate(program, X), X + 2 * constant, rtol=1e-6)


def test_captured_tracers_are_passed_on():
    @jax.jit
    def outer(x, y):
        body = jax.jit(lambda x: jnp.sin(x) * y)
        program = hoisted(program_of(lambda x: body(body(x)), x))
        return program.emit([x])

    y = X * 2
    np.testing.assert_allclose(outer(X, y), jnp.sin(jnp.sin(X) * y) * y, rtol=1e-5)


def test_every_constant_counts_once_in_the_lowered_program():
    f = adding(jnp.asarray(np.random.default_rng(0).normal(size=4096), jnp.float32))
    program = hoisted(program_of(lambda x: f(f(f(f(x)))), np.ones(4096, np.float32)))
    text = jax.jit(lambda x: program.emit([x])).lower(np.ones(4096, np.float32)).as_text()
    assert len(text) < 2 * 4096 * 8 + 8000  # eight hexadecimal digits for each number


def test_restructuring_needs_no_constants_in_bodies():
    from jitscope.structuring.plan import Decision, Plan, Structure

    f, g = map(adding, arrays(2))
    program = hoisted(program_of(lambda x: g(f(x)), X))
    digests = {fingerprint(body).digest for body in bodies(program.jaxpr)}
    plan = Plan(dict.fromkeys(digests, Decision(Structure.INLINE, "asked for")))
    assert bodies(restructure(program, plan).jaxpr) == []

"""Bodies that another body can stand in for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitscope
from jitscope import _jax
from jitscope.ir.fingerprint import fingerprint
from jitscope.ir.program import capture
from jitscope.structuring.counting import take_census
from jitscope.structuring.plan import Decision, Plan, Structure
from jitscope.structuring.restructure import restructure
from jitscope.structuring.variants import find_variants

X, Y = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)


def named(fun, name="body"):
    fun.__name__ = fun.__qualname__ = name
    return jax.jit(fun)


def chain(x, n=14):
    values = [x]
    for i in range(n):
        values.append(jnp.sin(values[-1]) * (i + 2))
    return values


def program_of(fun, *args):
    return capture(fun, args or (X,), {}, {})


def digests(program):
    """Digests of the bodies called, in order."""
    return [
        fingerprint(eqn.params["jaxpr"]).digest
        for eqn in _jax.equations(program.jaxpr)
        if eqn.primitive is _jax.jit_p
    ]


def shared(program, variants):
    """The program with every body shared."""
    census = take_census(program, variants)
    plan = Plan({b.fingerprint.digest: Decision(Structure.SHARED, "") for b in census.bodies})
    return restructure(program, plan, variants)


def test_calls_with_other_operands_than_the_body_are_no_links_of_its_chain():
    @jitscope.shared_subroutine
    def layer(weights, carry):
        x = carry[0]
        h = jnp.tanh((x - x.mean(-1, keepdims=True)) @ weights)
        return x + h / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-5), weights

    def net(params, x):
        carry = (x,)  # and two leaves from the second call on
        for weights in params:
            carry = layer(weights, carry)
        return carry[0]

    args = [jnp.eye(4)] * 16, jnp.ones((2, 4))
    model = jitscope.outermost_jit(net)
    np.testing.assert_allclose(model(*args), net(*args), rtol=1e-5)
    (body,) = model.reuse().census.bodies
    assert (body.n_uses, body.n_chained) == (16, 14)


def assert_merged(fun, *args):
    """The second body called is a variant of the first, and sharing one computes the same."""
    args = args or (X,)
    program = program_of(fun, *args)
    large, small = digests(program)
    variants = find_variants(program)
    assert list(variants.covers) == [small]
    assert variants.canonical(small) == variants.canonical(large) == large
    restructured = shared(program, variants)
    calls = [e for e in _jax.equations(restructured.jaxpr) if "unit" in e.params]
    assert len({id(e.params["shared"]) for e in calls}) == 1
    result = jax.jit(lambda *args: restructured.emit(args))(*args)
    jax.tree.map(np.testing.assert_array_equal, result, jax.jit(fun)(*args))
    gradients = [
        jax.grad(lambda *args, f=f: sum(map(jnp.sum, jax.tree.leaves(f(*args)))))(*args)
        for f in (lambda *args: restructured.emit(args), fun)
    ]
    np.testing.assert_allclose(*gradients, rtol=1e-5)


def assert_apart(fun, *args):
    program = program_of(fun, *args)
    variants = find_variants(program)
    assert not variants.covers
    assert not variants.bodies
    return [variants.notes[digest] for digest in digests(program) if digest in variants.notes]


# --- merged ---------------------------------------------------------------------------------------


def test_body_with_fewer_results_is_covered():
    wide, narrow = named(lambda x: (chain(x)[-1], 2 * x)), named(lambda x: chain(x)[-1])
    assert_merged(lambda x: (wide(x), narrow(x)))


def picked(x, indices):
    values = chain(x)
    return tuple(values[i] for i in indices)


def test_body_that_stands_in_gets_the_results_that_only_variants_need():
    wide, narrow = named(lambda x: (chain(x)[-1], x * 2)), named(lambda x: picked(x, (7, -1, 3)))

    def fun(x):
        return wide(x), narrow(x)

    assert_merged(fun)
    (wider,) = find_variants(program_of(fun)).bodies.values()
    assert len(_jax.opened(wider).outvars) == 4


def test_body_that_stands_in_is_left_alone_where_its_calls_are_not_kept():
    wide, narrow = named(lambda x: (chain(x)[-1], x * 2)), named(lambda x: picked(x, (7, -1, 3)))
    program = program_of(lambda x: (wide(x), narrow(x)))
    assert restructure(program, Plan({}), find_variants(program)) is program


def test_operands_in_another_order_are_exchanged():
    def combine(x, y):
        values = chain(x)
        return values[-1] + y

    wide = named(lambda x, y: (combine(x, y), x * 2))
    narrow = named(lambda y, x: combine(x, y))
    assert_merged(lambda x, y: (wide(x, y), narrow(y, x)), X, Y)


def test_operand_that_the_large_body_lacks_is_dropped():
    wide, narrow = named(lambda x: (chain(x)[-1], x * 2)), named(lambda x, y: chain(x)[-1])
    assert_merged(lambda x, y: (wide(x), narrow(x, y)), X, Y)


def test_result_that_is_an_operand_or_a_number_can_be_had():
    wide = named(lambda x: (chain(x)[-1], x * 2))
    narrow = named(lambda x: (chain(x)[-1], x, 3.0))
    assert_merged(lambda x: (wide(x), narrow(x)))


def test_rules_of_derivatives_do_not_keep_bodies_apart_and_stay_those_of_each():
    def with_rule(factor):
        @jax.custom_jvp
        def f(x):
            return jnp.sin(x)

        f.defjvp(lambda primals, tangents: (f(*primals), factor * tangents[0]))
        return f

    f, g = with_rule(2.0), with_rule(3.0)
    wide = named(lambda x: (f(chain(x)[-1]), x * 2))
    narrow = named(lambda x: g(chain(x)[-1]))
    assert_merged(lambda x: (wide(x), narrow(x)))


# --- apart ----------------------------------------------------------------------------------------


def test_program_with_one_body_has_no_variants():
    f = named(lambda x: chain(x)[-1])
    assert find_variants(program_of(lambda x: f(f(x)))).covers == {}


def test_bodies_of_other_names_are_not_compared():
    wide, narrow = named(lambda x: (chain(x)[-1], x * 2), "a"), named(lambda x: chain(x)[-1], "b")
    assert assert_apart(lambda x: (wide(x), narrow(x))) == []


def test_small_bodies_are_not_compared():
    wide, narrow = named(lambda x: (jnp.sin(x), x * 2)), named(lambda x: jnp.sin(x))
    assert assert_apart(lambda x: (wide(x), narrow(x))) == []


def test_much_computed_in_vain_keeps_bodies_apart():
    wide, narrow = named(lambda x: chain(x, 20)[-1]), named(lambda x: chain(x, 10)[-1])
    (note,) = assert_apart(lambda x: (wide(x), narrow(x)))
    assert "computed in vain" in note


@pytest.mark.parametrize(
    "narrow",
    [
        lambda x, y: jnp.cos(chain(x)[-1]),
        lambda x, y: chain(x)[-1] * 7.5,
        lambda x, y: chain(x)[-2] * chain(x)[-1],
    ],
)
def test_other_equations_keep_bodies_apart(narrow):
    wide = named(lambda x, y: (jnp.sin(chain(x)[-1]), jnp.tanh(x + y)))
    small = named(narrow)
    assert assert_apart(lambda x, y: (wide(x, y), small(x, y)), X, Y)


def test_one_value_in_the_place_of_two_keeps_bodies_apart():
    wide = named(lambda x, y: (chain(x)[-1] + y, x * 2))
    narrow = named(lambda x: chain(x)[-1] + x)
    (note,) = assert_apart(lambda x, y: (wide(x, y), narrow(x)), X, Y)
    assert "other things" in note or "operands" in note


def test_two_values_in_the_place_of_one_keep_bodies_apart():
    wide = named(lambda x: (chain(x)[-1] + x, x * 2))
    narrow = named(lambda x, y: chain(x)[-1] + y)
    assert assert_apart(lambda x, y: (wide(x), narrow(x, y)), X, Y)


def test_operand_that_a_call_does_not_have_keeps_bodies_apart():
    wide = named(lambda x, y: (chain(x)[-1], y * 2))
    narrow = named(lambda x: chain(x)[-1])
    (note,) = assert_apart(lambda x, y: (wide(x, y), narrow(x)), X, Y)
    assert "operands or results" in note


def test_other_types_keep_bodies_apart():
    wide, narrow = named(lambda x: (chain(x)[-1], x * 2)), named(lambda x: chain(x)[-1])
    half = X.astype(np.float16)
    assert assert_apart(lambda x, y: (wide(x), narrow(y)), X, half)


def test_side_effects_keep_bodies_apart():
    def printing(x):
        jax.debug.print("{}", x)
        return chain(x)[-1]

    wide, narrow = named(lambda x: (chain(x)[-1], x * 2)), named(printing)
    (note,) = assert_apart(lambda x: (wide(x), narrow(x)))
    assert "side effects" in note


def test_frozen_layers_of_a_gradient_are_merged_or_say_why_not():
    @jax.jit
    def block(w, x):
        for i in range(6):
            x = jnp.tanh(x * w) + i
        return x

    def loss(w, frozen, x):
        for i in range(4):
            x = block(w if i % 2 else frozen, x)
        return x.sum()

    program = program_of(jax.grad(loss), X, Y, X)
    variants = find_variants(program)
    large = [b for b in take_census(program).bodies if b.n_equations >= 12 and b.name == "block"]
    covered = [b for b in large if b.fingerprint.digest in variants.covers]
    noted = [b for b in large if b.fingerprint.digest in variants.notes]
    stand_in = {cover.body for cover in variants.covers.values()}
    leaders = [b for b in large if b.fingerprint.digest in stand_in]
    assert len(covered) + len(noted) + len(leaders) >= len(large) - 1
    restructured = shared(program, variants)
    np.testing.assert_allclose(
        jax.jit(lambda *args: restructured.emit(args))(X, Y, X),
        jax.jit(jax.grad(loss))(X, Y, X),
        rtol=1e-5,
    )

"""Capturing a program, counting it, and staging it again."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same
from jax._src import core
from programs import PROGRAMS, plain

from jitscope import _jax
from jitscope.ir.program import Program, capture, count_equations

X = np.ones(3, np.float32)


def captured(fun, *args, static=None, **kwargs) -> Program:
    return capture(fun, args, kwargs, static or {})


def staged(fun, *args):
    """The program of a function, staged into a `jax.jit` as `outermost_jit` does."""

    def again(*args):
        return captured(fun, *args).emit(jax.tree.leaves(args))

    return jax.jit(again)(*args)


@pytest.mark.parametrize(
    "name", ["nested_subroutines", "dict_params", "cond_in_body", "weak_types", "zero_size_arrays"]
)
def test_staged_program_returns_what_plain_jit_returns(name):
    fun, args = PROGRAMS[name].build(plain)
    assert_same(staged(fun, *args), jax.jit(fun)(*args))


def test_captured_program_is_a_valid_jaxpr():
    fun, args = PROGRAMS["nested_subroutines"].build(plain)
    core.check_jaxpr(_jax.opened(captured(fun, *args).jaxpr))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: None,
        lambda x: {"a": x, "b": (x, None)},
        lambda x: 2,
        lambda x: (x, x),
        lambda x: jnp.zeros((0, 3)),
    ],
)
def test_result_has_the_users_tree(fun):
    assert_same(staged(fun, X), jax.jit(fun)(X))


def test_program_without_arguments():
    assert_same(staged(lambda: jnp.arange(3)), jnp.arange(3))


def test_program_is_named_after_the_function():
    def train_step(x):
        return x

    assert captured(train_step, X).name == "train_step"
    assert captured(functools.partial(train_step), X).name == "train_step"


def test_each_capture_traces_anew():
    traces = []

    def fun(x):
        traces.append(x)
        return x

    captured(fun, X)
    captured(fun, X)
    assert len(traces) == 2


def test_static_arguments_are_no_operands():
    def power(x, n, *, double):
        return x**n * (2 if double else 1)

    static = {"static_argnums": (1,), "static_argnames": "double"}
    program = captured(power, X, 3, static=static, double=True)
    assert len(_jax.opened(program.jaxpr).invars) == 1


def test_errors_of_the_function_pass_through():
    with pytest.raises(ZeroDivisionError):
        captured(lambda x: 1 / 0, X)


def test_capture_closes_over_tracers_of_the_trace_around():
    def outer(x, y):
        return captured(lambda x: x * y, x).emit([x])

    np.testing.assert_array_equal(jax.jit(outer)(X, X * 3), X * 3)


# --- counting -----------------------------------------------------------------------------------


def test_equations_of_a_flat_program_are_counted():
    assert captured(lambda x: jnp.sin(x) + 1, X).n_equations == 2


def test_equations_of_a_body_are_counted_where_it_is_used():
    body = jax.jit(lambda x: jnp.sin(x) + 1)
    assert captured(lambda x: body(body(body(x))), X).n_equations == 6


def test_loop_counts_its_body_once():
    def loop(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c) + 1, None), x, length=100)[0]

    assert captured(loop, X).n_equations == 2


def test_all_branches_are_counted():
    def branching(x):
        return jax.lax.cond(x[0] > 0, lambda x: jnp.sin(x) + 1, lambda x: x, x)

    flat = captured(lambda x: jax.lax.convert_element_type(x[0] > 0, jnp.int32), X).n_equations
    assert captured(branching, X).n_equations == flat + 2


def test_call_of_an_empty_body_counts_as_one():
    assert captured(jax.jit(lambda x: x), X).n_equations == 1


def test_count_of_deep_sharing_takes_no_expansion():
    def doubled(fun):
        return jax.jit(lambda x: fun(fun(x)))

    fun = jax.jit(jnp.sin)
    for _ in range(40):
        fun = doubled(fun)
    assert count_equations(jax.make_jaxpr(fun)(X), {}) == 2**40

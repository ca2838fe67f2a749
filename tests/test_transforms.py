"""Every program of the catalogue, under every transformation, against plain `jax.jit`.

Values, types and trees must be those of plain `jax.jit`; the census must count what the program
says; and bodies that are shared must still be calls in the optimised HLO.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    assert_same,
    body_uses,
    build_annotated,
    build_plain,
    kept_calls,
    plain_result,
    share_all_policy,
    shared_units,
    tagged_calls,
)
from jax import lax
from programs import PROGRAMS, Program, norm, normal

import jitscope

BATCH = 3

# --- the transformations: from a function and its arguments to another pair -----------------------


def is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(x, "dtype", np.dtype(type(x))), jax.dtypes.prng_key)


def is_inexact(x: Any) -> bool:
    return not is_key(x) and jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def split(args: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The differentiable leaves of the arguments, and the way back to arguments."""
    leaves, tree = jax.tree.flatten(args)
    places = [i for i, leaf in enumerate(leaves) if is_inexact(leaf)]

    def merge(inexact: list[Any]) -> Any:
        merged = list(leaves)
        for place, leaf in zip(places, inexact, strict=True):
            merged[place] = leaf
        return jax.tree.unflatten(tree, merged)

    return [leaves[i] for i in places], merge


def scalar(outputs: Any) -> jax.Array:
    """A real number that depends on every differentiable output."""
    leaves = [x for x in jax.tree.leaves(outputs) if is_inexact(x) and np.size(x)]
    return sum(jnp.mean(jnp.real(x * jnp.conj(x))).astype(jnp.float32) for x in leaves)


def without_keys(outputs: Any) -> Any:
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, outputs)


def stacked(args: Any) -> Any:
    """The arguments with a leading axis of different values, keys and integers repeated."""

    def stack(x: Any) -> jax.Array:
        return jnp.stack([x * (1 + 0.1 * i) if is_inexact(x) else x for i in range(BATCH)])

    return jax.tree.map(lambda x: stack(x).astype(x.dtype) if is_inexact(x) else stack(x), args)


def t_value(f, args):
    return f, args


def t_grad(f, args):
    diff, merge = split(args)
    return jax.grad(lambda diff: scalar(f(*merge(diff)))), (diff,)


def t_value_and_grad(f, args):
    diff, merge = split(args)

    def loss(diff):
        outputs = f(*merge(diff))
        return scalar(outputs), outputs

    return jax.value_and_grad(loss, has_aux=True), (diff,)


def t_vmap(f, args):
    return jax.vmap(f), (stacked(args),) if not isinstance(args, tuple) else stacked(args)


def t_jvp(f, args):
    def tangent(x):
        if is_inexact(x):
            return jnp.cos(x) if x.size else x
        return np.zeros(np.shape(x), jax.dtypes.float0)

    return (lambda *args: jax.jvp(f, args, jax.tree.map(tangent, args))), args


def t_hessian(f, args):
    return jax.hessian(lambda x: scalar(f(x, *args[1:]))), args[:1]


def t_scan(f, args):
    def step(count, xs):
        return count + 1, f(*xs)

    return (lambda *xs: lax.scan(step, 0, xs)), stacked(args)


def zeros_of(f, args):
    return jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda *a: without_keys(f(*a)), *args)
    )


def t_while_loop(f, args):
    def loop(*xs):
        def step(state):
            i, _ = state
            return i + 1, without_keys(f(*jax.tree.map(lambda x: x[i], xs)))

        return lax.while_loop(lambda s: s[0] < BATCH, step, (0, zeros))

    zeros = zeros_of(f, args)
    return loop, stacked(args)


def t_cond(f, args):
    zeros = zeros_of(f, args)

    def choose(flag, *args):
        return lax.cond(flag, lambda *a: without_keys(f(*a)), lambda *a: zeros, *args)

    return choose, (jnp.asarray(True), *args)


def t_checkpoint(f, args):
    return t_grad(jax.checkpoint(f), args)


APPLY = {name.removeprefix("t_"): fun for name, fun in globals().items() if name.startswith("t_")}

# The transformations under which the program's own calls are there as they were written. The others
# make new bodies out of them: batched, forward, backward.
KEEPS_CALLS = {"value", "scan", "while_loop", "cond"}

# What runs by default for every program; the rest does for the programs marked `core`, and for the
# others where slow tests are asked for.
QUICK = {"grad"}


@functools.cache
def reference(name: str, transform: str) -> Any:
    """What plain `jax.jit` returns for the plain program, transformed."""
    if transform == "value":
        return plain_result(name)
    f, args = APPLY[transform](*build_plain(PROGRAMS[name]))
    return jax.jit(f)(*args)


def cases(
    transforms: set[str], *, core_only: bool = False, quick: Collection[str] = ()
) -> list[Any]:
    """Programs with the transformations that are defined for them.

    Args:
        transforms: The transformations wanted.
        core_only: Of the programs marked `core` alone.
        quick: The transformations that run by default for every program.
    """
    return [
        pytest.param(
            program,
            transform,
            id=f"{program.name}-{transform}",
            marks=[] if program.core or transform in quick else [pytest.mark.slow],
        )
        for program in PROGRAMS.values()
        for transform in APPLY
        if transform in transforms & program.transforms and (program.core or not core_only)
    ]


def check_census(program: Program, transform: str, structured: Any) -> None:
    uses = body_uses(structured)
    for name, expected in program.uses.items():
        if transform in KEEPS_CALLS:
            assert uses.get(name) == expected, (name, uses)
        else:
            assert sum(uses.get(name, ())) >= max(expected), (name, uses)


def check_calls(
    program: Program, transform: str, structured: Any, stablehlo: str, optimised_hlo: str
) -> None:
    """The calls of shared bodies, and no others, ask to be kept; XLA keeps them."""
    units = shared_units(structured, dead=program.dead)
    repeats = any(n > 1 for counts in program.uses.values() for n in counts)
    if program.kept:
        assert bool(units) == repeats
    elif transform in KEEPS_CALLS:
        assert not units
    assert tagged_calls(stablehlo) == sum(units.values())
    kept = kept_calls(optimised_hlo)
    assert kept.keys() == units.keys()
    if transform != "checkpoint":  # JAX 0.10's XLA finds that it repeats calls, and merges them
        assert {unit: n for unit, n in units.items() if kept[unit] < n} == {}


# --- the transformation inside --------------------------------------------------------------------


@pytest.mark.parametrize(("program", "transform"), cases(set(APPLY), quick=QUICK))
def test_structured_program_equals_plain_jit(program, transform):
    with jax.enable_x64(program.x64):
        f, args = APPLY[transform](*build_annotated(program))
        structured = jitscope.outermost_jit(f, policy=share_all_policy(), outline=False)
        lowered = structured.lower(*args)
        compiled = lowered.compile()
        assert_same(compiled(*args), reference(program.name, transform))
        check_census(program, transform, structured)
        check_calls(program, transform, structured, lowered.as_text(), compiled.as_text())


# --- the transformation outside: the function is a nested jit, and what it returns is the same ----


@pytest.mark.parametrize(
    ("program", "transform"),
    cases({"grad", "vmap", "jvp", "hessian"}, core_only=True),
)
def test_transformed_structured_program_equals_plain_jit(program, transform):
    with jax.enable_x64(program.x64):
        f, args = build_annotated(program)
        structured = jitscope.outermost_jit(f, policy=share_all_policy(), outline=False)
        transformed, args = APPLY[transform](structured, args)
        assert_same(transformed(*args), reference(program.name, transform))


@pytest.mark.parametrize(("program", "transform"), cases({"value"}, core_only=True))
def test_structured_program_inside_plain_jit_equals_plain_jit(program, transform):
    with jax.enable_x64(program.x64):
        f, args = build_annotated(program)
        structured = jitscope.outermost_jit(f, policy=share_all_policy(), outline=False)
        assert_same(jax.jit(structured)(*args), reference(program.name, transform))


@pytest.mark.parametrize(("program", "transform"), cases({"value"}, core_only=True))
def test_structured_program_inside_another_is_structured_by_the_outer_one(program, transform):
    with jax.enable_x64(program.x64):
        f, args = build_annotated(program)
        inner = jitscope.outermost_jit(f, policy=share_all_policy(), outline=False)
        outer = jitscope.outermost_jit(
            lambda *args: inner(*args), policy=share_all_policy(), outline=False
        )
        assert_same(outer(*args), reference(program.name, transform))
        check_census(program, transform, outer)
        with pytest.raises(RuntimeError, match="traced no program"):
            inner.reuse()


# --- what is kept, and what is not ----------------------------------------------------------------


def test_call_inside_a_shared_body_is_not_kept():
    """The request to keep a call is about that call, not about the calls inside its body."""

    @jitscope.shared_subroutine
    def small(x):
        return jnp.sin(x) * 2

    @jitscope.shared_subroutine
    def block(w, x):
        for _ in range(3):
            x = small(x @ w) + norm(x)
        return x

    def net(w, x):
        for _ in range(6):
            x = block(w, x)
        return x

    structured = jitscope.outermost_jit(net, policy=share_all_policy(), outline=False)
    args = normal(1, 4, 4), normal(2, 3, 4)
    lowered = structured.lower(*args)
    assert body_uses(structured) == {"block": (6,), "small": (3,)}
    (unit,) = shared_units(structured)
    assert unit.startswith("block_")
    assert tagged_calls(lowered.as_text()) == 6
    assert kept_calls(lowered.compile().as_text()) == {unit: 6}


def test_calls_of_jax_inside_a_shared_body_are_not_kept():
    """JAX lowers scans and random bits through functions of its own."""

    @jitscope.shared_subroutine
    def block(w, key, x):
        x, rows = lax.scan(lambda c, k: (jnp.tanh(c @ w) + c, c), x, jax.random.split(key, 3))
        return norm(x + rows.sum(0) + jax.random.normal(key, x.shape))

    def net(w, key, x):
        for _ in range(6):
            x = block(w, key, x)
        return x

    structured = jitscope.outermost_jit(net, policy=share_all_policy(), outline=False)
    lowered = structured.lower(normal(1, 4, 4), jax.random.key(0), normal(2, 3, 4))
    assert list(shared_units(structured).values()) == [6]
    assert tagged_calls(lowered.as_text()) == 6


# --- what else may not change anything ------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "transform"), cases({"value"}) + cases({"grad"}, core_only=True)
)
def test_outlined_plain_program_equals_plain_jit(program, transform):
    """The same code without annotations: repeats are found, and nothing else changes."""
    with jax.enable_x64(program.x64):
        f, args = APPLY[transform](*build_plain(program))
        structured = jitscope.outermost_jit(f, policy=share_all_policy())
        assert_same(structured(*args), reference(program.name, transform))


@pytest.mark.parametrize(("program", "transform"), cases({"value"}))
def test_default_policy_and_outlining_of_annotated_program_equal_plain_jit(program, transform):
    with jax.enable_x64(program.x64):
        f, args = build_annotated(program)
        structured = jitscope.outermost_jit(f)
        for _ in range(2):  # the compiling call and a dispatched one
            assert_same(structured(*args), reference(program.name, transform))


@pytest.mark.parametrize(
    "name",
    [
        "integer_operands",
        "message_passing",
        pytest.param("transformer", marks=pytest.mark.slow),
        "unused_inputs",
    ],
)
def test_integer_arguments_have_float0_gradients(name):
    f, args = build_annotated(PROGRAMS[name])
    plain_f, _ = build_plain(PROGRAMS[name])
    argnums = tuple(range(len(args)))
    gradient = lambda f: jax.grad(lambda *args: scalar(f(*args)), argnums, allow_int=True)
    structured = jitscope.outermost_jit(gradient(f), policy=share_all_policy(), outline=False)
    result = structured(*args)
    assert any(leaf.dtype == jax.dtypes.float0 for leaf in jax.tree.leaves(result))
    assert_same(result, jax.jit(gradient(plain_f))(*args))

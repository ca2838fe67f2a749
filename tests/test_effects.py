"""Effects, errors, debugging modes, donation and 64-bit mode: as under `jax.jit`."""

from __future__ import annotations

import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    assert_same,
    build_annotated,
    build_plain,
    decisions,
    fresh,
    plain_result,
    share_all_policy,
    tagged_calls,
)
from jax import lax
from jax.experimental import io_callback
from programs import PROGRAMS, normal, plain

import jitscope

N_LAYERS = 6


def structured(fun, **options):
    return jitscope.outermost_jit(fun, policy=share_all_policy(), **options)


# --- order and number of effects ------------------------------------------------------------------


def net_with(effect, shared):
    """Layers with an effect inside each body, and one between the bodies."""

    @shared
    def block(w, x):
        y = jnp.tanh(x @ w)
        return effect(y, "inside") * 1.5 + x

    def net(ws, x):
        for w in ws:
            x = block(w, x)
            x = effect(x, "between")
        return x

    return net


def layers():
    return [normal(i, 3, 3) for i in range(N_LAYERS)], normal(9, 3)


def observed(jit, make_effect, shared, transform=lambda f: f):
    """The result of the network and what its effects saw, in order."""
    seen = []
    result = jit(transform(net_with(make_effect(seen), shared)))(*layers())
    jax.block_until_ready(result)
    jax.effects_barrier()
    return result, seen


def ordered_io(seen):
    def host(x, where):
        seen.append((where, round(float(np.sum(x)), 4)))
        return np.float32(len(seen))

    def effect(x, where):
        zero = io_callback(
            lambda x: host(x, where), jax.ShapeDtypeStruct((), np.float32), x, ordered=True
        )
        return x + 0 * zero

    return effect


def debug_callback(ordered):
    def make(seen):
        def effect(x, where):
            total = lax.stop_gradient(x).sum()
            jax.debug.callback(
                lambda t: seen.append((where, round(float(t), 4))), total, ordered=ordered
            )
            return x

        return effect

    return make


def test_ordered_io_callbacks_run_in_program_order():
    expected, expected_seen = observed(jax.jit, ordered_io, plain)
    result, seen = observed(structured, ordered_io, jitscope.shared_subroutine)
    assert [where for where, _ in seen] == ["inside", "between"] * N_LAYERS
    assert seen == expected_seen
    assert_same(result, expected)


def test_ordered_debug_callbacks_run_in_program_order():
    expected, expected_seen = observed(jax.jit, debug_callback(True), plain)
    result, seen = observed(structured, debug_callback(True), jitscope.shared_subroutine)
    assert len(seen) == 2 * N_LAYERS
    assert seen == expected_seen
    assert_same(result, expected)


def test_unordered_debug_callbacks_run_once_each():
    _, expected = observed(jax.jit, debug_callback(False), plain)
    _, seen = observed(structured, debug_callback(False), jitscope.shared_subroutine)
    assert len(seen) == 2 * N_LAYERS
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("ordered", [True, False])
def test_debug_callbacks_run_as_under_jit_when_differentiated(ordered):
    if ordered:
        # Ordered effects have no place in a reverse pass; jax.jit says the same.
        transform = lambda f: lambda ws, x: jax.jvp(f, (ws, x), (ws, x))
    else:
        transform = lambda f: jax.grad(lambda ws, x: f(ws, x).sum())
    expected, expected_seen = observed(jax.jit, debug_callback(ordered), plain, transform)
    result, seen = observed(
        structured, debug_callback(ordered), jitscope.shared_subroutine, transform
    )
    assert seen
    assert sorted(seen) == sorted(expected_seen)
    assert not ordered or seen == expected_seen
    assert_same(result, expected)


def test_callbacks_inside_a_loop_run_once_per_iteration():
    def transform(f):
        def loop(ws, x):
            return lax.fori_loop(0, 3, lambda i, x: f(ws, x), x)

        return loop

    expected, expected_seen = observed(jax.jit, ordered_io, plain, transform)
    result, seen = observed(structured, ordered_io, jitscope.shared_subroutine, transform)
    assert len(seen) == 3 * 2 * N_LAYERS
    assert seen == expected_seen
    assert_same(result, expected)


def test_debug_print_prints_what_jit_prints(capsys):
    program = PROGRAMS["debug_print_in_body"]

    def printed(jit, build):
        f, args = build(program)
        jax.block_until_ready(jit(f)(*args))
        jax.effects_barrier()
        return sorted(capsys.readouterr().out.splitlines())

    expected = printed(jax.jit, build_plain)
    assert len(expected) == program.uses["noisy"][0]
    assert printed(structured, build_annotated) == expected


def test_pure_callback_sees_every_call():
    def make_effect(seen):
        def host(x):
            seen.append(round(float(np.sum(x)), 4))
            return np.asarray(x) * 2

        return lambda x, where: jax.pure_callback(host, x, x, vmap_method="sequential")

    expected, expected_seen = observed(jax.jit, make_effect, plain)
    result, seen = observed(structured, make_effect, jitscope.shared_subroutine)
    assert len(seen) == 2 * N_LAYERS
    assert seen == expected_seen
    assert_same(result, expected)


def test_effects_repeat_on_every_call_of_the_compiled_program():
    seen = []
    f = structured(net_with(ordered_io(seen), jitscope.shared_subroutine))
    for _ in range(3):
        jax.block_until_ready(f(*layers()))
    jax.effects_barrier()
    assert [where for where, _ in seen] == ["inside", "between"] * N_LAYERS * 3


def test_closures_over_different_lists_each_write_to_their_own():
    """Equal as values, but not the same list: reusing the first one's trace would lose effects."""

    def net(seen):
        @jitscope.shared_subroutine
        def block(x):
            jax.debug.callback(lambda t: seen.append(float(t)), x.sum())
            return jnp.sin(x)

        return structured(lambda x: block(block(x)))

    lists = [[], [], []]
    for seen in lists:
        jax.block_until_ready(net(seen)(jnp.ones(3)))
        jax.effects_barrier()
    assert [len(seen) for seen in lists] == [2, 2, 2]


@pytest.mark.parametrize("name", ["debug_print_in_body", "ordered_callback_in_body"])
def test_body_with_effects_stays_nested_and_the_plan_says_why(name):
    f, args = build_annotated(PROGRAMS[name])
    f = structured(f)
    lowered = f.lower(*args)
    ((structure, reason),) = decisions(f)[next(iter(PROGRAMS[name].uses))]
    assert structure == "NESTED"
    assert "side effect" in reason
    assert tagged_calls(lowered.as_text()) == 0


# --- errors ---------------------------------------------------------------------------------------


def user_frames(error):
    """Functions and source lines of this file in a traceback, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.line) for f in frames if f.filename == __file__]


def failing(shared, fail):
    @shared
    def block(x):
        y = jnp.sin(x)
        return fail(y)

    return lambda x: block(block(x))


def raises_value_error(x):
    raise ValueError("wrong on purpose")


def branches_on_a_value(x):
    return x if x.sum() > 0 else -x


def adds_wrong_shapes(x):
    return x + jnp.ones(7)


@pytest.mark.parametrize("fail", [raises_value_error, branches_on_a_value, adds_wrong_shapes])
def test_exception_while_tracing_shows_the_users_line(fail):
    errors = []
    for jit, shared in [(jax.jit, jax.jit), (structured, jitscope.shared_subroutine)]:
        with pytest.raises(Exception) as caught:
            jit(failing(shared, fail))(jnp.ones(3))
        errors.append(caught.value)
    expected, error = errors
    assert type(error) is type(expected)
    assert user_frames(error)[-3:] == user_frames(expected)[-3:]
    assert user_frames(error)[-1][0] == fail.__name__
    if fail is raises_value_error:
        assert str(error) == "wrong on purpose"
        last = traceback.extract_tb(error.__traceback__)[-1]
        assert last.filename == __file__


def test_program_works_after_a_failed_trace():
    attempts = []

    @jitscope.shared_subroutine
    def block(x):
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("first attempt")
        return jnp.sin(x) * 2

    f = structured(lambda x: block(block(x)))
    with pytest.raises(ValueError, match="first attempt"):
        f(jnp.ones(3))
    assert_same(f(jnp.ones(3)), jax.jit(lambda x: jnp.sin(jnp.sin(x) * 2) * 2)(jnp.ones(3)))


# --- debugging modes ------------------------------------------------------------------------------


def test_disable_jit_runs_bodies_on_values():
    seen = []

    @jitscope.shared_subroutine
    def block(x):
        seen.append(float(x.sum()))  # a tracer has no value
        return x + 1 if x.sum() > 0 else x - 1

    f = structured(lambda x: block(block(x)))
    with jax.disable_jit():
        result = f(jnp.ones(3))
    assert seen == [3.0, 6.0]
    assert_same(result, jnp.array([3.0, 3.0, 3.0]))


@pytest.mark.parametrize(
    "name", ["residual_mlp", "several_outputs", "scan_in_body", "custom_vjp_inside", "typed_keys"]
)
def test_catalogue_runs_with_jit_disabled(name):
    f, args = build_annotated(PROGRAMS[name])
    plain_f, _ = build_plain(PROGRAMS[name])
    with jax.disable_jit():
        assert_same(structured(f)(*args), plain_f(*args))


@pytest.mark.parametrize("name", [p.name for p in PROGRAMS.values() if p.core])
def test_no_tracer_leaks(name):
    program = PROGRAMS[name]
    with jax.enable_x64(program.x64):
        f, args = build_annotated(program)
        with jax.checking_leaks():
            result = structured(f)(*args)
        assert_same(result, plain_result(name))


def test_no_tracer_leaks_under_grad():
    f, args = build_annotated(PROGRAMS["residual_mlp"])
    loss = lambda *args: f(*args).sum()
    with jax.checking_leaks():
        result = structured(jax.grad(loss))(*args)
        outside = jax.grad(structured(loss))(*args)
    assert_same(result, jax.jit(jax.grad(loss))(*args))
    assert_same(outside, result)


def test_leaked_tracer_of_the_user_is_found():
    leaked = []

    @jitscope.shared_subroutine
    def block(x):
        leaked.append(x)
        return jnp.sin(x)

    with pytest.raises(Exception, match="[Ll]eaked trace"), jax.checking_leaks():
        structured(lambda x: block(x))(jnp.ones(3))


def test_debug_nans_raises_as_under_jit():
    def net(shared):
        @shared
        def block(x):
            return jnp.log(x) * 1.0

        return lambda x: block(block(block(x)))

    f = structured(net(jitscope.shared_subroutine))
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError, match="nan"):
            jax.jit(net(jax.jit))(-jnp.ones(3))
        with pytest.raises(FloatingPointError, match="nan"):
            f(-jnp.ones(3))
        assert np.all(np.isfinite(f(jnp.full(3, 20.0))))


# --- donation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [p.name for p in PROGRAMS.values() if p.donate])
def test_donated_buffers_are_given_up_through_shared_bodies(name):
    program = PROGRAMS[name]
    f, args = build_annotated(program)
    plain_f, _ = build_plain(program)
    expected = jax.jit(plain_f)(*args)
    f = structured(f, donate_argnums=program.donate)
    donated_args = fresh(args)
    assert_same(f(*donated_args), expected)
    for i, (arg, original) in enumerate(zip(donated_args, args, strict=True)):
        deleted = {x.is_deleted() for x in jax.tree.leaves(arg)}
        assert deleted == {i in program.donate}, f"argument {i}"
        assert not any(x.is_deleted() for x in jax.tree.leaves(original))


@pytest.mark.parametrize("name", [p.name for p in PROGRAMS.values() if p.donate])
def test_donated_buffers_are_aliased_as_under_jit(name):
    program = PROGRAMS[name]

    def aliases(jit, build):
        f, args = build(program)
        text = jit(f, donate_argnums=program.donate).lower(*args).compile().as_text()
        header = text.splitlines()[0]
        return sorted(re.findall(r"\{[\d, ]*\}: \(\d+, \{[\d, ]*\}, [\w-]+\)", header))

    expected = aliases(jax.jit, build_plain)
    assert expected
    assert aliases(structured, build_annotated) == expected


def test_donation_by_name():
    f, (state, x) = build_annotated(PROGRAMS["donated_argument"])
    state = fresh(state)
    structured(f, donate_argnames="state")(state, x)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not x.is_deleted()


# --- 64-bit mode ----------------------------------------------------------------------------------


def test_one_function_serves_both_64_bit_modes():
    @jitscope.shared_subroutine
    def block(x):
        return jnp.sin(x) * 2.0 + jnp.arange(3).sum()

    def net(x):
        for _ in range(N_LAYERS):
            x = block(x)
        return x, jnp.asarray(1.0), jnp.asarray(1)

    f, reference = structured(net), jax.jit(net)
    x = np.linspace(0.0, 1.0, 3)
    for x64 in [False, True, False]:
        with jax.enable_x64(x64):
            result = f(x)
            assert_same(result, reference(x))
            assert result[0].dtype == (np.float64 if x64 else np.float32)
            assert result[2].dtype == (np.int64 if x64 else np.int32)


def test_64_bit_mode_entered_inside_the_program():
    @jitscope.shared_subroutine
    def block(x):
        return jnp.sin(x) * 2

    def net(x):
        with jax.enable_x64(True):
            y = x.astype(jnp.float64)
            for _ in range(N_LAYERS):
                y = block(y)
        for _ in range(N_LAYERS):
            x = block(x)
        return x, y

    assert_same(structured(net)(jnp.ones(3)), jax.jit(net)(jnp.ones(3)))

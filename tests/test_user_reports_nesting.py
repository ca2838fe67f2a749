"""What people ask about nested ``jax.jit`` and about loops: is it good, is it active?

Each test is a public report in our words; the comment tells where it was made.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, body_uses, decisions, share_all_policy, tagged_calls
from programs import normal
from user_programs import block, instructions, loss_of, parameters, report_of

import jitscope
from jitscope import Structure, outermost_jit, shared_subroutine

X = normal(0, 4, 8)


# --- is nesting good or bad? ---------------------------------------------------------------


@pytest.mark.parametrize("differentiated", [False, True])
def test_nested_calls_leave_no_boundary_in_the_compiled_program(differentiated):
    # jax#284, lecture-python.myst#719, lecture-jax#243: does an inner jit block fusion?
    # jax-gcm#331: is it a "compilation barrier"? dLux#168: is inline=True faster to run?
    programs = {
        "flat": block,
        "nested": shared_subroutine(block, structure="nested"),
        "inline": shared_subroutine(block, structure="inline"),
    }
    args, found, results = (parameters(2), X), {}, {}
    for kind, layer in programs.items():
        loss = loss_of(layer)
        step = outermost_jit(jax.grad(loss) if differentiated else loss, outline=False)
        compiled = step.lower(*args).compile()
        found[kind] = sorted(instructions(compiled.as_text()))
        results[kind] = jax.tree.leaves(compiled(*args))
    assert found["flat"] == found["nested"] == found["inline"]
    for kind in ("nested", "inline"):
        for got, want in zip(results[kind], results["flat"], strict=True):
            np.testing.assert_array_equal(got, want)


def test_report_says_what_nesting_saves_and_what_it_does_not():  # jax#4572, pennylane#7014
    def outer(layer):
        return lambda x: functools.reduce(lambda x, _: layer(x), range(3), x)

    def helper(x):
        for i in range(12):
            x = jnp.sin(x) * (i + 1)
        return x

    nested = outermost_jit(outer(jax.jit(helper)))
    nested.trace(X)
    assert decisions(nested)["helper"] == [("NESTED", "3 uses, a kept call pays from 4 uses")]
    assert "XLA copies it to each call" in str(nested.reuse())
    shared = outermost_jit(outer(shared_subroutine(helper, structure="shared")))
    shared.trace(X)
    assert "SHARED: compiled once, and called" in str(shared.reuse())
    assert_same(shared(X), jax.jit(outer(helper))(X))


def test_function_that_is_called_once_is_dissolved_and_others_are_left():
    # jax-gcm#331; pytorch#186807, pytorch#138036: the same rule for regions used once.
    once, often = jax.jit(lambda x: jnp.sin(x) @ x.T @ x), jax.jit(lambda x: jnp.cos(x) + x)
    structured = outermost_jit(lambda x: once(often(often(x))))
    structured.trace(X)
    by_uses = {
        body.n_uses: structured.reuse().plan[body.fingerprint.digest].structure
        for body in structured.reuse().census.bodies
    }
    assert by_uses == {1: Structure.INLINE, 2: Structure.NESTED}


def test_tiny_functions_get_no_kept_call():
    # jax#26145, jax#26021: many small kernels are slow on CPU; prime-ir#367: outlined tiny
    # functions compile fast and run slowly.
    tiny = shared_subroutine(lambda x: jnp.maximum(x * 1.5, 0))
    structured = outermost_jit(lambda x: functools.reduce(lambda x, _: tiny(x), range(40), x))
    text = structured.lower(X).as_text()
    assert tagged_calls(text) == 0
    ((structure, reason),) = decisions(structured)["<lambda>"]
    assert structure == "NESTED" and "a kept call pays from 12" in reason


def test_region_that_writes_to_its_input_is_called_as_often_as_written():
    # pytorch#186807, pytorch#189522: regions that mutate their input failed.
    ref_of = getattr(jax, "new_ref", None) or jax.array_ref

    @shared_subroutine
    def accumulate(total, x):
        total[...] += x
        return x * 2

    def run(accumulate, x):
        total = ref_of(jnp.zeros_like(x))
        for _ in range(4):
            x = accumulate(total, x)
        return x, total[...]

    structured = outermost_jit(functools.partial(run, accumulate))
    assert_same(structured(X), jax.jit(functools.partial(run, accumulate.__wrapped__))(X))


def test_layers_that_only_look_alike_are_not_merged():
    # pytorch/xla#8620, pytorch/xla#8632: scanning layers has to assume that they are identical.
    def net(params, x):
        for i, p in enumerate(params):
            x = block(p, x) * (1.5 if i == 3 else 1.0) if i != 5 else jnp.sin(block(p, x))
        return x

    structured = outermost_jit(net, policy=share_all_policy())
    assert_same(structured(parameters(8), X), jax.jit(net)(parameters(8), X))


# --- instead of a scan, and within one ----------------------------------------------------------


@pytest.mark.slow
def test_subroutine_is_one_body_in_scan_while_and_cond():
    # flax#1771, flax#4819: layers under nn.scan do not go with per-layer keys and decoding.
    @shared_subroutine
    def layer(p, key, x):
        return jnp.tanh(x @ p["up"] @ p["down"]) * jax.random.bernoulli(key, 0.8, x.shape)

    def decode(layer, params, key, x):
        for p, k in zip(params, jax.random.split(key, len(params)), strict=True):
            x = layer(p, k, x)
        x, _ = jax.lax.scan(lambda x, k: (layer(params[0], k, x), None), x, jax.random.split(key))
        x = jax.lax.fori_loop(0, 3, lambda i, x: layer(params[1], key, x), x)
        x = jax.lax.while_loop(
            lambda state: state[0] < 2,
            lambda state: (state[0] + 1, layer(params[2], key, state[1])),
            (0, x),
        )[1]
        return jax.lax.cond(x.sum() > 0, lambda x: layer(params[0], key, x), lambda x: x, x)

    args = parameters(4), jax.random.key(0, impl="rbg"), X
    structured = outermost_jit(functools.partial(decode, layer))
    plain = functools.partial(decode, layer.__wrapped__)
    assert_same(structured(*args), jax.jit(plain)(*args), tolerance_factor=10)
    assert layer.stats().n_traces == 1
    assert body_uses(structured)["layer"] == (8,)


@pytest.mark.slow
@pytest.mark.parametrize("marked", [False, True])
def test_chain_of_equal_modules_becomes_a_loop_that_leaves_the_parameters_alone(marked):
    # pyPMM#5: detects chains of identical modules and scans them; flax#2618: stacked parameters
    # break optimisers that treat each layer by itself.
    layer = shared_subroutine(block) if marked else block

    def update(layer, params, x):
        gradients = jax.grad(loss_of(layer))(params, x)
        # One factor for each layer's matrix, of its own two dimensions.
        return jax.tree.map(lambda p, g: p - 0.1 * g / (1 + jnp.linalg.norm(g)), params, gradients)

    args = parameters(16), X
    step = outermost_jit(functools.partial(update, layer), policy=jitscope.Policy(rolled=True))
    lowered = step.lower(*args).as_text()
    assert "stablehlo.while" in lowered
    loops = [b for b in step.reuse().report().programs[0].bodies if b.structure == "ROLLED"]
    assert max(body.n_uses for body in loops) >= 15
    few = parameters(5), X
    plain = jax.jit(functools.partial(update, block))
    assert_same(step(*few), plain(*few))


@pytest.mark.slow
def test_each_layer_gets_its_own_dropout_mask_from_its_key():  # flax#3171
    @shared_subroutine
    def layer(w, key, x):
        return jax.nn.relu(x @ w) * jax.random.bernoulli(key, 0.5, x.shape)

    def net(layer, ws, key, x):
        return [layer(w, k, x) for w, k in zip(ws, jax.random.split(key, 6), strict=True)]

    args = [jnp.eye(8)] * 6, jax.random.key(1, impl="rbg"), jnp.ones((4, 8))
    outs = outermost_jit(functools.partial(net, layer))(*args)
    assert_same(outs, jax.jit(functools.partial(net, layer.__wrapped__))(*args))
    assert len({np.asarray(out).tobytes() for out in outs}) == 6
    assert layer.stats().n_traces == 1


def test_random_numbers_have_rows_of_their_own():  # equinox#1132
    def init(keys):
        return [jax.random.normal(key, (8, 8)) * 0.1 for key in keys]

    structured = outermost_jit(init)
    program = report_of(structured, list(jax.random.split(jax.random.key(0), 8)))
    drawing = [body for body in program.bodies if "normal" in body.name]
    assert [body.n_uses for body in drawing if body.name == "_normal"] == [8]
    assert max(body.n_uses * body.n_equations for body in drawing) > 0.5 * program.n_equations


# --- is it active? ------------------------------------------------------------------------------


def test_decorated_function_that_is_bypassed_is_said_so():
    # accelerate#4188, SimpleTuner#3147: the compiled region was silently never called.
    class Model:
        def forward(self, x):
            return jnp.sin(x) * 0.123

    model = Model()
    original, model.compiled = model.forward, shared_subroutine(model.forward, name="bypassed")
    jax.jit(lambda x: original(original(x)))(X)
    assert "never called: is the undecorated function called" in str(model.compiled.stats())
    (mine,) = [s for s in jitscope.stats().subroutines if s.name == "bypassed"]
    assert mine.problems[0].startswith("decorated but never called")


def test_report_sets_both_sides_beside_each_other():
    # accelerate#3529, diffusers#11556, pytorch/tutorials#3070: compile time alone is half of it.
    report = jitscope.compare(loss_of(shared_subroutine(block)), parameters(3), X)
    (program,) = report.programs
    assert program.compiled.seconds.cold_s > 0 and program.plain.seconds.cold_s > 0
    assert "plain jax.jit" in str(report)

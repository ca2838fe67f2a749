"""What people report about compiled programs: constants, memory, determinism, options, names.

Each test is a public report in our words; the comment tells where it was made.
"""

from __future__ import annotations

import functools
import gc
import inspect
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, fresh, share_all_policy
from programs import normal
from user_programs import repeated

import jitscope
from jitscope import outermost_jit, shared_subroutine
from jitscope.subroutine.cores import registry

X = normal(0, 2, 3)


def report_of_all(fun, *args):
    fun.trace(*args)
    return fun.reuse().report()


# --- constants and memory --------------------------------------------------------------------

TABLE = jnp.asarray(np.random.RandomState(0).randn(256, 256).astype(np.float32)) / 16


@pytest.mark.parametrize("decorate", [shared_subroutine, jax.jit], ids=["ours", "nested jax.jit"])
@pytest.mark.parametrize("differentiated", [False, True])
def test_captured_array_is_in_the_module_once_whatever_calls_it(decorate, differentiated):
    # jax#14655, jax#21300, jax#10596, jax#12789, openxla/xla#1652, tpu-inference#1192: captured
    # arrays are copied into every caller and folded for minutes.
    def model(x):
        def layer(x):  # made anew for each call, as modules do
            return jnp.tanh(x @ TABLE)

        return repeated(lambda x: decorate(layer)(x), 8, x).sum()

    program = jax.grad(model) if differentiated else model
    x = jnp.ones((2, 256))
    structured = outermost_jit(program)
    text = structured.lower(x).as_text()
    assert len(text) < 2.5 * TABLE.nbytes  # once, in hexadecimal digits
    assert_same(structured(x), jax.jit(program)(x), tolerance_factor=10)


@pytest.mark.parametrize("decorate", [shared_subroutine, jax.jit, lambda f: f])
def test_large_captured_array_is_told_with_its_size_and_line(decorate):
    # jax#27541, jax#28157, jax#29679, jax#36974: JAX warns of such constants from 2 GB on.
    table = jnp.asarray(np.random.RandomState(1).randn(512, 600).astype(np.float32))
    layer = decorate(lambda x: jnp.tanh(x @ table) @ table.T)
    structured = outermost_jit(lambda x: repeated(layer, 4, x))
    text = " ".join(str(report_of_all(structured, jnp.ones((2, 512)))).split())
    assert "captured 1.23 MB of arrays" in text
    assert re.search(r"f32\[512,600\], is used at \w+\.py:\d+", text)
    passed = outermost_jit(lambda table, x: jnp.tanh(x @ table))
    assert "captured" not in str(report_of_all(passed, table, jnp.ones((2, 512))))


def test_array_that_is_passed_is_no_constant():  # tpu-inference#1192, jax#27541, jax#28157
    layer = shared_subroutine(lambda table, x: jnp.tanh(x @ table))
    program = outermost_jit(lambda table, x: repeated(lambda x: layer(table, x), 8, x))
    text = program.lower(TABLE, jnp.ones((2, 256))).as_text()
    assert len(text) < 4000 < TABLE.nbytes


def test_functions_and_what_they_captured_die():
    # jax#282, jax#2072, jax#7930, jax#16778, numpyro#1699, scarlet2#112: caches that only grow.
    class Model:
        def __init__(self):
            self.w = jnp.ones((3, 3))

        def forward(self, x):
            return jnp.tanh(x @ self.w)

    def use():
        model = Model()
        layer = shared_subroutine(model.forward, name="dies")

        @outermost_jit
        def program(x):
            return repeated(layer, 4, x)

        program(X)
        captured = np.ones(5)
        closure = shared_subroutine(lambda x: x + captured.sum(), name="dies too")
        closure(X)
        return [weakref.ref(thing) for thing in (model, program, layer, closure, captured)]

    alive = use()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 5


def test_caches_are_bounded_and_can_be_cleared(monkeypatch):  # jax#16778, numpyro#1699
    monkeypatch.setattr("jitscope.subroutine.cores.MAX_CORES", 4)
    for n in range(8):
        layer = shared_subroutine(lambda x, n=n: x + n, name="grows")
        layer(X)
        shared_subroutine(lambda x: x * n, name="grows too")(X)  # noqa: B023 - called at once
    assert len(registry) <= 4
    layer.clear_cache()
    before = layer.stats().n_traces
    layer(X)
    assert layer.stats().n_traces == before + 1


def test_memory_to_compile_is_told_with_the_program():  # jax#21583, jax#10828, tt-xla#186
    report = jitscope.compare(
        lambda x: repeated(lambda x: jnp.tanh(x @ TABLE), 3, x), X @ TABLE[:3]
    )
    (program,) = report.programs
    assert program.compiled.argument_bytes == 2 * 256 * 4
    assert "temporary memory" in str(report)


# --- determinism --------------------------------------------------------------------------------


def block(w, x):
    return x + jnp.tanh((x - x.mean(-1, keepdims=True)) @ w) / jnp.sqrt((x**2).sum() + 1)


def deep(layer, ws, x):
    return functools.reduce(lambda x, w: layer(w, x), ws, x).sum()


def test_module_does_not_depend_on_what_was_traced_before():
    # jax#40312, jax#40318, jax#38828: keys of the persistent cache depend on the trace's history.
    ws = [jnp.eye(3)] * 6

    def lowered():
        helper = jax.jit(lambda x: jnp.cos(x) + 1)

        def model(ws, x):
            return deep(shared_subroutine(block), ws, helper(x)) + helper(x).sum()

        step = outermost_jit(jax.value_and_grad(model), policy=share_all_policy())
        return step.lower(ws, X).as_text()

    first = lowered()
    outermost_jit(lambda x: deep(shared_subroutine(block), ws[:2], jnp.sin(x)))(X)
    jax.jit(jax.grad(lambda x: block(ws[0], x).sum()))(X)
    assert lowered() == first
    jax.clear_caches()
    assert lowered() == first


# --- options ----------------------------------------------------------------------------------


def test_donation_belongs_to_the_outermost_function():  # jax#3606, jax#16647, jax#2936
    with pytest.raises(TypeError, match=r"donate_argnums.*outermost_jit\(donate_argnums=..."):
        shared_subroutine(donate_argnums=0)(block)

    def update(ws, x):
        return [
            w - 0.1 * g for w, g in zip(ws, jax.grad(deep, argnums=1)(layer, ws, x), strict=True)
        ]

    layer = shared_subroutine(block)
    given = fresh([jnp.eye(3)] * 6)
    result = outermost_jit(update, donate_argnums=0)(given, X)
    assert all(w.is_deleted() for w in given)
    assert_same(result, jax.jit(update)([jnp.eye(3)] * 6, X))


def test_donation_of_somebodys_nested_function_takes_nothing_away():  # jax#3606
    inner = jax.jit(lambda x: jnp.sin(x) + 1, donate_argnums=0)

    def program(x):
        return inner(inner(x)) + x  # x is used after it was "donated"

    x = X + 0
    structured = outermost_jit(program)
    assert_same(structured(x), jax.jit(program)(x))
    assert not x.is_deleted()
    text = " ".join(str(structured.reuse()).split())
    assert "donates arguments, which does nothing within another jit" in text
    assert "outermost_jit(donate_argnums=...)" in text


def test_compiler_options_belong_to_the_outermost_function():
    # tt-xla#2805, equinox#1178, jax#24673: an obscure ValueError on a nested jit.
    options = {"xla_embed_ir_in_executable": True}
    with pytest.raises(TypeError, match=r"compiler_options.*outermost_jit\(compiler_options=..."):
        shared_subroutine(compiler_options=options)(block)
    layer = shared_subroutine(block)
    step = outermost_jit(functools.partial(deep, layer), compiler_options=options)
    assert_same(
        step([jnp.eye(3)] * 4, X), jax.jit(functools.partial(deep, block))([jnp.eye(3)] * 4, X)
    )
    for jit in (outermost_jit, jax.jit):  # JAX's own error passes through
        with pytest.raises(ValueError, match="compiler_options"):
            jit(lambda x: jax.jit(jnp.sin, compiler_options=options)(x))(X)


# --- names --------------------------------------------------------------------------------------


def op_names(fun, *args):
    text = fun.lower(*args).compile().as_text()
    return set(re.findall(r'op_name="([^"]*)"', text))


@pytest.mark.parametrize("structure", ["inline", "nested", "shared"])
def test_operations_can_be_traced_back_to_the_users_function(structure):
    # jax#24349, jax#7029, jax#2073: which layer does a line of the profile belong to?
    # jax#7602: names must not cost compile time.
    def attention_layer(w, x):
        with jax.named_scope("scores"):
            x = x @ w
        return jnp.tanh(x)

    layer = shared_subroutine(attention_layer, structure=structure)
    step = outermost_jit(functools.partial(deep, layer))
    found = op_names(step, [jnp.eye(3)] * 6, X)
    assert any("attention_layer" in name and "scores" in name for name in found)
    flat = op_names(jax.jit(functools.partial(deep, attention_layer)), [jnp.eye(3)] * 6, X)
    assert not any("attention_layer" in name for name in flat), "more than without nesting"


def test_shared_body_is_located_at_its_first_call():  # axosyslog#1158
    layer = shared_subroutine(block)

    def model(w, x):
        x = layer(w, x)  # the first
        x = layer(w, x)
        return layer(w, x)

    structured = outermost_jit(model)
    structured.trace(jnp.eye(3), X)
    (body,) = [b for b in structured.reuse().report().programs[0].bodies if b.name == "block"]
    lines, start = inspect.getsourcelines(model)
    first = start + next(i for i, line in enumerate(lines) if "# the first" in line)
    assert f":{first}" in body.source
    assert sum(site.n_calls for site in body.sites) == 3 and len(body.sites) == 3

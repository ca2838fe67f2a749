"""What people report about compile time that grows with repetition.

Each test is a public report in our words; the comment tells where it was made.
"""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, body_uses, kept_calls, share_all_policy
from programs import normal
from user_programs import Runs, block, instructions, loss_of, parameters, report_of, stack

from jitscope import Structure, outermost_jit, shared_subroutine

X = normal(0, 4, 8)


def test_equal_layers_are_traced_and_compiled_once_and_keep_their_own_parameters():
    # dm-haiku#639; flax#2618 and vit-vqgan#9: stacked parameters break optimisers that work
    # with one layer's matrix.
    runs = Runs(block)
    layer, params = shared_subroutine(runs.fun), parameters(12)
    step = outermost_jit(jax.value_and_grad(loss_of(layer)))
    value, gradients = step(params, X)
    assert_same((value, gradients), jax.jit(jax.value_and_grad(loss_of(block)))(params, X))
    assert all(g["up"].shape == (8, 16) for g in gradients)
    assert runs.n == 1
    shared = [body for body in report_of(step, params, X).bodies if body.is_shared]
    assert sorted(body.n_uses for body in shared) == [11, 12]
    assert sum(kept_calls(step.lower(params, X).compile().as_text()).values()) == 23
    assert re.search("12 calls while tracing, 1 traces?, 11 reused", str(layer.stats()))


def test_what_xla_compiles_hardly_grows_with_the_number_of_layers():
    # transformers#27418: a T5 of n layers needs n times the memory of a scan to compile.
    n_compiled = {}
    for n in (12, 24):
        step = outermost_jit(jax.grad(loss_of(shared_subroutine(block))))
        n_compiled[n] = report_of(step, parameters(n), X)
    assert n_compiled[24].n_equations > 1.9 * n_compiled[12].n_equations
    # What is left for each layer is its call and adding up.
    growth = n_compiled[24].n_compiled - n_compiled[12].n_compiled
    assert growth / 12 < 0.1 * n_compiled[12].n_equations / 12


@pytest.mark.slow
def test_steps_of_an_unrolled_loop_with_random_draws_are_one_body():  # jax#2777
    @shared_subroutine
    def step(key, x):
        key, draw = jax.random.split(key)
        return key, jnp.tanh(x + 0.1 * jax.random.normal(draw, x.shape)) * 0.9

    def walk(step, n, key, x):
        for _ in range(n):
            key, x = step(key, x)
        return x

    args = jax.random.key(0, impl="rbg"), X
    structured = outermost_jit(functools.partial(walk, step, 3))
    assert_same(structured(*args), jax.jit(functools.partial(walk, step.__wrapped__, 3))(*args))
    structured = outermost_jit(functools.partial(walk, step, 50))
    program = report_of(structured, *args)
    assert body_uses(structured)["step"] == (50,)
    assert step.stats().n_traces == 1
    assert program.n_compiled < 0.1 * program.n_equations


@pytest.mark.slow
@pytest.mark.parametrize("annotated", [False, True])
def test_item_of_a_long_python_loop_is_one_body_with_its_count(annotated):
    # jax#200: thousands of graphs in one loop; jax#1399: a Python sum of many terms.
    def term(x, w):
        hidden = jnp.tanh(x * w) / (1 + jnp.exp(-x))
        return (hidden * jnp.cos(hidden) + jnp.sin(x + w)).sum()

    item = shared_subroutine(term) if annotated else term

    def total(x, ws):
        return sum(item(x, w) for w in ws)

    ws = list(normal(1, 100))
    structured = outermost_jit(jax.grad(total))
    program = report_of(structured, X[0], ws)
    # Unmarked terms may be found several at a time.
    assert max(body.n_uses for body in program.bodies) >= (99 if annotated else 20)
    repeated = sum(body.n_uses * body.n_equations for body in program.bodies if body.n_uses > 9)
    assert repeated > 0.8 * program.n_equations
    few = X[0], ws[:5]
    assert_same(structured(*few), jax.jit(jax.grad(total))(*few), tolerance_factor=10)


def test_chains_of_a_sampler_are_calls_of_one_potential():  # numpyro#1219, numpyro#543
    def potential(q):
        centred = q - q.mean()
        return jnp.sum(jnp.log1p(centred**2)) + jnp.logaddexp(q[0], q[1]) ** 2

    def step(qs):
        return [q - 0.1 * jax.grad(potential)(q) for q in qs]

    programs = {}
    for n in (4, 16):
        structured = outermost_jit(step)
        qs = list(normal(2, n, 6))
        programs[n] = report_of(structured, qs)
        assert_same(structured(qs), jax.jit(step)(qs))
    assert max(body.n_uses for body in programs[16].bodies) == 16
    assert len(programs[16].bodies) <= len(programs[4].bodies) + 1


@pytest.mark.parametrize("annotated", [False, True])
def test_stages_of_a_runge_kutta_solver_are_one_body(annotated):
    # diffrax#94, diffrax#170: each stage traces the vector field anew.
    def field(y):
        return jnp.tanh(y @ matrix) * jnp.exp(-(y**2)) + jnp.sin(y) / (1 + y**2) - y

    matrix = normal(3, 8, 8)
    runs = Runs(field)
    f = shared_subroutine(runs.fun) if annotated else runs.fun

    def solve(y):
        for _ in range(4):
            k1 = f(y)
            k2 = f(y + 0.05 * k1)
            k3 = f(y + 0.05 * k2)
            k4 = f(y + 0.1 * k3)
            y = y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    structured = outermost_jit(solve)
    program = report_of(structured, X)
    assert runs.n == (1 if annotated else 16)
    # Without a decorator the step, or the stage within it, is found.
    assert max(body.n_executions for body in program.bodies) >= (16 if annotated else 4)
    assert_same(structured(X), jax.jit(solve)(X))


@pytest.mark.slow
def test_loss_that_contains_a_solver_is_traced_once_in_a_line_search():  # jax#3847
    def simulate(y, k):
        def step(y, _):
            y = y - 0.1 * k * y
            return y - 0.01 * jnp.tanh(y * k) / (1 + y**2), jnp.cos(y)

        y, seen = jax.lax.scan(step, y, None, 10)
        return (y**2).sum() + jnp.log1p(seen**2).sum() / (1 + jnp.exp(-k))

    runs = Runs(simulate)

    def search(loss, k):
        for _ in range(2):  # a gradient, and four trials along it, at each step
            slope = jax.grad(loss, argnums=1)(X[0], k)
            trials = [(loss(X[0], k - 0.5**i * slope), k - 0.5**i * slope) for i in range(4)]
            k = functools.reduce(
                lambda a, b: jax.tree.map(functools.partial(jnp.where, a[0] < b[0]), a, b), trials
            )[1]
        return k

    loss = shared_subroutine(runs.fun)
    structured = outermost_jit(functools.partial(search, loss))
    result = structured(jnp.float32(1.5))
    assert runs.n == 1
    assert_same(result, jax.jit(functools.partial(search, simulate))(jnp.float32(1.5)))
    bodies = [b for b in report_of(structured, jnp.float32(1.5)).bodies if b.name == "simulate"]
    # One row each for the loss alone, for the loss of a gradient, and for the gradient.
    assert sorted((b.n_uses, b.is_backward) for b in bodies) == [(2, False), (2, True), (8, False)]


def fibonacci(decorate, n):
    @functools.partial(decorate, static_argnames="t")
    def fib(x, t):
        if t < 2:
            return jnp.sin(x) * (t + 1)
        return jnp.tanh(fib(x, t=t - 1) + fib(x, t=t - 2))

    return lambda x: fib(x, t=n)


def test_recursion_over_static_depth_is_counted_without_expanding_it():  # jax#22385
    structured = outermost_jit(fibonacci(shared_subroutine, 40))
    program, census = report_of(structured, X), structured.reuse().census
    assert census.n_equations > 10**8  # what XLA would get, were every call spelled out
    assert len(census.bodies) == 41
    assert max(body.n_paths for body in census.bodies) == 102_334_155  # fib(40)
    assert program.n_equations == census.n_equations
    assert f"{census.n_equations:,} equations" in str(structured.reuse())


def test_recursion_is_never_expanded_further_than_by_plain_jit():  # jax#22385
    structured = outermost_jit(fibonacci(shared_subroutine, 10), policy=share_all_policy())
    plain = jax.jit(fibonacci(jax.jit, 10))
    assert_same(structured(X), plain(X))
    ours = instructions(structured.lower(X).compile().as_text())
    theirs = instructions(plain.lower(X).compile().as_text())
    assert len(ours) <= 2 * len(theirs)


def test_growth_of_a_program_after_an_edit_is_said_with_the_body_that_grew():  # jax#26162
    from jitscope.report.diff import difference, render

    def version(n_terms):
        @shared_subroutine
        def collide(x):
            for i in range(n_terms):
                x = x + jnp.sin(x * i) / (i + 1)
            return x

        def step(x):
            return stack(lambda _, x: collide(x), range(6), x)

        return outermost_jit(step)

    before, after = (version(n_terms) for n_terms in (8, 40))
    sizes = [report_of(step, X).n_equations for step in (before, after)]
    change = difference(before.reuse().report(), after.reuse().report())
    assert sizes[1] > 4 * sizes[0]
    assert f"{sizes[0]:,} -> {sizes[1]:,}" in render(change, {})
    assert "collide" in str(after.reuse())


@pytest.mark.parametrize("structure", [None, *(s.value for s in Structure if s.name != "STAGED")])
def test_inner_function_is_traced_once_whatever_its_structure(structure):  # jax#7155
    runs = Runs(block)
    layer = shared_subroutine(runs.fun, structure=structure)
    step = outermost_jit(loss_of(layer))
    step.trace(parameters(10), X)
    assert runs.n == 1


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        lambda f: jax.vmap(f, (None, 0)),
        lambda f: jax.grad(lambda p, x: f(p, x).sum()),
        lambda f: jax.vmap(jax.grad(lambda p, x: f(p, x).sum()), (None, 0)),
    ],
    ids=["value", "vmap", "grad", "vmap of grad"],
)
def test_function_that_is_asked_to_stay_a_call_stays_one_under_transformations(transform):
    # jax#10974: mark functions that XLA shall not inline, in all their forms.
    layer = shared_subroutine(block, structure="shared")
    structured = outermost_jit(transform(functools.partial(stack, layer)), outline=False)
    args = parameters(2), normal(5, 3, 4, 8)
    assert_same(structured(*args), jax.jit(transform(functools.partial(stack, block)))(*args))
    kept = kept_calls(structured.lower(*args).compile().as_text())
    n_calls = sum(
        n for name, uses in body_uses(structured).items() if name == "block" for n in uses
    )
    assert sum(kept.values()) == n_calls >= 2


@pytest.mark.parametrize("order", ["jit", "remat of jit", "jit of remat", "remat of jit of remat"])
def test_checkpoint_and_jit_in_any_order_are_one_body(order):
    # jaxley#55: compile time linear in the number of checkpoints; jax#9661, jax#10034.
    runs = Runs(block)
    layer = shared_subroutine(runs.fun)
    wrapped = {
        "jit": layer,
        "remat of jit": jax.checkpoint(layer),
        "jit of remat": shared_subroutine(jax.checkpoint(runs.fun)),
        "remat of jit of remat": jax.checkpoint(shared_subroutine(jax.checkpoint(runs.fun))),
    }[order]
    n_functions = set()
    for n in (4, 8):
        step = outermost_jit(jax.grad(loss_of(wrapped)), policy=share_all_policy())
        n_functions.add(step.lower(parameters(n), X).as_text().count("func.func "))
    args = parameters(4), X
    assert_same(step(*args), jax.jit(jax.grad(loss_of(jax.checkpoint(block))))(*args))
    assert runs.n == 1
    assert len(n_functions) == 1, "more layers, the same functions"
    assert max(n_functions) <= 12

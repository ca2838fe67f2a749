"""What a report shows of a program, checked against an independent count over the jaxpr."""

import gc

import jax
import jax.numpy as jnp
import pytest
from helpers import build_annotated, build_plain, share_all_policy
from jax.extend.core import JaxprEqn
from programs import PROGRAMS

import jitscope
from jitscope import _jax
from jitscope.ir.program import capture
from jitscope.reuse.evidence import evidence_of
from jitscope.structuring.variants import Variants

FLAT = ["transformer", "mixture_of_experts", "nested_subroutines", "runge_kutta"]


def count(jaxpr):
    """Equations with every call spelled out, by a walk of its own."""
    total = 0
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        leaves = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
        nested = [leaf for leaf in leaves if hasattr(leaf, "eqns")]
        total += sum(map(count, nested)) or 1
    return total


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("build", [build_plain, build_annotated], ids=["plain", "annotated"])
def test_counts_are_those_of_the_traced_program(name, build):
    fun, args = build(PROGRAMS[name])
    structured = jitscope.outermost_jit(fun, policy=share_all_policy())
    structured.trace(*args)
    (program,) = structured.reuse().report().programs
    assert program.n_equations == count(jax.make_jaxpr(fun)(*args))
    assert sum(line.n_before for line in program.lines) == program.n_equations
    assert sum(line.n_after for line in program.lines) == program.n_compiled
    assert program.n_compiled <= program.n_equations
    # Sites are call sites of the program as written; of a shared body, uses are the calls kept.
    written = {body.fingerprint.digest: body.n_uses for body in structured.reuse().census.bodies}
    for body in program.bodies:
        assert sum(site.n_calls for site in body.sites) == written[body.digest]
        assert "{ lambda " in body.jaxpr


def test_kept_body_counts_once_wherever_it_is_called():
    @jitscope.shared_subroutine
    def inner(x):
        return jnp.sin(jnp.cos(jnp.tan(x)))

    @jitscope.shared_subroutine(structure="shared")
    def outer(x):
        return inner(inner(x)) + 1

    @jitscope.outermost_jit(outline=False)
    def net(x):
        return inner(outer(outer(outer(x))))

    net.trace(1.0)
    (program,) = net.reuse().report().programs
    # Two calls of the inner one and a sum in the body that is kept, and one call beside it.
    assert (program.n_equations, program.n_compiled) == (24, 2 * 3 + 1 + 3)
    assert {body.name: body.n_uses for body in program.bodies} == {"outer": 3, "inner": 3}


def test_call_sites_are_grouped_by_line_and_scope():
    @jitscope.shared_subroutine
    def layer(x):
        return jnp.sin(x) * 2

    @jitscope.outermost_jit
    def net(x):
        for i in range(3):
            with jax.named_scope("tower" if i < 2 else "head"):
                x = layer(x)
        return layer(x)

    net.trace(1.0)
    (body,) = net.reuse().report().programs[0].bodies
    assert [(site.scope, site.n_calls) for site in body.sites] == [
        ("tower", 2),
        ("head", 1),
        ("", 1),
    ]
    assert all("test_evidence.py" in site.source for site in body.sites)
    assert len({site.source for site in body.sites}) == 2


def test_stacks_lead_from_the_outermost_function_to_the_line():
    @jitscope.outermost_jit
    def net(x):
        return inner_function(x)

    def inner_function(x):
        return jnp.sin(x)

    net.trace(1.0)
    (line,) = net.reuse().report().programs[0].lines
    *_, outer, inner = line.stack
    assert "net)" in outer and "inner_function)" in inner
    assert (line.n_before, line.n_after) == (1, 1)


def test_backward_bodies_are_told_from_forward_ones():
    @jitscope.shared_subroutine
    def layer(w, x):
        return jnp.tanh(x @ w)

    @jitscope.outermost_jit(policy=share_all_policy())
    def step(ws, x):
        def loss(ws):
            y = x
            for w in ws:
                y = layer(w, y)
            return y.sum()

        return jax.grad(loss)(ws)

    step.trace([jnp.eye(3)] * 5, jnp.ones(3))
    layers = [b for b in step.reuse().report().programs[0].bodies if b.name == "layer"]
    assert {b.is_backward for b in layers} == {False, True}


def test_body_that_only_a_backward_body_calls_is_backward():
    @jitscope.shared_subroutine
    def norm(x):
        return x / jnp.sqrt((x * x).sum() + 1.0)

    @jitscope.shared_subroutine
    def layer(x):
        return jnp.tanh(norm(x))

    @jitscope.outermost_jit
    def step(x):
        def loss(x):
            for _ in range(5):
                x = layer(x)
            return x.sum()

        return jax.grad(loss)(x)

    step.trace(jnp.ones(3))
    bodies = step.reuse().report().programs[0].bodies
    assert {(b.name, b.is_backward) for b in bodies} >= {
        (name, is_backward) for name in ("layer", "norm") for is_backward in (False, True)
    }


def test_tracers_of_an_enclosing_trace_are_not_kept():
    found = []

    @jax.jit
    def outer(x):
        program = capture(lambda y: y * x, (2.0,), {}, {})
        found.append(evidence_of(program, program, program, Variants()))
        return program.emit([x])

    with jax.checking_leaks():
        outer(3.0)
    assert found == [None]


def test_captured_arrays_are_not_kept():
    table = jnp.ones(3)
    structured = jitscope.outermost_jit(lambda x: x + table)
    structured.trace(1.0)
    assert not _jax.consts(structured.reuse().evidence.program)


def test_deeper_program_in_stages_leaves_few_more_equations_alive():
    def loss(weights, x):
        for w in weights:
            x = x + jnp.tanh(jnp.sin(x @ w) * jnp.cos(x) + jax.nn.gelu(x)) @ w.T
        return (x * x).mean()

    def arguments(n_layers):
        return [jnp.ones((4, 4))] * n_layers, jnp.ones((2, 4))

    def n_alive(n_layers):
        structured = jitscope.outermost_jit(jax.grad(loss), policy=share_all_policy(), staged=True)
        gc.collect()
        gc.disable()  # what only a look for garbage frees counts as alive
        try:
            before = {id(o) for o in gc.get_objects() if isinstance(o, JaxprEqn)}
            structured.lower(*arguments(n_layers))
            now = [o for o in gc.get_objects() if isinstance(o, JaxprEqn) and id(o) not in before]
            assert structured.reuse().n_shared_calls >= 2 * (n_layers - 2)
            return len(now)
        finally:
            gc.enable()

    few, many = (count(jax.make_jaxpr(jax.grad(loss))(*arguments(n))) for n in (12, 24))
    assert n_alive(24) - n_alive(12) < 0.2 * (many - few)


def test_program_compiled_as_traced_compiles_what_it_has():
    def potential(x, table):
        return jnp.sin(x @ table).sum()

    def leapfrog(x, table):
        for _ in range(4):  # the last gradient of a step is the first one of the next
            half = x - 0.1 * jax.grad(potential)(x, table)
            x = half - 0.1 * jax.grad(potential)(half, table)
            x = x - 0.1 * jax.grad(potential)(half, table)
        return x

    args = jnp.ones((2, 3)), jnp.ones((3, 3))
    structured = jitscope.outermost_jit(leapfrog)
    structured.trace(*args)
    reuse = structured.reuse()
    (report,) = reuse.report().programs
    assert reuse.n_shared_calls == 0
    assert report.n_equations == report.n_compiled == reuse.census.n_equations
    assert report.n_equations == count(jax.make_jaxpr(leapfrog)(*args))
    assert all(line.n_before == line.n_after for line in report.lines)


def test_report_without_details_is_a_summary():
    fun, args = build_annotated(PROGRAMS["transformer"])
    structured = jitscope.outermost_jit(fun)
    structured.trace(*args)
    full, short = (structured.reuse().report(details=d).programs[0] for d in (True, False))
    assert short.lines == () and not any(body.jaxpr or body.sites for body in short.bodies)
    assert (short.n_equations, short.n_compiled) == (full.n_equations, full.n_compiled)


def test_report_is_a_frozen_copy():
    structured = jitscope.outermost_jit(lambda x: jnp.sin(x) + 1)
    structured.trace(1.0)
    before = structured.reuse().report()
    structured(1.0)
    assert before.programs[0].seconds.compile_s == 0
    assert structured.reuse().report().programs[0].seconds.compile_s > 0


def test_repeats_that_were_found_are_no_nested_functions_of_the_user():
    def fun(x):
        for _ in range(16):
            x = jnp.tanh(x @ x) + jnp.sin(x) * jnp.cos(x @ x) - jnp.exp(x @ x)
        return x

    found = jitscope.outermost_jit(fun, policy=share_all_policy())
    found.trace(jnp.ones((4, 4)))
    (program,) = found.reuse().report().programs
    assert any(body.outlined for body in program.bodies)
    assert (program.n_bodies_before, program.n_bodies_after > 0) == (0, True)

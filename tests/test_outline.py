"""Outlining: which repeats become calls, what the bodies pass, and that values stay the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, run_python
from hypothesis import given, settings, strategies as st
from jax import lax
from programs import PROGRAMS, plain

import jitscope
from jitscope import _jax
from jitscope.ir.constants import hoisted
from jitscope.ir.fingerprint import _fingerprint as computed_fingerprint, fingerprint
from jitscope.ir.program import capture
from jitscope.names import SubroutineName, is_outlined
from jitscope.outlining.finding import MIN_EQUATIONS
from jitscope.outlining.kinds import MIN_KEPT
from jitscope.outlining.outline import outline
from jitscope.structuring.counting import take_census
from jitscope.structuring.policy import Policy
from jitscope.structuring.restructure import restructure

SMALL = settings(max_examples=20)


def captured(fun, *args):
    return hoisted(capture(fun, args, {}, {}))


def found(program):
    """Name, uses and equations of the outlined bodies of a program."""
    return [(b.name, b.n_uses, b.n_equations) for b in take_census(program).bodies if b.outlined]


def outlined(fun, *args):
    """The outlined program of a function, after checking what must hold for every one."""
    program = captured(fun, *args)
    result = outline(program)
    assert outline(result) is result
    leaves = jax.tree.leaves(args)
    assert_same(evaluated(result, leaves), evaluated(program, leaves), tolerance_factor=10)
    for digest, sites in sites_by_body(result.jaxpr, {}).items():
        assert len({tuple(v.aval for v in _jax.opened(b).outvars) for b in sites}) == 1
        assert {computed_fingerprint(b).digest for b in sites} == {digest}
    return result


def evaluated(program, leaves):
    return jax.jit(lambda *leaves: program.emit(leaves))(*leaves)


def sites_by_body(jaxpr, sites):
    for eqn in _jax.equations(jaxpr):
        if is_outlined(eqn.params.get("name")):
            body = eqn.params["jaxpr"]
            sites.setdefault(fingerprint(body).digest, []).append(body)
        for sub in _jax.sub_jaxprs(eqn):
            sites_by_body(sub, sites)
    return sites


def calls(program):
    return [eqn for eqn in _jax.equations(program.jaxpr) if is_outlined(eqn.params.get("name"))]


def arrays(*shape, n):
    values = np.random.default_rng(0).standard_normal((n, *shape)) * 0.3
    return [jnp.asarray(v.astype(np.float32)) for v in values]


def block(x, w):
    h = jnp.tanh(x @ w)
    h = h - h.mean(-1, keepdims=True)
    return x + h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5)


def network(x, ws):
    for w in ws:
        x = block(x, w)
    return jnp.sin(x).sum()


# --- random programs with planted repeats -------------------------------------------------------

OPERATIONS = [
    lambda x, y, c: lax.sin(x),
    lambda x, y, c: lax.cos(x),
    lambda x, y, c: lax.tanh(x),
    lambda x, y, c: lax.neg(x),
    lambda x, y, c: lax.abs(x),
    lambda x, y, c: lax.floor(x),
    lambda x, y, c: x * y,
    lambda x, y, c: x + y,
    lambda x, y, c: x - y,
    lambda x, y, c: lax.max(x, y),
    lambda x, y, c: lax.min(x, y),
    lambda x, y, c: lax.dot(x, y),
    lambda x, y, c: x / c,
]


def between_uses(x, use, *, apart, effects):
    """What stands behind a use: nothing, or another power of x each time and maybe an effect."""
    if apart:
        x = lax.integer_pow(x, use + 2)
        if effects:
            jax.debug.callback(lambda x: None, x)
    return x


def planted(word, links, gaps, constants, effects):
    """Runs of the operations of ``word``, a different power of x between any two runs."""

    def fun(x, w):
        for use, (gap, c) in enumerate(zip(gaps, constants, strict=True)):
            values = [w, x]
            for operation, link in zip(word, links, strict=True):
                other = values[link % len(values)]
                values.append(OPERATIONS[operation](values[-1], other, c))
            x = between_uses(values[-1], use, apart=gap, effects=effects)
        return x

    return fun


@st.composite
def plans(draw):
    word = draw(st.permutations(range(len(OPERATIONS))))[: draw(st.integers(6, 12))]
    links = draw(st.lists(st.integers(0, 9), min_size=len(word), max_size=len(word)))
    n_uses = draw(st.integers(2, 6))
    gaps = draw(st.lists(st.booleans(), min_size=n_uses, max_size=n_uses))
    constants = draw(st.lists(st.sampled_from([1.5, 2.5, 3.5]), min_size=n_uses, max_size=n_uses))
    return word, links, gaps, constants, draw(st.booleans())


@SMALL
@given(plans())
def test_planted_repeat_is_found_whole_and_values_stay(plan):
    word, _, gaps, _, _ = plan
    w, x = arrays(3, 3, n=2)
    bodies = found(outlined(planted(*plan), x, w))
    assert [(n_uses, n_equations) for _, n_uses, n_equations in bodies] == [(len(gaps), len(word))]


JOINING = [6, 7, 8, 9, 10]  # operations that read two values


@st.composite
def orders(draw, steps):
    """An order in which steps, each reading two of the values before it, can be taken."""
    order, left, known = [], list(range(len(steps))), {0, 1}
    while left:
        ready = [i for i in left if {steps[i][1], steps[i][2]} <= known]
        order.append(draw(st.sampled_from(ready)))
        left.remove(order[-1])
        known.add(order[-1] + 2)
    return order


@st.composite
def permuted_plans(draw):
    """Two or three branches that join, and an order of its own for each use of them."""
    n_uses = draw(st.integers(2, 6))
    tips = [1] * draw(st.integers(2, 3))
    steps = []
    for _ in range(max(12, -(-MIN_KEPT // n_uses))):
        branch = draw(st.integers(0, len(tips) - 1))
        operation = draw(st.integers(0, len(OPERATIONS) - 1))
        steps.append((operation, tips[branch], draw(st.sampled_from([0, 1]))))
        tips[branch] = len(steps) + 1
    while len(tips) > 1:
        steps.append((draw(st.sampled_from(JOINING)), tips.pop(), tips.pop()))
        tips.append(len(steps) + 1)
    gaps = draw(st.lists(st.booleans(), min_size=n_uses, max_size=n_uses))
    constants = draw(st.lists(st.sampled_from([1.5, 2.5, 3.5]), min_size=n_uses, max_size=n_uses))
    return steps, [draw(orders(steps)) for _ in gaps], gaps, constants, draw(st.booleans())


def permuted(steps, orders, gaps, constants, effects):
    """The same steps for each order, a different power of x between any two uses."""

    def fun(x, w):
        for use, (order, gap, c) in enumerate(zip(orders, gaps, constants, strict=True)):
            values = {0: w, 1: x}
            for i in order:
                operation, first, second = steps[i]
                values[i + 2] = OPERATIONS[operation](values[first], values[second], c)
            x = between_uses(values[len(steps) + 1], use, apart=gap, effects=effects)
        return x

    return fun


@SMALL
@given(permuted_plans())
def test_planted_repeat_is_found_in_whatever_order_its_equations_stand(plan):
    steps, orders, *_ = plan
    w, x = arrays(3, 3, n=2)
    program = outlined(permuted(*plan), x, w)
    # Fewer equations than make a body may be left of each, where only they stand otherwise.
    in_calls = sum(n_uses * n_equations for _, n_uses, n_equations in found(program))
    assert in_calls > len(orders) * (len(steps) - MIN_EQUATIONS)


@SMALL
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=12),
    st.integers(1, 6),
    st.data(),
)
def test_any_straight_line_program_keeps_its_values(steps, n_uses, data):
    def fun(x, w):
        for _ in range(n_uses):
            values = [w, x]
            order = data.draw(st.permutations(steps))
            for operation, link in order:
                values.append(
                    OPERATIONS[operation](
                        values[-1 - link % len(values)], values[link % len(values)], 1.5
                    )
                )
            x = lax.sin(sum(values))
        return x

    w, x = arrays(3, 3, n=2)
    outlined(fun, x, w)


# --- what is found ------------------------------------------------------------------------------


def test_layers_of_a_network_and_its_gradient_are_two_bodies():
    program = outlined(
        jax.value_and_grad(network, argnums=(0, 1)), *arrays(4, 4, n=1), arrays(4, 4, n=6)
    )
    assert [(name, n_uses) for name, n_uses, _ in found(program)] == [
        ("block", 6),
        ("block_gradient", 6),
    ]


def test_only_the_residual_stream_crosses_the_cut():
    program = outlined(network, *arrays(4, 4, n=1), arrays(4, 4, n=6))
    assert {(len(call.invars), len(call.outvars)) for call in calls(program)} == {(2, 1)}


def test_constants_that_differ_become_operands_and_equal_ones_stay_inside():
    def fun(x):
        for i in range(5):
            x = lax.tanh(lax.sin(x * (1.0 + i)) * 3.0 + 2.0) - lax.cos(lax.exp(x))
        return x

    program = outlined(fun, *arrays(3, n=1))
    assert {len(call.invars) for call in calls(program)} == {2}
    literals = [
        a.val for call in calls(program) for a in call.invars if isinstance(a, _jax.Literal)
    ]
    assert [float(v) for v in literals] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_chain_of_steps_with_constants_is_cut_where_the_constants_repeat():
    def fun(x):
        for _ in range(6):
            for i in range(35):
                x = x * 0.5 + 0.25 * (i + 1)
        return x

    program = outlined(fun, jnp.float32(0.5))
    assert found(program) == [("fun", 6, 70)]
    assert {len(call.invars) for call in calls(program)} == {1}


def products(jaxpr):
    """Matrix products with every call spelled out."""
    return sum(
        (eqn.primitive is lax.dot_general_p) + sum(map(products, _jax.sub_jaxprs(eqn)))
        for eqn in _jax.equations(jaxpr)
    )


def leapfrog(force, steps=8):
    def fun(x, v, w):
        for _ in range(steps):
            v = v + 0.1 * force(x, w)
            x = x + 0.2 * v
            v = v + 0.1 * force(x, w)
        return x, v

    return fun


def force(x, w):
    return -jnp.tanh(jnp.sin(x @ w) + jnp.cos(x))


def test_product_that_two_steps_share_is_made_once():
    # The last force of each step is the first of the next: 9 for 8 steps.
    program = outlined(leapfrog(force), *arrays(4, 4, n=3))
    assert products(program.jaxpr) == 9
    assert sum(uses for _, uses, _ in found(program)) >= 7


@pytest.mark.parametrize(
    "guard",
    [
        jax.checkpoint,
        lambda f: lambda x, w: f(lax.optimization_barrier(x), w),
        lambda f: (
            lambda x, w: f(
                jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x), w
            )
        ),
    ],
    ids=["checkpoint", "barrier", "callback"],
)
def test_product_that_is_made_again_on_purpose_stays(guard):
    program = captured(leapfrog(guard(force)), *arrays(4, 4, n=3))
    assert products(program.jaxpr) == products(outline(program).jaxpr) == 16


def test_program_without_repeats_keeps_work_done_twice():
    def fun(x, w):
        return force(x, w) * force(x, w)

    program = captured(fun, *arrays(4, 4, n=2))
    assert outline(program) is program


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (1.0, -1.0)])
def test_literals_are_told_apart_by_sign(first, second):
    def fun(x):
        for c in (first, second, first, second):
            x = lax.tanh(lax.sin(lax.cos(lax.exp(lax.max(x, c))))) + lax.atan2(c, x)
        return x

    outlined(fun, *arrays(3, n=1))


def test_operands_that_coincide_at_some_calls_only_stay_apart():
    def fun(x, a, b):
        for u, v in ((a, b), (a, a), (b, a)):
            x = lax.sin(lax.tanh(lax.cos(x * u) + v) - u)
        return x

    program = outlined(fun, *arrays(3, n=3))
    assert [len(call.invars) for call in calls(program)] == [3, 3, 3]
    assert found(program) == [("fun", 3, 6)]


def test_result_used_after_some_calls_only_is_a_result_of_all():
    def fun(x):
        kept = []
        for i in range(5):
            inner = lax.sin(lax.tanh(x))
            x = lax.cos(lax.exp(lax.neg(lax.abs(inner)))) + inner
            if i in (1, 3):
                kept.append(inner)
        return x, kept

    program = outlined(fun, *arrays(3, n=1))
    assert [len(call.outvars) for call in calls(program)] == [2] * 5
    dropped = [sum(isinstance(v, _jax.DropVar) for v in call.outvars) for call in calls(program)]
    assert dropped == [1, 0, 1, 0, 1]


def test_runs_with_other_data_flow_are_another_body():
    def straight(x, y):
        return lax.sin(lax.tanh(lax.cos(lax.exp(x - y)))) * y

    def crossed(x, y):
        a = lax.exp(x - y)
        return lax.sin(lax.tanh(lax.cos(a))) * a

    def fun(x, y):
        for use in range(6):
            x = lax.integer_pow((crossed if use % 2 else straight)(x, y), use + 2)
        return x

    assert [n_uses for _, n_uses, _ in found(outlined(fun, *arrays(3, n=2)))] == [3, 3]


def test_repeats_within_repeats_are_found():
    def fun(x, layers):
        for heads in layers:
            outs = [jax.nn.softmax(lax.dot(x, q) * 0.5 + 1.0) @ k for q, k in heads]
            x = x + jnp.tanh(sum(outs))
            x = (x - x.mean()) / jnp.sqrt(x.var() + 1e-3)
        return x

    layers = [list(zip(arrays(4, 4, n=4), arrays(4, 4, n=4), strict=True)) for _ in range(6)]
    uses = [n_uses for _, n_uses, _ in found(outlined(fun, *arrays(4, 4, n=1), layers))]
    assert uses[0] == 6
    assert 4 in uses


def test_updates_of_like_leaves_are_found():
    def adam(params, grads, m, v):
        def leaf(p, g, m, v):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

        return [leaf(*leaves) for leaves in zip(params, grads, m, v, strict=True)]

    program = outlined(adam, *[arrays(3, n=4) + arrays(2, 2, n=4)] * 4)
    assert [n_uses for _, n_uses, _ in found(program)] == [4, 4]


@pytest.mark.parametrize("step", [lambda x: lax.sin(x), lambda x: lax.sin(x) * 1.01])
def test_chain_of_short_steps_is_cut_into_long_bodies(step):
    def fun(x):
        for _ in range(1024):
            x = step(x)
        return x

    ((_, n_uses, n_equations),) = found(outlined(fun, *arrays(3, n=1)))
    assert n_equations >= 64
    assert n_uses * n_equations > 900


def test_one_remat_for_each_layer_is_one_body():
    def fun(x, ws):
        for w in ws:
            x = jax.checkpoint(block)(x, w)
        return x.sum()

    program = outlined(jax.grad(fun, argnums=(0, 1)), *arrays(4, 4, n=1), arrays(4, 4, n=5))
    assert 5 in [n_uses for _, n_uses, _ in found(program)]


@pytest.mark.parametrize(
    "around", ["scan", "while_loop", "cond", "remat", "jit", "custom_jvp", "custom_vjp"]
)
def test_repeats_are_found_inside(around):
    ws = arrays(4, 4, n=5)

    def body(x):
        for w in ws:
            x = block(x, w)
        return x

    custom = jax.custom_jvp(body)
    custom.defjvps(lambda t, out, x: t)
    custom_vjp = jax.custom_vjp(body)
    custom_vjp.defvjp(lambda x: (body(x), x), lambda x, t: (t,))
    fun = {
        "scan": lambda x: lax.scan(lambda c, _: (body(c), None), x, length=2)[0],
        "while_loop": lambda x: lax.fori_loop(0, jnp.int32(x.shape[0]), lambda i, c: body(c), x),
        "cond": lambda x: lax.cond(x.sum() > 0, body, lambda x: x, x),
        "remat": jax.checkpoint(body),
        "jit": jax.jit(body),
        "custom_jvp": custom,
        "custom_vjp": custom_vjp,
    }[around]
    assert [n_uses for _, n_uses, _ in found(outlined(fun, *arrays(4, 4, n=1)))] == [5]


def test_repeats_are_found_inside_shard_map():
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec()
    fun = jax.shard_map(network, mesh=mesh, in_specs=spec, out_specs=spec)
    program = outline(captured(fun, *arrays(4, 4, n=1), arrays(4, 4, n=5)))
    assert [n_uses for _, n_uses, _ in found(program)] == [5]


# --- what repeats in another order --------------------------------------------------------------


def gated(x, w, first):
    """Two branches of which either can come first."""

    def gate():
        return lax.tanh(lax.sin(x @ w) * 0.5)

    def value():
        return lax.cos(lax.exp(lax.neg(x)) + 1.0) - x

    if first == "gate":
        g, v = gate(), value()
    else:
        v, g = value(), gate()
    return lax.max(g * v, x) + g


def gates(*orders):
    def fun(x, ws):
        for use, (w, first) in enumerate(zip(ws, orders, strict=True)):
            x = lax.integer_pow(gated(x, w, first), use + 2)
        return x

    return fun


@pytest.mark.parametrize(
    "orders",
    [
        ["gate"] * 7 + ["value"],
        ["value"] + ["gate"] * 7,
        ["gate"] * 4 + ["value"] * 4,
        ["gate", "value"] * 4,
        ["gate", "gate", "value", "value"] * 2,
    ],
    ids="".join,
)
def test_occurrences_in_two_orders_are_one_body(orders):
    program = outlined(gates(*orders), *arrays(3, 3, n=1), arrays(3, 3, n=8))
    ((_, n_uses, n_equations),) = found(program)
    assert (n_uses, n_equations) == (8, 12)


def test_equations_that_no_repeat_needs_in_another_order_stay_in_theirs():
    orders = ["gate"] * 7 + ["value"]

    def fun(x, ws):
        a, b = lax.sin(x), lax.cos(x)
        x = gates(*orders)(x, ws)
        c, d = lax.log(x), lax.exp(x)
        return b - a, d - c

    program = outlined(fun, *arrays(3, 3, n=1), arrays(3, 3, n=8))
    names = [eqn.primitive.name for eqn in _jax.equations(program.jaxpr)]
    assert (names[:2], names[-4:]) == (["sin", "cos"], ["log", "exp", "sub", "sub"])
    assert len(calls(program)) == 8


def test_stretches_of_the_same_equations_with_other_data_flow_are_not_joined():
    def crossed(x, w):
        g = lax.tanh(lax.sin(x @ w) * 0.5)
        v = lax.cos(lax.exp(lax.neg(g)) + 1.0) - x
        return lax.max(g * v, x) + g

    def fun(x, ws):
        for use, w in enumerate(ws):
            layer = crossed if use == 7 else gated
            x = lax.integer_pow(layer(x, w, *["gate"][: use != 7]), use + 2)
        return x

    program = outlined(fun, *arrays(3, 3, n=1), arrays(3, 3, n=8))
    assert [n_uses for _, n_uses, _ in found(program)] == [7]


def test_effects_keep_their_order_where_equations_are_moved():
    printed = []

    def fun(x, ws):
        for i, w in enumerate(ws):
            x = gated(x, w, ["gate", "value"][i % 2])
            jax.debug.callback(lambda i=i: printed.append(i), ordered=True)
        return x

    program = outline(captured(fun, *arrays(3, 3, n=1), arrays(3, 3, n=8)))
    assert [n_uses for _, n_uses, _ in found(program)] == [8]
    evaluated(program, arrays(3, 3, n=1) + arrays(3, 3, n=8))
    jax.effects_barrier()
    assert printed == list(range(8))


def test_what_reads_and_writes_a_reference_keeps_its_order():
    def fun(x, ws):
        ref = jax.new_ref(x)
        for i, w in enumerate(ws):
            ref[...] = gated(ref[...], w, ["gate", "value"][i % 2])
            x = x + ref[...]
        return x

    if not hasattr(jax, "new_ref"):
        pytest.skip("this JAX has no references outside of kernels")
    x, ws = arrays(3, 3, n=1)[0], arrays(3, 3, n=8)
    assert_same(jitscope.outermost_jit(fun)(x, ws), jax.jit(fun)(x, ws), tolerance_factor=10)


# Equations of which nobody knows what they do stand in the same order as they stood.
opaque_p = _jax.Primitive("test_outline_opaque")
opaque_p.def_abstract_eval(lambda x, number: x)
opaque_p.def_impl(lambda x, number: x)


def test_equations_that_may_not_be_pure_are_not_moved_past_each_other():
    def layer(x, w, first):
        numbers = {"gate": (1, 2), "value": (2, 1)}[first]
        kept = {number: opaque_p.bind(x, number=number) for number in numbers}
        return gated(kept[1] - kept[2], w, first)

    def fun(x, ws):
        for use, (w, first) in enumerate(zip(ws, ["gate", "value"] * 4, strict=True)):
            x = lax.integer_pow(layer(x, w, first), use + 2)
        return x

    def opaque(jaxpr):
        for eqn in _jax.equations(jaxpr):
            if eqn.primitive is opaque_p:
                yield eqn.params["number"]
            for sub in _jax.sub_jaxprs(eqn):
                yield from opaque(sub)

    program = captured(fun, *arrays(3, 3, n=1), arrays(3, 3, n=8))
    result = outline(program)
    assert calls(result)
    assert list(opaque(result.jaxpr)) == list(opaque(program.jaxpr)) == [1, 2, 2, 1] * 4


# --- what is left alone -------------------------------------------------------------------------


def test_program_without_repeats_is_the_same_object():
    program = captured(lambda x: lax.sin(lax.cos(x)) + lax.tanh(x), *arrays(3, n=1))
    assert outline(program) is program


def test_calls_that_the_user_marked_are_left_in_the_program():
    shared = jax.jit(block)

    def fun(x, ws):
        for w in ws:
            x = shared(x, w)
        return x

    program = captured(fun, *arrays(4, 4, n=1), arrays(4, 4, n=12))
    assert outline(program) is program


def test_marked_calls_are_in_no_body():
    inner = jax.jit(lambda x, w: lax.sin(x @ w))

    def fun(x, ws):
        for w in ws:
            x = block(inner(block(x, w), w), w)
        return x

    program = captured(fun, *arrays(4, 4, n=1), arrays(4, 4, n=6))
    marked = [
        eqn.replace(params={**eqn.params, "name": SubroutineName("inner")})
        if eqn.primitive is _jax.jit_p
        else eqn
        for eqn in _jax.equations(program.jaxpr)
    ]
    program = type(program)(
        program.name, _jax.rebuilt(program.jaxpr, eqns=marked), program.out_tree
    )
    result = outline(program)
    assert result is not program
    assert sum(e.params.get("name") == "inner" for e in _jax.equations(result.jaxpr)) == 6


@pytest.mark.parametrize("first_is_marked", [True, False])
def test_marks_further_in_tell_equal_jaxprs_apart(first_is_marked):
    # Both of `twice` have the same equations. Where a mark differs within, one line makes its two
    # large calls, the other one of them.
    def layers(layer):
        @jax.jit
        def layers(x):
            for _ in range(4):
                for j in range(6):
                    x = lax.sin(layer(x)) + j
            return x

        return layers

    def twice(first, second):
        @jax.jit
        def twice(x):
            y, z = first(x), second(x)
            for _ in range(8):
                y = block(y, x) @ z
            return y + z

        return twice

    def layer(x):
        return lax.tanh(x @ x)

    marked, plain = layers(jitscope.shared_subroutine(layer)), layers(jax.jit(layer))
    both = [twice(marked, plain), twice(plain, plain)]
    if not first_is_marked:
        both.reverse()
    program = captured(lambda x: [fun(x) for fun in both], *arrays(4, 4, n=1))
    one, other = (eqn.params["jaxpr"] for eqn in _jax.equations(program.jaxpr))
    assert fingerprint(one).digest == fingerprint(other).digest
    result = outline(program)
    one, other = (eqn.params["jaxpr"] for eqn in _jax.equations(result.jaxpr))
    assert abs(len(_jax.equations(one)) - len(_jax.equations(other))) == 1
    leaves = arrays(4, 4, n=1)
    assert_same(evaluated(result, leaves), evaluated(program, leaves), tolerance_factor=10)


def test_effects_keep_their_order_and_stay_out_of_bodies():
    printed = []

    def fun(x, ws):
        for i, w in enumerate(ws):
            x = block(x, w)
            jax.debug.callback(lambda i=i: printed.append(i), ordered=True)
        return x

    program = outline(captured(fun, *arrays(4, 4, n=1), arrays(4, 4, n=5)))
    assert [n_uses for _, n_uses, _ in found(program)] == [5]
    evaluated(program, arrays(4, 4, n=1) + arrays(4, 4, n=5))
    jax.effects_barrier()
    assert printed == [0, 1, 2, 3, 4]


def test_equations_without_stable_identity_are_in_no_body():
    def fun(x, ws):
        for w in ws:
            x = jax.pure_callback(np.sin, x, block(x, w))
        return x

    program = outline(captured(fun, *arrays(4, 4, n=1), arrays(4, 4, n=5)))
    bodies = take_census(program).bodies
    assert [body.n_uses for body in bodies if body.outlined] == [5]
    assert not any(body.fingerprint.is_local for body in bodies)


def test_unknown_primitive_is_handled():
    double_p = _jax.Primitive("test_outline_double")
    double_p.def_abstract_eval(lambda x: x)
    double_p.def_impl(lambda x: x + x)

    def fun(x):
        for _ in range(6):
            x = lax.sin(lax.tanh(lax.cos(lax.exp(lax.neg(double_p.bind(x))))))
        return x

    program = outline(captured(fun, *arrays(3, n=1)))
    assert found(program) == [("fun", 6, 6)]


def test_declined_calls_leave_no_trace():
    def fun(x):
        for i in range(6):
            x = lax.sin(lax.tanh(lax.cos(x * (1.0 + i)) + 2.0)) - x
        return x

    program = captured(fun, *arrays(3, n=1))
    result = outline(program)
    spliced = restructure(result, Policy()(take_census(result)))
    assert [e.primitive for e in _jax.equations(spliced.jaxpr)] == [
        e.primitive for e in _jax.equations(program.jaxpr)
    ]
    assert [str(e.source_info.name_stack) for e in _jax.equations(spliced.jaxpr)] == [
        str(e.source_info.name_stack) for e in _jax.equations(program.jaxpr)
    ]


# --- the catalogue, names, determinism ----------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.core])
def test_catalogue_program_keeps_its_values(name):
    program = PROGRAMS[name]
    with jax.enable_x64(program.x64):
        fun, args = program.build(plain)
        before = captured(fun, *args)
        after = outline(before)
        assert outline(after) is after
        if after is not before and program.kept:
            leaves = jax.tree.leaves(args)
            assert_same(evaluated(after, leaves), evaluated(before, leaves), tolerance_factor=10)


def test_body_is_named_after_the_innermost_common_function():
    class Block:
        def __call__(self, x, w):
            return self.inner(x, w) + jnp.cos(lax.exp(x))

        def inner(self, x, w):
            return (lambda x: jnp.tanh(x @ w) * 2.0 - x)(x)

    def fun(x, ws):
        for w in ws:
            x = Block()(x, w)
        return x

    ((name, _, _),) = found(outlined(fun, *arrays(4, 4, n=1), arrays(4, 4, n=5)))
    assert name == "Block"


@pytest.mark.parametrize(
    "program",
    [
        "jax.value_and_grad(network, argnums=(0, 1)), x, [x] * 6",
        "gates(*['gate', 'value', 'value', 'gate'] * 2), x, [x] * 8",
    ],
    ids=["gradient", "permuted"],
)
def test_outlining_is_the_same_in_every_process(program):
    code = (
        "import jax, jax.numpy as jnp\n"
        "from test_outline import captured, gates, network, outline, take_census\n"
        "x = jnp.ones((4, 4))\n"
        f"p = captured({program})\n"
        "print([(b.fingerprint.digest, b) for b in take_census(outline(p)).bodies])\n"
    )
    first, second = (run_python(["-c", code], {"PYTHONHASHSEED": seed}) for seed in "12")
    assert first == second

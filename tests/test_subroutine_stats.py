import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import jitscope
from jitscope.subroutine.decorator import shared_subroutine

X = jnp.ones((2, 3))


def reasons(block):
    return block.stats().retrace_reasons


def test_counts_calls_traces_and_reuse_per_signature():
    block = shared_subroutine(lambda x, mode: x * 2)
    block(X, "a")  # outside any trace: a trace, but no call that is counted

    @jax.jit
    def model(x):
        for _ in range(5):
            x = block(x, "a")
        return block(x, "b")

    model(X)
    model(X)  # compiled: nothing is called
    stats = block.stats()
    assert (stats.n_calls, stats.n_traces, stats.n_reused) == (6, 2, 5)
    assert [(s.n_calls, s.n_traces) for s in stats.signatures] == [(5, 1), (1, 1)]
    assert [dict(s.static) for s in stats.signatures] == [{"mode": "'a'"}, {"mode": "'b'"}]
    assert list(stats.signatures[0].avals) == ["x"]


def test_record_is_frozen_printable_and_a_snapshot():
    block = shared_subroutine(lambda x: x, name="snapshot")
    before = block.stats()
    jax.jit(lambda x: block(block(x)))(X)
    assert before.n_calls == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.n_calls = 3
    text = str(block.stats())
    assert text.startswith("snapshot: 2 calls while tracing, 1 trace, 1 reused, 1 signature\n")
    assert "2 calls, 1 trace: (x: f32[2,3])" in text and "x: " in text


@pytest.mark.parametrize("ask", [jitscope.audit, jitscope.explain], ids=["audit", "explain"])
def test_subroutine_called_to_answer_a_question_only_says_so(ask):
    layer = shared_subroutine(eval(f"lambda x: x + {len(ask.__name__)}.25"), name="asked")
    ask(lambda x: layer(layer(x)), 1.0)
    assert layer.stats().n_calls == layer.stats().n_traces == 0
    assert "  called to answer questions only, as by explain and audit" in str(layer.stats())
    problems = [s.problems for s in jitscope.stats().subroutines if s.name == "asked"]
    assert ("decorated but called to answer questions only, as by explain and audit",) in problems
    jax.jit(lambda x: layer(layer(x)))(1.0)
    assert "questions" not in str(layer.stats())


def test_subroutine_that_was_never_called_says_so():  # accelerate#4188
    text = str(shared_subroutine(lambda x: x + 0.5).stats())
    assert "never called: is the undecorated function called instead?" in text


def test_fresh_functions_with_one_code_are_counted_together():  # jax#4645, zorch#166
    made = []

    @jax.jit
    def model(x):
        for _ in range(4):
            made.append(shared_subroutine(lambda x: x + 1))
            x = made[-1](x)
        return x

    model(X)
    for block in made:
        stats = block.stats()
        assert (stats.n_calls, stats.n_traces, stats.n_reused, stats.n_functions) == (4, 1, 3, 4)


@pytest.mark.parametrize(
    "calls, expected",
    [
        ([dict(idx="3"), dict(idx="4")], "static value idx: '4' against '3'"),
        ([dict(x=X), dict(x=X[:1])], "shape of argument x: (1, 3) against (2, 3)"),
        ([dict(x=X), dict(x=X.astype(int))], "dtype of argument x: int32 against float32"),
        ([dict(s=2.0), dict(s=jnp.float32(2))], "weak_type of argument s: False against True"),
        ([dict(x=X), dict(x={"a": X})], "tree structure: x, x['a'] in one of the two only"),
        (
            [dict(x=(X,)), dict(x=[X])],
            "containers of the arguments: 'PyTreeDef((([*], *, CustomNode(Stati' against "
            "'PyTreeDef((((*,), *, CustomNode(Stat'",
        ),
    ],
    ids=lambda v: v.split(":")[0] if isinstance(v, str) else "",
)
def test_reason_of_a_retrace_names_what_changed(calls, expected):  # jax#3163, jax#33043
    # Code of its own for each case: functions with one code are counted together.
    block = shared_subroutine(eval("lambda x=X, s=1.0, idx='': 0", {"X": X}))
    base = dict(x=X, s=1.5, idx="0")
    for call in calls:
        block(**(base | call))
    assert reasons(block) == (expected,)


def test_reason_compares_with_the_closest_earlier_signature():
    block = shared_subroutine(lambda x, mode: x)
    for x, mode in ((X, "a"), (X[:1], "b"), (X[:1], "a")):
        block(x, mode)
    assert reasons(block)[1] in (
        "static value mode: 'a' against 'b'",
        "shape of argument x: (1, 3) against (2, 3)",
    )
    assert ";" in reasons(block)[0]


def test_captured_values_and_objects_are_told_apart():
    def make(k, table):
        return shared_subroutine(lambda x: x * k + table)

    make(2, X)(X)
    make(3, X)(X)
    block = make(3, X + 1)
    block(X)
    assert reasons(block) == (
        "captured value k: 3 against 2",
        "captured value table: another object (Array object) that is not equal",
    )


def test_python_bool_int_and_float_statics_are_three_traces():  # jax#3701
    block = shared_subroutine(lambda x, n: x, static_argnames="n")
    for n in (1, 1.0, True, 1):
        block(X, n)
    assert reasons(block) == ("static value n: 1.0 against 1", "static value n: True against 1.0")


def test_context_is_named_where_the_signature_is_unchanged():  # jax#6483
    block = shared_subroutine(lambda x: x @ x.T)
    block(X)
    with jax.default_matmul_precision("highest"):
        block(X)
    block(X)
    assert reasons(block) == (
        "context changed, not the signature: default_matmul_precision: highest against None",
    )


def test_cleared_caches_are_the_reason_where_nothing_changed():
    block = shared_subroutine(lambda x: x - 1)
    block(X)
    block.clear_cache()
    block(X)
    [reason] = reasons(block)
    assert "caches were cleared" in reason


def test_captured_tracer_is_the_reason_across_traces():
    made = []

    def forward(x, m):
        made.append(shared_subroutine(lambda x: x * m))
        return made[-1](made[-1](x))

    jax.jit(forward)(X, 1.0)
    jax.jit(lambda x, m: forward(x, m))(X, 1.0)
    [reason] = reasons(made[-1])
    assert "captured a tracer" in reason
    assert (made[-1].stats().n_calls, made[-1].stats().n_traces) == (4, 2)


def test_mesh_is_part_of_the_reason():  # jax#31250, jax#6483
    block = shared_subroutine(lambda x: x * 3)
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jnp.ones(8)
    block(x)
    with jax.set_mesh(mesh):
        block(jax.device_put(x, jax.P("i")))
        block(jax.device_put(x, jax.P()))
    assert len(reasons(block)) == 2
    assert all("sharding" in r or "mesh" in r for r in reasons(block))


def test_same_signature_inside_and_outside_a_trace_is_one_row():
    block = shared_subroutine(lambda tree, n, key: tree)
    args = ({"a": X, "b": [1, 2.0]}, 3, jax.random.key(0))
    block(*args)
    jax.jit(lambda t, k: block(t, 3, k))(args[0], args[2])
    jax.make_jaxpr(lambda a: block({"a": a, "b": [1, 2.0]}, 3, args[2]))(X)
    stats = block.stats()
    assert (stats.n_traces, len(stats.signatures)) == (1, 1), str(stats)


def test_old_signatures_are_dropped_from_the_record_but_not_from_the_counts(monkeypatch):
    monkeypatch.setattr("jitscope.subroutine.counters.MAX_SIGNATURES", 3)
    block = shared_subroutine(lambda x, n: 0, static_argnames="n")
    for n in range(5):
        block(X, n)
    stats = block.stats()
    assert stats.n_traces == 5 and len(stats.signatures) == 3


def test_variants_under_transformations_do_not_trace_the_body_again():
    block = shared_subroutine(lambda w, x: jnp.tanh(x @ w))

    def loss(ws, x):
        return functools.reduce(lambda x, w: block(w, x), ws, x).sum()

    ws = [jnp.eye(3)] * 4
    jax.jit(jax.grad(loss))(ws, X)
    jax.jit(jax.vmap(loss, (None, 0)))(ws, X[:, None])
    assert block.stats().n_traces == 2  # the rows have another shape
    assert reasons(block) == ("shape of argument x: (1, 3) against (2, 3)",)


def test_signatures_that_differ_only_in_a_static_value_are_printed_as_one():
    block = shared_subroutine(lambda x, i: x * i, static_argnames="i")
    jax.jit(lambda x: [block(x, i=i) for i in range(20)])(X)
    assert len(block.stats().signatures) == 20
    text = str(block.stats())
    assert text.count("x: f32[2,3]") == 2  # the first one needed no reason
    assert "19 signatures that differ only in static values, each:" in text
    assert "i=1 ... 19" in text
    assert " more" not in text


def test_functions_made_anew_are_told_as_one():
    for _ in range(3):
        block = shared_subroutine(lambda x: x + 1)
        jax.jit(block)(X)
    assert "; one function, decorated 3 times\n" in str(block.stats())

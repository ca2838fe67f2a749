"""`explain` and `compare` against counts made another way."""

import functools

import jax
import jax.numpy as jnp
import pytest
from helpers import kept_calls, share_all_policy
from report_samples import layers
from test_evidence import count

import jitscope


def net(x, ws):
    for w in ws:
        y = jax.nn.softmax(jnp.sin(x @ w) * jnp.cos(x))
        x = x + jnp.tanh(jnp.exp(y - y.max(-1, keepdims=True)) / 3) @ w.T - jnp.log1p(y * y)
    return x


ARGS = (jnp.ones((2, 4)), [jnp.eye(4)] * 64)


def only(report):
    (program,) = report.programs
    return program


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        jax.jit,
        jitscope.outermost_jit,
        lambda f: functools.partial(f),
    ],
    ids=["plain", "jit", "outermost_jit", "partial"],
)
def test_any_callable_is_explained_with_true_counts(wrap):
    program = only(jitscope.explain(wrap(net), *ARGS))
    assert program.n_equations == count(jax.make_jaxpr(net)(*ARGS))
    assert program.n_shared_calls == program.compiled.n_kept_calls > 30
    assert program.compiled.n_kept_bodies == len(program.shared) > 0
    assert program.lines and program.compiled.argument_bytes >= 64 * 64
    assert all(body.n_realised == (body.n_uses if body.is_shared else 0) for body in program.bodies)


def test_counts_are_those_of_the_function_that_runs():
    model, args = layers(8)
    program = only(jitscope.explain(model, *args))
    text = model.lower(*args).compile().as_text()
    assert program.compiled.n_kept_calls == sum(kept_calls(text).values()) == 8
    assert program.compiled.n_kept_bodies == len(kept_calls(text)) == 1
    assert program.compiled.n_fusions == text.count(" fusion(")
    assert program.compiled.n_copies == text.count(" copy(")
    assert program.compiled.n_functions == model.lower(*args).as_text().count("func.func ")


def test_nothing_is_run_and_shapes_do():
    ran = []

    def noisy(x):
        jax.debug.callback(lambda: ran.append(1))
        return jnp.sin(x)

    for fun in (noisy, jax.jit(noisy), jitscope.outermost_jit(noisy)):
        program = only(jitscope.explain(fun, jax.ShapeDtypeStruct((3,), jnp.float32)))
        assert (program.n_equations, ran) == (2, [])


def test_comparison_has_both_programs():
    program = only(jitscope.compare(net, *ARGS))
    assert program.plain.n_kept_calls == 0
    assert program.plain.n_functions < program.compiled.n_functions
    shown = str(jitscope.compare(net, *ARGS))
    assert "plain jax.jit" in shown and "realised: " in shown


def test_jax_jit_function_is_compiled_both_ways_and_left_as_it_is():
    fun = jax.jit(net)
    report = jitscope.explain(fun, *ARGS)
    program = only(report)
    assert program.plain.n_kept_calls == 0 < program.compiled.n_kept_calls
    assert not program.is_applied and not hasattr(fun, "reuse")
    seconds = program.seconds
    assert min(seconds.trace_s, seconds.lower_s, seconds.compile_s) > 0
    assert seconds.trace_s >= seconds.structure_s > 0
    shown = str(report)
    for part in ("net was left as it is", "nothing was run", "would become", "plain jax.jit"):
        assert part in shown
    assert "not yet" not in shown


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_jitted_function_is_compiled_for_where_its_arguments_lie(wrap):
    mesh = jax.sharding.Mesh(jax.devices()[:4], "d")
    x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(mesh, jax.P("d")))
    compiled = only(jitscope.explain(wrap(net), x, ARGS[1])).compiled
    assert compiled.n_kept_calls == 0
    assert compiled.argument_bytes == 64 * 64 + 2 * 4 * 4


def test_donation_of_a_jitted_function_is_kept():
    def write(x, n):
        return x.at[n].set(1.0)

    x = jnp.ones(1000)
    for donated, n_copies in ((0, 0), ((), 1)):
        fun = jax.jit(write, donate_argnums=donated, static_argnums=1)
        assert only(jitscope.explain(fun, x, 2)).compiled.n_copies == n_copies


def test_report_says_how_it_came_about():
    staged = jitscope.outermost_jit(net, staged=True)
    for fun, is_applied, note in (
        (net, False, "net was left as it is"),
        (jitscope.outermost_jit(net), True, "compiled anew for this report"),
        (staged, True, "as one program; what runs is compiled in stages"),
    ):
        program = only(jitscope.explain(fun, *ARGS))
        assert program.is_applied == is_applied
        assert note in program.notes[0]


def test_static_arguments_stay_static():
    def power(x, n):
        for _ in range(n):
            x = jnp.sin(x)
        return x

    for fun in (
        jax.jit(power, static_argnums=1),
        jax.jit(power, static_argnames="n"),
        jitscope.outermost_jit(power, static_argnames="n"),
    ):
        assert only(jitscope.explain(fun, 1.0, n=5)).n_equations == 5


def test_earlier_calls_do_not_matter():
    model, args = layers(3)
    model(*args)
    model(*layers(7)[1])
    assert only(jitscope.explain(model, *args)).n_equations == 9
    assert model.reuse().census.n_equations == 21


def test_methods_are_bound():
    class Model:
        scale = 2.0

        @jitscope.outermost_jit
        def apply(self, x):
            return x * 2.0

        def plain(self, x):
            return x * 3.0

    jax.tree_util.register_static(Model)
    assert only(jitscope.explain(Model().apply, 1.0)).n_equations == 1
    assert only(jitscope.explain(Model().plain, 1.0)).n_equations == 1


def test_policy_and_options_of_the_function_are_kept():
    fun = jitscope.outermost_jit(net, policy=share_all_policy(), donate_argnums=0)
    program = only(jitscope.explain(fun, *ARGS))
    assert program.shared
    assert not fun._latest


def test_installed_functions_are_explained():
    with jitscope.installed():
        fun = jax.jit(net)
        assert only(jitscope.explain(fun, *ARGS)).compiled.n_kept_calls > 0


def test_what_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="explain.. needs a function.*got 3 of type int"):
        jitscope.explain(3)
    with pytest.raises(TypeError, match=r"For example jitscope.compare\(train_step"):
        jitscope.compare(jnp.ones(3))


@pytest.mark.parametrize("make", [lambda: "before.json", jitscope.stats], ids=["path", "report"])
@pytest.mark.parametrize("entry", [jitscope.compare, jitscope.explain])
def test_reports_in_place_of_a_function_are_told_the_way_to_compare_them(entry, make):
    way = r"save both with jitscope.report.save and run `python -m jitscope diff before.json"
    with pytest.raises(TypeError, match=way) as raised:
        entry(make(), make())
    assert len(str(raised.value)) < 350


def test_errors_are_those_of_the_function():
    def wrong(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        jitscope.explain(wrong, 1.0)

"""Hidden Python state is found before it gives all layers the same dropout mask."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitscope
from jitscope.trail import current_trail

X = jnp.ones((4, 4))
FLAG = [1.0]


def stack(layer, n=4):
    def net(x):
        for _ in range(n):
            x = layer(x)
        return x

    return net


class KeyHolder:
    """A generator that advances whenever somebody draws: hidden from JAX."""

    def __init__(self):
        self.key = np.zeros(2, np.uint32)

    def next(self):
        self.key = self.key + np.uint32(1)
        return self.key


def numpy_random():
    generator = np.random.default_rng(0)

    @jitscope.shared_subroutine
    def dropout(x):
        return x * (generator.random(x.shape) > 0.5)

    return dropout


def key_in_an_object():
    holder = KeyHolder()

    @jitscope.shared_subroutine
    def dropout(x):
        return jnp.where(jax.random.bernoulli(holder.next(), 0.5, x.shape), x, 0)

    return dropout


def global_counter():
    @jitscope.shared_subroutine
    def layer(x):
        FLAG[0] += 1
        return x * FLAG[0]

    return layer


@pytest.mark.parametrize(
    "make, n_distinct, difference",
    [(numpy_random, 4, ""), (key_in_an_object, 4, ""), (global_counter, 4, " against ")],
)
def test_body_that_depends_on_hidden_state_is_named(make, n_distinct, difference):
    layer = make()
    (finding,) = jitscope.audit(stack(layer), X).findings
    assert (finding.name, finding.n_calls) == (layer.__name__, 4)
    assert finding.n_distinct == n_distinct
    assert finding.source.rpartition(":")[0].endswith("test_auditing.py")
    assert all("test_auditing.py" in site for site in finding.sites)
    assert finding.differences and difference in finding.differences[0]


def test_body_that_depends_on_its_arguments_only_is_clean():
    @jitscope.shared_subroutine
    def layer(x, key, scale):
        return x * scale + jax.random.normal(key, x.shape)

    def net(x, key):
        for k in jax.random.split(key, 4):
            x = layer(x, k, 2.0)
        return x

    report = jitscope.audit(net, X, jax.random.key(0))
    assert report.is_clean and (report.n_calls, report.n_signatures) == (4, 1)
    assert "equal to each other and to earlier traces" in str(report)
    assert "no dependence on hidden state found" in str(report)


def test_calls_of_other_signatures_may_differ():
    @jitscope.shared_subroutine(static_argnames="n")
    def layer(x, n):
        return x * n

    report = jitscope.audit(lambda x: layer(layer(layer(x, n=1), n=2), n=2)[:1], X)
    assert report.is_clean and (report.n_calls, report.n_signatures) == (3, 2)


def test_captured_values_are_no_hidden_state():
    def net(x):
        for k in (2.0, 3.0, 3.0):
            x = jitscope.shared_subroutine(lambda x, k=k: x * k)(x)
        return x

    assert jitscope.audit(net, X).is_clean


def test_subroutines_within_subroutines_are_audited():
    inner = global_counter()

    @jitscope.shared_subroutine
    def outer(x):
        return inner(x) + 1

    report = jitscope.audit(stack(outer, 3), X)
    assert {finding.name for finding in report.findings} == {"layer", "outer"}


def test_calls_under_transformations_are_audited():
    layer = global_counter()
    report = jitscope.audit(jax.grad(lambda x: stack(layer)(x).sum()), X)
    assert [finding.n_calls for finding in report.findings] == [4]
    assert not jitscope.audit(jax.vmap(stack(layer)), X).is_clean


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jitscope.outermost_jit], ids=["plain", "jit", "outermost_jit"]
)
def test_any_callable_is_audited_though_it_was_traced_before(wrap):
    net = wrap(stack(global_counter()))
    net(X)
    assert not jitscope.audit(net, X).is_clean
    assert not jitscope.audit(net, jax.ShapeDtypeStruct((4, 4), jnp.float32)).is_clean


def test_static_arguments_and_python_values_stay_what_they_are():
    layer = jitscope.shared_subroutine(lambda x: x * 2)

    def net(x, n, mode="a"):
        assert mode == "b"
        return stack(layer, n)(x)

    for fun in (
        net,
        jax.jit(net, static_argnums=1, static_argnames="mode"),
        jitscope.outermost_jit(net, static_argnums=1, static_argnames="mode"),
    ):
        assert jitscope.audit(fun, X, 3, mode="b").n_calls == 3


def test_audit_counts_nothing_and_leaves_no_trace():
    layer = jitscope.shared_subroutine(lambda x: x * 7)
    net = jax.jit(stack(layer))
    net(X)
    before = layer.stats()
    jitscope.audit(stack(layer), X)
    assert layer.stats() == before
    assert current_trail() is None
    jax.jit(stack(layer, 2))(X)
    assert layer.stats().n_traces == before.n_traces


SCALE = 2.0


def with_global():
    globals()["SCALE"] = 2.0

    @jitscope.shared_subroutine
    def layer(x):
        return x * SCALE

    def change():
        globals()["SCALE"] = 3.0

    return layer, change


def with_what_an_attribute_holds():
    class Layer:
        def __init__(self):
            self.settings = {"gain": 2.0}

        @jitscope.shared_subroutine
        def apply(self, x):
            return x * self.settings["gain"]

    layer = Layer()
    return layer.apply, lambda: layer.settings.update(gain=3.0)


@pytest.mark.parametrize("make", [with_global, with_what_an_attribute_holds])
@pytest.mark.parametrize("wrap", [jax.jit, jitscope.outermost_jit, lambda f: jax.jit(jax.grad(f))])
def test_trace_of_an_earlier_program_that_is_stale_is_found(make, wrap):
    layer, change = make()
    net = stack(layer, 2)
    wrap(lambda x: net(x).sum())(X)
    assert jitscope.audit(wrap(lambda x: net(x).sum()), X).is_clean
    change()
    (finding,) = jitscope.audit(wrap(lambda x: net(x).sum()), X).findings
    assert (finding.is_held, finding.n_calls, finding.n_distinct) == (True, 2, 2)
    assert "3.0 against 2.0" in finding.differences[0]
    text = " ".join(str(jitscope.audit(net, X)).split())
    assert "the trace that an earlier program left, which 2 calls of one signature would be" in text
    assert f"{layer.__name__}.clear_cache() after a change" in text
    with pytest.warns(RuntimeWarning, match="an earlier program left"):
        jitscope.outermost_jit(lambda x: net(x), audit=True)(X)
    getattr(layer, "__func__", layer).clear_cache()
    assert jitscope.audit(net, X).is_clean


def test_trace_that_is_held_is_compared_without_tracing_it_again():
    class Runs:
        n = 0

    @jitscope.shared_subroutine
    def layer(x):
        Runs.n += 1
        return x * 11, "static"

    def net(x):
        return layer(layer(x)[0])[0]

    jax.jit(net)(X)
    before = layer.stats()
    assert Runs.n == before.n_traces == 1
    assert jitscope.audit(net, X).is_clean
    assert Runs.n == 3  # two calls, traced anew
    jax.jit(lambda x: net(x))(X)
    assert Runs.n == 3
    assert layer.stats().n_traces == 1


def test_program_without_subroutines_is_said_so():
    shown = str(jitscope.audit(jnp.sin, X))
    assert shown.startswith("sin: nothing to audit, since it called no function decorated with ")


def test_calls_that_ran_as_plain_functions_are_named_with_the_reason():
    @jitscope.shared_subroutine
    def writing(state, x):
        state["x"] = x  # a write that sharing would lose
        return x * 2

    @jitscope.shared_subroutine
    def layer(x):
        return x + 1

    report = jitscope.audit(lambda x: writing({}, x), X)
    ((name, reason),) = report.plain
    assert (name, report.n_calls, report.is_clean) == ("writing", 0, True)
    assert "state" in reason
    shown = " ".join(str(report).split())
    assert "nothing to audit, since no call of a shared subroutine shared a trace" in shown
    assert f"writing ran as the plain function: {reason}" in shown
    both = jitscope.audit(lambda x: layer(writing({}, layer(x))), X)
    assert both.n_calls == 2 and both.plain == report.plain
    assert "writing ran as the plain function" in str(both)


def test_text_names_the_body_its_calls_and_the_cure():
    text = str(jitscope.audit(stack(global_counter()), X))
    assert "1 shared subroutine of 1 not the same at every call" in text
    assert "! layer (test_auditing.py:" in text
    assert "4 calls of one signature are 4 different computations" in " ".join(text.split())
    assert "Pass that as an argument" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_report_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        jitscope.audit(jnp.sin, X).findings = ()


def test_outermost_jit_warns_of_hidden_state():
    audited = jitscope.outermost_jit(stack(global_counter()), audit=True)
    with pytest.warns(RuntimeWarning, match="4 calls of one signature"):
        audited(X)
    audited(X)  # compiled: nothing is audited


@pytest.mark.parametrize("staged", [False, True])
def test_warning_of_hidden_state_points_at_the_call(staged):
    audited = jitscope.outermost_jit(stack(global_counter()), audit=True, staged=staged)
    with pytest.warns(RuntimeWarning) as caught:
        audited(X)
    assert {warning.filename for warning in caught} == {__file__}


def test_outermost_jit_says_nothing_where_nothing_is_hidden():
    layer = jitscope.shared_subroutine(lambda x: x * 9)
    audited = jitscope.outermost_jit(audit=True, static_argnames="n")(
        lambda x, n: stack(layer, n)(x)
    )
    np.testing.assert_allclose(audited(X, n=3), X * 9**3)


def test_audit_of_what_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="audit.. needs a function.*got None"):
        jitscope.audit(None)


def test_audit_raises_what_the_function_raises():
    def wrong(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        jitscope.audit(wrong, X)
    assert current_trail() is None

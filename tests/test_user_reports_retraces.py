"""What people report about functions that are traced, or compiled, again and again.

Each test is a public report in our words; the comment tells where it was made. Where that is
the point, the same code with ``jax.jit`` shows that the report still holds.
"""

from __future__ import annotations

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from helpers import assert_same
from programs import normal
from user_programs import Runs

from jitscope import outermost_jit, shared_subroutine

X = normal(0, 2, 3)


def applied(layers, x):
    return functools.reduce(lambda x, layer: layer(x), layers, x)


def test_bound_method_is_the_same_function_at_every_access():  # jax#19570, jax#9672
    def traces_with(decorate):
        count = Runs()

        class Layer:
            def apply(self, x):
                count()
                return jnp.sin(x) * 3

        layer = Layer()

        @jax.jit
        def model(x):
            for _ in range(12):
                x = decorate(layer.apply)(x)
            return x

        return count, model(X)

    ours, theirs = traces_with(shared_subroutine), traces_with(jax.jit)
    assert (ours[0].n, theirs[0].n) == (1, 12)
    assert_same(ours[1], theirs[1])


def test_function_defined_within_a_method_is_the_same_at_every_call():  # jax#4645
    def traces_with(decorate):
        count = Runs()

        class Model:
            scale = 1.5

            def step(self, x):
                @decorate
                def body(x, scale=self.scale):
                    count()
                    return jnp.tanh(x) * scale

                return body(x)

        model = Model()
        return count, jax.jit(lambda x: applied([model.step] * 8, x))(X)

    ours, theirs = traces_with(shared_subroutine), traces_with(jax.jit)
    assert (ours[0].n, theirs[0].n) == (1, 8)
    assert_same(ours[1], theirs[1])


def composite(decorate, name):
    """Wraps a function anew at every call, as libraries of operations do."""

    def call(fun, x, gain):
        @decorate
        def wrapped(x):
            return fun(x, gain=gain)

        wrapped.__name__ = name
        return wrapped(x)

    return call


def square(x, *, gain):
    for i in range(10):
        x = jnp.sin(x) + gain * i
    return x


def test_wrapper_made_for_each_call_is_one_function_of_the_module():  # zorch#166, unxt#906
    def functions_with(decorate):
        call = composite(decorate, "op")
        lowered = jax.jit(
            lambda x: applied([functools.partial(call, square, gain=0.5)] * 9, x)
        ).lower(X)
        return lowered.as_text().count("func.func "), lowered.compile()(X)

    ours, theirs = functions_with(shared_subroutine), functions_with(jax.jit)
    assert (ours[0], theirs[0]) == (2, 10)  # the program's own among them
    assert_same(ours[1], theirs[1])


def test_wrapper_of_jit_made_for_each_call_is_told_with_its_line():  # zorch#166, flax#5512
    @outermost_jit
    def program(x):
        call = composite(jax.jit, "op")
        return applied([functools.partial(call, square, gain=0.25)] * 9, x)

    program.trace(X)
    (found,) = program.reuse().report().programs
    (body,) = found.bodies
    assert (body.n_uses, body.n_traces, body.is_retraced) == (9, 9, True)
    text = " ".join(str(program.reuse()).split())
    assert "was traced 9 times for 9 calls" in text
    assert "test_user_reports_retraces.py:" in body.source


def test_wrapper_rebuilt_in_a_python_loop_is_compiled_once():  # unxt#906
    count = Runs()
    for _ in range(20):

        @shared_subroutine
        def convert(x, factor=2.5):
            count()
            return x * factor

        np.testing.assert_allclose(convert(X), X * 2.5, rtol=1e-6)
    assert count.n == 1
    assert convert.stats().n_functions >= 20  # one line, as many function objects


def test_branches_made_for_each_call_share_a_trace_and_lower_alike():  # flax#5512, flax#5525
    count = Runs()

    @shared_subroutine
    def cond(pred, true_fun, false_fun, x):
        count()
        return jax.lax.cond(pred, true_fun, false_fun, x)

    def model(x):
        for _ in range(6):
            x = cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)
        return x

    first = outermost_jit(model).lower(X).as_text()
    assert count.n == 1
    # A second process, or a second function, finds the same module in the persistent cache.
    assert outermost_jit(model).lower(X).as_text() == first
    plain = lambda x: applied(
        [lambda x: jax.lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)] * 6, x
    )
    assert_same(jax.jit(model)(X), jax.jit(plain)(X))


def test_scan_whose_body_is_made_for_each_call_is_traced_once():  # jax#14743
    count = Runs()

    def rollout(x, gain):
        def step(x, _):
            count()
            return jnp.tanh(x * gain), x.sum()

        return shared_subroutine(lambda x: jax.lax.scan(step, x, None, 5))(x)

    first = rollout(X, 0.5)
    before = count.n
    for _ in range(5):
        assert_same(rollout(X, 0.5), first)
    assert count.n == before
    rollout(X, 0.75)
    assert count.n > before


def test_restarted_sampler_uses_the_trace_of_its_first_run():  # tinygp#239, numpyro#514
    count = Runs()

    def run(data, n_steps=3):
        def potential(q):
            count()
            return ((q - data) ** 2).sum()

        step = shared_subroutine(lambda q: q - 0.1 * jax.grad(potential)(q), name="nuts")
        q = jnp.zeros(3)
        for _ in range(n_steps):
            q = step(q)
        return q, step

    data = X[0]
    (first, step), (second, _) = run(data), run(data)
    assert_same(first, second)
    assert count.n == 1
    run(data + 1)  # another object: it has to be traced, and the report names it
    assert count.n == 2
    (reason,) = step.stats().retrace_reasons
    assert reason.startswith("captured value potential.data: another object (Array")


@shared_subroutine
def of_module(x):
    return jnp.cos(x) * 5


def test_pickled_sampler_comes_back_with_its_traces():  # tinygp#239
    jax.jit(lambda x: of_module(of_module(x)))(X)
    again = pickle.loads(pickle.dumps({"kernel": of_module}))["kernel"]
    before = of_module.stats().n_traces
    jax.jit(lambda x: again(again(x)) + 0)(X)
    assert again.stats().n_traces == before

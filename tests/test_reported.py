"""What people report (their numbers in the ids), and what the counts and reports answer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitscope

X = jnp.ones((2, 3))


def repeated(layer, n=4):
    """A function that calls `layer` in a row."""
    return lambda x: functools.reduce(lambda y, _: layer(y), range(n), x)


def scan_body_made_anew(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0] + 45


def host_callback(x):
    return jax.pure_callback(lambda y: np.asarray(y) + 1, x, x) + 46


@jax.custom_jvp
def _double(x):
    return 2 * x


@_double.defjvp
def _double_jvp(primals, tangents):
    return _double(primals[0]), 2 * tangents[0]


def custom_derivative(x):
    return _double(x) + 50


def checkpointed(x):
    return jax.checkpoint(lambda y: jnp.sin(jnp.cos(y)) + 51)(x)


@pytest.mark.parametrize(
    "body, of",
    [
        (scan_body_made_anew, jax.jit),
        (host_callback, jax.jit),
        (custom_derivative, lambda net: jax.jit(jax.grad(lambda x: net(x).sum()))),
        (checkpointed, lambda net: jax.jit(jax.grad(lambda x: net(x).sum()))),
    ],
    ids=["45", "46", "50", "51"],
)
def test_body_is_traced_once_however_often_it_runs(body, of):
    layer = jitscope.shared_subroutine(body)
    net = of(repeated(layer))
    for _ in range(3):
        jax.block_until_ready(net(X))
    stats = layer.stats()
    assert (stats.n_traces, stats.n_calls) == (1, 4)


def hidden_generator():
    generator = np.random.default_rng(0)

    @jitscope.shared_subroutine
    def dropout(x):
        return x * (generator.random(3) > 0.5)

    return repeated(dropout)


def stale_attribute():
    class Schedule:
        step = 0

    @jitscope.shared_subroutine
    def scaled(x):
        Schedule.step += 1
        return x * Schedule.step

    return repeated(scaled)


@pytest.mark.parametrize(
    "make, name", [(hidden_generator, "dropout"), (stale_attribute, "scaled")], ids=["58", "59"]
)
def test_hidden_state_is_named_with_its_cure(make, name):
    shown = str(jitscope.audit(make(), X))
    for part in (
        f"! {name} (",
        "4 calls of one signature",
        "what differs: ",
        "Pass that as",
    ):
        assert part in shown


def test_counts_signatures_and_reasons_are_printed():  # 74, 78
    layer = jitscope.shared_subroutine(lambda x, s: x * s + 74, name="counted")
    jax.jit(lambda x: layer(layer(x, 2.0), 2.0) + layer(x, jnp.float32(2)))(X)
    assert layer.stats().n_traces == 2
    shown = str(layer.stats())
    for part in (
        "counted: 3 calls under a trace, 2 traces, 1 reused, 2 signatures",
        "2 calls, 1 trace: (x: f32[2,3], s: f32[] (weak type))",
        "traced: weak_type of argument s: False against True",
    ):
        assert part in shown


def test_time_of_a_stretch_of_code_is_told_by_phase_and_program():  # 76
    with jitscope.recording() as record:
        jitscope.outermost_jit(lambda x: jnp.sin(x) * 76)(X)
        jax.jit(lambda x: jnp.cos(x) * 76)(X)
    report = record.report()
    assert min(report.seconds.trace_s, report.seconds.lower_s, report.seconds.compile_s) > 0
    assert report.other.compile_s > 0


def test_seconds_of_a_namesake_are_not_those_of_the_program():
    def namesake(x):
        return jnp.sin(x) * 76

    program = jitscope.outermost_jit(namesake)
    program(X)
    before = program.reuse().phases.seconds
    assert min(before.trace_s, before.lower_s, before.compile_s) > 0

    def namesake(x):
        return jnp.cos(x) * 76

    jax.jit(namesake)(X)
    assert program.reuse().phases.seconds == before


def test_static_leaf_that_made_it_trace_again_is_named_by_its_path():  # 77
    layer = jitscope.shared_subroutine(lambda config, x: x + 77)
    for activation in ("gelu", "relu"):
        layer({"mlp": {"activation": activation}}, X)
    assert layer.stats().retrace_reasons == (
        "static value config['mlp']['activation']: 'relu' against 'gelu'",
    )

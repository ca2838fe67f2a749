"""`stats()` and `recording()`: programs and subroutines, process-wide and for a block."""

import gc
import threading

import jax
import jax.numpy as jnp
import pytest
from report_samples import layers

import jitscope
from jitscope.reuse import records
from jitscope.seconds import Seconds
from jitscope.settings import not_counting


def programs(report):
    return [program.name for program in report.programs]


def structured(name):
    def fun(x):
        return jnp.sin(x) + 1

    fun.__name__ = name
    return jitscope.outermost_jit(fun)


def test_block_records_its_programs_and_no_others():
    structured("before")(1.0)
    with jitscope.recording() as record:
        structured("inside")(1.0)
        assert programs(record.report()) == ["inside"]
    structured("after")(1.0)
    assert programs(record.report()) == ["inside"]


def test_blocks_nest_and_each_sees_everything():
    with jitscope.recording() as outer:
        structured("first")(1.0)
        with jitscope.recording() as inner:
            structured("second")(1.0)
        structured("third")(1.0)
    assert programs(outer.report()) == ["first", "second", "third"]
    assert programs(inner.report()) == ["second"]


def test_block_that_raises_is_closed():
    with pytest.raises(KeyError), jitscope.recording() as record:
        raise KeyError
    structured("later")(1.0)
    assert programs(record.report()) == []


def test_seconds_come_in_as_they_pass():
    with jitscope.recording() as record:
        fun = structured("timed")
        fun.lower(1.0)
    (seconds,) = (program.seconds for program in record.report().programs)
    assert seconds.trace_s > 0 and seconds.lower_s > 0 and seconds.compile_s == 0
    fun(1.0)
    assert record.report().programs[0].seconds.compile_s > 0


def test_all_threads_are_recorded():
    with jitscope.recording() as record:
        threads = [
            threading.Thread(target=lambda i=i: structured(f"thread{i}")(1.0)) for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(programs(record.report())) == [f"thread{i}" for i in range(6)]


def test_subroutines_are_counted_from_the_start_of_the_block():
    @jitscope.shared_subroutine
    def layer(x):
        return jnp.sin(x) + 2

    jax.jit(lambda x: layer(layer(x)))(1.0)
    with jitscope.recording() as record:
        jax.jit(lambda x: layer(layer(layer(x))))(jnp.ones(2))
    mine = [s for s in record.report().subroutines if s.name == "layer"]
    assert [(s.n_calls, s.n_traces, s.n_reused) for s in mine] == [(3, 1, 2)]
    assert mine[0].retraces[0].reason.startswith("shape of argument x")
    total = [s for s in jitscope.stats().subroutines if s.source == mine[0].source]
    assert [(s.n_calls, s.n_traces) for s in total] == [(5, 2)]


def test_explaining_and_testing_count_nowhere():
    @jitscope.shared_subroutine
    def explained(x):
        return jnp.sin(x) + 3

    def explained_net(x):
        return explained(explained(x))

    net = explained_net
    with jitscope.recording() as record:
        jitscope.explain(net, 1.0)
        jitscope.compare(jax.jit(net), 1.0)
        jitscope.audit(net, 1.0)
        jitscope.testing.assert_max_bodies(1, net, 1.0)
    report = record.report()
    assert (report.programs, report.other) == ((), Seconds())
    assert explained.stats().n_calls == explained.stats().n_traces == 0
    assert explained.stats().signatures == ()
    assert "explained_net" not in programs(jitscope.stats())
    jax.jit(net)(jnp.ones(2))
    assert explained.stats().retrace_reasons == () and explained.stats().n_traces == 1


def test_subroutine_compiled_on_its_own_has_its_seconds():
    @jitscope.shared_subroutine
    def alone(x):
        return jnp.sin(x) + 4

    jax.jit(lambda x: alone(alone(x)))(1.0)
    with jitscope.recording() as record:
        alone(1.0)
        alone(1.0)
        alone(jnp.ones(3))
    (mine,) = [s for s in record.report().subroutines if s.name == "alone"]
    assert (mine.n_compiled, mine.n_calls) == (2, 0)
    assert mine.seconds.compile_s > 0 and mine.seconds.lower_s > 0
    assert "compiled on its own 2 times" in str(alone.stats())


def test_compilation_under_a_name_of_two_subroutines_is_nobodys():
    first, second = (
        jitscope.shared_subroutine(eval(f"lambda x: x + {n}"), name="namesake") for n in (5, 6)
    )
    with jitscope.recording() as record:
        first(1.0)
    assert first.stats().own.n_compiled == second.stats().own.n_compiled == 0
    assert record.report().other.compile_s > 0


def test_seconds_of_anything_else_are_one_sum():
    with jitscope.recording() as record:
        jax.jit(lambda x: jnp.sin(x) - 1)(1.0)
    other = record.report().other
    assert other.lower_s > 0 and other.compile_s > 0
    assert "anything else" in str(record)


def test_seconds_of_a_namesake_are_not_those_of_the_program():
    def namesake(x):
        return jnp.sin(x) * 76

    program = jitscope.outermost_jit(namesake)
    program(1.0)
    before = program.reuse().phases.seconds
    assert min(before.trace_s, before.lower_s, before.compile_s) > 0

    def namesake(x):
        return jnp.cos(x) * 76

    jax.jit(namesake)(1.0)
    assert program.reuse().phases.seconds == before


def test_failures_are_recorded():
    def broken(census):
        raise ValueError("no plan")

    with jitscope.recording() as record:
        fun = jitscope.outermost_jit(lambda x: x + 1, policy=broken)
        with pytest.raises(ValueError) if _strict() else pytest.warns(RuntimeWarning):
            fun(1.0)
    assert _strict() or record.report().failures == ("<lambda>: ValueError: no plan",)


def _strict():
    from jitscope.settings import strict

    return strict()


def test_stats_know_the_latest_program_of_functions_that_are_alive():
    model, args = layers(3)
    model.trace(*args)
    model.trace(*layers(4)[1])
    mine = [p for p in jitscope.stats().programs if p.name == "model"]
    assert mine[-1].n_equations == 12
    n_before = len(jitscope.stats().programs)
    del model
    jax.clear_caches()
    gc.collect()
    assert len(jitscope.stats().programs) < n_before


def test_stats_know_one_program_of_a_function_that_a_recording_knows_several_of():
    with jitscope.recording() as record:
        model = structured("retraced")
        for n in range(1, 4):
            model(jnp.ones(n))
        assert programs(record.report()).count("retraced") == 3
        assert programs(jitscope.stats()).count("retraced") == 1


def test_failure_of_an_explanation_is_not_recorded():
    with jitscope.recording() as record, not_counting():
        records.note_failure("explained", ValueError("no plan"))
    assert record.report().failures == ()


def test_calls_that_ran_plain_are_told_for_the_block_alone():
    @jitscope.shared_subroutine
    def delayed(x):
        return lambda: jnp.sin(x)

    def net(x):
        return delayed(x)()

    def mine():
        return [s for s in record.report().subroutines if s.name == "delayed"]

    for n in (1, 2):
        jax.jit(net)(jnp.ones(n))
    with jitscope.recording() as record:
        jitscope.explain(net, 1.0)
        assert mine() == []
        for n in (3, 4, 5):
            jax.jit(net)(jnp.ones(n))
    (mine,) = mine()
    assert mine.n_plain_calls == 3
    assert any(problem.startswith("3 calls ran as the plain function") for problem in mine.problems)


def test_recording_can_be_printed_and_shown():
    with jitscope.recording() as record:
        structured("shown")(1.0)
    assert "shown: 2 equations" in str(record)
    assert record._repr_html_().startswith("<iframe")


@pytest.mark.parametrize(
    "use, problem",
    [
        (lambda layer: None, "decorated but never called"),
        (lambda layer: layer(1.0), "called, but never under a trace"),
        (lambda layer: jax.jit(layer)(1.0), "called once, so there is nothing to share"),
        (lambda layer: jax.jit(lambda x: layer(x[:1]) + layer(x))(jnp.ones(2)), "never reused"),
        (lambda layer: jax.jit(lambda x: layer(layer(x)))(1.0), None),
        (lambda layer: pytest.raises(TypeError, layer, "text"), "decorated but never called with"),
    ],
    ids=["never called", "never traced", "once", "never reused", "reused", "failed"],
)
def test_subroutine_that_is_of_no_use_is_told(use, problem):  # accelerate#4188
    # Code of its own for each case: functions with one code are counted together.
    layer = jitscope.shared_subroutine(
        eval(f"lambda x: x + bool({problem!r})"), name=f"for {problem}"
    )
    use(layer)
    (mine,) = [s for s in jitscope.stats().subroutines if s.name == f"for {problem}"]
    assert [p.startswith(problem) for p in mine.problems] == ([True] if problem else [])

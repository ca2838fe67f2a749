"""STAGED: a program as a list of executables gives what jax.jit gives."""

import contextlib
import dataclasses
import functools
import threading
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    EAGER_LIMITS,
    assert_same,
    build_annotated,
    build_plain,
    cases,
    fresh,
    gradient,
    plain_gradient,
    plain_result,
)
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding
from programs import PROGRAMS

import jitscope
from jitscope import _jax
from jitscope.ir.program import capture
from jitscope.staged import executables
from jitscope.staged.executables import ONE_GPU_OPTIONS, quick_options
from jitscope.staged.plan import obstacle
from jitscope.staged.stages import cut_into_stages
from jitscope.structuring.plan import Structure
from jitscope.testing import assert_structure

EAGER = jitscope.Policy(**EAGER_LIMITS)
N_LAYERS, WIDTH = 6, 8


def staged(fun, **options):
    return jitscope.outermost_jit(fun, staged=True, policy=EAGER, **options)


def block(p, x):
    return x + jnp.tanh(x @ p["w"] + p["b"]) @ p["w"].T


def loss(params, x):
    for p in params:
        x = block(p, x)
    return (x * x).mean()


def step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def arguments():
    normal = np.random.default_rng(0).standard_normal
    params = [
        {
            "w": jnp.asarray(normal((WIDTH, WIDTH)) * 0.3, jnp.float32),
            "b": jnp.asarray(normal(WIDTH), jnp.float32),
        }
        for _ in range(N_LAYERS)
    ]
    return params, jnp.asarray(normal((16, WIDTH)), jnp.float32)


def program_of(fun, *args):
    return staged_signature(staged(fun), *args)._stages


def staged_signature(function, *args, **kwargs):
    return function._jitted._signature.eval_shape(*args, **kwargs).staged


def is_staged(function, *args, **kwargs):
    return staged_signature(function, *args, **kwargs) is not None


def assert_alike(actual, expected):
    """Equal in values, types, committed-ness and shardings."""
    assert_same(actual, expected)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert got.aval == want.aval, (got.aval.sharding, want.aval.sharding)
        assert got.committed == want.committed
        assert got.sharding.is_equivalent_to(want.sharding, got.ndim), (got.sharding, want.sharding)


# --- values ---------------------------------------------------------------------------------------


ALL = PROGRAMS.values()


@pytest.mark.parametrize(
    ("build", "program"),
    [
        *(
            pytest.param(build_plain, *case.values, marks=case.marks, id=f"plain-{case.id}")
            for case in cases(ALL)
        ),
        *(pytest.param(build_annotated, p, id=f"annotated-{p}") for p in ALL if p.core),
    ],
)
def test_staged_catalogue_equals_plain_jit(build, program):
    with jax.enable_x64(program.x64):
        fun, args = build(program)
        function = staged(fun, donate_argnums=program.donate)
        for _ in range(2):
            assert_same(function(*fresh(args)), plain_result(program.name))


@pytest.mark.parametrize(
    "program", cases(p for p in ALL if "grad" in p.transforms and not p.donate)
)
def test_staged_gradients_of_the_catalogue_equal_plain_jit(program):
    with jax.enable_x64(program.x64):
        fun, args = build_plain(program)
        result = staged(gradient(fun))(*args)
        assert_same(result, plain_gradient(program.name), tolerance_factor=10)


def test_train_step_is_staged_and_equals_plain_jit():
    args = arguments()
    function = staged(step)
    assert_alike(function(*args), jax.jit(step)(*args))
    assert is_staged(function, *args)


@pytest.mark.parametrize(
    ("policy", "is_cut"),
    [
        (None, True),
        (jitscope.Policy(), True),
        (jitscope.Policy(max_stacked_bytes=1), True),
        (jitscope.Policy(min_uses=N_LAYERS), True),
        (jitscope.Policy(min_uses=N_LAYERS + 1), False),
        (jitscope.Policy(min_saved=1101), False),
        (lambda census: jitscope.Policy()(census), False),
    ],
    ids=["none", "default", "other setting", "uses", "more uses", "more saved", "function"],
)
def test_settings_left_at_their_defaults_are_those_of_stages(policy, is_cut):
    def fun(params, x):
        for p in params:
            deviation = x - x.mean(-1, keepdims=True)
            x = block(p, deviation * lax.rsqrt((deviation * deviation).mean(-1, keepdims=True)))
        return x

    function, args = jitscope.outermost_jit(fun, staged=True, policy=policy), arguments()
    assert_same(function(*args), jax.jit(fun)(*args))
    assert (Structure.STAGED in structures(function)) == is_cut
    assert is_cut or " from " in str(function.reuse().plan)  # so many uses, or equations saved


def structures(function):
    return {decision.structure for decision in function.reuse().plan.decisions.values()}


# --- structure ------------------------------------------------------------------------------------


def test_layers_of_a_train_step_are_two_bodies_each_compiled_once():
    stages = program_of(jax.value_and_grad(loss), *arguments())
    bodies = [i for i, stage in enumerate(stages.stages) if stage.is_body]
    runs = [sum(step.stage == i for step in stages.steps) for i in bodies]
    assert len(runs) == 2 and min(runs) >= N_LAYERS - 1


def test_plan_says_what_is_staged():
    function = staged(step)
    function(*arguments())
    assert Structure.STAGED in structures(function)
    assert "STAGED" in str(function.reuse())
    assert function.reuse().n_shared_calls >= 2 * (N_LAYERS - 1)


def test_subroutine_asked_to_be_staged_is_where_the_program_is_staged():
    def fun(params, x):
        for p in params:
            x = layer(p, x)
        return x

    layer, args = jitscope.shared_subroutine(block, structure="staged"), arguments()
    function = jitscope.outermost_jit(fun, staged=True)
    assert_same(function(*args), jax.jit(lambda *args: fun(*args))(*args))
    assert is_staged(function, *args)
    assert structures(function) == {Structure.STAGED}
    assert_structure({"block": "staged"}, function, *args)


def test_subroutine_asked_to_be_staged_is_nested_elsewhere_and_the_plan_says_so():
    def fun(params, x):
        for p in params:
            x = layer(p, x)
        return x

    layer, args = jitscope.shared_subroutine(block, structure="staged"), arguments()
    function = jitscope.outermost_jit(fun)
    assert_same(function(*args), jax.jit(lambda *args: fun(*args))(*args))
    assert structures(function) == {Structure.NESTED}
    (decision,) = function.reuse().plan.decisions.values()
    assert "asked for by its decorator; not staged" in decision.reason
    assert "outermost_jit(staged=True)" in decision.reason
    assert function.reuse().n_shared_calls == 0
    assert_structure({"block": "nested"}, function, *args)


@pytest.mark.parametrize("structure", [None, "rolled"])
def test_loops_are_not_made_in_staged_programs_and_the_plan_says_so(structure):
    def fun(params, x):
        for p in params:
            x = layer(p, x)
        return x

    layer, args = jitscope.shared_subroutine(block, structure=structure), arguments()
    policy = dataclasses.replace(EAGER, rolled=True)
    function = jitscope.outermost_jit(fun, staged=True, policy=policy)
    assert_same(function(*args), jax.jit(lambda *args: fun(*args))(*args))
    assert structures(function) == {Structure.STAGED}
    (decision,) = function.reuse().plan.decisions.values()
    assert decision.reason.endswith("not rolled: no loops are made in staged programs")


def annotated(fun, *args):
    function = jitscope.outermost_jit(fun, staged=True, outline=False, policy=EAGER)
    return staged_signature(function, *args)._stages


def test_equations_that_nobody_waits_for_end_up_in_one_stretch():
    shared = jitscope.shared_subroutine(block)

    def fun(params, x):
        sums = []
        for i, p in enumerate(params):
            x = shared(p, x)
            sums.append(lax.sin(p["b"]) if i % 2 else x.sum())
        return x, sums

    stages = annotated(fun, *arguments())
    stretches = [step for step in stages.steps if not stages.stages[step.stage].is_body]
    assert len(stretches) == 1
    assert len(stages.steps) == N_LAYERS + 1


def test_what_several_calls_wait_for_runs_before_the_first_in_one_stretch():
    assert [is_body for _, is_body in scaled_layers(WIDTH)] == [False] + [True] * N_LAYERS


def test_large_values_are_made_when_they_are_needed():
    runs = scaled_layers(1024)
    assert [is_body for _, is_body in runs] == [False, True] * N_LAYERS
    assert len({stage for stage, is_body in runs if not is_body}) == 2


def scaled_layers(width):
    """Stage, and whether it is a body, of each step of layers whose weights are doubled first."""
    shared = jitscope.shared_subroutine(lambda w, x: jnp.tanh(x @ w))

    def fun(weights, x):
        x = lax.sin(x)
        for w in weights:
            x = shared(lax.concatenate([w, w], 0), x)
        return x

    weights = [jax.ShapeDtypeStruct((width // 2, width), jnp.float32)] * N_LAYERS
    stages = annotated(fun, weights, jax.ShapeDtypeStruct((2, width), jnp.float32))
    return [(step.stage, stages.stages[step.stage].is_body) for step in stages.steps]


def test_large_values_are_reduced_before_they_are_dropped():
    shared = jitscope.shared_subroutine(lambda x: jnp.tanh(x) * x + 1)

    def fun(x):
        sums = []
        for _ in range(N_LAYERS):
            x = shared(x)
            sums.append(x.sum())
        return sums

    stages = annotated(fun, jax.ShapeDtypeStruct((1 << 20,), jnp.float32))
    assert len(stages.steps) == 2 * N_LAYERS
    assert len(stages.stages) == 2


def test_equal_stretches_are_compiled_once():
    body = jitscope.shared_subroutine(lambda x: jnp.tanh(x @ x))

    def fun(x):
        for _ in range(5):
            x = body(lax.rev(x, (0,)) + 1)
        return x

    stages = annotated(fun, jnp.ones((3, 3)))
    assert len(stages.steps) == 10
    assert len(stages.stages) == 2


def test_calls_within_a_subroutine_that_is_called_twice_are_stages():
    shared = jitscope.shared_subroutine(block)

    @jitscope.shared_subroutine
    def network(params, x):
        return functools.reduce(lambda x, p: shared(p, x), params, x).sum()

    def fun(params, x):
        return network(params, x) + network(params, -x)

    args = arguments()
    function = jitscope.outermost_jit(
        fun,
        staged=True,
        policy=jitscope.Policy(
            min_uses=3,
            min_equations=1,
            min_equations_per_product=1,
            min_saved=1,
            min_uses_steady=2,
            min_saved_growing=1,
        ),
    )
    assert_same(function(*args), jax.jit(fun)(*args))
    stages = staged_signature(function, *args)._stages
    assert sum(stages.stages[step.stage].is_body for step in stages.steps) == 2 * N_LAYERS
    assert any(
        "calls within it become stages" in d.reason
        for d in function.reuse().plan.decisions.values()
    )


def test_values_are_dropped_after_their_last_use():
    stages = program_of(step, *arguments())
    last_read = {slot: i for i, step in enumerate(stages.steps) for slot in step.operands}
    dropped = {slot: i for i, step in enumerate(stages.steps) for slot in step.dropped}
    for slot, i in last_read.items():
        if slot not in stages.results:
            assert dropped[slot] == i


def test_unused_equations_are_not_compiled():
    def fun(params, x):
        jnp.linalg.svd(x)
        return loss(params, x)

    stages = program_of(fun, *arguments())
    primitives = {str(e.primitive) for s in stages.stages for e in _jax.equations(s.jaxpr)}
    assert "svd" not in primitives


# --- what jax.jit promises ------------------------------------------------------------------------


def test_results_that_are_arguments_constants_and_duplicates():
    def fun(params, x):
        y = loss(params, x)
        return y, x, y, 3.0, jnp.arange(4), params[0]["b"], x

    args = arguments()
    assert_alike(staged(fun)(*args), jax.jit(fun)(*args))
    first, second = (staged(fun)(*args)[i] for i in (0, 2))
    first.delete()
    assert not second.is_deleted()


def test_results_keep_weak_types():
    def fun(params, x, scale):
        return loss(params, x) * 1.0, scale * 2, jnp.asarray(1) * scale

    args = (*arguments(), 2.0)
    assert_same(staged(fun)(*args), jax.jit(fun)(*args))


class Pair(NamedTuple):
    value: object
    tree: dict


def test_trees_of_arguments_and_results():
    def fun(pair, *, x, other=None):
        return Pair(loss(pair.value, x), {"none": other, "empty": (), **pair.tree})

    params, x = arguments()
    call = functools.partial(lambda f: f(Pair(params, {"b": x, "a": None}), x=x))
    assert_same(call(staged(fun)), call(jax.jit(fun)))


def test_numpy_arrays_and_scalars_as_arguments():
    params, x = arguments()
    args = jax.tree.map(np.asarray, params), np.asarray(x, np.float64)
    assert_alike(staged(step)(*args), jax.jit(step)(*args))


def test_one_function_serves_many_signatures():
    function, plain = staged(step), jax.jit(step)
    params, x = arguments()
    for batch in (x, x[:3], x.astype(jnp.bfloat16), x):
        assert_same(function(params, batch), plain(params, batch))


@pytest.mark.parametrize("option", [{"static_argnums": (1, 3)}, {"static_argnames": ("n", "how")}])
def test_static_arguments(option):
    def fun(params, n, x, how=("a", 1)):
        for p in params * n:
            x = block(p, x)
        return x if how[0] == "a" else -x

    params, x = arguments()
    function, plain = staged(fun, **option), jax.jit(fun, **option)
    for args in ((params, 1, x), (params, 2, x), (params, 1, x, ("b", 1)), (params, 1, x)):
        assert_same(function(*args), plain(*args))
    assert_same(function(params, n=2, x=x, how=("b", 1)), plain(params, n=2, x=x, how=("b", 1)))


def test_static_argument_that_cannot_be_hashed_is_refused_as_by_jit():
    messages = []
    for make in (staged, jax.jit):
        with pytest.raises(ValueError, match="hash") as error:
            make(step, static_argnums=1)(arguments()[0], [1])
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_captured_arrays_are_arguments_of_the_stages():
    params, x = arguments()
    table = np.arange(WIDTH, dtype=np.float32)

    def fun(x):
        return loss(params, x * table)

    assert_alike(staged(fun)(x), jax.jit(fun)(x))
    assert len(program_of(fun, x).constants) >= 2 * N_LAYERS


def test_random_keys_pass_between_stages():
    def fun(params, key, x):
        for p in params:
            key, new = jax.random.split(key)
            x = block(p, x) * jax.random.bernoulli(new, 0.9, x.shape)
        return x, key

    params, x = arguments()
    assert_same(
        staged(fun)(params, jax.random.key(3), x), jax.jit(fun)(params, jax.random.key(3), x)
    )


OF_EVERY_KIND = {
    "bool": (lambda x: x > 1, bool),
    "int8": (lambda x: x, np.int8),
    "uint32": (lambda x: x, np.uint32),
    "bfloat16": (lambda x: x, jnp.bfloat16),
    "complex64": (lambda x: x + 1j, np.complex64),
    "raw key": (lambda x: jax.random.key_data(jax.random.split(jax.random.key(0), 4)), None),
    "key": (lambda x: jax.random.split(jax.random.key(0), 4), None),
    "nothing in it": (lambda x: x[:0], np.float32),
}


@pytest.mark.parametrize(("make", "dtype"), OF_EVERY_KIND.values(), ids=OF_EVERY_KIND)
def test_arguments_and_values_between_stages_are_of_every_kind(make, dtype):
    def changed(value):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.vmap(lambda key: jax.random.fold_in(key, 1))(value)
        if value.dtype == bool:
            return jnp.roll(~value, 1, 0)
        return jnp.roll(value, 1, 0) + jnp.ones((), value.dtype)

    def fun(value, params, x):
        values = []
        for p in params:
            x = block(p, x)
            value = shared(value)
            values.append(value)
        return values, x

    shared = jitscope.shared_subroutine(changed)
    params, x = arguments()
    value = make(jnp.arange(12).reshape(4, 3))
    assert dtype is None or value.dtype == dtype or value.astype(dtype).dtype == dtype
    value = value if dtype is None else value.astype(dtype)
    function = staged(fun)
    assert_alike(function(value, params, x), jax.jit(fun)(value, params, x))
    assert is_staged(function, value, params, x)
    assert any(avals.dtype == value.dtype for avals in program_of(fun, value, params, x).avals[-9:])


def test_gradients_of_integers_are_float0():
    def gradient(params, n, x):
        return jax.grad(lambda params, n: loss(params, x) * n, argnums=(0, 1), allow_int=True)(
            params, n
        )

    params, x = arguments()
    actual = staged(gradient)(params, np.arange(2)[1], x)
    expected = jax.jit(gradient)(params, np.arange(2)[1], x)
    assert actual[1].dtype == expected[1].dtype == jax.dtypes.float0
    assert_same(actual[0], expected[0])


def test_batch_with_nothing_in_it():
    params, x = arguments()
    assert_alike(staged(step)(params, x[:0]), jax.jit(step)(params, x[:0]))


def test_user_error_while_tracing_is_the_users():
    def fun(params, x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        staged(fun)(*arguments())


def test_threads_share_one_compilation():
    function, args = staged(step), arguments()
    results = []
    threads = [threading.Thread(target=lambda: results.append(function(*args))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert_same(result, results[0])
    assert len(staged_signature(function, *args)._runs) == 1


def test_threads_run_different_signatures_of_one_function_at_once():
    function, plain = staged(step, donate_argnums=0), jax.jit(step)
    batches = [arguments()[1][:n] for n in (2, 3, 5, 16)]
    expected = [plain(arguments()[0], batch) for batch in batches]
    results = {}

    def run(i):
        results[i] = [function(arguments()[0], batches[i]) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, want in enumerate(expected):
        assert len(results[i]) == 5
        for got in results[i]:
            assert_same(got, want)


def test_clear_cache_traces_anew():
    traces = []

    def fun(params, x):
        traces.append(1)
        return loss(params, x)

    function, args = staged(fun), arguments()
    function(*args), function(*args)
    assert len(traces) == 1
    function.clear_cache()
    function(*args)
    assert len(traces) == 2


def test_each_stage_is_compiled_once(compilations):
    function, args = staged(step), arguments()
    function(*args)
    assert len(compilations) == len(program_of(step, *args).stages) + 1  # and the lookup
    compilations.clear()
    function(*args)
    assert not compilations


@pytest.fixture
def compilations():
    names = []

    def listen(event, duration, **details):
        if event.endswith("backend_compile_duration"):
            names.append(details.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("asked", [None, {"xla_gpu_enable_latency_hiding_scheduler": True}])
def test_stages_on_one_gpu_hide_no_transfers_unless_asked_or_there_are_some(monkeypatch, asked):
    def fun(params, x):
        for p in params:
            x = block(p, x)
        return jax.device_put(x, jax.devices()[0])

    found = {}

    def jit(fun, **options):
        found[fun.__name__] = options["compiler_options"]
        return plain_jit(fun, **options)

    function, args = staged(fun, compiler_options=asked), arguments()
    plain_jit = _jax.jit
    assert quick_options(SingleDeviceSharding(jax.devices()[1])) == quick_options(None) == {}
    monkeypatch.setattr(executables, "quick_options", lambda sharding: ONE_GPU_OPTIONS)
    monkeypatch.setattr(_jax, "jit", jit)
    assert_same(function(*args), jax.jit(fun)(*args))
    ends = [options for name, options in found.items() if name.startswith("fun_part")]
    bodies = [options for name, options in found.items() if name == "block"]
    assert ends == [asked] and bodies == [asked or ONE_GPU_OPTIONS]


# --- lower ----------------------------------------------------------------------------------------


def test_lower_gives_all_stages():
    args = arguments()
    lowered = staged(step).lower(*args)
    stages = program_of(step, *args)
    assert len(lowered.stages) == len(stages.stages)
    assert sum(lowered.n_runs) == len(stages.steps)
    assert lowered.as_text().count("stablehlo.dot_general") >= 2
    compiled = lowered.compile()
    assert len(compiled) == len(lowered.stages)
    with pytest.raises(TypeError, match="cannot be called as one. Call the function"):
        compiled(*args)


def test_lower_takes_types_for_arrays():
    types = jax.eval_shape(lambda: arguments())
    assert len(staged(step).lower(*types).stages) > 1


def test_lower_gives_all_stages_for_several_devices_too():
    params, x = arguments()
    replicated, split = (NamedSharding(mesh_of(), P(*spec)) for spec in ((), ("d",)))
    args = jax.device_put(params, replicated), jax.device_put(x, split)
    lowered = staged(step).lower(*args)
    stages = program_of(step, *args)
    assert len(lowered.stages) >= len(stages.stages)
    assert sum(lowered.n_runs) == len(stages.steps)
    compiled = lowered.compile()
    assert "all-reduce" in "\n".join(stage.as_text() for stage in compiled)
    in_shardings = [s for stage in compiled for s in jax.tree.leaves(stage.input_shardings)]
    assert any(s.is_equivalent_to(split, 2) for s in in_shardings)
    options = {"in_shardings": (replicated, split)}
    assert sum(staged(step, **options).lower(*arguments()).n_runs) == len(stages.steps)


def test_stages_lowered_for_several_devices_are_those_that_run(compilations):
    params, x = arguments()
    args = jax.device_put(params, NamedSharding(mesh_of(), P())), x
    n_lowered = len(staged(step).lower(*args).stages)
    compilations.clear()
    staged(step)(*args)
    assert len(compilations) == n_lowered + 1  # and the lookup


def test_trace_gives_the_program_as_one():
    traced = staged(step).trace(*arguments())
    assert_same(traced.lower().compile()(*arguments()), jax.jit(step)(*arguments()))


def test_eval_shape_is_that_of_jit():
    args = arguments()
    assert staged(step).eval_shape(*args) == jax.jit(step).eval_shape(*args)


# --- falling back ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.value_and_grad,
        lambda f: jax.vmap(f, in_axes=(None, 0)),
        lambda f: lambda *args: jax.jvp(f, args, args),
        jax.checkpoint,
    ],
    ids=["jit", "value_and_grad", "vmap", "jvp", "checkpoint"],
)
def test_under_a_transformation_it_is_jit(transform):
    args = arguments()
    assert_same(transform(staged(loss))(*args), transform(jax.jit(loss))(*args))


def test_inside_another_outermost_function_it_is_nested():
    inner, args = staged(loss), arguments()
    outer = jitscope.outermost_jit(lambda params, x: inner(params, x) + 1)
    assert_same(outer(*args), jax.jit(lambda params, x: loss(params, x) + 1)(*args))


def test_program_without_repeats_is_one_executable_and_the_plan_says_so():
    body = jitscope.shared_subroutine(lambda x: jnp.sin(x) + 1)
    function = staged(lambda x: body(x) * 2 + jax.nn.relu(x))
    assert_same(function(jnp.ones(3)), jnp.sin(jnp.ones(3)) * 2 + 3)
    assert not is_staged(function, jnp.ones(3))


def test_ordered_effects_keep_a_program_in_one_executable_and_the_plan_says_so():
    order = []

    def fun(params, x):
        for i, p in enumerate(params):
            jax.debug.callback(lambda i=i: order.append(i), ordered=True)
            x = block(p, x)
        return x

    function, args = staged(fun), arguments()
    assert_same(function(*args), jax.jit(lambda *args: fun(*args))(*args))
    jax.effects_barrier()
    assert order == [*range(N_LAYERS)] * 2
    assert not is_staged(function, *args)
    function(*args)
    assert any(
        "not staged: the program has effects in an order" in d.reason
        for d in function.reuse().plan.decisions.values()
    )


@pytest.mark.parametrize("why", ["places", "options", "debug_nans"])
def test_plan_says_where_a_program_that_has_stages_is_compiled_as_one(why):
    options = {"device": jax.devices()[0]} if why == "options" else {}
    if why == "places":
        options["out_shardings"] = NamedSharding(mesh_of(), P())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        function = staged(loss, **options)
    with jax.debug_nans(why == "debug_nans"):
        function(*arguments())
    decisions = [d for d in function.reuse().plan.decisions.values() if "uses" in d.reason]
    assert decisions
    assert Structure.STAGED not in structures(function)
    assert all("not staged: this is the program as one executable" in d.reason for d in decisions)


@pytest.mark.parametrize("order", ["trace call", "call trace", "lower trace", "trace lower"])
@pytest.mark.parametrize("as_one", [False, True], ids=["staged", "as_one"])
def test_plan_is_that_of_a_call_whether_it_was_traced_before_or_after(order, as_one):
    options = {"out_shardings": NamedSharding(mesh_of(), P())} if as_one else {}
    function, args = staged(step, **options), arguments()
    for each in order.split():
        (function if each == "call" else getattr(function, each))(*args)
        assert (Structure.STAGED in structures(function)) != as_one, each
        assert ("not staged: this is the program as one" in str(function.reuse().plan)) == as_one


def test_unordered_effects_run_once_each_between_the_stages():
    seen = []

    def fun(params, x):
        for i, p in enumerate(params):
            jax.debug.callback(lambda mean, i=i: seen.append(i), x.mean())
            x = block(p, x)
        return x

    function, args = staged(fun), arguments()
    assert_same(
        function(*args),
        jax.jit(lambda params, x: functools.reduce(lambda x, p: block(p, x), params, x))(*args),
    )
    jax.effects_barrier()
    assert sorted(seen) == [*range(N_LAYERS)]
    assert is_staged(function, *args)


def test_disabled_and_disable_jit_run_the_function_as_it_is():
    args = arguments()
    expected = jax.jit(step)(*args)
    function = staged(step)
    with jitscope.disabled():
        assert_same(function(*args), expected)
    with jax.disable_jit():
        assert_same(function(*args), expected, tolerance_factor=10)


def test_nan_is_found_where_jit_finds_it():
    def fun(params, x):
        return jnp.log(loss(params, x) * -1)

    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="log"):
        staged(fun)(*arguments())


def test_64_bit_values_in_a_32_bit_program_keep_it_in_one_executable():
    def fun(params, x):
        with jax.enable_x64(True):
            wide = lax.convert_element_type(x, np.float64)
            return loss(params, x), wide.sum()

    args = arguments()
    assert_same(staged(fun)(*args), jax.jit(fun)(*args))


def test_failure_of_jitscope_leaves_one_executable_and_a_warning(monkeypatch):
    def fail(program):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("jitscope.outermost.staged.cut_into_stages", fail)
    monkeypatch.setattr("jitscope.outermost.staged.strict", lambda: False)
    function, args = staged(step), arguments()
    with pytest.warns(RuntimeWarning, match="RuntimeError: a bug of ours"):
        assert_same(function(*args), jax.jit(step)(*args))
    decisions = function.reuse().plan.decisions.values()
    assert Structure.STAGED not in structures(function)
    assert any("not staged: jitscope could not cut it: Runtime" in d.reason for d in decisions)


# --- errors ---------------------------------------------------------------------------------------


def test_error_of_a_running_stage_names_the_stage():
    function, (params, x) = staged(step), arguments()
    args = params, np.asarray(x)
    function(*args)
    with jax.transfer_guard("disallow"):
        with pytest.raises(Exception, match="isallowed host-to-device"):
            jax.jit(step)(*args)
        with pytest.raises(Exception, match="isallowed host-to-device") as error:
            function(*args)
    assert any("of a staged program" in note for note in error.value.__notes__)


def test_error_while_compiling_a_stage_names_the_stage():
    def fun(params, x):
        for p in params:
            x = block(p, x)
        return lax.platform_dependent(x, tpu=jnp.sin)

    with pytest.raises(Exception) as error:
        staged(fun)(*arguments())
    with pytest.raises(type(error.value)):
        jax.jit(fun)(*arguments())
    assert any("fun_part" in note for note in error.value.__notes__)


def test_error_of_a_callback_within_a_stage_is_the_users():
    def fail(x):
        raise ValueError("the user's own words")

    def fun(params, x):
        for p in params:
            x = block(p, x)
        return jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    errors = []
    for function in (jax.jit(fun), staged(fun)):
        with pytest.raises(Exception, match="the user's own words") as error:
            jax.block_until_ready(function(*arguments()))
        errors.append(type(error.value))
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.effects_barrier()  # or the error comes up again when the process ends
    assert errors[0] is errors[1]


def test_arguments_on_different_devices_are_refused_as_by_jit():
    params, x = arguments()
    devices = jax.devices()
    args = jax.device_put(params, devices[1]), jax.device_put(x, devices[2])
    with pytest.raises(ValueError, match="incompatible devices"):
        staged(step)(*args)


# --- donation -------------------------------------------------------------------------------------


def deleted(tree):
    return [leaf.is_deleted() for leaf in jax.tree.leaves(tree)]


DONATING = {
    "train step": (step, (0,)),
    "everything": (step, (0, 1)),
    "passed through": (lambda params, x: (loss(params, x), x, params), (0, 1)),
    "unused": (lambda params, x: step(params, jnp.ones((2, WIDTH))), (1,)),
    "twice the results": (lambda params, x: (step(params, x), step(params, x + 1)), (0,)),
    "used early": (lambda params, x: (loss(params, x), x * 2), (1,)),
}


@pytest.mark.parametrize(("fun", "donate"), DONATING.values(), ids=DONATING)
def test_donated_arguments_are_given_up_as_by_jit(fun, donate):
    given, same = arguments(), arguments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = jax.jit(fun, donate_argnums=donate)(*given)
        actual = staged(fun, donate_argnums=donate)(*same)
    assert_alike(actual, expected)
    assert deleted(same) == deleted(given)


def test_array_that_is_donated_and_passed_again_is_the_error_of_jit():
    def fun(a, b):
        for _ in range(N_LAYERS):
            a = jnp.tanh(jnp.sin(a @ b) + jnp.cos(a))
        return a, b + 1

    for make in (jax.jit, staged):
        array = jnp.ones((4, 4))
        with pytest.raises(Exception, match="donate"):
            make(fun, donate_argnums=(0, 1))(array, array)


def test_donation_by_name():
    params, x = arguments()
    staged(step, donate_argnames="params")(params=params, x=x)
    assert all(deleted(params)) and not x.is_deleted()


def test_update_writes_into_the_donated_parameters():
    params, x = arguments()
    function = staged(step, donate_argnums=0)
    stages = staged_signature(function, params, x)._stages
    n_donated = sum(len(step.donated) for step in stages.steps)
    assert n_donated + sum(len(step.released) for step in stages.steps) == 2 * N_LAYERS
    assert n_donated >= N_LAYERS


@pytest.mark.parametrize("result", ["float16", "float32"])
def test_donation_that_jit_finds_usable_is_no_warning(result):
    # By the number of elements, not of bytes.
    def fun(params, x):
        return functools.reduce(lambda x, p: block(p, x), params, x).astype(result)

    for make in (staged, jax.jit):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(fun, donate_argnums=1)(*arguments())


def test_unusable_donation_warns_as_jit_does():
    messages = []
    for make in (staged, jax.jit):
        with pytest.warns(UserWarning, match="donated buffers were not usable") as caught:
            make(loss, donate_argnums=1)(*arguments())
        messages.append(str(caught[0].message).split("\n")[0])
    assert messages[0] == messages[1]


def test_donated_loop_of_steps():
    function, plain = staged(step, donate_argnums=0), jax.jit(step)
    params, x = arguments()
    expected = arguments()[0]
    for _ in range(3):
        value, params = function(params, x)
        want, expected = plain(expected, x)
    assert_same((value, params), (want, expected))


# --- places ---------------------------------------------------------------------------------------


def mesh_of(n=4):
    return jax.sharding.Mesh(np.asarray(jax.devices()[:n]), ("d",))


def test_committed_arguments_say_where_it_runs():
    device = jax.devices()[3]
    params, x = arguments()

    def fun(params, x):
        return step(params, x), jnp.arange(5), x

    for args in (
        (jax.device_put(params, device), x),
        (params, jax.device_put(x, device)),
        (params, x),
    ):
        assert_alike(staged(fun)(*args), jax.jit(fun)(*args))


def with_layout(value, *order):
    return jax.device_put(value, Format(Layout(order), value.sharding))


def test_arguments_may_lie_otherwise_in_every_call():
    function, plain = staged(step), jax.jit(step)
    params, x = arguments()
    with jax.default_device(jax.devices()[1]):
        elsewhere = x + 0
    assert not elsewhere.committed
    orders = (0, 1), (1, 0)
    # Which of the two is the default depends on the version of JAX.
    (odd,) = [order for order in orders if not _jax.has_default_layout(with_layout(x, *order))]
    transposed = [{**p, "w": with_layout(p["w"], *odd)} for p in params]
    moved = with_layout(x, *odd)
    for args in (
        (params, x),
        (params, np.asarray(x)),
        (transposed, np.asarray(x)),
        (params, x),
        (params, elsewhere),
        (params, elsewhere),
        (transposed, x),
        (transposed, x),
        (params, moved),
        (params, jax.device_put(x, jax.devices()[2])),
        (params, x),
    ):
        assert_alike(function(*args), plain(*args))
    program = staged_signature(function, params, x)
    assert program.runs_in_stages((params, x), {})
    asked = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=Format(Layout(order), x.sharding))
        for order in orders
    ]
    assert [program.runs_in_stages((params, one), {}) for one in asked] == [
        o != odd for o in orders
    ]
    for args in ((transposed, x), (params, moved)):
        assert not program.runs_in_stages(args, {})


def test_operands_are_looked_at_before_the_first_step():
    seen = []

    def fun(params, x):
        jax.debug.callback(lambda: seen.append("ran"))
        return step(params, x)

    function = staged(fun, donate_argnums=0)
    function(*arguments())
    jax.effects_barrier()
    seen.clear()
    for wrong, error, text in (
        (lambda w: w.delete(), RuntimeError, "Array has been deleted with shape=float32"),
        (lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), TypeError, "not a valid JAX type"),
    ):
        params, x = arguments()
        params[-1]["w"] = wrong(params[-1]["w"]) or params[-1]["w"]
        for program in (function, jax.jit(fun, donate_argnums=0)):
            with pytest.raises(error, match=text):
                program(params, x)
        assert not params[0]["w"].is_deleted()
    jax.effects_barrier()
    assert seen == []


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_argument_in_another_memory_makes_one_executable(kind):
    params, x = arguments()
    kept = jax.device_put(
        jnp.ones(3), jax.sharding.SingleDeviceSharding(x.device, memory_kind=kind)
    )

    def fun(params, x, kept):
        return step(params, x), kept

    function, plain = staged(fun), jax.jit(fun)
    got, want = function(params, x, kept), plain(params, x, kept)
    assert got[1].sharding == want[1].sharding
    assert_alike(got[0], want[0])


def test_captured_arrays_are_moved_under_a_transfer_guard():
    captured = np.arange(3.0, dtype=np.float32)
    function = staged(lambda params, x: (step(params, x), captured + x.sum()))
    args = arguments()
    with jax.transfer_guard("disallow_explicit"):
        function(*args)


def test_unused_argument_that_is_to_be_kept_makes_one_executable():
    def fun(params, x, unused):
        return step(params, x)

    args = (*arguments(), jnp.ones((3, 3)))
    for compiled in (jax.jit, staged):
        with pytest.warns(UserWarning, match=r"donated buffers were not usable: float32\[3,3\]"):
            compiled(fun, donate_argnums=2, keep_unused=True)(*args)


def test_steps_look_at_arguments_once_and_at_results_where_jit_does():
    def fun(params, x):
        return jnp.log(loss(params, x) * x.sum())

    function, args = staged(fun), arguments()
    want = function(*args)
    assert staged_signature(function, *args)._latest.unchecked == (_jax.JAXLIB >= (0, 11, 2))
    assert_same(function(*args), want)
    with jax.debug_infs(True):
        assert_same(function(*args), want)
        with pytest.raises(FloatingPointError):
            function(args[0], 0 * args[1])


def test_committed_argument_that_is_unused_has_no_say():
    params, x = arguments()
    args = params, x, jax.device_put(x, jax.devices()[3])

    def fun(params, x, unused):
        return step(params, x)

    assert_alike(staged(fun)(*args), jax.jit(fun)(*args))


def test_one_function_serves_one_device_then_many():
    function, plain = staged(step), jax.jit(step)
    params, x = arguments()
    replicated, split = (NamedSharding(mesh_of(), P(*spec)) for spec in ((), ("d",)))
    many = jax.device_put(params, replicated), jax.device_put(x, split)
    for args in ((params, x), many, (params, x), (params, many[1])):
        assert_alike(function(*args), plain(*args))
    assert is_staged(function, *many)


def test_donated_shards_are_given_up():
    params, x = arguments()
    params = jax.device_put(params, NamedSharding(mesh_of(), P()))
    split = jax.device_put(x, NamedSharding(mesh_of(), P("d")))
    value, new = staged(step, donate_argnums=0)(params, split)
    assert all(deleted(params)) and not split.is_deleted()
    assert_same((value, new), jax.jit(step)(*arguments()))


def test_shardings_given_as_options():
    replicated, split = (NamedSharding(mesh_of(), P(*spec)) for spec in ((), ("d",)))
    options = {"in_shardings": (replicated, split), "out_shardings": replicated}
    assert_alike(staged(step, **options)(*arguments()), jax.jit(step, **options)(*arguments()))
    alone = SingleDeviceSharding(jax.devices()[2])
    mesh_of_one = NamedSharding(jax.sharding.Mesh(jax.devices()[:1], ("d",)), P())
    for options in (
        {"in_shardings": replicated, "out_shardings": replicated},
        {"in_shardings": replicated, "out_shardings": (None, replicated)},
        {"in_shardings": mesh_of_one, "out_shardings": mesh_of_one},
        {"in_shardings": alone},
        {"out_shardings": alone},
        {"in_shardings": (None, alone)},
    ):
        assert_alike(staged(step, **options)(*arguments()), jax.jit(step, **options)(*arguments()))


EIGHT = {
    "data": (P(), P(), P("d")),
    "columns": (P(None, "d"), P("d"), P()),
    "rows": (P("d"), P(), P()),
    "both": (P(None, "m"), P(), P("d")),
}


@pytest.mark.parametrize(("w", "b", "x"), EIGHT.values(), ids=EIGHT)
def test_train_step_on_eight_devices(w, b, x):
    shape, axes = ((4, 2), ("d", "m")) if "m" in w else ((8,), ("d",))
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:8]).reshape(shape), axes)
    params, batch = arguments()
    on = {name: NamedSharding(mesh, spec) for name, spec in (("w", w), ("b", b))}
    args = [jax.device_put(p, on) for p in params], jax.device_put(batch, NamedSharding(mesh, x))
    options = {"out_shardings": (None, [on] * N_LAYERS)}
    function = staged(step, **options)
    assert is_staged(function, *args)
    for _ in range(2):
        assert_alike(function(*args), jax.jit(step, **options)(*args))


@pytest.mark.parametrize("place", [None, P()], ids=["anywhere", "told"])
def test_donation_on_several_devices_warns_where_jit_does(place):
    mesh = mesh_of()
    args = jax.device_put(arguments(), NamedSharding(mesh, P()))
    options = {} if place is None else {"out_shardings": NamedSharding(mesh, place)}
    n_warnings = []
    for make in (staged, jax.jit):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make(loss, donate_argnums=1, **options)(*args)
        n_warnings.append(len(caught))
    assert n_warnings == [len(options)] * 2


def test_sharding_constraint_inside():
    sharding = NamedSharding(mesh_of(), P("d"))

    def fun(params, x):
        return step(params, lax.with_sharding_constraint(x, sharding))

    params, x = arguments()
    for args in ((params, x), (params, jax.device_put(x, sharding))):
        assert_alike(staged(fun)(*args), jax.jit(fun)(*args))


def test_results_of_stages_without_operands_are_on_all_devices():
    def fun(params, x):
        return loss(params, x), jnp.arange(8)

    args = jax.device_put(arguments(), NamedSharding(mesh_of(), P()))
    assert_alike(staged(fun)(*args), jax.jit(fun)(*args))


# --- pure splitting -------------------------------------------------------------------------------


def test_program_captured_without_options_can_be_cut():
    function = staged(step)
    traced = function.trace(*arguments()).jaxpr
    program = capture(step, arguments(), {}, {})
    program = type(program)("step", traced, program.out_tree)
    assert obstacle(program) == ""
    stages = cut_into_stages(program)
    assert not any(step.donated for step in stages.steps)
    assert len(stages.steps) > len(stages.stages)

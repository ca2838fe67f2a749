"""`outermost_jit` against `jax.jit`: options, methods, errors, caches, and when to step aside."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import re
import traceback
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER_LIMITS, assert_same, fresh, run_python, tagged_calls
from jax import lax
from jax.experimental import checkify, jet, sparse
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jitscope
from jitscope import _jax, settings
from jitscope.outermost.jit import OutermostJit
from jitscope.structuring.plan import Decision, Plan, Structure

X = np.linspace(0.1, 0.9, 8, dtype=np.float32)


def share_everything(census):
    return Plan({
        body.fingerprint.digest: Decision(Structure.SHARED, "for the test")
        for body in census.bodies
        if not body.obstacle
    })  # fmt: skip


def outermost(fun=None, /, **options):
    return jitscope.outermost_jit(fun, policy=share_everything, outline=False, **options)


@jax.jit
def block(x):
    return jnp.sin(x) * 2 + jnp.cos(x)


def net(x):
    for _ in range(4):
        x = block(x)
    return x


# --- results --------------------------------------------------------------------------------------


def counting():
    """A function and the list of its traces."""
    traces = []

    def fun(x):
        traces.append(jax.typeof(x))
        return net(x)

    return fun, traces


def test_program_is_structured_and_its_result_that_of_jit():
    fun = outermost(net)
    assert_same(fun(X), jax.jit(net)(X))
    assert tagged_calls(fun.lower(X).as_text()) == 4


def test_program_whose_repeats_are_not_used_is_lowered_as_it_was_written():
    def fun(weights, x):
        for w in weights:
            # The search for repeats takes the second product for the first.
            x = jnp.sin(x @ w) * jnp.cos(w) + jnp.tanh(x @ w) * jnp.exp(w)
        return x

    args = [jnp.ones((4, 4))] * 6, jnp.ones((4, 4))
    structured = jitscope.outermost_jit(fun)
    assert structured.lower(*args).as_text() == jax.jit(fun).lower(*args).as_text()
    assert any(body.outlined for body in structured.reuse().census.bodies)


def test_gradient_of_unrolled_element_wise_steps_keeps_both_passes():
    # Residuals are most of what crosses a step. Flat, XLA takes 12 s for 16 steps.
    def step(y, weights):
        def field(y):
            return jnp.sin(y) * weights[0] - weights[1] * y

        k1 = field(y)
        k2 = field(y + 0.05 * k1)
        k3 = field(y + 0.05 * k2)
        k4 = field(y + 0.1 * k3)
        return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def loss(weights, y):
        for _ in range(6):
            y = step(y, weights)
        return (y**2).sum()

    args = jnp.array([1.5, 0.2]), jnp.linspace(0.0, 1.0, 5)
    fun = jitscope.outermost_jit(jax.grad(loss))
    np.testing.assert_allclose(fun(*args), jax.jit(jax.grad(loss))(*args), rtol=1e-5)
    bodies = fun.reuse().report().programs[0].bodies
    assert {body.is_backward for body in bodies if body.is_shared} == {False, True}


def test_function_is_traced_once_for_a_signature():
    fun, traces = counting()
    structured = outermost(fun)
    for _ in range(3):
        structured(X)
    assert len(traces) == 1


def test_new_shapes_and_types_are_traced_anew():
    fun, traces = counting()
    structured = outermost(fun)
    for x in (X, X[:3], X.astype(np.float16), np.float32(1), 1.0):
        assert_same(structured(x), jax.jit(net)(x))
    assert len(traces) == 5
    assert structured.reuse().census.bodies[0].n_uses == 4


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lambda: jnp.arange(3.0), ()),
        (lambda: None, ()),
        (lambda: (), ()),
        (lambda x: None, (X,)),
        (lambda x: {"a": (x, None), "b": []}, (X,)),
        (lambda x: x, (X,)),
        (lambda x: 2, (X,)),
        (lambda x, y: (y, x, y), (X, X[:2])),
        (lambda x: net(x), (X[:0],)),
        (lambda x: x.reshape(0, 3), (X[:0],)),
        (lambda x, y: x, (X, {"unused": [X, X]})),
        (lambda *args, **kwargs: (args, kwargs), (X, 1, 2.0)),
        (lambda key: jax.random.normal(key, (3,)), (jax.random.key(0),)),
        (lambda x: x + 1, (np.int8(3),)),
        (lambda x: ~x, (True,)),
        (lambda x: x * 1j, (X,)),
    ],
)
def test_unusual_signatures(fun, args):
    assert_same(outermost(fun)(*args), jax.jit(fun)(*args))


@pytest.mark.parametrize("x", [1, 1.0, 1j, True, np.float32(1), np.int32(1)])
def test_weak_types_are_kept(x):
    def fun(x):
        return x + x, x * 1.0, 2 * x, 3

    assert_same(outermost(fun)(x), jax.jit(fun)(x))


def test_double_precision():
    with jax.enable_x64(True):
        x = np.linspace(0, 1, 5)
        result = outermost(net)(x)
        assert result.dtype == np.float64
        assert_same(result, jax.jit(net)(x))


def test_keyword_arguments_in_any_order():
    def fun(x, *, b, a=2.0):
        return x * a - b

    structured, plain = outermost(fun), jax.jit(fun)
    for kwargs in ({"b": X}, {"b": X, "a": X}, {"a": X, "b": 2 * X}):
        assert_same(structured(X, **kwargs), plain(X, **kwargs))


def test_arguments_may_be_one_array_twice():
    assert_same(outermost(lambda x, y: x - 2 * y)(X, X), jnp.asarray(-X))


def test_refs_as_arguments_are_written_to():
    def fun(ref, x):
        ref[...] = ref[...] + net(x)
        return x

    ref = jax.new_ref(jnp.asarray(X))
    outermost(fun)(ref, X)
    np.testing.assert_allclose(ref[...], X + net(X), rtol=1e-6)


def test_refs_made_inside_are_written_to():
    def fun(x):
        ref = jax.new_ref(x)
        for _ in range(3):
            ref[...] = block(ref[...])
        return ref[...]

    assert_same(outermost(fun)(X), jax.jit(fun)(X))


# --- options of jax.jit ---------------------------------------------------------------------------


def power(x, n, scale=1.0):
    for _ in range(n):
        x = block(x) * scale
    return x


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1},
        {"static_argnums": (1,)},
        {"static_argnums": -2},
        {"static_argnames": "n"},
        {"static_argnames": ("n", "scale")},
        {"static_argnums": (1, 2)},
    ],
)
def test_static_arguments(options):
    structured, plain = outermost(power, **options), jax.jit(power, **options)
    for n in (2, 3):
        assert_same(structured(X, n, 2.0), plain(X, n, 2.0))
        assert structured.reuse().census.bodies[0].n_uses == n


def test_static_argument_given_by_name():
    structured = outermost(power, static_argnames="n")
    assert_same(structured(X, n=3), jax.jit(power, static_argnames="n")(X, n=3))


def test_static_argument_that_is_not_hashable_is_refused_as_by_jit():
    errors = []
    for decorator in (jax.jit, outermost):
        with pytest.raises(ValueError, match="[Nn]on-hashable") as caught:
            decorator(power, static_argnums=1)(X, [3])
        errors.append(type(caught.value))
    assert errors[0] is errors[1]


@pytest.mark.parametrize("options", [{"donate_argnums": 0}, {"donate_argnames": "x"}])
def test_donated_buffers_are_given_up(options):
    x = jnp.asarray(X)
    outermost(net, **options)(x)
    assert x.is_deleted()


def test_buffers_that_are_not_donated_stay():
    x, y = jnp.asarray(X), jnp.asarray(X)
    outermost(lambda x, y: net(x) + y, donate_argnums=1)(x, y)
    assert not x.is_deleted()


def mesh():
    return jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))


def test_shardings_of_arguments_and_results():
    split = NamedSharding(mesh(), PartitionSpec("i"))
    whole = NamedSharding(mesh(), PartitionSpec())
    options = {"in_shardings": (split,), "out_shardings": (whole, split)}

    def fun(x):
        return net(x), net(2 * x)

    result, expected = outermost(fun, **options)(X), jax.jit(fun, **options)(X)
    assert_same(result, expected)
    assert [r.sharding for r in result] == [e.sharding for e in expected] == [whole, split]


def test_unused_arguments_are_dropped_or_kept():
    for keep, n in ((False, 1), (True, 2)):
        text = outermost(lambda x, y: net(x), keep_unused=keep).lower(X, X).as_text()
        assert len(re.findall(r"%arg\d+: ", re.search(r"@main\((.*)", text)[1])) == n


def test_compiler_options_reach_xla():
    options = {"xla_backend_optimization_level": 0}
    assert_same(outermost(net, compiler_options=options)(X), jax.jit(net)(X))
    with pytest.raises(Exception, match="xla_no_such_option"):
        outermost(net, compiler_options={"xla_no_such_option": True})(X)


def test_inline_is_passed_on():
    inline = jax.Inline.JAX_EARLY if _jax.HAS_INLINE_ENUM else True
    inner = outermost(net, inline=inline)
    jaxpr = jax.make_jaxpr(lambda x: inner(x))(X)
    calls = [e for e in _jax.equations(jaxpr) if e.params.get("name") == "net"]
    assert calls == []


@pytest.mark.parametrize("option", ["device", "backend"])
def test_deprecated_option_warns_once_at_the_users_line(option):
    value = jax.devices()[1] if option == "device" else "cpu"
    for decorate in (
        lambda: outermost(net, **{option: value}),
        lambda: jitscope.outermost_jit(**{option: value})(net),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            structured = decorate()
        assert [w.category for w in caught] == [DeprecationWarning]
        assert option in str(caught[0].message)
        assert caught[0].filename == __file__
        assert_same(structured(X), jax.jit(net)(X))
    if option == "device":
        assert structured(X).devices() == {value}


def test_unknown_option_is_refused_with_those_there_are():
    with pytest.raises(TypeError, match=r"static_argnum\b.*static_argnums"):
        outermost(net, static_argnum=1)


@pytest.mark.parametrize("fun", [3, "net", [net]])
def test_what_is_not_callable_is_refused(fun):
    with pytest.raises(TypeError):
        outermost(fun)


def test_policy_that_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="policy must be callable"):
        jitscope.outermost_jit(net, policy="share")


# --- methods of a jax.jit function ----------------------------------------------------------------


def test_lower_compile_and_call():
    compiled = outermost(net).lower(X).compile()
    assert_same(compiled(X), jax.jit(net)(X))


def test_lower_takes_shapes():
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    assert outermost(net).lower(shape).as_text() == outermost(net).lower(X).as_text()


def test_trace_and_eval_shape():
    fun = outermost(net)
    assert fun.trace(X).out_info == jax.jit(net).trace(X).out_info
    assert fun.eval_shape(X) == jax.eval_shape(net, X)


def test_clear_cache_makes_it_trace_again():
    fun, traces = counting()
    structured = outermost(fun)
    structured(X)
    structured.clear_cache()
    structured(X)
    assert len(traces) == 2


def test_names_documentation_and_signature_are_those_of_the_function():
    def documented(x, n: int = 2):
        """Does it."""
        return x * n

    structured = outermost(documented)
    assert structured.__name__ == "documented"
    assert structured.__doc__ == "Does it."
    assert structured.__wrapped__ is documented
    assert inspect.signature(structured) == inspect.signature(documented)
    assert "documented" in repr(structured)


def named(x, y):
    return net(x) + y


class CallableObject:
    def __call__(self, x):
        return net(x)


@pytest.mark.parametrize(
    "fun",
    [named, functools.partial(named, y=2.0), CallableObject(), CallableObject().__call__],
    ids=["function", "partial", "object", "bound method"],
)
def test_program_is_named_as_by_jit(fun):
    args = (X, X) if fun is named else (X,)
    structured = outermost(fun)
    names = [
        re.search(r"module @(\S+)", f.lower(*args).as_text())[1] for f in (structured, jax.jit(fun))
    ]
    assert names[0] == names[1]
    assert structured.reuse().phases.seconds.lower_s > 0
    assert_same(structured(*args), jax.jit(fun)(*args))


def test_it_can_be_held_weakly_copied_and_collected():
    structured = outermost(lambda x: net(x))
    assert_same(copy.copy(structured)(X), jax.jit(net)(X))
    structured(X)
    reference = weakref.ref(structured)
    del structured
    jax.clear_caches()
    gc.collect()
    assert reference() is None


# --- decorating -----------------------------------------------------------------------------------


def test_decorator_with_and_without_arguments():
    @jitscope.outermost_jit
    def bare(x):
        return net(x)

    @jitscope.outermost_jit(static_argnames="n")
    def with_options(x, n):
        return net(x) * n

    @jitscope.outermost_jit()
    def with_none(x):
        return net(x)

    assert all(isinstance(f, OutermostJit) for f in (bare, with_options, with_none))
    assert_same(bare(X), with_none(X))
    assert_same(with_options(X, n=2), jax.jit(lambda x: net(x) * 2)(X))


class Scaled:
    def __init__(self, k):
        self.k = k

    def __call__(self, model, x):
        return x * self.k


class Model:
    def __init__(self, scale):
        self.scale = scale

    @outermost
    def bare(self, x):
        return net(x) * self.scale

    @outermost(static_argnums=0)
    def static(self, x):
        return net(x) * self.scale

    @staticmethod
    @outermost
    def of_class(x):
        return net(x)

    @classmethod
    @outermost(static_argnums=0)
    def from_class(cls, x):
        return net(x)


jax.tree_util.register_pytree_node(
    Model, lambda m: ((m.scale,), None), lambda _, leaves: Model(*leaves)
)


@pytest.mark.parametrize("name", ["bare", "static"])
def test_methods(name):
    first, second = Model(2.0), Model(3.0)
    for model in (first, second, first):
        method = getattr(model, name)
        np.testing.assert_allclose(method(X), net(X) * model.scale, rtol=1e-6)
        assert method.lower(X).compile() is not None
        assert method.eval_shape(X).shape == X.shape
        assert method.reuse().census.bodies[0].n_uses == 4
        assert method.__name__ == name
        assert method.__self__ is model


@pytest.mark.parametrize(
    "callable_object",
    [functools.partial(lambda k, model, x: x * k, 3.0), Scaled(3.0)],
    ids=["partial", "object"],
)
def test_callable_object_as_a_method(callable_object):
    class Holder:
        scaled = outermost(callable_object, static_argnums=0)

    holder = Holder()
    np.testing.assert_array_equal(holder.scaled(X), 3 * X)


def test_bound_methods_are_equal_as_those_of_jit_are():
    first, second = Model(2.0), Model(2.0)
    assert first.bare == first.bare and hash(first.bare) == hash(first.bare)
    assert first.bare != second.bare and first.bare != first.static and first.bare != net


def test_static_and_class_methods():
    np.testing.assert_allclose(Model.of_class(X), net(X), rtol=1e-6)
    np.testing.assert_allclose(Model(1.0).of_class(X), net(X), rtol=1e-6)
    np.testing.assert_allclose(Model.from_class(X), net(X), rtol=1e-6)


# --- errors ---------------------------------------------------------------------------------------


def branching(x):
    if x.sum() > 0:
        return x
    return -x


def dividing(x):
    return x / (1 // 0)


def mismatched(x):
    return x @ jnp.ones((3, 3))


def returning(x):
    return object()


@pytest.mark.parametrize("fun", [branching, dividing, mismatched, returning])
def test_errors_are_those_of_jit_and_show_the_users_line(fun):
    seen = []
    for decorator in (jax.jit, outermost):
        with pytest.raises(Exception) as caught:
            decorator(fun)(X)
        frames = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
        seen.append((type(caught.value), str(caught.value), fun.__name__ in frames))
    (jit_type, jit_text, jit_line), (our_type, our_text, our_line) = seen
    assert our_type is jit_type
    assert our_line == jit_line
    # Addresses and traces differ; what went wrong does not.
    assert our_text.splitlines()[0] == jit_text.splitlines()[0]


@pytest.mark.parametrize("args", [(), (X, X)])
def test_wrong_number_of_arguments(args):
    with pytest.raises(TypeError, match="argument"):
        outermost(lambda x: x)(*args)


def test_argument_that_jax_cannot_take_is_named():
    errors = []
    for decorator in (jax.jit, outermost):
        with pytest.raises(TypeError) as caught:
            decorator(net)("text")
        errors.append(re.sub("0x[0-9a-f]+", "", str(caught.value)))
    assert errors[0] == errors[1]


def test_leaked_tracer_is_found_as_by_jit():
    leaked = []
    outermost(lambda x: leaked.append(x))(X)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        leaked[0] + 1


def test_function_that_failed_can_be_called_again():
    fails = [True]

    @outermost
    def fun(x):
        if fails.pop():
            raise KeyError("first time")
        return net(x)

    with pytest.raises(KeyError, match="first time"):
        fun(X)
    fails.append(False)
    assert_same(fun(X), jax.jit(net)(X))
    assert fun.reuse().census.n_calls == 4


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("is_enabled", [False, True])
def test_garbage_is_not_collected_during_a_trace_and_is_afterwards_as_before(staged, is_enabled):
    enabled = []

    def fun(x, fails):
        enabled.append(gc.isenabled())
        if fails:
            raise ValueError("the user's own")
        return x + 1

    function = jitscope.outermost_jit(fun, staged=staged, static_argnums=1)
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        assert function(X, False).shape == X.shape
        assert gc.isenabled() == is_enabled
        with pytest.raises(ValueError, match="the user's own"):
            function(X, True)
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert len(enabled) > 1 and not any(enabled)


@pytest.mark.parametrize("staged", [False, True])
def test_a_trace_runs_on_one_piece_of_stack(staged):
    def room():
        return max(frame.f_code.co_stacksize for frame, _ in traceback.walk_stack(None))

    found = []

    def fun(x):
        found.append(room())
        return x + 1

    jitscope.outermost_jit(fun, staged=staged)(X)
    # CPython makes a piece of the next power of two that holds the frame: a mebibyte for this one.
    assert found and all(slots * 8 > 1 << 19 for slots in found)


def test_recursion_without_end_is_the_users_error_on_one_piece_of_stack():
    def fun(x):
        return fun(x)

    with pytest.raises(RecursionError):
        jitscope.outermost_jit(fun)(X)


def test_an_error_leaves_other_outermost_functions_structured():
    with pytest.raises(ZeroDivisionError):
        outermost(dividing)(X)
    fun = outermost(net)
    fun(X)
    assert fun.reuse().census.n_calls == 4


# --- when structuring fails -----------------------------------------------------------------------


def failing(census):
    raise LookupError("no plan today")


def planless(census):
    return {"not": "a plan"}


@pytest.mark.parametrize(
    ("policy", "error", "text"),
    [(failing, LookupError, "no plan today"), (planless, TypeError, "must return a jitscope.Plan")],
)
def test_policy_that_fails_raises_where_strict(monkeypatch, policy, error, text):
    monkeypatch.setattr(settings, "_STRICT", True)
    with pytest.raises(error, match=text):
        jitscope.outermost_jit(net, policy=policy)(X)


@pytest.mark.parametrize("policy", [failing, planless])
def test_policy_that_fails_is_one_warning_and_the_right_result(monkeypatch, policy):
    monkeypatch.setattr(settings, "_STRICT", False)
    fun = jitscope.outermost_jit(net, policy=policy)
    with pytest.warns(RuntimeWarning, match="could not structure.*JITSCOPE_STRICT=1") as caught:
        result = fun(X)
    assert [warning.filename for warning in caught] == [__file__]
    assert_same(result, jax.jit(net)(X))
    assert_same(fun(2 * X), jax.jit(net)(2 * X))  # compiled: no warning again


STRICT_SCRIPT = """
import jax, jax.numpy as jnp, jitscope
def policy(census): raise LookupError("no plan today")
try:
    print(float(jitscope.outermost_jit(lambda x: x + 1, policy=policy)(jnp.float32(1))))
except LookupError as e:
    print("raised", e)
"""


@pytest.mark.parametrize(
    ("value", "printed"), [("1", "raised no plan today"), ("0", "2.0"), ("", "2.0")]
)
def test_strictness_is_read_from_the_environment(value, printed):
    out = run_python(["-W", "ignore", "-c", STRICT_SCRIPT], {"JITSCOPE_STRICT": value})
    assert out.strip() == printed


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), (" True", True), ("ON", True), ("off", False), ("", None)]
)
def test_variable_of_the_environment_is_yes_no_or_nothing(monkeypatch, value, expected):
    monkeypatch.setenv("JITSCOPE_DISABLE", value)
    for default in (True, False):
        found = settings.switch("JITSCOPE_DISABLE", default)
        assert found is (default if expected is None else expected)


@pytest.mark.parametrize("variable", ["DISABLE", "STRICT", "PROGRESS"])
def test_word_that_is_neither_yes_nor_no_is_an_error(variable):
    source = "import jitscope\ntry: jitscope.outermost_jit\nexcept ValueError as e: print(e)"
    out = run_python(["-c", source], {f"JITSCOPE_{variable}": "maybe"})
    assert f"JITSCOPE_{variable}='maybe'" in out and "1, true, yes, on, 0, false, no, off" in out


def test_reuse_before_any_program_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"traced no program.*\.lower\("):
        outermost(net).reuse()


def test_reuse_after_calls_that_left_no_record_says_why(monkeypatch):
    fun = outermost(net)
    with settings.disabled():
        fun(X)
    with pytest.raises(RuntimeError, match="was called, and has no record.*jitscope was disabled"):
        fun.reuse()
    fun(X)
    assert fun.reuse().census.n_equations

    def fails(census):
        raise KeyError("of the test")

    monkeypatch.setattr(settings, "_STRICT", False)
    fun = jitscope.outermost_jit(net, policy=fails)
    with pytest.warns(RuntimeWarning):
        fun(X)
    with pytest.raises(RuntimeError, match="was called.*could not structure.*KeyError.*of the te"):
        fun.reuse()


def test_reuse_is_that_of_the_latest_program():
    fun = outermost(power, static_argnums=1)
    fun(X, 2)
    fun.lower(X, 5)
    assert fun.reuse().census.bodies[0].n_uses == 5
    assert fun.reuse().n_shared_calls == 5


# --- inside others --------------------------------------------------------------------------------


def test_inside_another_it_steps_aside():
    inner = outermost(net)
    outer = outermost(lambda x: inner(inner(x)))
    assert_same(outer(X), jax.jit(lambda x: net(net(x)))(X))
    with pytest.raises(RuntimeError, match="no program"):
        inner.reuse()
    uses = {body.name: body.n_uses for body in outer.reuse().census.bodies}
    assert uses == {"net": 2, "block": 4}


def is_kept(fun):
    return tagged_calls(fun.lower(X).as_text()) > 0


def test_use_inside_another_does_not_poison_later_calls():
    fun, traces = counting()
    inner = outermost(fun)
    outermost(lambda x: inner(x) + 1)(X)
    assert_same(inner(X), jax.jit(net)(X))
    assert inner.reuse().census.n_calls == 4
    assert is_kept(inner)
    assert len(traces) == 2


def test_use_on_its_own_does_not_poison_later_use_inside_another():
    inner = outermost(net)
    inner(X)
    outer = outermost(lambda x: inner(x) + 1)
    outer(X)
    assert {body.name for body in outer.reuse().census.bodies} == {"net", "block"}


def test_use_inside_plain_jit_is_that_of_a_nested_jit():
    inner = outermost(net)

    def fun(x):
        return inner(x) + 1

    def plain(x):
        return jax.jit(net)(x) + 1

    texts = [jax.jit(f).lower(X).as_text() for f in (fun, plain)]
    assert texts[0].replace("jit_fun", "jit_plain") == texts[1]


def test_outermost_of_outermost_and_of_jit():
    for fun in (outermost(net), jax.jit(net)):
        structured = outermost(fun)
        assert_same(structured(X), jax.jit(net)(X))
        assert is_kept(structured)


def test_closure_over_tracers_of_a_trace_around():
    @jax.jit
    def outer(x, y):
        inner = outermost(lambda x: net(x) * y)
        return inner(x) + inner(2 * x)

    expected = net(X) * 2 * X + net(2 * X) * 2 * X
    np.testing.assert_allclose(outer(X, 2 * X), expected, rtol=1e-5)
    np.testing.assert_allclose(outermost(outer)(X, 2 * X), expected, rtol=1e-5)
    gradients = [jax.grad(lambda x, f=f: f(x, x).sum())(X) for f in (outer, outermost(outer))]
    np.testing.assert_allclose(*gradients, rtol=1e-5)


def loss(f):
    return lambda x: (f(x) ** 2).sum()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.grad(loss(f)),
        lambda f: jax.vmap(f),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
        lambda f: jax.hessian(loss(f)),
        lambda f: jax.grad(jax.checkpoint(loss(f))),
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, length=3)[0],
        lambda f: lambda x: lax.map(f, x),
        lambda f: lambda x: lax.cond(x[0] > 0, f, jnp.sin, x),
        lambda f: lambda x: jet.jet(f, (x,), ((x, x),)),
        lambda f: lambda x: jax.linearize(f, x)[1](x),
        lambda f: lambda x: jax.eval_shape(f, x).shape,
    ],
    ids=[
        "grad", "vmap", "jvp", "hessian", "checkpoint", "scan", "map", "cond", "jet", "linearize",
        "eval_shape",
    ],
)  # fmt: skip
def test_under_transformations_it_is_a_jit(transform):
    fun = outermost(net)
    fun(X)
    assert_same(transform(fun)(X), transform(jax.jit(net))(X))


def test_checks_of_checkify_reach_into_it():
    log = jax.jit(lambda x: jnp.log(x) * 2)

    def fun(x):
        return log(log(log(x)))

    errors = [
        checkify.checkify(f, errors=checkify.float_checks)(np.float32(-1))[0].get()
        for f in (jax.jit(fun), outermost(fun))
    ]
    assert errors[0] == errors[1]
    assert "nan" in errors[1]


def test_sparse_arrays_pass_through_it():
    product = jax.jit(lambda m, x: m @ x)

    def fun(m, x):
        return product(m, product(m, x))

    matrix = sparse.BCOO.fromdense(jnp.eye(3) * 2)
    result = sparse.sparsify(outermost(fun))(matrix, jnp.ones(3))
    np.testing.assert_array_equal(result, np.full(3, 4.0))


# --- modes of JAX ---------------------------------------------------------------------------------


def test_disable_jit_runs_plain_python():
    seen = []

    @outermost
    def fun(x):
        seen.append(isinstance(x, jax.core.Tracer))
        return net(x) if x[0] < 1 else x

    with jax.disable_jit():
        np.testing.assert_allclose(fun(jnp.asarray(X)), net(X), rtol=1e-6)
    assert seen == [False]


def test_disabled_jitscope_leaves_jit():
    fun = outermost(net)
    with settings.disabled():
        assert_same(fun(X), jax.jit(net)(X))
        assert not is_kept(fun)
    assert is_kept(fun)


def test_no_tracers_leak():
    with jax.checking_leaks():
        fun = outermost(net)
        assert_same(fun(X), jax.jit(net)(X))

        @jax.jit
        def outer(y):
            return outermost(lambda x: net(x) + y)(y)

        np.testing.assert_allclose(outer(X), net(X) + X, rtol=1e-6)
        jax.grad(loss(fun))(X)


def test_internal_checks_of_jax_pass():
    with jax.enable_checks(True):
        fun = outermost(lambda x: lax.scan(lambda c, _: (net(c), c), x, length=2))
        assert_same(fun(X), fun.__wrapped__(X))
        jax.grad(lambda x: fun(x)[0].sum())(X)


def test_nans_are_found_as_by_jit():
    log = jax.jit(lambda x: jnp.log(x) * 2)
    with jax.debug_nans(True):
        for decorator in (jax.jit, outermost):
            with pytest.raises(FloatingPointError, match=r"nan.*log|invalid value \(nan\)"):
                decorator(lambda x: log(log(x)))(-X)


def test_side_effects_of_tracing_happen_once():
    fun, traces = counting()
    outermost(fun).lower(X).compile()
    assert len(traces) == 1


def test_pmap_takes_it():
    assert_same(jax.pmap(outermost(net))(X), jax.pmap(net)(X))


def test_one_function_on_one_device_then_sharded_then_on_one():
    fun, plain = outermost(net), jax.jit(net)
    sharded = jax.device_put(X, NamedSharding(mesh(), PartitionSpec("i")))
    for x in (jnp.asarray(X), sharded, jnp.asarray(X)):
        assert_same(fun(x), plain(x))
        assert fun(x).sharding == plain(x).sharding


def test_order_of_devices_is_kept():
    """Meshes over the same devices in another order print alike."""
    meshes = [
        jax.sharding.Mesh(np.array(devices), ("i",), axis_types=(AxisType.Auto,))
        for devices in (jax.devices(), jax.devices()[::-1])
    ]

    def constrained(mesh):
        sharding = NamedSharding(mesh, PartitionSpec("i"))
        return jax.jit(lambda x: lax.with_sharding_constraint(block(x), sharding))

    f, g = map(constrained, meshes)
    for fun in (f, g):
        structured = outermost(lambda x, fun=fun: fun(fun(x)))
        plain = jax.jit(lambda x, fun=fun: fun(fun(x)))
        assert structured(X).sharding == plain(X).sharding


def test_donated_and_fresh_arguments_in_a_loop():
    step = outermost(lambda state, x: {"w": net(state["w"]) + x}, donate_argnums=0)
    plain = jax.jit(lambda state, x: {"w": net(state["w"]) + x})
    state = {"w": jnp.asarray(X)}
    expected = fresh(state)
    for _ in range(3):
        state, expected = step(state, X), plain(expected, X)
    assert_same(state, expected)


def test_outermost_function_of_constants_is_compiled_on_its_own_while_another_is_traced():
    @jitscope.outermost_jit
    def table(n):
        for _ in range(6):
            n = jnp.sin(n) * 2 + jnp.cos(n)
        return n

    @jitscope.outermost_jit
    def outer(x):
        with jax.ensure_compile_time_eval():
            constants = table(jnp.ones(3))
            assert not isinstance(constants, jax.core.Tracer)
        return x * constants

    np.testing.assert_allclose(outer(jnp.full(3, 2.0)), 2 * table(jnp.ones(3)), rtol=1e-6)
    assert table.reuse().census.program == "table"
    assert outer.reuse().census.program == "outer"


@jax.custom_vjp
def product(x, w):
    return jnp.tanh(x @ w)


product.defvjp(lambda x, w: (product(x, w), None), lambda _, ct: (ct, ct))


def layer_with_a_product_that_is_not_differentiated(x, w):
    y = product(x, w)
    return jnp.sin(x) + lax.stop_gradient(y) @ w, y


@pytest.mark.parametrize("wrap", [jitscope.shared_subroutine, jax.jit])
@pytest.mark.parametrize(
    "options", [{}, {"staged": True}, {"policy": jitscope.Policy(**EAGER_LIMITS)}]
)
def test_tangents_without_a_rule_are_no_error_where_nobody_reads_them(wrap, options):
    layer = wrap(layer_with_a_product_that_is_not_differentiated)

    def net(x, w):
        for _ in range(24):
            x, y = layer(x, w)
        return x, y

    def tangent(i):
        return lambda x: jax.jvp(lambda x: net(x, x), (x,), (x,))[1][i]

    x = np.full((4, 4), 0.1, "f4")
    assert_same(jitscope.outermost_jit(tangent(0), **options)(x), jax.jit(tangent(0))(x))
    for jitted in (jax.jit(tangent(1)), jitscope.outermost_jit(tangent(1), **options)):
        with pytest.raises(TypeError, match="can't apply forward-mode autodiff"):
            jitted(x)


# --- what a first use imports ---------------------------------------------------------------------

FIRST_USE = """
import sys
import jax.numpy as jnp
import jitscope

step = jitscope.outermost_jit(lambda x: jnp.sin(x) + 1)
step(jnp.ones(3))
print(*(name for name in sys.modules if name.startswith("jitscope.")))
print(step.reuse())
print(*(name for name in sys.modules if name.startswith("jitscope.")))
"""


def test_first_call_imports_nothing_that_few_programs_need():
    called, *_, asked = run_python(["-c", FIRST_USE]).strip().split("\n")
    called, asked = set(called.split()), set(asked.split())
    assert {"jitscope.outermost.pipeline", "jitscope.reuse.reuse"} <= called
    rare = (
        "auditing",
        "hlo",
        "report",
        "reuse.programs",
        "reuse.reuse_report",
        "rolled",
        "running",
    )
    for name in (*rare, "staged"):
        assert f"jitscope.{name}" not in called
    assert {"jitscope.reuse.reuse_report", "jitscope.report.text"} <= asked

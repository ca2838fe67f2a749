import asyncio
import collections
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import pickle
import threading
import traceback
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jitscope import _jax
from jitscope.names import SubroutineName
from jitscope.settings import disabled
from jitscope.subroutine.cores import registry
from jitscope.subroutine.decorator import shared_subroutine
from jitscope.subroutine.shared import SharedSubroutine


class Runs:
    """How often Python code ran."""

    n = 0

    def __call__(self):
        self.n += 1

    def __len__(self):
        return self.n


def counted(fun):
    """The function, and how often its Python code ran."""
    runs = Runs()

    @functools.wraps(fun)
    def counting(*args, **kwargs):
        runs()
        return fun(*args, **kwargs)

    counting.__signature__ = inspect.signature(fun)
    del counting.__wrapped__
    return counting, runs


def jit_equations(jaxpr, name):
    """Every nested jit equation of that name, in programs nested at any depth."""
    for eqn in _jax.equations(jaxpr):
        if eqn.primitive is _jax.jit_p and eqn.params["name"] == name:
            yield eqn
        for sub in _jax.sub_jaxprs(eqn):
            yield from jit_equations(sub, name)


def layer(w, x):
    return jnp.tanh(x @ w)


WEIGHTS = [jnp.eye(3) * (i + 1) / 12 for i in range(12)]
X = jnp.linspace(0.0, 1.0, 6).reshape(2, 3)

TRANSFORMS = {
    "jit": lambda f: jax.jit(f),
    "grad": lambda f: jax.grad(lambda ws, x: f(ws, x).sum()),
    "value_and_grad": lambda f: jax.value_and_grad(lambda ws, x: (f(ws, x).sum(), x), has_aux=True),
    "vmap": lambda f: jax.vmap(f, in_axes=(None, 0)),
    "jvp": lambda f: lambda ws, x: jax.jvp(lambda y: f(ws, y), (x,), (x,)),
    "linearize": lambda f: lambda ws, x: jax.linearize(lambda y: f(ws, y), x)[1](x),
    "hessian": lambda f: lambda ws, x: jax.hessian(lambda y: f(ws, y).sum())(x),
    "checkpoint": lambda f: jax.grad(lambda ws, x: jax.checkpoint(f)(ws, x).sum()),
    "scan": lambda f: lambda ws, x: jax.lax.scan(lambda c, _: (f(ws, c), None), x, None, 2)[0],
    "while": lambda f: lambda ws, x: jax.lax.fori_loop(0, jnp.int32(2), lambda i, c: f(ws, c), x),
    "cond": lambda f: lambda ws, x: jax.lax.cond(x.sum() > 0, lambda: f(ws, x), lambda: x),
}


# --- tracing once ----------------------------------------------------------------------------


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_body_is_traced_once_for_twelve_calls_under_every_transformation(transform):
    fun, runs = counted(layer)
    block = shared_subroutine(fun)

    def model(ws, x, block=block):
        for w in ws:
            x = block(w, x)
        return x

    def plain(ws, x):
        return model(ws, x, layer)

    transformed = TRANSFORMS[transform]
    for outer in (lambda f: f, jax.jit):
        result = outer(transformed(model))(WEIGHTS, X)
        expected = outer(transformed(plain))(WEIGHTS, X)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), result, expected)
        same_types = jax.tree.map(lambda a, b: jax.typeof(a) == jax.typeof(b), result, expected)
        assert jax.tree.all(same_types)
    # vmap over rows of x is another signature inside JAX only: the body sees unbatched types.
    assert len(runs) == 1


def test_twelve_calls_are_twelve_equations_of_one_body():
    block = shared_subroutine(layer)
    jaxpr = jax.make_jaxpr(lambda x: functools.reduce(lambda x, w: block(w, x), WEIGHTS, x))(X)
    calls = list(jit_equations(jaxpr, "layer"))
    assert len(calls) == 12
    assert len({id(eqn.params["jaxpr"]) for eqn in calls}) == 1


def test_trace_outside_any_trace_is_used_under_one():
    fun, runs = counted(layer)
    block = shared_subroutine(fun)
    block(WEIGHTS[0], X)
    jax.jit(lambda x: block(WEIGHTS[1], x))(X)
    assert len(runs) == 1


def test_checkpoint_and_jit_in_any_order_trace_the_body_once():  # jax#9661
    fun, runs = counted(layer)
    block = shared_subroutine(fun)
    checkpointed = jax.checkpoint(block)
    for f in (block, checkpointed, jax.jit(checkpointed), jax.checkpoint(jax.jit(block))):
        jax.grad(lambda x, f=f: f(WEIGHTS[0], f(WEIGHTS[1], x)).sum())(X)
    assert len(runs) == 1


def test_custom_derivatives_inside_are_used():
    @jax.custom_vjp
    def halved(x):
        return x

    halved.defvjp(lambda x: (x, None), lambda _, g: (g / 2,))
    assert jax.grad(shared_subroutine(lambda x: halved(x)))(3.0) == 0.5


def test_custom_vjp_around_a_method_does_not_leak():  # jax#2884
    class Model:
        @shared_subroutine
        def block(self, x):
            return jnp.sin(x).sum()

        def loss(self, x):
            @jax.custom_vjp
            def loss(x):
                return self.block(x)

            loss.defvjp(lambda x: (self.block(x), x), lambda x, g: (g * 7.0 * x,))
            return loss(x)

    np.testing.assert_allclose(jax.jit(jax.grad(Model().loss))(X[0]), 7.0 * X[0], rtol=1e-6)


def test_collectives_and_axis_names_work_inside():  # jax#34801
    block = shared_subroutine(lambda x: jax.lax.psum(x, "i") * 2)
    out = jax.vmap(lambda x: block(block(x)), axis_name="i")(jnp.arange(4.0))
    np.testing.assert_allclose(out, [96.0] * 4)
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    mapped = jax.shard_map(
        lambda x: block(block(x)), mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec()
    )
    np.testing.assert_allclose(jax.jit(mapped)(jnp.arange(4.0)), [96.0])


# --- arguments and results ----------------------------------------------------------------


def test_positional_keyword_and_default_spellings_share_a_trace():  # jax#523
    fun, runs = counted(lambda x, n=1, *, scale=2.0: x * scale + n)
    block = shared_subroutine(fun)

    @jax.jit
    def model(x):
        return block(block(block(block(x), 1), n=1, scale=2.0), scale=2.0, n=1)

    np.testing.assert_allclose(model(X), ((X * 2 + 1) * 2 + 1) * 4 + 3)
    assert len(runs) == 1


def test_default_that_code_depends_on_keeps_working():
    block = shared_subroutine(lambda x, axis=-1, shape=(2, 3): x.reshape(shape).sum(axis))
    np.testing.assert_allclose(jax.jit(block)(X.ravel()), X.sum(-1))
    np.testing.assert_allclose(block(X.ravel(), -1), X.sum(-1))


def test_array_defaults_of_functions_made_in_a_loop_share_a_trace():
    runs = Runs()

    @jax.jit
    def model(x, ws):
        for w in ws:

            @shared_subroutine
            def body(x, w=w):
                runs()
                return x @ w

            x = body(x)
        return x

    np.testing.assert_allclose(model(X, [jnp.eye(3)] * 4), X)
    assert len(runs) == 1


def test_one_true_and_float_one_are_different_signatures():  # jax#3701
    block = shared_subroutine(lambda x, tag: x * len(repr(tag)), static_argnames="tag")
    got = [float(block(1.0, tag)) for tag in (1, 1.0, True, 0.0, -0.0, 1)]
    assert got == [1.0, 3.0, 4.0, 3.0, 4.0, 1.0]
    assert block.stats().n_traces == 5


class Act(enum.Enum):
    TANH = "tanh"
    SIN = "sin"


def test_strings_enums_callables_and_hashable_objects_are_static_by_themselves():
    @dataclasses.dataclass(frozen=True)
    class Config:
        power: int

    fun, runs = counted(
        lambda x, act, f, cfg, tree: getattr(jnp, act.value)(f(x)) ** cfg.power + len(tree["s"])
    )
    block = shared_subroutine(fun)
    for _ in range(3):
        out = jax.jit(lambda x: block(x, Act.SIN, jnp.cos, Config(2), {"s": "abc", "n": None}))(X)
    np.testing.assert_allclose(out, jnp.sin(jnp.cos(X)) ** 2 + 3, rtol=1e-6)
    assert len(runs) == 1
    block(X, Act.TANH, jnp.cos, Config(2), {"s": "abc", "n": None})
    assert len(runs) == 2


def test_equal_lambdas_as_arguments_share_a_trace():
    fun, runs = counted(lambda x, f: f(x))
    block = shared_subroutine(fun)

    @jax.jit
    def model(x, y):
        for scale in (2, 2, 3):
            x = block(x, lambda v, scale=scale: v * scale)
            x = block(x, lambda v: v + y)  # captures a tracer
        return x

    np.testing.assert_allclose(model(X, 1.0), ((X * 2 + 1) * 2 + 1) * 3 + 1, rtol=1e-6)
    assert len(runs) == 3
    np.testing.assert_allclose(model(X[:1], 2.0), ((X[:1] * 2 + 2) * 2 + 2) * 3 + 2, rtol=1e-6)


def test_unhashable_static_leaf_is_an_error_that_names_the_path_and_the_cure():  # jax#3701
    block = shared_subroutine(lambda x, config: x, name="encoder")
    with pytest.raises(TypeError) as error:
        block(X, config={"rates": {1, 2}, "ok": "yes"})
    for part in ("config['rates']", "a set", "'encoder'", "hashable", "frozenset"):
        assert part in str(error.value)
    declared = shared_subroutine(lambda x, sizes: x, static_argnames="sizes")
    with pytest.raises(TypeError, match=r"sizes \(a list\).*tuple for a list"):
        declared(X, [1, 2])


@pytest.mark.parametrize("under_jit", [False, True])
def test_results_that_are_not_arrays_come_back_as_they_are(under_jit):  # jax#14666
    sentinel = object()
    table = np.arange(3)

    @shared_subroutine
    def block(x):
        return {
            "y": x * 2,
            "n": x.shape[0],
            "s": "label",
            "none": None,
            "f": jnp.sin,
            "o": sentinel,
            "t": table,
            "g": np.float32(1.5),
            "flag": True,
        }

    def model(x):
        for _ in range(2):
            out = block(x)
            assert type(out["n"]) is int and out["n"] == 2
            assert (out["s"], out["none"], out["flag"]) == ("label", None, True)
            assert out["f"] is jnp.sin and out["o"] is sentinel
            assert type(out["t"]) is np.ndarray and type(out["g"]) is np.float32
            out["t"][:] = -1  # one caller's writes are not seen by the next
            x = out["y"].reshape(out["n"], -1)
        return x

    np.testing.assert_allclose((jax.jit(model) if under_jit else model)(X), X * 4)
    assert table.tolist() == [0, 1, 2]


def test_callable_result_that_holds_inner_values_makes_the_call_plain():
    @shared_subroutine
    def make(x):
        y = x + 1
        return lambda z: z * y

    expected = X * (X + 1) * (X + 1)
    np.testing.assert_allclose(jax.jit(lambda x: make(x)(make(x)(x)))(X), expected)
    np.testing.assert_allclose(make(X)(X), X * (X + 1))
    [(reason, n)] = make.stats().plain_calls.items()
    assert n == 3 and "holds values of the call it comes from" in reason


def test_writes_to_arguments_reach_the_caller():
    @shared_subroutine
    def block(state, log, x):
        state["x"] = jnp.sin(state["x"]) * x
        log.append(state["x"])

    def net(x):
        state, log = {"x": x}, [x]
        for _ in range(3):
            block(state, log, x)
        return state["x"], log

    want = net(X)
    for compiled in (jax.jit(net), net, jax.jit(jax.vmap(net))):
        jax.tree.map(np.testing.assert_allclose, compiled(X), want)
    [(reason, _)] = block.stats().plain_calls.items()
    assert reason.startswith("it writes to its arguments state, log; return the new value")


def test_argument_that_is_taken_apart_or_made_anew_is_not_written_to():
    class Lazy:
        """A pytree with other leaves whenever it is flattened."""

        def __init__(self, x):
            self.x = x

    jax.tree_util.register_pytree_node(
        Lazy, lambda lazy: ((lazy.x * 1,), None), lambda _, leaves: Lazy(*leaves)
    )

    @shared_subroutine
    def block(lazy, state):
        state = {**state, "x": state["x"] + lazy.x}
        state["y"] = state["x"]
        return state

    got = jax.jit(lambda x: block(Lazy(x), block(Lazy(x), {"x": x, "y": x})))(X)
    np.testing.assert_allclose(got["y"], 3 * X)
    assert block.stats().plain_calls == {} and block.stats().n_reused == 1


def test_no_arguments_and_no_results_are_fine():
    runs = Runs()

    @shared_subroutine
    def block():
        runs()
        return ()

    assert jax.jit(lambda: (block(), block()))() == ((), ())
    assert len(runs) == 1


def test_unusual_dtypes_and_keys_pass_through():
    args = (
        jnp.ones(2, jnp.bfloat16),
        jnp.ones(2, jnp.int8),
        jnp.ones((0, 3)),
        jnp.array(True),
        jnp.array(1j),
        jax.random.key(0),
        2**20,
        np.float16(1),
    )
    fun = lambda *xs: xs
    got = jax.jit(shared_subroutine(fun))(*args)
    expected = jax.jit(fun)(*args)
    assert [jax.typeof(a) for a in got] == [jax.typeof(a) for a in expected]


def test_dataclass_and_namedtuple_pytrees_are_operands():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Params:
        w: jax.Array
        act: str = dataclasses.field(metadata=dict(static=True), default="tanh")

    Pair = collections.namedtuple("Pair", "a b")
    fun, runs = counted(lambda p, q: Pair(getattr(jnp, p.act)(p.w), q.b))
    block = shared_subroutine(fun)
    out = jax.jit(lambda w: block(Params(w), block(Params(w + 1), Pair(w, w))))(X)
    assert isinstance(out, Pair)
    np.testing.assert_allclose(out.a, jnp.tanh(X), rtol=1e-6)
    assert len(runs) == 1


def test_objects_with_jax_array_are_traced():
    class Wrapped:
        def __jax_array__(self):
            return X

    block = shared_subroutine(lambda x: jnp.asarray(x) * 2)
    np.testing.assert_allclose(jax.jit(lambda: block(block(Wrapped())))(), X * 4)
    assert block.stats().n_traces == 1


def test_static_argnums_count_like_those_of_jit():
    block = shared_subroutine(lambda x, n, m: x.reshape(n, m), static_argnums=(1, -1))
    assert block(X, 3, 2).shape == (3, 2)
    with pytest.raises(ValueError, match="no argument number 3.*3 positional"):
        shared_subroutine(lambda x, n, m: x, static_argnums=3)
    with pytest.raises(ValueError, match="no argument size; the arguments are n, x"):
        shared_subroutine(lambda x, n: x, static_argnames="size")


def test_arguments_that_do_not_fit_raise_pythons_own_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        shared_subroutine(layer)(X)


# --- closures ---------------------------------------------------------------------------------


def test_fresh_functions_partials_and_bound_methods_are_traced_once_each():  # jax#19570, zorch#166
    runs = Runs(), Runs(), Runs(), Runs()

    def scaled(factor, x):
        runs[0]()
        return x * factor

    class Layer:
        def apply(self, x):
            runs[1]()
            return x + 1

    made = Layer()

    @jax.jit
    def model(x):
        for _ in range(12):

            def step(x, k=2):
                runs[2]()
                return x * k

            x = shared_subroutine(step)(x)
            x = shared_subroutine(lambda x: (x / 4, runs[3]())[0])(x)
            x = shared_subroutine(functools.partial(scaled, 2.0))(x)
            x = shared_subroutine(made.apply)(x)
        return x

    np.testing.assert_allclose(model(X), X + 12, rtol=1e-6)
    assert list(map(len, runs)) == [1, 1, 1, 1]


def test_log_that_the_function_itself_writes_to_does_not_retrace_it():
    log = []
    block = shared_subroutine(lambda x: (x * 2, log.append("ran"))[0])
    jax.jit(lambda x: block(block(block(x))))(X)
    block(X), block(X)
    assert log == ["ran"]


def test_own_writes_do_not_take_the_place_of_what_is_known():
    loud = False

    @shared_subroutine
    def block(x):
        nonlocal loud
        was, loud = loud, False
        return x if was else 2 * x

    assert float(block(1.0)) == 2.0
    loud = True
    assert float(block(1.0)) == 1.0
    assert not loud
    assert float(block(1.0)) == 2.0


def test_closures_are_told_apart_by_what_they_captured():
    def body(k):
        return shared_subroutine(lambda x: x * k)

    ks = [2, 2.0, True, jnp.float32(3), jnp.float32(3), (1, 2), (1, 2.0)]
    outs = [body(k)(X) for k in ks[:5]]
    for out, k in zip(outs, ks, strict=False):
        np.testing.assert_allclose(out, X * k)
    lengths = [shared_subroutine(lambda x, k=k: x * len(repr(k)))(1.0) for k in ks[5:]]
    assert [float(n) for n in lengths] == [6.0, 8.0]


def test_cells_are_read_anew_at_every_call():
    scale = 2.0

    @shared_subroutine
    def block(x):
        return x * scale

    results = []
    for scale in (2.0, 3.0, 2.0):  # noqa: B007
        results.append(float(block(1.0)))
    assert results == [2.0, 3.0, 2.0]
    assert block.stats().n_traces == 2


def test_dispatch_sees_a_changed_cell_and_a_changed_list():
    k, ks = jnp.float32(2.0), [1.0]
    one = jnp.float32(1.0)
    block = shared_subroutine(lambda x: x * k)
    listed = shared_subroutine(lambda x: x * ks[0])
    assert [float(block(one)), float(block(one))] == [2.0, 2.0]
    assert [float(listed(one)), float(listed(one))] == [1.0, 1.0]
    k, ks[0] = jnp.float32(5.0), 7.0
    assert [float(block(one)), float(block(one))] == [5.0, 5.0]
    assert [float(listed(one)), float(listed(one))] == [7.0, 7.0]


def test_new_shape_on_the_fast_path_of_a_closure_is_traced_with_its_captures():
    k = 3.0
    block = shared_subroutine(lambda x: x * k)
    for n in (1, 1, 2, 3, 1):
        np.testing.assert_allclose(block(jnp.ones(n)), 3.0 * np.ones(n))


def test_captured_tracer_is_traced_once_per_trace_and_never_across_traces():  # jax#38460
    runs = Runs()

    def forward(x, mask):
        @shared_subroutine
        def block(x):
            runs()
            return x * mask

        for _ in range(12):
            x = block(x)
        return x.sum()

    f = jax.jit(jax.grad(forward))
    np.testing.assert_allclose(f(X, 2 * jnp.ones(3)), np.full((2, 3), 2.0**12))
    assert len(runs) == 1
    g = jax.jit(lambda x, m: jax.grad(forward)(x, m) + 1)
    np.testing.assert_allclose(g(X, 3 * jnp.ones(3)), np.full((2, 3), 3.0**12 + 1))
    assert len(runs) == 2


def test_one_wrapper_whose_cell_holds_another_tracer_in_each_trace():
    mask = None

    @shared_subroutine
    def block(x):
        return x * mask

    def forward(x, m):
        nonlocal mask
        mask = m
        return block(block(x))

    for f in (jax.jit(forward), jax.jit(lambda x, m: forward(x, m) + 0), forward):
        np.testing.assert_allclose(f(X, jnp.float32(2)), X * 4)
    np.testing.assert_allclose(jax.grad(lambda m: forward(1.0, m))(3.0), 6.0)
    np.testing.assert_allclose(jax.vmap(forward, (None, 0))(1.0, jnp.arange(3.0)), [0.0, 1.0, 4.0])


def test_tracer_hidden_in_an_object_is_never_reused():  # jax#38460
    holder = type("Holder", (), {})()

    @shared_subroutine
    def block(x):
        return x * holder.mask

    def forward(x, mask):
        holder.mask = mask
        y = block(x)
        holder.mask = mask + 1
        return block(y)

    np.testing.assert_allclose(jax.jit(forward)(X, 2.0), X * 6)
    np.testing.assert_allclose(jax.jit(lambda x, m: forward(x, m))(X, 3.0), X * 12)
    holder.mask = 5.0
    np.testing.assert_allclose(block(X), X * 5)
    assert "hidden in an object or a global" in " ".join(block.stats().retrace_reasons)


@pytest.mark.parametrize("differentiated", [False, True])
def test_large_captured_array_is_one_operand_and_not_copied_per_call_site(differentiated):
    big = jnp.asarray(np.random.RandomState(0).randn(512, 512).astype("f4") / 40)
    block = shared_subroutine(lambda x: jnp.tanh(x @ big), name="big_block")

    def model(x, block=block):
        for _ in range(12):
            x = block(x)
        return x.sum()

    f = jax.grad(model) if differentiated else model
    x = jnp.ones((2, 512)) / 512
    jaxpr = jax.make_jaxpr(f)(x)
    calls = list(jit_equations(jaxpr, "big_block"))
    assert calls and all(not _jax.consts(eqn.params["jaxpr"]) for eqn in calls)
    assert (
        len({id(e.params["jaxpr"]) for e in jit_equations(jax.make_jaxpr(model)(x), "big_block")})
        == 1
    )
    text = jax.jit(f).lower(x).as_text()
    assert len(text) < 2.5 * big.nbytes  # as hexadecimal text, once
    plain = lambda x: model(x, lambda x: jnp.tanh(x @ big))
    expected = jax.grad(plain)(x) if differentiated else plain(x)
    np.testing.assert_allclose(jax.jit(f)(x), expected, rtol=1e-4, atol=1e-6)


def test_captured_array_may_be_used_by_value():
    k = jnp.int32(3)
    block = shared_subroutine(lambda x: x.reshape(int(k), -1))
    assert jax.jit(block)(X).shape == (3, 2)


def test_model_is_freed_once_its_subroutines_are_gone():
    class Layer:
        pass

    def use():
        made = Layer()
        block(X, made)
        jax.jit(lambda x: block(x, made))(X)
        return weakref.ref(made)

    block = shared_subroutine(lambda x, layer: x * 2)
    alive = use()
    gc.collect()
    assert alive() is None


# --- methods and callable objects ------------------------------------------------------------


class Scaler:
    """Neither hashable nor a pytree: a method's `self` by identity."""

    __hash__ = None

    def __init__(self, k):
        self.k, self.runs = k, []

    @shared_subroutine
    def apply(self, x):
        """Scales."""
        self.runs.append(x)
        return x * self.k

    @classmethod
    @shared_subroutine
    def of_class(cls, x):
        return x * len(cls.__name__)

    @staticmethod
    @shared_subroutine
    def of_none(x):
        return x * 10


def test_methods_bind_and_tell_instances_apart():  # jax#5595
    a, b = Scaler(2.0), Scaler(3.0)
    f = jax.jit(lambda x: a.apply(b.apply(a.apply(a.apply(x)))))
    np.testing.assert_allclose(f(X), X * 24)
    assert (len(a.runs), len(b.runs)) == (1, 1)
    np.testing.assert_allclose(Scaler.apply(a, X), X * 2)
    np.testing.assert_allclose(Scaler.of_class(X) + a.of_class(X), X * 12)
    np.testing.assert_allclose(Scaler.of_none(X) + a.of_none(X), X * 20)
    assert a.apply.__doc__ == "Scales." and a.apply.stats().n_traces == 2


def test_method_computes_with_the_attributes_that_its_object_has_now():
    scaler = Scaler(2.0)

    def net(x):
        x = scaler.apply(scaler.apply(x))
        scaler.k = 5.0
        x = scaler.apply(x)
        scaler.k = 2.0
        return scaler.apply(x)

    np.testing.assert_allclose(jax.jit(net)(X), X * 2 * 2 * 5 * 2)
    assert len(scaler.runs) == 2
    (reason,) = Scaler.apply.stats().retrace_reasons[-1:]
    assert "self.k: 5.0 against 2.0" in reason
    scaler.extra = 1
    scaler.apply(X)
    assert "self.extra: 1 against not set" in Scaler.apply.stats().retrace_reasons[-1]
    del scaler.extra
    scaler.k = 7.0
    np.testing.assert_allclose(jax.jit(lambda x: net(x))(X), X * 7 * 7 * 5 * 2)
    np.testing.assert_allclose(scaler.apply(X), X * 2)


class Gain:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k

    @shared_subroutine
    def of_slots(self, x):
        return x * self.k

    @functools.wraps(of_slots)
    def behind_another_decorator(self, *args):
        return Gain.of_slots(self, *args)


@shared_subroutine
def amplified(gain, x):
    return x * gain.k


@pytest.mark.parametrize(
    "apply",
    [
        lambda gain, x: gain.of_slots(x),
        lambda gain, x: Gain.of_slots(gain, x),
        lambda gain, x: gain.behind_another_decorator(x),
        amplified,
    ],
    ids=["method", "of the class", "decorated", "argument"],
)
def test_object_computes_with_what_it_holds_now_however_it_is_given(apply):
    gain = Gain(2.0)
    np.testing.assert_allclose(apply(gain, X), X * 2)
    gain.k = 3.0
    np.testing.assert_allclose(apply(gain, X), X * 3)
    np.testing.assert_allclose(jax.jit(lambda x: apply(gain, apply(gain, x)))(X), X * 9)
    del gain.k
    with pytest.raises(AttributeError, match="k"):
        apply(gain, X)


def test_object_that_is_equal_by_value_is_not_equal_to_what_it_was():
    @dataclasses.dataclass(unsafe_hash=True)
    class Settings:
        k: float

    block = shared_subroutine(lambda settings, x: x * settings.k)
    settings = Settings(2.0)
    np.testing.assert_allclose(block(settings, X), X * 2)
    settings.k = 3.0
    np.testing.assert_allclose(block(settings, X), X * 3)
    np.testing.assert_allclose(block(Settings(2.0), X), X * 2)


def test_method_that_changes_its_object_is_traced_for_each_state():
    class Counter:
        n = 0

        @shared_subroutine
        def add(self, x):
            self.n += 1
            return x + self.n

    net = jax.jit(lambda counter, x: counter.add(counter.add(counter.add(x))), static_argnums=0)
    np.testing.assert_allclose(net(Counter(), X), X + 1 + 2 + 3)


def test_self_that_is_a_pytree_is_an_operand():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Linear:
        w: jax.Array

        @shared_subroutine
        def __call__(self, x):
            return x @ self.w

    layers = [Linear(jnp.eye(3) * i) for i in range(1, 4)]
    loss = lambda layers, x: functools.reduce(lambda x, f: f(x), layers, x).sum()
    np.testing.assert_allclose(jax.jit(loss)(layers, X), 6 * X.sum(), rtol=1e-6)
    assert jax.grad(loss)(layers, X)[0].w.shape == (3, 3)
    assert Linear.__call__.stats().n_traces == 1


def test_pytree_objects_given_to_the_decorator_share_a_trace():
    runs = Runs()

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Linear:
        w: jax.Array

        def __call__(self, x):
            runs()
            return x @ self.w

        def twice(self, x):
            runs()
            return x @ self.w @ self.w

    @jax.jit
    def model(ws, x):
        for w in ws:
            x = shared_subroutine(Linear(w))(x)
            x = shared_subroutine(Linear(w).twice)(x)
        return x

    np.testing.assert_allclose(model([jnp.eye(3)] * 6, X), X)
    assert len(runs) == 2


def test_equinox_module_is_an_operand_as_self():
    eqx = pytest.importorskip("equinox")
    runs = Runs()

    class Linear(eqx.Module):
        w: jax.Array
        act: object = eqx.field(static=True, default=jnp.tanh)

        @shared_subroutine
        def __call__(self, x):
            runs()
            return self.act(x @ self.w)

        def twice(self, x):
            runs()
            return x @ self.w @ self.w

    @jax.jit
    def model(ws, x):
        for w in ws:
            x = Linear(w)(x)
            x = shared_subroutine(Linear(w).twice)(x)
        return x

    expected = X
    for _ in range(4):
        expected = jnp.tanh(expected)
    np.testing.assert_allclose(model([jnp.eye(3)] * 4, X), expected, rtol=1e-6)
    assert len(runs) == 2


def test_builtin_jitted_and_custom_derivative_callables_work():
    for fun in (jnp.sin, jax.jit(jnp.sin), jax.nn.relu, functools.partial(jnp.add, 1)):
        np.testing.assert_allclose(jax.jit(shared_subroutine(fun))(X), fun(X), rtol=1e-6)


# --- the wrapper --------------------------------------------------------------------------------


def test_wrapper_keeps_name_doc_signature_and_shows_itself():
    @shared_subroutine
    def block(w, x, *, n: int = 1):
        """Says what."""
        return x

    assert isinstance(block, SharedSubroutine)
    assert (block.__name__, block.__doc__) == ("block", "Says what.")
    assert list(inspect.signature(block).parameters) == ["w", "x", "n"]
    assert block.__wrapped__.__qualname__.endswith("block")
    assert repr(block).startswith("<shared subroutine block (") and __file__ in repr(block)
    assert shared_subroutine(name="other")(layer).__name__ == "other"


def test_structure_and_source_survive_every_transformation():
    block = shared_subroutine(layer, name="forced", structure="nested")

    def model(ws, x):
        return block(ws[0], block(ws[1], x))

    for name, transform in TRANSFORMS.items():
        names = [
            e.params["name"]
            for e in jit_equations(jax.make_jaxpr(transform(model))(WEIGHTS[:2], X), "forced")
        ]
        assert names, name
        assert all(isinstance(n, SubroutineName) and n.structure == "nested" for n in names), name
        assert all(n.source.startswith(__file__) for n in names), name


def test_same_code_with_other_name_or_structure_is_another_body():
    plain, forced = shared_subroutine(layer), shared_subroutine(layer, structure="shared")
    jaxpr = jax.make_jaxpr(lambda x: plain(WEIGHTS[0], forced(WEIGHTS[1], x)))(X)
    assert [e.params["name"].structure for e in jit_equations(jaxpr, "layer")] == ["shared", None]


def test_unknown_structure_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="got the structure 'fast'.*'inline', 'nested', 'shared'"):
        shared_subroutine(layer, structure="fast")


@pytest.mark.parametrize("option", ["donate_argnums", "compiler_options", "in_shardings"])
def test_options_of_the_outermost_function_are_refused_with_the_place_for_them(option):
    with pytest.raises(TypeError, match=rf"{option}.*belongs on outermost_jit\({option}=..."):
        shared_subroutine(layer, **{option: None})  # jax#3606, tt-xla#2805


def test_unknown_option_and_non_callable_are_refused():
    with pytest.raises(TypeError, match="unexpected option 'nmae'"):
        shared_subroutine(nmae="x")
    with pytest.raises(TypeError, match="needs a callable, got 3 of type int"):
        shared_subroutine(3)
    with pytest.raises(TypeError, match="@classmethod above"):
        shared_subroutine(classmethod(layer))


def test_generators_and_async_functions_are_refused():
    def generator(x):
        yield x

    async def coroutine(x):
        await asyncio.sleep(0)

    async def async_generator(x):
        yield x

    for fun, kind in (
        (generator, "a generator, 'generator'"),
        (coroutine, "an async function"),
        (async_generator, "an async generator"),
    ):
        with pytest.raises(TypeError, match=kind):
            shared_subroutine(fun)


def test_disabled_makes_every_call_plain():
    fun, runs = counted(layer)
    block = shared_subroutine(fun)
    with disabled():
        jaxpr = jax.make_jaxpr(lambda x: block(WEIGHTS[0], block(WEIGHTS[0], x)))(X)
    assert len(runs) == 2 and not list(jit_equations(jaxpr, "layer"))
    block(WEIGHTS[0], X)
    with disabled():
        block(WEIGHTS[0], X)
    assert len(runs) == 4


def test_disable_jit_runs_the_plain_function():
    seen = []
    block = shared_subroutine(
        lambda x, how: (seen.append(isinstance(x, jax.core.Tracer)), (x, how))[1]
    )
    with jax.disable_jit():
        assert block(X, "fast")[1] == "fast"
    assert seen == [False] and block.stats().n_traces == 0
    double = shared_subroutine(lambda x: (x * 2, isinstance(x, jax.core.Tracer)))
    assert double(X)[1] is True
    with jax.disable_jit():
        assert double(X)[1] is False
    assert double.stats().n_traces == 1


def test_clear_cache_traces_anew():
    fun, runs = counted(layer)
    block = shared_subroutine(fun)
    for _ in range(2):
        block(WEIGHTS[0], X)
    block.clear_cache()
    block(WEIGHTS[0], X)
    assert len(runs) == 2


def test_static_recursion_works():
    @shared_subroutine
    def power(x, n):
        return x if n == "." else x * power(x, n[1:])

    assert float(jax.jit(lambda x: power(x, "...."))(2.0)) == 16.0


def test_function_that_captures_itself_has_a_key():
    def make(step):
        def down(x, n):
            return x if n == "." else down(x - step, n[1:])

        return shared_subroutine(down)

    assert [float(make(1.0)(5.0, "...")) for _ in range(2)] == [3.0, 3.0]
    assert make(1.0).stats().n_traces == 1


@shared_subroutine
def module_level(x):
    return x * 2


def test_subroutine_is_pickled_and_copied_by_its_name():  # tinygp#239
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.deepcopy([module_level]) == [module_level]


def test_cores_of_forgotten_functions_are_bounded(monkeypatch):  # jax#16778
    monkeypatch.setattr("jitscope.subroutine.cores.MAX_CORES", 4)
    kept = shared_subroutine(lambda x: x + 0.25)
    for k in range(20):
        kept(X)
        shared_subroutine(lambda x, k=k: x, name=f"n{k}")(X)
        shared_subroutine(lambda x: x * k)(X)  # noqa: B023 - called at once
    assert len(registry) == 4
    assert kept.stats().n_traces == 1


def test_effects_happen_once_per_call_and_in_order():
    seen = []
    block = shared_subroutine(
        lambda x: (io_callback(lambda v: seen.append(int(v)), None, x, ordered=True), x + 1)[1]
    )
    jax.block_until_ready(jax.jit(lambda x: block(block(block(x))))(1))
    jax.effects_barrier()
    assert seen == [1, 2, 3] and block.stats().n_traces == 1


# --- errors ---------------------------------------------------------------------------------------


def test_traceback_shows_the_users_line_and_the_next_call_works():
    fail = [True]

    @shared_subroutine
    def block(x):
        if fail[0]:
            raise KeyError("users own")  # the line
        return x

    for call in (block, jax.jit(lambda x: block(x))):
        with pytest.raises(KeyError, match="users own") as error:
            call(X)
        lines = [f.line for f in traceback.extract_tb(error.value.__traceback__)]
        assert any("# the line" in line for line in lines)
    fail[0] = False
    np.testing.assert_allclose(block(X), X)


@pytest.mark.parametrize(
    "body",
    [
        lambda x, n: x if n < 1 else x * 2,
        lambda x, n: sum(x for _ in range(n)),
        lambda x, n: x + jnp.zeros(n).sum(),
    ],
    ids=["branch", "range", "shape"],
)
def test_traced_python_number_is_named_with_the_cure(body):  # jax#9298
    with pytest.raises((TypeError, IndexError)) as error:
        jax.jit(lambda x: shared_subroutine(body)(x, 3))(1.0)
    notes = " ".join(error.value.__notes__)
    assert "n=3" in notes and "static_argnames=('n',)" in notes
    cured = shared_subroutine(body, static_argnames="n")
    np.testing.assert_allclose(jax.jit(lambda x: cured(x, 3))(1.0), body(1.0, 3))


def test_error_that_no_number_can_explain_has_no_note():
    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        shared_subroutine(lambda x: x if x > 0 else -x)(jnp.float32(1))
    assert not any("jitscope" in note for note in getattr(error.value, "__notes__", []))
    assert "the argument x" in str(error.value)


def test_no_tracer_leaks():
    mask_free = shared_subroutine(layer)

    def forward(x, mask):
        block = shared_subroutine(lambda x: x * mask)
        return mask_free(WEIGHTS[0], block(block(x))).sum()

    with jax.checking_leaks():
        jax.jit(jax.grad(forward))(X, jnp.ones(3))
        jax.jit(forward)(X, jnp.ones(3))


def test_debug_nans_finds_the_nan():
    block = shared_subroutine(lambda x, how: jnp.log(x) if how == "log" else x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        block(-jnp.ones(3), "log")


def test_x64_is_part_of_what_a_trace_is_kept_for():
    block = shared_subroutine(lambda x: x + np.float64(1))
    assert block(np.float32(1)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert block(np.float64(1)).dtype == jnp.float64
    assert block(np.float64(1)).dtype == jnp.float32


# --- threads --------------------------------------------------------------------------------


def test_four_threads_tracing_same_and_different_subroutines_agree():
    @shared_subroutine
    def common(w, x, f):
        return f(x @ w)

    own = [shared_subroutine(lambda x, k=k: common(jnp.eye(3), x, jnp.sin) * k) for k in "1234"]
    results, errors = {}, []
    start = threading.Barrier(4)

    def work(i):
        try:
            start.wait()
            for shape in ((2, 3), (4, 3), (2, 3)):
                x = jnp.ones(shape)
                block = shared_subroutine(lambda x: common(jnp.eye(3), x, jnp.cos) * i)
                results[i, shape] = jax.jit(
                    lambda x, block=block: block(block(x)) + common(jnp.eye(3), x, jnp.sin)
                )(x)
        except Exception as e:  # noqa: BLE001 - shown by the assertion below
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors and not any(t.is_alive() for t in threads)
    assert len(own) == 4
    for (i, shape), result in results.items():
        expected = np.cos(np.cos(1.0) * i) * i + np.sin(1.0)
        np.testing.assert_allclose(result, np.full(shape, expected), rtol=1e-5)
    stats = common.stats()
    assert stats.n_calls == stats.n_traces + stats.n_reused


# --- what a function reads beside its arguments and captures ----------------------------------

CELL = """
@shared_subroutine
def layer(x):
    return act(x) * SCALE
"""


@pytest.mark.parametrize("edit", ["def act(x): return jnp.cos(x)", "SCALE = 5.0"])
def test_function_defined_again_sees_the_helpers_of_its_module_as_they_are_now(edit):
    module = {"jnp": jnp, "shared_subroutine": shared_subroutine, "SCALE": 2.0}
    exec("def act(x): return jnp.sin(x)", module)
    exec(compile(CELL, "<cell>", "exec"), module)
    jax.jit(lambda x: module["layer"](x))(1.0)
    exec(edit, module)
    exec(compile(CELL, "<cell>", "exec"), module)
    expected = module["act"](1.0) * module["SCALE"]
    assert float(jax.jit(lambda x: module["layer"](x))(1.0)) == pytest.approx(float(expected))


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    "hide",
    [Slotted, lambda v: Slotted(Slotted(v)), lambda v: Slotted(iter([v]))],
    ids=["slots", "object in object", "iterator in object"],
)
def test_result_that_hides_a_tracer_is_not_shared(hide):
    def layer(x):
        return jnp.sin(x), hide(jnp.cos(x))

    def value(box):
        while isinstance(box, Slotted):
            box = box.value
        return box if isinstance(box, jax.Array) else next(box)

    def model(layer):
        def run(x):
            for _ in range(3):
                x, box = layer(x)
                x = x + value(box)
            return x

        return run

    assert jax.jit(model(shared_subroutine(layer)))(1.0) == jax.jit(model(layer))(1.0)

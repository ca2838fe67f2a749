"""Why a body was traced again: the situations that people report, each with its reason.

Names end in the public reports that the situations were taken from.
"""

import collections
import dataclasses
import enum
import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitscope
from jitscope.reuse.retraces import subroutine_report

X = jnp.ones((2, 3))
NUMBERS = itertools.count(1000)


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


class Pair(NamedTuple):
    a: Any
    b: Any


class Token:
    """Hashable, but equal to itself only."""

    def __repr__(self):
        return "Token()"


class Layer:
    """A module whose method is a new bound method at each access."""

    def __init__(self, scale):
        self.scale = scale

    def apply(self, x):
        return x * self.scale


jax.tree_util.register_pytree_node(
    Layer, lambda layer: ((layer.scale,), None), lambda _, children: Layer(*children)
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Indexed:
    """A module with a field that is no array."""

    scale: Any
    idx: int = dataclasses.field(metadata=dict(static=True))

    def apply(self, x):
        return x * self.scale


def new_code(signature="x, mask=None, *, n=0, mode='a'", value="x"):
    """A function with code of its own: functions with equal code are counted together."""
    return eval(f"lambda {signature}: ({value}, {next(NUMBERS)})[0]")


def made_by(calls):
    """A situation of one decorated function that is called in several ways."""

    def situation(shared):
        f = shared(new_code())
        for call in calls:
            call(f)
        return f

    return situation


def fresh_lambda(shared):
    for _ in range(12):
        f = shared(lambda x: x + 1)
        f(X)
    return f


def fresh_partial(shared):
    def scale(x, k):
        return x * k

    for _ in range(12):
        f = shared(functools.partial(scale, k=3))
        f(X)
    return f


def partial_of_other_values(shared):
    def scale(x, k):
        return x * k

    for k in (3, 3, 4):
        f = shared(functools.partial(scale, k=k))
        f(X)
    return f


def fresh_bound_method(shared):
    layer = Layer(2.0)
    for _ in range(12):
        f = shared(layer.apply)
        f(X)
    return f


def equal_instances(shared):
    f = shared(Layer.apply)
    for scale in (2.0, 3.0, 4.0):
        f(Layer(scale), X)
    return f


def function_defined_in_a_loop(shared):
    for _ in range(6):

        def block(x, i=0):
            return x + 1

        f = shared(block)
        f(X)
    return f


def captured_number(shared):
    def make(k):
        return shared(lambda x: x * k)

    for k in (2, 2, 3):
        f = make(k)
        f(X)
    return f


def captured_array(shared):
    def make(table):
        return shared(lambda x: x + table)

    one = jnp.ones(3)
    for table in (one, one, one * 1):
        f = make(table)
        f(X)
    return f


def captured_flag_that_flips(shared):
    flag = False

    @shared
    def f(x):
        return x + 1 if flag else x

    f(X)
    flag = True
    f(X)
    return f


def captured_tracer(shared):
    def outer(x, scale):
        f = shared(lambda x: x * scale)
        made.append(f)
        return f(f(x))

    made = []
    for _ in range(2):
        jax.make_jaxpr(lambda x, scale: outer(x, scale))(X, 2.0)
    return made[-1]


def static_layer_index(shared):
    f = shared(static_argnames="layer_idx")(lambda x, layer_idx: x + 1)
    for i in range(3):
        f(X, layer_idx=i)
    return f


def static_field_of_a_class(shared):
    f = shared(Indexed.apply)
    for i in range(2):
        f(Indexed(2.0, i), X)
    return f


def captured_function(shared):
    def make(k, table):
        def act(x, scale=k):
            return x * scale + table

        return shared(lambda x: act(x))

    one = jnp.ones(3)
    for k, table in ((2, one), (2, one), (3, one), (3, one * 1)):
        f = make(k, table)
        f(X)
    return f


def static_numbers_of_other_types(shared):
    f = shared(static_argnames="n")(lambda x, n: x)
    for n in (1, True, 1.0, 1):
        f(X, n)
    return f


def static_object_without_equality(shared):
    f = shared(lambda x, token: x)
    f(X, Token())
    f(X, Token())
    return f


def objects_that_are_no_pytrees(shared):
    class Module:
        def __init__(self, scale):
            self.scale = scale

        def apply(self, x):
            return x * self.scale

    Module.apply = shared(Module.apply)
    for scale in range(4):
        Module(scale).apply(X)
    return Module.apply


def cleared_caches(shared):
    f = shared(new_code())
    f(X)
    f.clear_cache()
    f(X)
    return f


def in_context(context: Callable[[], Any]):
    def situation(shared):
        f = shared(new_code("x", "x @ x.T"))
        f(X)
        with context():
            f(X)
        return f

    return situation


def in_mesh(shared):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    f = shared(lambda x: x * 2)
    f(X)
    with jax.set_mesh(mesh):
        f(X)
    return f


SITUATIONS = {
    # What retraces under jax.jit and does not here: one trace, no reason.
    "fresh lambda on one line (zorch#166, flax#5512)": (fresh_lambda, []),
    "fresh partial with equal values (unxt#906)": (fresh_partial, []),
    "bound method made anew (jax#19570)": (fresh_bound_method, []),
    "equal modules, other weights (jax#5595)": (equal_instances, []),
    "function defined in a loop (jax#4645)": (function_defined_in_a_loop, []),
    "positional, keyword and default (jax#523)": (
        made_by([lambda f: f(X, None), lambda f: f(x=X), lambda f: f(X, mask=None, n=0)]),
        [],
    ),
    "order of the keys of a dict": (
        made_by([lambda f: f({"a": X, "b": X}), lambda f: f({"b": X, "a": X})]),
        [],
    ),
    "array of NumPy against array of JAX": (
        made_by([lambda f: f(X), lambda f: f(np.ones((2, 3), np.float32))]),
        [],
    ),
    # What must be traced again: the reason.
    "Python scalar against array (jax#3163)": (
        made_by([lambda f: f(2.0), lambda f: f(jnp.float32(2.0))]),
        ["weak_type of argument x: False against True"],
    ),
    "NumPy scalar of another width": (
        made_by([lambda f: f(np.float32(1)), lambda f: f(np.float16(1))]),
        ["dtype of argument x: float16 against float32"],
    ),
    "another shape": (
        made_by([lambda f: f(X), lambda f: f(X[:1])]),
        ["shape of argument x: (1, 3) against (2, 3)"],
    ),
    "another dtype": (
        made_by([lambda f: f(X), lambda f: f(X.astype(int))]),
        ["dtype of argument x: int32 against float32"],
    ),
    "None against array": (
        made_by([lambda f: f(X), lambda f: f(X, X)]),
        ["argument mask: array f32[2,3] against None or nothing"],
    ),
    "array against None": (
        made_by([lambda f: f(X, X), lambda f: f(X)]),
        ["argument mask: None or nothing against array f32[2,3]"],
    ),
    "string against array": (
        made_by([lambda f: f(X, "causal"), lambda f: f(X, X)]),
        ["argument mask: array f32[2,3] against static value 'causal'"],
    ),
    "another key": (
        made_by([lambda f: f({"a": X}), lambda f: f({"b": X})]),
        ["tree structure: x['a'], x['b'] in one of the two only"],
    ),
    "list against tuple": (
        made_by([lambda f: f([X]), lambda f: f((X,))]),
        ["containers of the arguments: ...(*,)... against ...[*]"],
    ),
    "named tuple against tuple": (
        made_by([lambda f: f((X, X)), lambda f: f(Pair(X, X))]),
        ["tree structure: x[0], x[1], x.a, x.b in one of the two only"],
    ),
    "order of the keys of an ordered dict": (
        made_by(
            [
                lambda f: f(collections.OrderedDict(a=X, b=X)),
                lambda f: f(collections.OrderedDict(b=X, a=X)),
            ]
        ),
        ["containers of the arguments: ...'b', 'a'... against ...'a', 'b'..."],
    ),
    "static layer index (jax#33043)": (
        static_layer_index,
        ["static value layer_idx: 1 against 0", "static value layer_idx: 2 against 1"],
    ),
    "static field of a class (jax#33043)": (
        static_field_of_a_class,
        ["static field idx of Indexed: 1 against 0"],
    ),
    "1 against True against 1.0 (jax#3701)": (
        static_numbers_of_other_types,
        ["static value n: True against 1", "static value n: 1.0 against True"],
    ),
    "another string": (
        made_by([lambda f: f(X, mode="a"), lambda f: f(X, mode="b")]),
        ["static value mode: 'b' against 'a'"],
    ),
    "another enum": (
        made_by([lambda f: f(X, Mode.TRAIN), lambda f: f(X, Mode.TEST)]),
        ["static value mask: <Mode.TEST: 2> against <Mode.TRAIN: 1>"],
    ),
    "static object without equality (jax#3701)": (
        static_object_without_equality,
        ["static value token: another Token object...register Token as a pytree...== and hash"],
    ),
    "object that is no pytree (jax#5595)": (
        objects_that_are_no_pytrees,
        ["static value self: another Module object...pytree...equinox Module...arrays"] * 3,
    ),
    "another rank": (
        made_by([lambda f: f(X), lambda f: f(X[0])]),
        ["shape of argument x: (3,) against (2, 3)"],
    ),
    "partial with other values": (partial_of_other_values, ["k: 4 against 3"]),
    "captured number": (captured_number, ["captured value k: 3 against 2"]),
    "function that captured other values (tinygp#239)": (
        captured_function,
        [
            "captured value act.scale: 3 against 2",
            "captured value act.table: another object (Array object) that is not equal",
        ],
    ),
    "captured array": (
        captured_array,
        ["captured value table: another object (Array object) that is not equal"],
    ),
    "captured flag that flips (jax#1426)": (
        captured_flag_that_flips,
        ["captured value flag: True against False"],
    ),
    "captured tracer (jax#38460)": (captured_tracer, ["it captured a tracer"]),
    "cleared caches": (cleared_caches, ["caches were cleared"]),
    "matmul precision": (
        in_context(lambda: jax.default_matmul_precision("highest")),
        ["default_matmul_precision: highest against None"],
    ),
    "64-bit mode": (in_context(lambda: jax.enable_x64(True)), ["x64: True against False"]),
    "rank promotion": (
        in_context(lambda: jax.numpy_rank_promotion("raise")),
        ["numpy_rank_promotion: raise against allow"],
    ),
    "dtype promotion": (
        in_context(lambda: jax.numpy_dtype_promotion("strict")),
        ["numpy_dtype_promotion: strict against standard"],
    ),
    "mesh in context (jax#31250, jax#6483)": (in_mesh, ["mesh"]),
}


def matches(reason, expected):
    """Whether a reason holds the parts of the expected one, in order."""
    at = 0
    for part in expected.strip("'").split("..."):
        found = reason.find(part.strip("'"), at)
        if found < 0:
            return False
        at = found + len(part.strip("'"))
    return True


@pytest.mark.parametrize("situation, expected", SITUATIONS.values(), ids=SITUATIONS)
def test_situation_has_its_reason(situation, expected):
    shared = functools.partial(jitscope.shared_subroutine)
    stats = situation(shared).stats()
    reasons = stats.retrace_reasons
    assert stats.n_traces == 1 + len(reasons)
    assert len(reasons) == len(expected), reasons
    assert not any("; sharding of" in reason for reason in reasons)
    for reason, part in zip(reasons, expected, strict=True):
        assert matches(reason, part), reasons
    report = subroutine_report(stats, "somewhere.py:1")
    assert {r.reason: r.n_traces for r in report.retraces} == collections.Counter(reasons)
    json.dumps([r.reason for r in report.retraces])


def test_equal_reasons_are_counted_together():
    f = jitscope.shared_subroutine(new_code())
    for _ in range(4):
        f(X)
        f.clear_cache()
    (retrace,) = subroutine_report(f.stats(), "").retraces
    assert retrace.n_traces == 3

import inspect

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitscope.subroutine.keys import Keys
from jitscope.subroutine.signature import Binder
from jitscope.subroutine.static import Static, StaticResult, is_traceable, unwrapped


def signature_of(binder, *args, **kwargs):
    bound = binder.wrap(*binder.bind(args, kwargs), Keys())
    leaves, tree = jax.tree.flatten(bound)
    return tree, [jax.typeof(leaf) for leaf in leaves]


def f(a, /, b, c=3, *, d="d", e=None):
    return a, b, c, d, e


@hypothesis.given(*[st.booleans()] * 4, st.permutations("bcde"))
def test_every_spelling_of_a_call_has_one_signature(b, c, d, e, order):
    binder = Binder(f)
    kwargs = {"b": 2.0, "c": 3, "d": "d", "e": None}
    args = [1.0]
    if b:
        args.append(kwargs.pop("b"))
        if c:
            args.append(kwargs.pop("c"))
    for skip, name in ((d, "d"), (e, "e")):
        if skip:
            del kwargs[name]
    shuffled = {name: kwargs[name] for name in order if name in kwargs}
    assert signature_of(binder, *args, **shuffled) == signature_of(binder, 1.0, 2.0)


def test_bound_call_is_the_same_call():
    args, kwargs = Binder(f).bind((1.0,), {"b": 2.0, "d": "x"})
    assert f(*unwrapped(args), **unwrapped(kwargs)) == f(1.0, b=2.0, d="x")


def test_variadic_arguments_keep_their_places():
    def g(x, *rest, scale=1, **options):
        return x, rest, scale, options

    binder = Binder(g, static_argnums=2, static_argnames="mode")
    args, kwargs = binder.bind((1, 2, (3,)), {"mode": "a", "z": 4})
    assert g(*unwrapped(args), **unwrapped(kwargs)) == (1, (2, (3,)), 1, {"mode": "a", "z": 4})
    assert isinstance(args[2], Static) and isinstance(kwargs["mode"], Static)
    assert [label for label, _ in binder.labelled(args, kwargs)] == [
        "x",
        "rest[0]",
        "rest[1]",
        "scale",
        "mode",
        "z",
    ]


def test_wrapped_function_is_bound_by_its_wrappers_own_signature():
    import functools

    def inner(x, n):
        return x * n

    @functools.wraps(inner)
    def outer(*args, **kwargs):
        return inner(*args, **kwargs)

    binder = Binder(outer, static_argnames="n")
    for args, kwargs in ((1.0, 2), {}), ((1.0,), {"n": 2}):
        bound_args, bound_kwargs = binder.bind(args, kwargs)
        statics = [x for x in (*bound_args, *bound_kwargs.values()) if isinstance(x, Static)]
        assert [s.value for s in statics] == [2]


def test_arguments_that_do_not_fit_are_left_to_python():
    assert Binder(f).bind((), {}) is None
    assert Binder(f).bind((1, 2), {"unknown": 3}) is None


@pytest.mark.parametrize(
    "default, same, other",
    [
        (-1, -1, 2),
        (1.5, 1.5, 2.5),
        (True, True, False),
        (1, 1, 1.0),
        ((2, 3), (2, 3), (2, 4)),
        ([1], [1], [2]),
        ({"k": 1}, {"k": 1}, {"k": 2}),
    ],
)
def test_value_equal_to_its_default_is_static_and_another_is_not(default, same, other):
    binder = Binder(lambda x, n=default: x)
    for args in ((1.0,), (1.0, same)):
        assert isinstance(binder.bind(args, {})[0][1], Static)
    assert not isinstance(binder.bind((1.0, other), {})[0][1], Static)


def test_array_default_is_an_operand_and_numbers_beside_it_are_static():
    array = jnp.ones(2)
    [value] = Binder(lambda p={"w": array, "n": 3}: p).bind((), {})[0]
    assert value["w"] is array and isinstance(value["n"], Static)


@pytest.mark.parametrize(
    "leaf, expected",
    [
        (1, True),
        (1.5, True),
        (1j, True),
        (True, True),
        (2**70, True),
        (np.float16(1), True),
        (np.ones(2), True),
        (np.ones(2, jax.dtypes.float0), True),
        ("s", False),
        (b"s", False),
        (len, False),
        (object(), False),
        (np.array(["a"]), False),
        (np.str_("a"), False),
        (np.dtype("f4"), False),
        (jnp.float32, False),
        (int, False),
    ],
    ids=lambda v: repr(v)[:20],
)
def test_what_jax_can_trace(leaf, expected):
    assert is_traceable(leaf) is expected


def test_leaves_in_containers_are_wrapped_where_they_stand():
    [tree], _ = Binder(lambda t: t).wrap(({"a": [1.0, "x"], "n": None},), {}, Keys())
    assert tree["a"][0] == 1.0 and tree["n"] is None
    assert isinstance(tree["a"][1], Static) and unwrapped(tree) == {"a": [1.0, "x"], "n": None}


def test_static_nodes_equal_by_type_and_value():
    assert Static(1) == Static(1) and hash(Static(1)) == hash(Static(1))
    for a, b in ((1, 1.0), (1, True), (0.0, -0.0), ("1", 1)):
        assert Static(a) != Static(b)
    assert Static(float("nan")) == Static(float("nan"))


def test_results_are_handed_out_as_the_object_they_are():
    value, table = object(), np.arange(2)
    assert unwrapped([StaticResult(value)])[0] is value
    out = unwrapped(StaticResult(table))
    assert out is not table and out.tolist() == [0, 1]


@pytest.mark.parametrize(
    "value, article",
    [({1}, "a set"), (bytearray(b"x"), "a bytearray"), (np.array(["a"]), "a ndarray")],
)
def test_unhashable_leaf_is_named_by_its_path(value, article):
    binder = Binder(lambda config, *more: config, name="block")
    with pytest.raises(TypeError) as error:
        binder.wrap((1.0, [{"rates": value}]), {}, Keys())
    assert f"Argument more[0][0]['rates'] ({article})" in str(error.value)


def test_instance_of_a_method_need_not_be_hashable():
    class Model:
        __hash__ = None

    model = Model()
    binder = Binder(lambda self, x: x)
    [wrapped, _], _ = binder.wrap((model, 1.0), {}, Keys(), is_method=True)
    assert wrapped.value is model
    with pytest.raises(TypeError, match=r"self \(a Model\)"):
        binder.wrap((model, 1.0), {}, Keys())


def test_signature_given_to_jax_holds_no_values():
    signature = Binder(f).without_defaults()
    assert list(signature.parameters) == list("abcde")
    assert all(p.default is inspect.Parameter.empty for p in signature.parameters.values())

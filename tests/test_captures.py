import enum
import functools
import gc
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitscope.subroutine.captures import captures_of, code_of, tracers_in
from jitscope.subroutine.decorator import shared_subroutine
from jitscope.subroutine.keys import Keys, key_of, text_of

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=8,
)


def copied(value):
    """An equal value made of new objects where Python allows."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(copied, value))
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return value


@hypothesis.given(values)
def test_equal_content_has_an_equal_key(value):
    assert key_of(value) == key_of(copied(value))
    assert hash(key_of(value)) == hash(key_of(copied(value)))


@hypothesis.given(values, values)
def test_equal_keys_mean_equal_types_and_values(a, b):
    if key_of(a) == key_of(b):
        assert type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize(
    "a, b",
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (0.0, -0.0),
        ([1], (1,)),
        ((1,), (1.0,)),
        ({1}, frozenset({1})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.float32(1), np.float64(1)),
        (complex(0, -0.0), 0j),
    ],
)
def test_values_that_python_calls_equal_but_a_trace_may_not(a, b):
    assert key_of(a) != key_of(b)


def test_nan_is_itself():
    assert key_of(math.nan) == key_of(float("nan"))


class Colour(enum.Enum):
    RED = 1


def test_hashable_objects_compare_by_type_and_equality_others_by_identity():
    class Plain:
        pass

    class Odd:
        __hash__ = object.__hash__

        def __eq__(self, other):
            raise RuntimeError

    assert key_of(Colour.RED) == key_of(Colour(1))
    assert key_of(jax.P("x")) == key_of(jax.P("x"))
    assert key_of(np.dtype("f4")) == key_of(np.dtype(np.float32))
    plain, odd = Plain(), Odd()
    assert key_of(plain) == key_of(plain) and key_of(plain) != key_of(Plain())
    assert key_of(odd) == key_of(odd) and key_of(odd) != key_of(Odd())


@pytest.mark.parametrize("make", [lambda: jnp.ones(2), lambda: np.ones(2)])
def test_arrays_compare_by_identity_and_never_to_one_with_a_reused_id(make):
    array = make()
    key = key_of(array)
    assert key == key_of(array) and key != key_of(make())
    address = id(array)
    del array
    gc.collect()
    others = [make() for _ in range(100)]
    assert all(key_of(other) != key for other in others)
    assert key == key and hash(key) == address


def make_function(k, helper=None, default=1):
    def inner(x, n=default):
        return x * k if helper is None else helper(x)

    return inner


def test_functions_compare_by_code_captures_and_defaults():
    assert key_of(make_function(2)) == key_of(make_function(2))
    assert key_of(make_function(2)) != key_of(make_function(2.0))
    assert key_of(make_function(2)) != key_of(make_function(2, default=2))
    nested = [make_function(1, helper=make_function(k)) for k in (2, 2, 3)]
    assert key_of(nested[0]) == key_of(nested[1]) != key_of(nested[2])
    marked = make_function(2)
    marked.mode = "fast"
    assert key_of(marked) != key_of(make_function(2))


def test_equal_code_with_other_globals_is_another_function():
    source = "def f(x): return x * K"
    spaces = [{"K": 1}, {"K": 2}]
    for space in spaces:
        exec(source, space)
    assert key_of(spaces[0]["f"]) != key_of(spaces[1]["f"])
    assert code_of(spaces[0]["f"]) != code_of(spaces[1]["f"])


def test_partials_and_bound_methods_compare_by_their_parts():
    class Layer:
        def apply(self, x):
            return x

    layer = Layer()
    assert key_of(layer.apply) == key_of(layer.apply) != key_of(Layer().apply)
    partials = [functools.partial(make_function, k) for k in (2, 2, 3)]
    assert key_of(partials[0]) == key_of(partials[1]) != key_of(partials[2])


def test_shared_subroutines_compare_by_what_they_wrap():
    def make(k, **options):
        return shared_subroutine(make_function(k), **options)

    assert key_of(make(2)) == key_of(make(2))
    assert key_of(make(2)) != key_of(make(3))
    assert key_of(make(2)) != key_of(make(2, structure="inline"))


def test_values_that_contain_themselves_have_keys():
    def looped():
        a = [1]
        a.append(a)
        return a

    def recursive():
        def f(n):
            return f(n - 1)

        return f

    assert key_of(looped()) == key_of(looped())
    assert key_of(recursive()) == key_of(recursive())
    deep = []
    for _ in range(500):
        deep = [deep]
    assert key_of(deep) == key_of(deep)


def test_empty_cells_are_no_error():
    def outer():
        def f():
            return later

        key = key_of(f)
        later = 1
        return key, key_of(f)

    empty, filled = outer()
    assert empty != filled


def test_captures_are_named_as_in_the_source():
    keys = Keys()
    assert list(captures_of(make_function(2, helper=len), keys)) == ["helper", "k"]
    partial = functools.partial(make_function(2), 1, n=3)
    assert list(captures_of(partial, keys)) == [
        "args[0]",
        "n",
        "func.helper",
        "func.k",
        "func.defaults",
    ]
    texts = [text_of(k) for k in captures_of(make_function((1, 0.5), jnp.sin), keys).values()]
    assert texts[1] == "tuple(1, 0.5)"


def test_tracers_are_found_in_captures_containers_and_attributes():
    class Holder:
        pass

    def check(x):
        holder = Holder()
        holder.inner = [x]
        for value in (
            lambda: x,
            [x],
            {"k": (x,)},
            functools.partial(len, x),
            holder,
            make_function(x),
            make_function(1, make_function(x)),
        ):
            assert [t is x for t in tracers_in(value)] == [True]
        assert not tracers_in(len) and not tracers_in("x") and not tracers_in(Holder())
        keys = Keys()
        assert keys.of((x, x)) == keys.of((x, x)) and len(keys.tracers) == 1
        return x

    jax.jit(check)(1.0)

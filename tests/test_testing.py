"""Checks for users' own tests: they pass where sharing holds and say why where it does not."""

import jax
import jax.numpy as jnp
import pytest

import jitscope
from jitscope.testing import assert_max_bodies, assert_max_traces, assert_structure

X = jnp.ones((2, 4))


def chain(x, n=14):
    for _ in range(n):
        x = jnp.sin(x)
    return x


def subroutine(number, **options):
    """A shared subroutine with code of its own."""
    return jitscope.shared_subroutine(
        eval(f"lambda x, gain=1.0: chain(x) * gain + {number}", {"chain": chain}),
        name=f"layer{number}",
        **options,
    )


def test_one_trace_for_many_calls_passes():
    layer = subroutine(1)
    with assert_max_traces(1, of=layer):
        jax.jit(lambda x: layer(layer(layer(x))))(X)
    with assert_max_traces(0):
        jax.jit(lambda x: layer(x))(X)


def test_another_trace_fails_with_its_reason():
    layer = subroutine(2)
    with pytest.raises(
        AssertionError,
        match=r"layer2 \(.*\) was traced 2 times in 3 calls, "
        r"expected at most 1:\n  traced again: shape of argument x",
    ):
        with assert_max_traces(1):
            jax.jit(lambda x: layer(layer(x))[:1] + layer(x[:1]))(X)


def test_other_subroutines_may_be_traced():
    layer, other = subroutine(3), subroutine(4)
    with assert_max_traces(1, of="layer3"):
        jax.jit(lambda x: layer(x) + other(x)[:1] + other(x[:1]))(X)


def test_subroutine_is_known_by_its_code_and_not_by_its_name():
    layer = subroutine(16)
    again = jitscope.shared_subroutine(layer.__wrapped__, name="another name")
    other = jitscope.shared_subroutine(lambda x: x / 3, name="layer16")
    with pytest.raises(AssertionError, match="layer16 .* was traced 1 time"):
        with assert_max_traces(0, of=again):
            jax.jit(again)(X)
    with assert_max_traces(0, of=layer):
        jax.jit(other)(X)


def test_name_of_no_subroutine_is_told():
    with pytest.raises(AssertionError, match="'lyer'. checked nothing.*there are: .*layer17"):
        with assert_max_traces(1, of="lyer"):
            jax.jit(subroutine(17))(X)


def test_error_in_the_block_is_not_hidden():
    with pytest.raises(KeyError), assert_max_traces(0):
        raise KeyError


def test_check_of_traces_without_with_warns_that_it_checked_nothing():
    layer = subroutine(12)
    with pytest.warns(RuntimeWarning, match="assert_max_traces.0. checked nothing") as caught:
        assert_max_traces(0, of=layer)
    assert caught[0].filename == __file__


def test_check_of_traces_with_a_function_in_the_wrong_place_is_refused():
    layer = subroutine(13)
    with pytest.raises(TypeError, match="takes the subroutine as of=.*got <shared subroutine"):
        assert_max_traces(0, layer)


@pytest.mark.parametrize("of", [chain, 3, jitscope.outermost_jit(chain)])
def test_check_of_traces_of_what_is_not_counted_is_refused(of):
    with pytest.raises(TypeError, match="takes a shared subroutine or the name of some"):
        assert_max_traces(0, of=of)


def test_check_of_traces_takes_a_bound_method():
    class Layer:
        @jitscope.shared_subroutine
        def bound(self, x):
            return x + 15

    layer = Layer()
    with pytest.raises(AssertionError, match="bound .* was traced 1 time"):
        with assert_max_traces(0, of=layer.bound):
            jax.jit(layer.bound)(X)


def test_check_of_traces_decorates_a_function():
    layer = subroutine(14)

    @assert_max_traces(1, of=layer)
    def called(x):
        return jax.jit(lambda x: layer(layer(x)))(x)

    called(X)
    called(X)
    with pytest.raises(AssertionError, match="was traced 2 times"):
        assert_max_traces(1, of=layer)(lambda: [called(X[:1]), called(X[:, :1])])()


def test_one_body_for_equal_layers_passes():
    layer = subroutine(5)
    assert_max_bodies(1, lambda x: layer(layer(layer(x))), X)
    assert_max_bodies(1, lambda x: layer(layer(x)), X, jitscope_name="layer5")
    assert_max_bodies(0, lambda x: x + 1, X)


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jitscope.outermost_jit, jax.jit], ids=["plain", "outermost_jit", "jit"]
)
def test_one_body_too_many_fails_with_what_differs(wrap):
    layer = subroutine(6, static_argnames="gain")

    @wrap
    def net(x):
        return layer(layer(x, gain=2.0), gain=3.0)

    with pytest.raises(AssertionError) as failed:
        assert_max_bodies(1, net, X, jitscope_name="layer6")
    message = str(failed.value)
    assert "net has 2 distinct bodies named 'layer6', expected at most 1" in message
    assert "gain: 3.0 against 2.0" in message and "To merge: pass the value" in message


def test_structure_that_was_expected_passes():
    layer, head = subroutine(7, structure="shared"), subroutine(8)
    net = jitscope.outermost_jit(lambda x: head(layer(layer(x))))
    assert_structure({"layer7": "SHARED", "layer8": "inline"}, net, X)
    assert_structure({"layer7": jitscope.Structure.SHARED}, net, X)


def test_other_structure_fails_with_the_reason():
    layer = subroutine(9)
    with pytest.raises(AssertionError, match="'layer9' is .*, expected SHARED: 2 uses"):
        assert_structure({"layer9": "SHARED"}, lambda x: layer(layer(x)), X)


def test_name_that_no_body_bears_fails_with_those_there_are():
    layer = subroutine(10)
    with pytest.raises(AssertionError, match="has no body named 'block'; its bodies are: layer10"):
        assert_structure({"block": "SHARED"}, lambda x: layer(x), X)


def test_word_that_is_no_structure_is_refused():
    with pytest.raises(ValueError, match="'layer' got the structure 'shred'; allowed are 'inline'"):
        assert_structure({"layer": "shred"}, lambda x: x, X)


@pytest.mark.parametrize("n", [-1, 1.5, True, "1"])
def test_number_that_is_none_is_refused(n):
    with pytest.raises(ValueError, match="whole number from 0"):
        assert_max_bodies(n, lambda x: x, X)


def test_options_of_the_function_are_kept():
    layer = subroutine(11)

    @jitscope.outermost_jit(static_argnames="n")
    def net(x, n):
        for _ in range(n):
            x = layer(x)
        return x

    assert_max_bodies(1, net, jax.ShapeDtypeStruct((2, 4), jnp.float32), n=5)


def test_functions_jitted_while_jitscope_is_installed_are_checked():
    layer = subroutine(16)
    with jitscope.installed():
        net = jax.jit(lambda x, n: layer(layer(x)) * n, static_argnums=1)
    assert_structure({"layer16": "nested"}, net, X, 2)
    with pytest.raises(AssertionError, match="expected at most 0"):
        assert_max_bodies(0, net, X, 2, jitscope_name="layer16")


def test_methods_are_bound():
    class Model:
        @jitscope.outermost_jit
        def apply(self, x):
            return chain(x)

    jax.tree_util.register_static(Model)
    assert_max_bodies(0, Model().apply, X)

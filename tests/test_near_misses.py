"""Two bodies that are almost one: what differs, and what would merge them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitscope
from jitscope.words import place

X = jnp.ones((2, 4))


def chain(x, n=14):
    for _ in range(n):
        x = jnp.sin(x)
    return x


def misses(fun, *args):
    """Body name to its near misses."""
    structured = jitscope.outermost_jit(fun, outline=False)
    structured.trace(*args)
    (program,) = structured.reuse().report().programs
    return {f"{body.name}{i}": body.near_misses for i, body in enumerate(program.bodies)}


def only_miss(fun, *args):
    (miss,) = [miss for found in misses(fun, *args).values() for miss in found]
    return miss


def static_value(x):
    @jitscope.shared_subroutine(static_argnames="gain")
    def layer(x, gain):
        return chain(x) * gain

    return layer(layer(x, gain=3.0), gain=4.0)


def layer_index(x):
    @jitscope.shared_subroutine(static_argnames="layer_idx")
    def layer(x, layer_idx):
        return chain(x) * layer_idx

    return layer(layer(x, layer_idx=3), layer_idx=4)


def weak_type(x):
    @jax.jit
    def layer(x, s):
        return chain(x) * s

    return layer(layer(x, 2.0), jnp.float32(2.0))


def dtype(x):
    @jax.jit
    def layer(x):
        return chain(x)

    return layer(x), layer(x.astype(jnp.bfloat16))


def shape(x):
    @jax.jit
    def layer(x):
        return chain(x)

    return layer(x), layer(x[:1])


def unused_argument(x):
    @jax.jit
    def layer(x, mask=None):
        return chain(x, 8)  # smaller than what variants are looked for

    return layer(layer(x), x)


def parameter(x):
    @jitscope.shared_subroutine(static_argnames="axis")
    def layer(x, axis):
        return chain(x) + jax.lax.rev(x, (axis,))

    return layer(layer(x, axis=0), axis=1)


def branch(x):
    @jitscope.shared_subroutine(static_argnames="last")
    def layer(x, last):
        y = chain(x, 8)
        return jnp.cos(y) if last else y

    return layer(layer(x, last=False), last=True)


def literal_in_a_loop(x):
    def layer(x, gain):
        def layer(c):
            return jax.lax.scan(lambda c, _: (c * gain, None), chain(c), length=3)[0]

        return jax.jit(layer)(x)

    return layer(layer(x, 3.0), 4.0)


def array_captured_in_a_loop(x):
    def make(table):
        def layer(x):
            return jax.lax.fori_loop(0, 3, lambda i, c: c + jnp.asarray(table)[i], chain(x))

        return jax.jit(layer)

    return make(np.arange(12.0).reshape(3, 4))(make(np.ones((3, 4)))(x))


@pytest.mark.parametrize(
    "fun, difference, change",
    [
        (static_value, "gain: 4.0 against 3.0 (mul at ", "pass the value as an array argument"),
        (layer_index, "layer_idx: 4.0 against 3.0 (mul at ", "pass the value as an array argument"),
        (weak_type, "weak type of operand 1: False against True", "jnp.asarray(value, dtype)"),
        (dtype, "dtype of operand 0: bfloat16 against float32", "cast to one dtype"),
        (shape, "shape of operand 0: (1, 4) against (2, 4)", "pad or reshape to one shape"),
        (
            unused_argument,
            "arguments that are not used: 1 against 0",
            "leave the unused argument out",
        ),
        (
            parameter,
            "dimensions: (1,) against (0,) (rev at ",
            "a static argument of Python ends up",
        ),
        (branch, "9 equations against 8; more: 1 cos", "Python `if` on a static value"),
        (literal_in_a_loop, "4.0 against 3.0 (mul at ", "pass the value as an array argument"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_difference_is_named_with_its_value_and_its_cure(fun, difference, change):
    miss = only_miss(fun, X)
    assert any(difference in text for text in miss.differences), miss.differences
    assert change in miss.change
    assert len(miss.differences) == 1


def layers(x, layer, n=4):
    for _ in range(n):
        x = layer(x)
    return (x**2).sum()


def test_argument_that_is_static_in_some_calls_is_named():
    @jitscope.shared_subroutine
    def layer(x, scale=1.0):
        return chain(x) * scale

    miss = only_miss(lambda x: layer(layer(x, 0.5), 1.0), X)
    assert miss.change == (
        "give every call the same kind of argument (argument scale: static value 1.0 against "
        "array f32[] (weak type)); a number that is the default of its parameter is static, others "
        "are not"
    )


def test_argument_that_is_missing_in_some_calls_is_named():
    @jitscope.shared_subroutine
    def layer(x, mask=None):
        return chain(x) if mask is None else jnp.where(mask, chain(x), 0)

    miss = only_miss(lambda x: layer(layer(x, x > 0)), X)
    assert miss.change.startswith("give every call the same kind of argument (argument mask: None")
    assert "default" not in miss.change


def test_variants_that_a_gradient_makes_are_told_apart():
    @jax.jit
    def layer(x, w):
        y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x + jax.nn.gelu(y @ w)

    found = misses(jax.grad(lambda w, x: layers(x, lambda x: layer(x, w))), jnp.eye(4), X)
    kinds = [miss.kinds for of_body in found.values() for miss in of_body]
    assert kinds and set(kinds) == {("gradient",)}


def test_branch_that_a_user_wrote_is_told_under_a_gradient_too():
    found = misses(jax.grad(lambda x: branch(x).sum()), X)
    (forward,) = [miss for miss in found["layer1"]]
    assert forward.kinds == ("equations",)
    assert "Python `if` on a static value" in forward.change


def test_backward_pass_names_nothing_that_the_forward_pass_tells():
    found = misses(jax.grad(lambda x: (parameter(x) ** 2).sum()), X)
    told = [miss for of_body in found.values() for miss in of_body]
    assert len(found) > 2  # a backward pass has bodies of its own
    assert [miss.kinds for miss in told] == [("parameter",)]
    assert "dimensions: (1,) against (0,) (rev" in told[0].differences[0]


def test_bodies_under_checkpoint_have_lines_and_their_pass_of_the_gradient():
    @jitscope.shared_subroutine(static_argnames="axis")
    def layer(x, w, axis):
        return chain(x @ w) + jax.lax.rev(x, (axis,))

    def net(ws, x):
        for i, w in enumerate(ws):
            x = jax.checkpoint(functools.partial(layer, axis=i // 3))(x, w)
        return (x**2).sum()

    step = jitscope.outermost_jit(jax.grad(net), outline=False)
    step.trace([jnp.eye(4)] * 6, X)
    (program,) = step.reuse().report().programs
    rows = {(body.is_backward, place(body.source)[:20]) for body in program.bodies}
    assert rows == {(False, "test_near_misses.py:"), (True, "test_near_misses.py:")}
    assert all(site.source for body in program.bodies for site in body.sites)
    told = {body.is_backward: set() for body in program.bodies}
    for body in program.bodies:
        told[body.is_backward] |= {miss.kinds for miss in body.near_misses}
    assert told == {False: {("parameter",)}, True: set()}


def test_functions_of_jax_itself_are_no_near_misses():
    def net(x):
        return jnp.where(x > 0, chain(x), 0.0) + jnp.where(x > 1, x, jnp.ones((4, 1, 4))).sum()

    assert not any(misses(net, X).values())


def test_value_in_an_object_that_jax_cannot_look_into_names_the_class():
    class Scaled:
        def __init__(self, gain):
            self.gain = gain

        @jitscope.shared_subroutine
        def __call__(self, x):
            return chain(x) * self.gain

    first, second = Scaled(2.0), Scaled(3.0)
    miss = only_miss(lambda x: second(first(x)), X)
    assert miss.name.endswith("Scaled.__call__")
    assert "register Scaled as a pytree, or make it an equinox Module" in miss.change
    assert "pass the value as an array argument" in miss.change


def test_bodies_first_called_on_one_line_have_the_numbers_of_their_calls():
    structured = jitscope.outermost_jit(static_value)
    structured.trace(X)
    (program,) = structured.reuse().report().programs
    miss = program.bodies[1].near_misses[0]
    assert (program.bodies[1].first_call, miss.first_call) == (2, 1)
    assert "layer (call 2 at test_near_misses.py:" in str(structured.reuse())


def test_captured_arrays_are_operands_and_so_no_difference():
    found = misses(array_captured_in_a_loop, X)
    assert all(not misses for misses in found.values())


def test_equal_bodies_are_no_near_misses():
    def net(x):
        layer = jax.jit(chain)
        return layer(layer(x))

    assert misses(net, X) == {"chain0": ()}


def test_bodies_that_do_other_things_are_no_near_misses():
    def net(x):
        def layer(x, kind):
            return jax.jit(lambda x: chain(x) if kind else jnp.cos(x) @ x.T @ jnp.tanh(x))(x)

        return layer(layer(x, True), False)

    assert not any(misses(net, X).values())


def test_closest_of_several_bodies_is_named():
    @jitscope.shared_subroutine(static_argnames="gain")
    def layer(x, gain):
        return chain(x) * gain

    def net(x):
        return layer(x, gain=2.0), layer(x[:1], gain=5.0), layer(x[:1], gain=7.0)

    structured = jitscope.outermost_jit(net)
    structured.trace(X)
    (program,) = structured.reuse().report().programs
    last = program.bodies[-1].near_misses[0]
    assert last.differences[0].startswith("gain: 7.0 against 5.0")
    assert last.other == program.bodies[1].digest


def test_jit_options_are_told_as_the_reason():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    @jitscope.outermost_jit
    def net(x):
        layer = jax.jit(chain, out_shardings=sharding)
        return layer(layer(x))

    net.trace(X)
    (body,) = net.reuse().report().programs[0].bodies
    assert "shardings or layouts of its own" in body.reason


@pytest.mark.parametrize(
    "make",
    [
        lambda: jax.jit(lambda x: chain(x)),
        lambda: jax.jit(__import__("functools").partial(chain)),
    ],
    ids=["lambda", "partial"],
)
def test_equal_function_made_anew_for_each_call_is_told(make):
    @jitscope.outermost_jit
    def net(x):
        for _ in range(6):
            x = make()(x)
        return x

    net.trace(X)
    (body,) = net.reuse().report().programs[0].bodies
    assert (body.n_uses, body.n_traces, body.is_retraced) == (6, 6, True)
    assert "was traced 6 times for 6 calls" in str(net.reuse())


def test_shared_subroutine_traced_for_each_object_is_told_with_the_cure():
    class Layer:
        def __init__(self, w):
            self.w = w

        @jitscope.shared_subroutine
        def __call__(self, x):
            return chain(x) @ self.w

    made = [Layer(jnp.eye(4)) for _ in range(6)]

    @jitscope.outermost_jit
    def net(x):
        for layer in made:
            x = layer(x)
        return x

    net.trace(X)
    (body,) = net.reuse().report().programs[0].bodies
    assert (body.name, body.n_uses, body.n_traces) == ("Layer.__call__", 6, 6)
    shown = " ".join(str(net.reuse()).split())
    for part in (
        "! Layer.__call__ was traced 6 times for 6 calls",
        "static value self: another Layer object",
        "register Layer as a pytree, or make it an equinox Module",
        "pass its arrays as arguments",
    ):
        assert part in shown


def test_trace_for_each_static_value_is_told_once_with_the_cure():
    @jitscope.shared_subroutine(static_argnames="index")
    def indexed(x, index):
        return chain(x)

    def loss(x):
        return indexed(indexed(indexed(indexed(x, 0), 1), 2), 3).sum()

    structured = jitscope.outermost_jit(jax.value_and_grad(loss))
    structured.trace(X)
    (line,) = [line for line in str(structured.reuse()).split("! ") if "was traced" in line]
    words = " ".join(line.split())
    assert words.startswith("indexed was traced 4 times for 4 calls, with one result: static value")
    assert (
        "(to share one trace, pass it as an array, or leave it out where it is not used)" in words
    )


def test_derivatives_of_one_trace_are_no_retraces():
    @jitscope.shared_subroutine
    def layer(x):
        return x + chain(x)

    @jitscope.outermost_jit
    def net(x):
        return jax.grad(lambda x: layers(x, layer, 3))(x)

    net.trace(X)
    bodies = net.reuse().report().programs[0].bodies
    assert bodies and not any(body.is_retraced for body in bodies)


def test_variant_that_a_gradient_made_counts_as_a_trace_where_its_calls_count():
    class Layer:
        @jitscope.shared_subroutine
        def __call__(self, w, x):
            return chain(jnp.sin(x) @ w)

    made = [Layer() for _ in range(6)]

    @jitscope.outermost_jit
    def step(ws, x):
        def loss(ws):
            y = x
            for layer, w in zip(made, ws, strict=True):
                y = layer(w, y)
            return y.sum()

        return jax.grad(loss)(ws)

    step.trace([jnp.eye(4) for _ in made], X)
    forward = [b for b in step.reuse().report().programs[0].bodies if not b.is_backward]
    assert [(body.n_uses, body.n_traces) for body in forward] == [(6, 6)]
    assert forward[0].covers

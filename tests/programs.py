"""A catalogue of small programs, each written once and built plain or annotated.

Every entry is a function of one decorator, `shared`, and returns the program's function and its
arguments. With `plain` for `shared` the program is ordinary JAX code; with
`jitscope.shared_subroutine` it is the same program, annotated. What must be counted in it,
under plain value evaluation, is stated beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Build = Callable[[Callable[..., Any]], tuple[Callable[..., Any], tuple[Any, ...]]]

TRANSFORMS = frozenset(
    "value grad value_and_grad vmap jvp hessian scan while_loop cond checkpoint".split()
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """One entry of the catalogue.

    Attributes:
        name: Name of the entry, for test identifiers.
        build: From a decorator to the program's function and its arguments.
        uses: Name of a shared subroutine to the uses of each of its distinct bodies, most used
            first, under plain value evaluation. A name that is missing is not asserted.
        transforms: The transformations that are defined for the program.
        core: The program stands for others like it where running all of them brings nothing new.
        dead: Subroutines that compute nothing anybody uses; JAX drops their calls when it lowers.
        kept: Its repeated bodies may be kept as calls: no effects, no callbacks.
        x64: The program is built and run in 64-bit mode.
        donate: Arguments that the caller gives up.
    """

    name: str
    build: Build
    uses: Mapping[str, tuple[int, ...]]
    transforms: frozenset[str] = TRANSFORMS - {"hessian"}
    core: bool = False
    dead: tuple[str, ...] = ()
    kept: bool = True
    x64: bool = False
    donate: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name


PROGRAMS: dict[str, Program] = {}


def plain(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """The decorator that leaves a program as it is; takes the options of the real one."""
    del options
    return (lambda f: f) if fun is None else fun


def program(
    *,
    uses: Mapping[str, int | tuple[int, ...]],
    without: Iterable[str] = (),
    hessian: bool = False,
    **flags: Any,
) -> Callable[[Build], Build]:
    """Enter the decorated build function in the catalogue under its own name."""
    transforms = TRANSFORMS - set(without) - (set() if hessian else {"hessian"})
    counts = {name: (n,) if isinstance(n, int) else n for name, n in uses.items()}

    def enter(build: Build) -> Build:
        name = build.__name__
        PROGRAMS[name] = Program(
            name=name, build=build, uses=counts, transforms=transforms, **flags
        )
        return build

    return enter


NO_GRADIENT = ("grad", "value_and_grad", "hessian", "checkpoint")


def normal(seed: int, *shape: int, scale: float = 0.5, dtype: Any = np.float32) -> jax.Array:
    """A reproducible normal array of the given shape."""
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return jnp.asarray(values.astype(dtype))


def dense(seed: int, n_in: int, n_out: int) -> dict[str, jax.Array]:
    return {"w": normal(seed, n_in, n_out, scale=n_in**-0.5), "b": normal(seed + 100, n_out)}


def norm(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def in_turn(block: Callable[..., Any]) -> Callable[..., Any]:
    """The network that passes ``x`` through one block with each of its weights."""

    def net(ws, x):
        for w in ws:
            x = block(w, x)
        return x

    return net


def each_on(layer: Callable[..., Any]) -> Callable[..., Any]:
    """As `in_turn`, for layers and networks that take ``x`` first."""

    def net(x, ws):
        for w in ws:
            x = layer(x, w)
        return x

    return net


# --- networks -------------------------------------------------------------------------------------


@program(uses={"block": 6}, hessian=True, core=True)
def residual_mlp(shared):
    @shared
    def block(p, x):
        return x + jnp.tanh(norm(x) @ p["w"] + p["b"]) @ p["w"].T

    def net(x, params):
        for p in params:
            x = block(p, x)
        return x

    return net, (normal(1, 2, 4), [dense(i, 4, 8) for i in range(6)])


@program(uses={"block": 4})
def transformer(shared):
    n_heads, width, length = 2, 8, 6

    @shared
    def block(p, x):
        q, k, v = (
            (norm(x) @ p[name]).reshape(length, n_heads, -1).transpose(1, 0, 2) for name in "qkv"
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(width // n_heads)
        scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
        mixed = (jax.nn.softmax(scores) @ v).transpose(1, 0, 2).reshape(length, width)
        x = x + mixed @ p["o"]
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]

    def model(params, tokens):
        x = params["embed"][tokens]
        for p in params["blocks"]:
            x = block(p, x)
        return norm(x) @ params["embed"].T

    def block_params(seed):
        shapes = {name: (width, width) for name in "qkvo"}
        shapes |= {"up": (width, 16), "down": (16, width)}
        return {name: normal(seed + j, *s) for j, (name, s) in enumerate(shapes.items())}

    params = {"embed": normal(3, 11, width), "blocks": [block_params(10 * i) for i in range(4)]}
    return model, (params, jnp.arange(length) % 11)


class LstmState(NamedTuple):
    hidden: jax.Array
    cell: jax.Array


@program(uses={"lstm_cell": 6})
def lstm(shared):
    @shared
    def lstm_cell(params, state, x):
        gates = x @ params["wx"] + state.hidden @ params["wh"] + params["b"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * state.cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return LstmState(jax.nn.sigmoid(o) * jnp.tanh(cell), cell)

    def net(params, state, xs):
        outputs = []
        for t in range(xs.shape[0]):
            state = lstm_cell(params, state, xs[t])
            outputs.append(state.hidden)
        return jnp.stack(outputs), state

    params = {"wx": normal(1, 3, 16), "wh": normal(2, 4, 16), "b": normal(3, 16)}
    return net, (params, LstmState(normal(4, 4), normal(5, 4)), normal(6, 6, 3))


@program(uses={"expert": 4, "moe_layer": 2})
def mixture_of_experts(shared):
    @shared
    def expert(p, x):
        return jax.nn.silu(x @ p["w"] + p["b"]) @ p["w"].T

    @shared
    def moe_layer(p, x):
        gate = jax.nn.softmax(x @ p["gate"])
        top, _ = lax.top_k(gate, 2)
        gate = jnp.where(gate >= top[..., -1:], gate, 0.0)
        outs = jnp.stack([expert(q, x) for q in p["experts"]], -1)
        return x + (outs * gate[..., None, :]).sum(-1)

    def net(params, x):
        for p in params:
            x = moe_layer(p, x)
        return x

    def layer_params(seed):
        experts = [dense(seed + j, 4, 8) for j in range(4)]
        return {"gate": normal(seed, 4, 4), "experts": experts}

    return net, ([layer_params(10 * i) for i in range(2)], normal(7, 3, 4))


@program(uses={"message_pass": 5})
def message_passing(shared):
    @shared
    def message_pass(p, nodes, edges, senders, receivers):
        messages = jnp.tanh(nodes[senders] @ p["w"] + edges @ p["e"])
        return nodes + jax.ops.segment_sum(messages, receivers, num_segments=nodes.shape[0])

    def net(params, nodes, edges, senders, receivers):
        for p in params:
            nodes = message_pass(p, nodes, edges, senders, receivers)
        return nodes.sum(0)

    params = [{"w": normal(i, 4, 4), "e": normal(i + 50, 2, 4)} for i in range(5)]
    senders, receivers = jnp.array([0, 1, 2, 3, 4, 0]), jnp.array([1, 2, 3, 4, 0, 2])
    return net, (params, normal(8, 5, 4), normal(9, 6, 2), senders, receivers)


@program(uses={"dropout_block": 5})
def dropout_with_keys(shared):
    @shared
    def dropout_block(w, key, x):
        keep = jax.random.bernoulli(key, 0.8, x.shape)
        return jnp.where(keep, jnp.tanh(x @ w) / 0.8, 0.0)

    def net(ws, key, x):
        for w, k in zip(ws, jax.random.split(key, len(ws)), strict=True):
            x = dropout_block(w, k, x)
        return x

    return net, ([normal(i, 4, 4) for i in range(5)], jax.random.key(0), normal(6, 3, 4))


@program(uses={"conv_block": 4})
def conv_stack(shared):
    @shared
    def conv_block(kernel, x):
        y = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return x + jax.nn.relu(y)

    def net(kernels, x):
        for kernel in kernels:
            x = conv_block(kernel, x)
        return x.mean((1, 2))

    return net, ([normal(i, 3, 3, 2, 2, scale=0.2) for i in range(4)], normal(5, 1, 4, 4, 2))


@program(uses={"bn_block": 5})
def batch_norm_state(shared):
    @shared
    def bn_block(w, state, x):
        y = x @ w
        mean, var = y.mean(0), y.var(0)
        new = {"mean": 0.9 * state["mean"] + 0.1 * mean, "var": 0.9 * state["var"] + 0.1 * var}
        return jax.nn.relu((y - mean) * lax.rsqrt(var + 1e-5)), new

    def net(ws, states, x):
        new_states = []
        for w, state in zip(ws, states, strict=True):
            x, new = bn_block(w, state, x)
            new_states.append(new)
        return x, new_states

    states = [{"mean": jnp.zeros(4), "var": jnp.ones(4)} for _ in range(5)]
    return net, ([normal(i, 4, 4) for i in range(5)], states, normal(7, 6, 4))


@program(uses={"down": (2, 1), "mix": 4})
def u_net(shared):
    @shared
    def mix(w, x):
        return x + jnp.tanh(x @ w)

    @shared
    def down(w, x):
        return jnp.tanh(x[::2] @ w)

    def net(params, x):
        skips = []
        for w in params["down"]:
            skips.append(x)
            x = down(w, x)
        x = jnp.tile(x, (8 // x.shape[0], 1)) + skips[0]
        for w in params["mix"]:
            x = mix(w, x)
        y = down(params["down"][0], x)
        return x, y

    params = {
        name: [normal(i + k, 4, 4) for i in range(n)]
        for name, n, k in [("down", 2, 0), ("mix", 4, 9)]
    }
    return net, (params, normal(8, 8, 4))


@program(uses={"adam_leaf": 8}, donate=(0, 1))
def optimiser_update(shared):
    @shared
    def adam_leaf(p, m, v, g, t):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        return p - 1e-3 * step, m, v

    def update(params, state, grads, t):
        leaves = [adam_leaf(*row, t) for row in zip(params, *state, grads, strict=True)]
        params, m, v = (list(column) for column in zip(*leaves, strict=True))
        return params, (m, v)

    params, m, v, grads = ([normal(10 * j + i, 3, 4) for i in range(8)] for j in range(4))
    return update, (params, (m, [jnp.abs(x) for x in v]), grads, jnp.float32(3.0))


@program(uses={"field": 4, "rk4_step": 2})
def runge_kutta(shared):
    @shared
    def field(theta, t, y):
        return jnp.stack([y[1], -theta[0] * jnp.sin(y[0]) - theta[1] * y[1] + jnp.cos(t)])

    @shared
    def rk4_step(theta, t, y):
        h = 0.1
        k1 = field(theta, t, y)
        k2 = field(theta, t + h / 2, y + h / 2 * k1)
        k3 = field(theta, t + h / 2, y + h / 2 * k2)
        k4 = field(theta, t + h, y + h * k3)
        return t + h, y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def solve(y, theta, t):
        for _ in range(2):
            t, y = rk4_step(theta, t, y)
        return y

    return solve, (normal(1, 2), normal(2, 2), jnp.float32(0.0))


# --- structure ------------------------------------------------------------------------------------


@program(uses={"block": 5, "centre": 3}, core=True)
def nested_subroutines(shared):
    @shared
    def centre(x):
        return norm(x) * 1.5

    @shared
    def block(w, x):
        return x + centre(jnp.tanh(centre(x) @ w))

    def net(x, ws):
        for w in ws:
            x = block(w, x)
        return centre(x)

    return net, (normal(1, 2, 4), [normal(i, 4, 4) for i in range(5)])


@program(uses={"split": 5})
def several_outputs(shared):
    @shared
    def split(w, x):
        y = x @ w
        return jnp.sin(y), {"stats": (y.mean(), y.max()), "gate": jax.nn.sigmoid(y)}

    def net(ws, x):
        logs = []
        for w in ws:
            x, extra = split(w, x)
            x = x * extra["gate"]
            logs.append(extra["stats"])
        return x, logs

    return net, ([normal(i, 4, 4) for i in range(5)], normal(9, 3, 4))


@program(uses={"block": 4}, dead=("nothing", "empty_tree"))
def no_outputs(shared):
    @shared
    def nothing(x):
        jnp.cos(x)

    @shared
    def empty_tree(x):
        jnp.sin(x)
        return {}, ()

    @shared
    def block(x):
        return jnp.sin(x) * 2 + jnp.cos(x)

    def net(x):
        trees = []
        for _ in range(4):
            assert nothing(x) is None
            trees.append(empty_tree(x))
            x = block(x)
        return x, trees

    return net, (normal(1, 4),)


@program(uses={"widen": 4})
def zero_size_arrays(shared):
    @shared
    def widen(w, x):
        return jnp.concatenate([x @ w, x[:0] @ w]), (x[:, :0] + 1).sum()

    def net(ws, x, empty):
        total = empty.sum()
        for w in ws:
            x, zero = widen(w, x)
            total = total + zero
        return x, total, empty * 2

    return net, ([normal(i, 3, 3) for i in range(4)], normal(5, 2, 3), jnp.zeros((0, 3)))


@program(
    uses={"many": 4}, without=("jvp", "scan", "while_loop", "cond", "value_and_grad", "checkpoint")
)
def hundred_outputs(shared):
    @shared
    def many(x):
        return [jnp.sin(x) * (k + 1) for k in range(100)]

    def net(x):
        for _ in range(4):
            outs = many(x)
            x = sum(outs[::20]) / 100
        return x, outs

    return net, (normal(1, 3),)


@program(uses={"swap": 5})
def pass_through_outputs(shared):
    @shared
    def swap(a, b):
        return b, a + jnp.sin(b) * b, a

    def net(a, b):
        for _ in range(5):
            a, b, old = swap(a, b)
        return a, b, old

    return net, (normal(1, 4), normal(2, 4))


@program(uses={"twice": 5})
def duplicated_outputs(shared):
    @shared
    def twice(x):
        y = jnp.cos(x) * x + 1
        return y, y, (y, x, x)

    def net(x):
        for _ in range(5):
            a, b, (c, d, e) = twice(x)
            x = a + b * c - d + e
        return x, a, b

    return net, (normal(1, 4),)


@program(uses={"first_only": 5})
def unused_inputs(shared):
    @shared
    def first_only(x, unused, tree):
        del unused
        return jnp.sin(x) + jnp.cos(x) * tree["used"]

    def net(x, unused, other):
        for _ in range(5):
            x = first_only(x, unused, {"used": other, "unused": x})
        return x

    return net, (normal(1, 4), jnp.arange(3), normal(2, 4))


@program(uses={"with_constants": 5})
def constant_outputs(shared):
    table = np.arange(4, dtype=np.float32)

    @shared
    def with_constants(x):
        return jnp.sin(x) * jnp.cos(x), jnp.zeros(2), table, jnp.int32(7)

    def net(x):
        for _ in range(5):
            x, zeros, row, seven = with_constants(x)
            x = x + row
        return x, zeros, row, seven

    return net, (normal(1, 4),)


@program(uses={"scale": (4, 4)}, core=True)
def weak_types(shared):
    @shared
    def scale(x, factor):
        return jnp.sin(x) * factor + 1, factor * 2

    def net(x, s):
        outs = []
        for _ in range(4):
            x, weak = scale(x, 2.0)  # a Python number is weakly typed
            x, strong = scale(x, s)
            outs += [weak, strong]
        return x, outs, jnp.sin(1.0)

    return net, (normal(1, 3), jnp.float32(0.5))


@program(uses={"block": 5})
def single_use_beside_repeats(shared):
    @shared
    def head(w, x):
        return jax.nn.log_softmax(x @ w)

    @shared
    def block(w, x):
        return x + jnp.tanh(x @ w)

    def net(ws, x):
        for w in ws:
            x = block(w, x)
        return head(ws[0], x)

    return net, ([normal(i, 4, 4) for i in range(5)], normal(7, 2, 4))


@program(uses={"fib": (2, 2, 2, 1, 1, 1)}, hessian=True)
def recursion(shared):
    @shared(static_argnames="n")
    def fib(x, n):
        if n < 2:
            return jnp.cos(x) * 2 if n else jnp.sin(x) + 1
        return fib(x * 0.5, n - 1) + fib(x + 1.0, n - 2)

    return (lambda x: fib(x, 5)), (normal(1, 3),)


@program(uses={"block": 6})
def static_index_unused(shared):
    @shared(static_argnames="layer")
    def block(w, x, layer):
        del layer
        return x + jnp.tanh(x @ w)

    def net(ws, x):
        for layer, w in enumerate(ws):
            x = block(w, x, layer=layer)
        return x

    return net, ([normal(i, 4, 4) for i in range(6)], normal(7, 2, 4))


@program(uses={"block": (4, 4)})
def static_index_used(shared):
    @shared(static_argnums=2)
    def block(w, x, layer):
        return x + (jnp.tanh(x @ w) if layer % 2 else jnp.sin(x @ w))

    def net(ws, x):
        for layer, w in enumerate(ws):
            x = block(w, x, layer)
        return x

    return net, ([normal(i, 4, 4) for i in range(8)], normal(9, 2, 4))


@program(uses={"block": (3, 2)})
def leaves_jax_cannot_trace(shared):
    @shared
    def block(w, x, mode, activation, mask=None):
        x = activation(x @ w) if mode == "after" else activation(x) @ w
        return x if mask is None else x * mask

    def net(ws, x):
        for i, w in enumerate(ws):
            x = block(w, x, "after" if i % 2 else "before", jnp.tanh)
        return x

    return net, ([normal(i, 4, 4) for i in range(5)], normal(7, 2, 4))


@program(uses={"affine": 6})
def keyword_only_and_default_arguments(shared):
    @shared
    def affine(x, w, shift=1.0, *, gain=2.0):
        return jnp.tanh(x @ w) * gain + shift

    def net(x, w):
        x = affine(x, w)
        x = affine(x, w, 1.0)
        x = affine(x, w=w, gain=2.0)
        x = affine(w=w, x=x, shift=1.0)
        x = affine(x, w, gain=2.0, shift=1.0)
        return affine(x, w, 1.0, gain=2.0)

    return net, (normal(1, 2, 4), normal(2, 4, 4))


@program(uses={"block": 5})
def fresh_function_per_call(shared):
    def net(ws, x):
        for w in ws:

            @shared
            def block(w, x):
                return x + jnp.tanh(x @ w) * 0.5

            x = block(w, x)
        return x

    return net, ([normal(i, 4, 4) for i in range(5)], normal(7, 2, 4))


@program(uses={"block": 6})
def large_constant(shared):
    table = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) * 0.1

    @shared
    def block(p, x):
        return x + jnp.tanh(x @ table) * p

    return in_turn(block), ([normal(i, 64) for i in range(6)], normal(7, 2, 64))


@program(uses={"layer": 5})
def nested_jit_of_others(shared):
    del shared

    @jax.jit
    def layer(w, x):
        return jnp.clip(x + jnp.tanh(x @ w), -2.0, 2.0)

    return in_turn(layer), ([normal(i, 4, 4) for i in range(5)], normal(7, 2, 4))


@program(uses={}, hessian=True)
def flat_loop(shared):
    del shared

    def net(x, ws):
        for w in ws:
            x = x + jnp.tanh(norm(x) @ w) @ w.T
        return x

    return net, (normal(7, 2, 4), [normal(i, 4, 8) for i in range(6)])


# --- trees ----------------------------------------------------------------------------------------


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["act"])
@dataclass(frozen=True)
class Layer:
    w: jax.Array
    b: jax.Array
    act: str

    def __call__(self, x):
        return getattr(jnp, self.act)(x @ self.w + self.b)


@program(uses={"apply": 5})
def dataclass_pytree(shared):
    @shared
    def apply(layer, x):
        return Layer(layer.w * 0.5, layer(x), layer.act)

    def net(layers, x):
        for layer in layers:
            out = apply(layer, x)
            x = out.b
        return out

    layers = [Layer(normal(i, 4, 4), normal(i + 50, 4), "tanh") for i in range(5)]
    return net, (layers, normal(7, 2, 4))


class Carry(NamedTuple):
    x: jax.Array
    step: jax.Array


@program(uses={"advance": 5})
def namedtuple_pytree(shared):
    @shared
    def advance(carry, w):
        return Carry(carry.x + jnp.sin(carry.x @ w), carry.step + 1)

    def net(carry, ws):
        for w in ws:
            carry = advance(carry, w)
        return carry

    return net, (Carry(normal(1, 4), jnp.int32(0)), [normal(i, 4, 4) for i in range(5)])


@program(uses={"apply": 5})
def dict_params(shared):
    @shared
    def apply(params, x):
        hidden = jnp.tanh(x @ params["in"]["w"] + params["in"]["b"])
        return x + hidden @ params["out"]["w"] + params["out"]["b"]

    def net(params, x):
        for i in range(5):
            x = apply(params[f"layer{i}"], x)
        return {"logits": x, "norm": jnp.linalg.norm(x)}

    params = {f"layer{i}": {"in": dense(i, 4, 8), "out": dense(i + 20, 8, 4)} for i in range(5)}
    return net, (params, normal(7, 2, 4))


# --- element types --------------------------------------------------------------------------------


@program(uses={"block": 5})
def bfloat16(shared):
    @shared
    def block(w, x):
        return x + jnp.tanh(x @ w)

    return in_turn(block), (
        [normal(i, 4, 4, dtype=jnp.bfloat16) for i in range(5)],
        normal(7, 2, 4, dtype=jnp.bfloat16),
    )


@program(uses={"quantised": 5}, without=NO_GRADIENT)
def int8(shared):
    @shared
    def quantised(w, x):
        acc = lax.dot(x, w, preferred_element_type=jnp.int32)
        return jnp.clip(acc >> 4, -127, 127).astype(jnp.int8)

    def net(ws, x):
        for w in ws:
            x = quantised(w, x)
        return x, x.astype(jnp.int32).sum()

    def random(seed):
        return jnp.asarray(np.random.default_rng(seed).integers(-99, 99, (4, 4)), jnp.int8)

    return net, ([random(i) for i in range(5)], random(9))


@program(uses={"life": 4}, without=NO_GRADIENT)
def boolean(shared):
    @shared
    def life(board, frozen):
        n = sum(jnp.roll(board, s, (0, 1)).astype(jnp.int32) for s in [(0, 1), (1, 0), (-1, -1)])
        return ((n == 2) | (board & (n == 1))) & ~frozen

    def net(board, frozen):
        for _ in range(4):
            board = life(board, frozen)
        return board, board.any()

    board = jnp.asarray(np.random.default_rng(1).random((4, 5)) > 0.5)
    return net, (board, jnp.zeros((4, 5), bool).at[0, 0].set(True))


@program(uses={"rotate": 5})
def complex64(shared):
    @shared
    def rotate(phase, z):
        return jnp.fft.fft(z * jnp.exp(1j * phase), norm="ortho") + z.conj()

    def net(phases, z):
        for phase in phases:
            z = rotate(phase, z)
        return z, jnp.abs(z).sum()

    z = normal(8, 4) + 1j * normal(9, 4)
    return net, ([normal(i, 4) for i in range(5)], z)


@program(uses={"draw": 5}, core=True)
def typed_keys(shared):
    @shared
    def draw(key, x):
        key, sub = jax.random.split(key)
        return key, x + jax.random.normal(sub, x.shape) * x

    def net(key, x):
        for _ in range(5):
            key, x = draw(key, x)
        return key, x

    return net, (jax.random.key(3), normal(1, 4))


@program(uses={"draw": 5})
def raw_keys(shared):
    @shared
    def draw(key, x):
        return jax.random.fold_in(key, 7), x * jax.random.uniform(key, x.shape)

    def net(key, x):
        for _ in range(5):
            key, x = draw(key, x)
        return key, x

    return net, (jax.random.PRNGKey(3), normal(1, 4))


@program(uses={"pick": 5}, core=True)
def integer_operands(shared):
    @shared
    def pick(table, i, x):
        row = table[i]
        return x + row * x.sum(), (i * 3 + 1) % table.shape[0], jnp.argmax(row)

    def net(table, i, x):
        picked = []
        for _ in range(5):
            x, i, best = pick(table, i, x)
            picked.append(best)
        return x, i, picked

    return net, (normal(1, 7, 3), jnp.int32(2), normal(2, 3))


@program(uses={"block": 5}, x64=True, hessian=True)
def double_precision(shared):
    @shared
    def block(w, x):
        return x + jnp.tanh(x @ w) * 0.1

    def net(x, ws):
        for w in ws:
            x = block(w, x)
        return x, x.astype(jnp.float32)

    return net, (
        normal(7, 3, dtype=np.float64),
        [normal(i, 3, 3, dtype=np.float64) for i in range(5)],
    )


@program(uses={"count": 5}, x64=True, without=NO_GRADIENT)
def mixed_widths_x64(shared):
    @shared
    def count(n, small):
        big = n * 1_000_003 + small.astype(jnp.int64)
        return big, (small + 1).astype(jnp.int32), jnp.asarray(1.5) * 2

    def net(n, small):
        for _ in range(5):
            n, small, constant = count(n, small)
        return n, small, constant

    return net, (jnp.int64(2**33), jnp.int32(3))


# --- derivatives ----------------------------------------------------------------------------------


@jax.custom_jvp
def slow_sine(x):
    return jnp.sin(x) * jnp.cos(x)


slow_sine.defjvp(lambda p, t: (slow_sine(*p), t[0] * (1 + p[0])))


@jax.custom_vjp
def clipped(x):
    return jnp.tanh(x) * x


clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (jnp.clip(g, -0.5, 0.5) * jnp.cos(x),))


@program(uses={"block": 5}, hessian=True, core=True)
def custom_jvp_inside(shared):
    @shared
    def block(w, x):
        return x + slow_sine(x @ w)

    def net(x, ws):
        for w in ws:
            x = block(w, x)
        return x

    return net, (normal(7, 3), [normal(i, 3, 3) for i in range(5)])


@program(uses={"block": 5}, without=("jvp", "hessian"))
def custom_vjp_inside(shared):
    @shared
    def block(w, x):
        return x + clipped(x @ w)

    return in_turn(block), ([normal(i, 3, 3) for i in range(5)], normal(7, 3))


@program(uses={"body": 4}, core=True)
def custom_jvp_outside(shared):
    @shared
    def body(x, w):
        return jnp.tanh(x @ w) + x

    @jax.custom_jvp
    def layer(x, w):
        return body(x, w)

    @layer.defjvp
    def layer_jvp(primals, tangents):
        return body(*primals), body(primals[0] + 1.0, primals[1]) * tangents[0]

    return each_on(layer), (normal(7, 3), [normal(i, 3, 3) for i in range(4)])


@program(uses={"body": 4}, without=("jvp", "hessian"), core=True)
def custom_vjp_outside(shared):
    @shared
    def body(x, w):
        return jnp.tanh(x @ w) + x

    @shared
    def body_bwd(x, w, g):
        return g * jnp.cos(x), jnp.outer(x, g) * 0.5

    layer = jax.custom_vjp(lambda x, w: body(x, w))
    layer.defvjp(lambda x, w: (body(x, w), (x, w)), lambda res, g: body_bwd(*res, g))

    return each_on(layer), (normal(7, 3), [normal(i, 3, 3) for i in range(4)])


@program(uses={"block": 4})
def stop_gradient_between(shared):
    @shared
    def block(w, x):
        return x + jnp.tanh(x @ w)

    def net(ws, x):
        for i, w in enumerate(ws):
            x = block(w, x)
            if i == 1:
                x = lax.stop_gradient(x) * 2
        return x

    return net, ([normal(i, 4, 4) for i in range(4)], normal(7, 2, 4))


@program(uses={"block": 4})
def checkpoint_of_shared(shared):
    @shared
    def block(w, x):
        return x + jnp.sin(jnp.tanh(x @ w))

    def net(ws, x):
        for w in ws:
            x = jax.checkpoint(block)(w, x)
        return x

    return net, ([normal(i, 4, 4) for i in range(4)], normal(7, 2, 4))


@program(uses={"block": 4})
def shared_of_checkpoint(shared):
    @shared
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def block(w, x):
        return x + jnp.sin(jnp.tanh(x @ w))

    return in_turn(block), ([normal(i, 4, 4) for i in range(4)], normal(7, 2, 4))


# --- control flow and batching inside a body ------------------------------------------------------


@program(uses={"rollout": 4})
def scan_in_body(shared):
    @shared
    def rollout(w, x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ w) + c, c.sum()), x, None, length=3)

    def net(ws, x):
        sums = []
        for w in ws:
            x, s = rollout(w, x)
            sums.append(s)
        return x, sums

    return net, ([normal(i, 3, 3) for i in range(4)], normal(7, 3))


@program(uses={"newton": 4}, without=NO_GRADIENT)
def while_loop_in_body(shared):
    @shared
    def newton(a, x):
        def step(state):
            i, x = state
            return i + 1, 0.5 * (x + a / x)

        return lax.while_loop(lambda s: s[0] < 5, step, (0, x))

    def net(a, x):
        for _ in range(4):
            n, x = newton(a, x)
            a = a + x
        return n, x

    return net, (jnp.float32(3.0), jnp.float32(1.0))


@program(uses={"branch": 5}, core=True)
def cond_in_body(shared):
    @shared
    def branch(x, w):
        y = lax.cond(x.sum() > 0, lambda x: jnp.sin(x @ w), lambda x: jnp.cos(x) * 2, x)
        return lax.switch(jnp.int32(y[0] > 0), [lambda y: y + x, lambda y: y - x], y)

    return each_on(branch), (normal(7, 3), [normal(i, 3, 3) for i in range(5)])


@program(uses={"batched": 4})
def vmap_in_body(shared):
    @shared
    def batched(w, x):
        return jax.vmap(lambda row: row + jnp.tanh(row @ w).sum() * row)(x)

    return in_turn(batched), ([normal(i, 3, 3) for i in range(4)], normal(7, 2, 3))


@program(uses={"block": (2, 2)}, core=True)
def vmap_around_body(shared):
    @shared
    def block(w, x):
        return x + jnp.tanh(w @ x)

    def net(ws, x):
        for i, w in enumerate(ws):
            x = jax.vmap(block, in_axes=(None, i % 2), out_axes=i % 2)(w, x)
        return x

    return net, ([normal(i, 3, 3) for i in range(4)], normal(7, 3, 3))


@program(uses={"body": 4})
def scan_around_bodies(shared):
    @shared
    def body(w, x):
        return x + jnp.tanh(x @ w)

    def net(w, x):
        def step(x, _):
            for _ in range(4):
                x = body(w, x)
            return x, x.sum()

        return lax.scan(step, x, None, length=3)

    return net, (normal(1, 3, 3), normal(7, 3))


@program(uses={"grad_step": 4}, hessian=True)
def gradient_in_body(shared):
    @shared
    def grad_step(x, target):
        value, g = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x) * x - x * target))(x)
        return x - 0.1 * g, value

    def net(x, target):
        values = []
        for _ in range(4):
            x, value = grad_step(x, target)
            values.append(value)
        return x, values

    return net, (normal(1, 3), normal(2, 3))


# --- linear algebra -------------------------------------------------------------------------------


def spd(seed, n=3):
    a = normal(seed, n, n)
    return a @ a.T + jnp.diag(jnp.arange(1.0, n + 1))


@program(uses={"gauss": 4})
def cholesky_and_solve(shared):
    @shared
    def gauss(a, b):
        factor = jnp.linalg.cholesky(a)
        x = jax.scipy.linalg.cho_solve((factor, True), b)
        return jnp.linalg.solve(a + jnp.eye(3), b) + x, 2 * jnp.log(jnp.diag(factor)).sum()

    def net(mats, b):
        logs = []
        for a in mats:
            b, log_det = gauss(a, b)
            logs.append(log_det)
        return b, logs

    return net, ([spd(i) for i in range(4)], normal(7, 3))


@program(uses={"spectrum": 4})
def eigh_and_svd(shared):
    @shared
    def spectrum(a, x):
        values, vectors = jnp.linalg.eigh(a)
        singular = jnp.linalg.svd(a + 1, compute_uv=False)
        root = (vectors * jnp.sqrt(values)) @ vectors.T
        return root @ x + singular

    return in_turn(spectrum), ([spd(i) for i in range(4)], normal(7, 3))


@program(uses={"solve_cg": 4})
def conjugate_gradient(shared):
    @shared
    def solve_cg(a, b):
        return jax.scipy.sparse.linalg.cg(lambda x: a @ x, b, maxiter=6)[0] + b

    def net(mats, b):
        for a in mats:
            b = solve_cg(a, b)
        return b

    return net, ([spd(i) for i in range(4)], normal(7, 3))


# --- effects, names, donation ---------------------------------------------------------------------


@program(uses={"noisy": 4}, kept=False, core=True)
def debug_print_in_body(shared):
    @shared
    def noisy(w, x):
        y = jnp.tanh(x @ w)
        jax.debug.print("total {t:.3f}", t=lax.stop_gradient(y).sum())
        return y

    return in_turn(noisy), ([normal(i, 3, 3) for i in range(4)], normal(7, 3))


def host_sum(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).sum(dtype=np.float32)


@program(uses={"record": 4}, without=("vmap", *NO_GRADIENT), kept=False)
def ordered_callback_in_body(shared):
    from jax.experimental import io_callback

    total = jax.ShapeDtypeStruct((), np.float32)

    @shared
    def record(w, x):
        y = jnp.tanh(x @ w)
        s = io_callback(host_sum, total, lax.stop_gradient(y), ordered=True)
        return y + s

    return in_turn(record), ([normal(i, 3, 3) for i in range(4)], normal(7, 3))


@program(uses={"host": 4}, kept=False)
def pure_callback_in_body(shared):
    total = jax.ShapeDtypeStruct((), np.float32)

    @shared
    def host(w, x):
        y = jnp.tanh(x @ w)
        s = jax.pure_callback(host_sum, total, lax.stop_gradient(y), vmap_method="sequential")
        return y + s

    return in_turn(host), ([normal(i, 3, 3) for i in range(4)], normal(7, 3))


@program(uses={"block": 4})
def named_scopes(shared):
    @shared
    def block(w, x):
        with jax.named_scope("attention"):
            x = x + jnp.tanh(x @ w)
        with jax.named_scope("feed_forward"):
            return x + jnp.sin(x @ w)

    def net(ws, x):
        for i, w in enumerate(ws):
            with jax.named_scope(f"layer{i}"):
                x = block(w, x)
        return x

    return net, ([normal(i, 3, 3) for i in range(4)], normal(7, 3))


@program(uses={"accumulate": 5}, donate=(0,))
def donated_argument(shared):
    @shared
    def accumulate(state, x):
        return {"sum": state["sum"] + jnp.sin(x), "max": jnp.maximum(state["max"], x)}

    def net(state, x):
        for _ in range(5):
            state = accumulate(state, x + state["sum"])
        return state

    return net, ({"sum": normal(1, 8), "max": normal(2, 8)}, normal(3, 8))

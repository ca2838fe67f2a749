"""An LSTM's train step, its time steps unrolled: one cell with the same weights at every step.

The loss is that of telling from a whole sequence which of several classes it belongs to.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import Weights
from benchmarks.programs.program import Case, Fun, Program, Share

Params = dict[str, jax.Array]
State = tuple[jax.Array, jax.Array]
_N_CLASSES = 10


def _cell(params: Params, state: State, x: jax.Array) -> State:
    hidden, memory = state
    gates = x @ params["input"] + hidden @ params["recurrent"] + params["bias"]
    enter, forget, new, leave = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(forget + 1) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory


def _train_step(last_state: Fun) -> Fun:
    def loss(params: Params, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        zeros = jnp.zeros((inputs.shape[1], params["recurrent"].shape[0]))
        hidden, _ = last_state(params, (zeros, zeros), inputs)
        log_probabilities = jax.nn.log_softmax(hidden @ params["output"])
        return -jnp.take_along_axis(log_probabilities, labels[:, None], -1).mean()

    return jax.value_and_grad(loss)


def _arguments(steps: int, width: int, batch: int) -> tuple[Params, jax.Array, jax.Array]:
    weights = Weights()
    params = {
        "input": weights.matrix(width, 4 * width),
        "recurrent": weights.matrix(width, 4 * width),
        "bias": jnp.zeros(4 * width),
        "output": weights.matrix(width, _N_CLASSES),
    }
    return params, weights.normal(steps, batch, width), weights.integers(_N_CLASSES, batch)


def make(share: Share, **settings: int) -> Case:
    """The train step with its time steps in a Python loop."""
    cell = share(_cell)

    def last_state(params: Params, state: State, inputs: jax.Array) -> State:
        for x in inputs:
            state = cell(params, state, x)
        return state

    return Case(_train_step(last_state), _arguments(**settings))


def make_scan(**settings: int) -> Case:
    """The train step with its time steps in a scan."""

    def last_state(params: Params, state: State, inputs: jax.Array) -> State:
        def step(state: State, x: jax.Array) -> tuple[State, None]:
            return _cell(params, state, x), None

        return lax.scan(step, state, inputs)[0]

    return Case(_train_step(last_state), _arguments(**settings))


PROGRAM = Program(
    "lstm",
    full={"steps": 64, "width": 128, "batch": 16},
    tiny={"steps": 6, "width": 8, "batch": 2},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: settings["steps"],
)

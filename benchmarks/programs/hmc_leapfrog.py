"""One transition of Hamiltonian Monte Carlo, its leapfrog steps unrolled.

The posterior is that of a logistic regression with normal priors, several chains at once. Each step
takes a gradient of the potential energy; the last state is accepted or not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import Weights
from benchmarks.programs.program import Case, Fun, Program, Share

Data = tuple[jax.Array, jax.Array]
State = tuple[jax.Array, jax.Array]
"""Positions and momenta, a row for each chain."""
_STEP = 0.05


def _energy(position: jax.Array, data: Data) -> jax.Array:
    """The negative logarithm of the posterior, for each chain."""
    inputs, labels = data
    logits = position @ inputs.T
    log_likelihood = (labels * logits - jax.nn.softplus(logits)).sum(-1)
    return 0.5 * (position**2).sum(-1) - log_likelihood


def _force(position: jax.Array, data: Data) -> jax.Array:
    return -jax.grad(lambda position: _energy(position, data).sum())(position)


def _leapfrog(state: State, data: Data) -> State:
    position, momentum = state
    momentum = momentum + _STEP / 2 * _force(position, data)
    position = position + _STEP * momentum
    return position, momentum + _STEP / 2 * _force(position, data)


def _transition(integrate: Fun) -> Fun:
    def transition(position: jax.Array, momentum: jax.Array, uniform: jax.Array, data: Data) -> Any:
        new_position, new_momentum = integrate((position, momentum), data)

        def total(position: jax.Array, momentum: jax.Array) -> jax.Array:
            return _energy(position, data) + 0.5 * (momentum**2).sum(-1)

        energy = total(new_position, new_momentum)
        accepted = jnp.log(uniform) < total(position, momentum) - energy
        return energy, jnp.where(accepted[:, None], new_position, position)

    return transition


def _arguments(chains: int, points: int, width: int) -> tuple[Any, ...]:
    weights = Weights()
    inputs, truth = weights.normal(points, width), weights.normal(width)
    labels = (inputs @ truth + weights.normal(points) > 0).astype(jnp.float32)
    uniform = jnp.linspace(0.05, 0.95, chains)
    position, momentum = weights.normal(chains, width), weights.normal(chains, width)
    return position, momentum, uniform, (inputs, labels)


def make(share: Share, *, steps: int, **sizes: int) -> Case:
    """The transition with its steps in a Python loop."""
    leapfrog = share(_leapfrog)

    def integrate(state: State, data: Data) -> State:
        for _ in range(steps):
            state = leapfrog(state, data)
        return state

    return Case(_transition(integrate), _arguments(**sizes))


def make_scan(*, steps: int, **sizes: int) -> Case:
    """The transition with its steps in a scan."""

    def integrate(state: State, data: Data) -> State:
        def step(state: State, _: Any) -> tuple[State, None]:
            return _leapfrog(state, data), None

        return lax.scan(step, state, None, length=steps)[0]

    return Case(_transition(integrate), _arguments(**sizes))


PROGRAM = Program(
    "hmc_leapfrog",
    full={"steps": 128, "chains": 16, "points": 256, "width": 32},
    tiny={"steps": 6, "chains": 2, "points": 16, "width": 3},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: settings["steps"],
)

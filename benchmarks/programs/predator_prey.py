"""The gradient of a fit: predators and prey, their populations integrated by unrolled steps.

Lotka and Volterra's model, by the classic Runge-Kutta method with fixed steps. What is
differentiated is the distance of the last populations from observed ones, with respect to the
four rates of the model and to the first populations. Everything is element by element.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import Weights
from benchmarks.programs.program import Case, Fun, Program, Share

State = tuple[jax.Array, jax.Array]
"""Prey and predators, one of each for every place."""
_STEP = 0.05


def _slope(rates: jax.Array, state: State) -> State:
    prey, predators = state
    births, hunting, gain, deaths = rates
    return (
        births * prey - hunting * prey * predators,
        gain * prey * predators - deaths * predators,
    )


def _moved(state: State, step: float, slope: State) -> State:
    return state[0] + step * slope[0], state[1] + step * slope[1]


def _solver_step(rates: jax.Array, state: State) -> State:
    first = _slope(rates, state)
    second = _slope(rates, _moved(state, _STEP / 2, first))
    third = _slope(rates, _moved(state, _STEP / 2, second))
    fourth = _slope(rates, _moved(state, _STEP, third))
    for weight, slope in zip((1, 2, 2, 1), (first, second, third, fourth), strict=True):
        state = _moved(state, _STEP * weight / 6, slope)
    return state


def _gradient(solve: Fun) -> Fun:
    def loss(rates: jax.Array, state: State, observed: State) -> jax.Array:
        prey, predators = solve(rates, state)
        return ((prey - observed[0]) ** 2 + (predators - observed[1]) ** 2).mean()

    return jax.value_and_grad(loss, argnums=(0, 1))


def _arguments(places: int) -> tuple[jax.Array, State, State]:
    weights = Weights()

    def populations() -> State:
        return jnp.exp(0.1 * weights.normal(places)), jnp.exp(0.1 * weights.normal(places))

    return jnp.array([1.1, 0.4, 0.1, 0.4]), populations(), populations()


def make(share: Share, *, steps: int, **sizes: int) -> Case:
    """The gradient with the solver's steps in a Python loop."""
    step = share(_solver_step)

    def solve(rates: jax.Array, state: State) -> State:
        for _ in range(steps):
            state = step(rates, state)
        return state

    return Case(_gradient(solve), _arguments(**sizes))


def make_scan(*, steps: int, **sizes: int) -> Case:
    """The gradient with the solver's steps in a scan."""

    def solve(rates: jax.Array, state: State) -> State:
        def step(state: State, _: Any) -> tuple[State, None]:
            return _solver_step(rates, state), None

        return lax.scan(step, state, None, length=steps)[0]

    return Case(_gradient(solve), _arguments(**sizes))


PROGRAM = Program(
    "predator_prey",
    full={"steps": 12, "places": 64},
    tiny={"steps": 2, "places": 3},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: settings["steps"],
)

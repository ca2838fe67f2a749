"""The gradient through an unrolled Runge-Kutta solve of coupled oscillators.

Kuramoto's model, by Dormand and Prince's fifth-order method with fixed steps. What is
differentiated is the distance of the last phases from observed ones, with respect to the
oscillators' frequencies and couplings and to the initial phases, as when fitting the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.layers import Weights
from benchmarks.programs.program import Case, Fun, Program, Share

Model = tuple[jax.Array, jax.Array]
"""Frequencies of the oscillators, (n,), and their couplings, (n, n)."""

# Each row makes the next stage's state from the slopes so far; the last one makes the result.
_TABLEAU = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_STEP = 0.05


def _slope(model: Model, phases: jax.Array) -> jax.Array:
    frequencies, couplings = model
    sine, cosine = jnp.sin(phases), jnp.cos(phases)
    # The sum over j of coupling_ij * sin(phase_j - phase_i).
    return frequencies + cosine * (sine @ couplings) - sine * (cosine @ couplings)


def _solver_step(model: Model, phases: jax.Array) -> jax.Array:
    slopes = [_slope(model, phases)]
    for row in _TABLEAU[:-1]:
        slopes.append(_slope(model, _advance(phases, row, slopes)))
    return _advance(phases, _TABLEAU[-1], slopes)


def _advance(phases: jax.Array, row: Sequence[float], slopes: Sequence[jax.Array]) -> jax.Array:
    for weight, slope in zip(row, slopes, strict=True):
        if weight:
            phases = phases + (_STEP * weight) * slope
    return phases


def _gradient(solve: Fun) -> Fun:
    def loss(model: Model, phases: jax.Array, observed: jax.Array) -> jax.Array:
        return (1 - jnp.cos(solve(model, phases) - observed)).mean()

    return jax.value_and_grad(loss, argnums=(0, 1))


def _arguments(oscillators: int, batch: int) -> tuple[Model, jax.Array, jax.Array]:
    weights = Weights()
    model = weights.normal(oscillators), weights.matrix(oscillators, oscillators)
    return model, weights.normal(batch, oscillators), weights.normal(batch, oscillators)


def make(share: Share, *, steps: int, **sizes: int) -> Case:
    """The gradient with the solver's steps in a Python loop."""
    step = share(_solver_step)

    def solve(model: Model, phases: jax.Array) -> jax.Array:
        for _ in range(steps):
            phases = step(model, phases)
        return phases

    return Case(_gradient(solve), _arguments(**sizes))


def make_scan(*, steps: int, **sizes: int) -> Case:
    """The gradient with the solver's steps in a scan."""

    def solve(model: Model, phases: jax.Array) -> jax.Array:
        def step(phases: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return _solver_step(model, phases), None

        return lax.scan(step, phases, None, length=steps)[0]

    return Case(_gradient(solve), _arguments(**sizes))


PROGRAM = Program(
    "runge_kutta",
    full={"steps": 12, "oscillators": 64, "batch": 16},
    tiny={"steps": 2, "oscillators": 5, "batch": 2},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: settings["steps"],
)

"""An element-wise iteration over a large array, where a call that is kept can only hurt.

XLA makes one kernel of the whole chain, which reads and writes each element once; every kept call
reads and writes all of them again. The iteration is Halley's, for the cube root.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.program import Case, Program, Share


def _halley(root: jax.Array, x: jax.Array) -> jax.Array:
    cube = root * root * root
    improved = root * (cube + 2 * x) / (2 * cube + x)
    # Damped, so that the iteration goes on moving: a converged one would hide a wrong result.
    return 0.75 * root + 0.25 * improved


def _arguments(elements: int) -> tuple[jax.Array]:
    return (jnp.linspace(0.1, 10.0, elements, dtype=jnp.float32),)


def make(share: Share, *, steps: int, elements: int) -> Case:
    """The iteration in a Python loop."""
    halley = share(_halley)

    def cube_root(x: jax.Array) -> jax.Array:
        root = jnp.ones_like(x)
        for _ in range(steps):
            root = halley(root, x)
        return root

    return Case(cube_root, _arguments(elements))


def make_scan(*, steps: int, elements: int) -> Case:
    """The iteration in a scan."""

    def cube_root(x: jax.Array) -> jax.Array:
        def step(root: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return _halley(root, x), None

        return lax.scan(step, jnp.ones_like(x), None, length=steps)[0]

    return Case(cube_root, _arguments(elements))


PROGRAM = Program(
    "small_bodies",
    full={"steps": 48, "elements": 1_000_000},
    tiny={"steps": 6, "elements": 100},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: settings["steps"],
)

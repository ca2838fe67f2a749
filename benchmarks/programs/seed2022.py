"""Sixteen calls of one chain of 256 scalar operations.

The example with which users have asked since 2022 whether nested `jit` is worth anything: a long
straight-line function, called again and again by an outer one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs.program import Case, Program, Share


def _chain(x: jax.Array, operations: int) -> jax.Array:
    # Two cheap operations in turn: the program's cost is its length, not its arithmetic.
    for i in range(operations // 2):
        x = x * 0.999
        x = x + 0.001 * (i + 1)
    return x


def make(share: Share, *, calls: int, operations: int) -> Case:
    """The outer function with its calls in a Python loop."""

    def chain(x: jax.Array) -> jax.Array:
        return _chain(x, operations)

    shared_chain = share(chain)

    def repeated_chain(x: jax.Array) -> jax.Array:
        for _ in range(calls):
            x = shared_chain(x)
        return x

    return Case(repeated_chain, (jnp.float32(0.5),))


def make_scan(*, calls: int, operations: int) -> Case:
    """The outer function with its calls in a scan."""

    def repeated_chain(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (_chain(x, operations), None), x, None, length=calls)[0]

    return Case(repeated_chain, (jnp.float32(0.5),))


PROGRAM = Program(
    "seed2022",
    full={"calls": 16, "operations": 256},
    tiny={"calls": 4, "operations": 32},
    make=make,
    make_scan=make_scan,
    depth=lambda settings: settings["calls"],
)

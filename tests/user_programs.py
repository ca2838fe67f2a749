"""What the tests of user reports share: a deep program, counting traces, reading records."""

from __future__ import annotations

import functools
import re

import jax.numpy as jnp
from programs import normal


class Runs:
    """Counts how often Python code ran: of ``fun``, or wherever it is called."""

    def __init__(self, fun=None):
        self.n = 0

        def counted(*args, **kwargs):
            self.n += 1
            return fun(*args, **kwargs)

        self.fun = functools.wraps(fun)(counted) if fun else None

    def __call__(self):
        self.n += 1


def block(params, x):
    """A residual block with parameters of two dimensions."""
    hidden = jnp.maximum((x - x.mean(-1, keepdims=True)) @ params["up"], 0) * params["gain"]
    return x + (hidden @ params["down"]) / jnp.sqrt((hidden**2).mean() + 1e-5)


def parameters(n):
    return [
        {"up": normal(i, 8, 16), "down": normal(100 + i, 16, 8), "gain": jnp.ones(16)}
        for i in range(n)
    ]


def repeated(layer, n, x):
    """One function, n times."""
    for _ in range(n):
        x = layer(x)
    return x


def stack(layer, params, x):
    """Layers with parameters of their own, one after the other."""
    return functools.reduce(lambda x, p: layer(p, x), params, x)


def loss_of(layer):
    """A scalar function of the parameters of a stack."""
    return lambda params, x: (stack(layer, params, x) ** 2).mean()


def report_of(fun, *args):
    """The record of a program that is traced and not compiled."""
    fun.trace(*args)
    (program,) = fun.reuse().report().programs
    return program


def instructions(hlo):
    """Opcodes of optimised HLO, in order."""
    return re.findall(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][\w\-]*)\(", hlo, re.MULTILINE)

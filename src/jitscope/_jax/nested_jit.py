"""``jax.jit``, and the parameters of its equation in another program."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
from jax._src.named_sharding import UNSPECIFIED as UNSPECIFIED
from jax.extend.core import JaxprEqn

from .jaxprs import AnyJaxpr, opened

jit = jax.jit
"""As it was when jitscope was imported. `jitscope.install` and others exchange ``jax.jit``."""


def has_options(eqn: JaxprEqn) -> bool:
    """Whether a nested jit asks for shardings or layouts at its boundary."""
    unspecified = plain_jit_params()
    params = eqn.params
    return any(
        any(value is not unspecified[key][0] for value in params[key])
        for key in ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    )


def plain_jit_params() -> dict[str, Any]:
    """Parameters of a nested jit without options, of one operand and one result."""
    return _plain_jit_params_in(jax.sharding.get_abstract_mesh())


@functools.cache
def _plain_jit_params_in(mesh: Any) -> dict[str, Any]:
    """One of the parameters is the mesh in force, so there is one set per mesh."""
    number = jax.ShapeDtypeStruct((), "float32")
    return dict(jit(jax.lax.neg).trace(number)._params)  # pyright: ignore


def jit_params(jaxpr: AnyJaxpr, name: str) -> dict[str, Any]:
    """Parameters of a nested jit of ``jaxpr`` without options."""
    params = dict(plain_jit_params(), jaxpr=jaxpr, name=name)
    n_in, n_out = len(opened(jaxpr).invars), len(opened(jaxpr).outvars)
    for key, n in (
        ("in_shardings", n_in),
        ("in_layouts", n_in),
        ("donated_invars", n_in),
        ("out_shardings", n_out),
        ("out_layouts", n_out),
    ):
        params[key] = (params[key][0],) * n
    return params


def with_leading_operands(params: Mapping[str, Any], jaxpr: AnyJaxpr, n: int) -> dict[str, Any]:
    """Parameters of a nested jit whose new ``jaxpr`` takes ``n`` operands more, in front."""
    plain = plain_jit_params()
    changed = {
        key: (plain[key][0],) * n + tuple(params[key])
        for key in ("in_shardings", "in_layouts", "donated_invars")
    }
    return {**params, **changed, "jaxpr": jaxpr}

"""The one primitive: a call of a body, lowered by platform and device count.

Which attributes a call should carry is known only when it is lowered, and the same traced
program may be lowered for one device and later for eight. ``shared_call`` is therefore a
nested ``jit`` to every transformation, and picks its attributes when JAX lowers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _jax
from .platforms import keeps_calls, tags
from .variants import Cover


def attributes(target: _jax.Target, unit: str) -> Mapping[str, str]:
    """Frontend attributes of a call that should stay shared on this target.

    Args:
      target: what the program is being lowered for.
      unit: name of the body, equal in every process; empty for a call that may be inlined.

    Returns:
      The attributes of the ``func.call``; none for a plain call, which XLA inlines.
    """
    # With several devices, `compilation_unit` splits the program before SPMD partitioning, which
    # then fails. Several platforms at once are lowered to one program.
    if not unit or target.n_devices > 1 or target.manual or len(target.platforms) != 1:
        return {}
    return tags(unit) if keeps_calls(target.platforms[0]) else {}


shared_call_p = _jax.structured_call_primitive("shared_call", attributes)


def shared_call_params(
    site_params: Mapping[str, Any], shared: _jax.AnyJaxpr, unit: str, cover: Cover | None
) -> dict[str, Any]:
    """Parameters of a ``shared_call``.

    Args:
      site_params: of the nested jit at the call site; what transformations see.
      shared: closed jaxpr that is lowered, one object for all call sites of a body.
      unit: name under which the body is compiled, or empty for a plain call.
      cover: how the call is expressed by ``shared``; None where their interfaces are equal.
    """
    site = _jax.opened(site_params["jaxpr"])
    operands = cover.operands if cover else tuple(range(len(site.invars)))
    results = cover.results if cover else tuple(range(len(site.outvars)))
    return dict(site_params, shared=shared, unit=unit, operands=operands, results=results)

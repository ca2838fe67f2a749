"""Audit: do shared subroutines depend on anything beside their arguments?

A shared subroutine is traced once, so what it reads from Python is frozen at its first call:
a global flag, a random key held in an object, ``numpy.random``. `audit` traces a program
with every call of a shared subroutine traced anew, and compares what calls of one
signature trace to: with each other, and with the trace that an earlier program left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .audited import AuditReport, audited
from .outermost.jit import OutermostJit
from .subroutine.static import shown


def audit(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AuditReport:
    """Finds shared subroutines of a function that depend on hidden Python state.

    The function is traced once more, and the Python code of its shared subroutines runs at
    every call. What it traces to is compared with the other calls of that signature, and with
    the trace that earlier programs of this process left, which a new program is given: it is
    stale where a global or an attribute was changed since. Nothing is compiled or run. Calls
    inside ``jax.jit`` functions that JAX has traced before are not seen: audit in a fresh
    process, or before the first call.

    Args:
      fun: a callable; also of `outermost_jit` or ``jax.jit``.
      *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
      **kwargs: its keyword arguments, likewise.

    Returns:
      A record with the subroutines whose calls trace to different bodies though their
      arguments have one signature.

    Raises:
      TypeError: `fun` is not callable. Errors of the function itself pass through.

    Examples:
      >>> import jax, jax.numpy as jnp, jitscope
      >>> calls = []
      >>> @jitscope.shared_subroutine
      ... def noisy(x):
      ...     calls.append(1)
      ...     return x * len(calls)  # frozen by the first trace
      >>> report = jitscope.audit(lambda x: noisy(noisy(x)), 1.0)
      >>> [(finding.name, finding.n_distinct) for finding in report.findings]
      [('noisy', 2)]
    """
    if not callable(fun):
        raise TypeError(
            "audit() needs a function, and after it the arguments to trace it for; got "
            f"{shown(fun)} of type {type(fun).__name__}. For example "
            "jitscope.audit(train_step, params, batch)."
        )
    if isinstance(getattr(fun, "__func__", None), OutermostJit):
        return audit(fun.__func__, fun.__self__, *args, **kwargs)
    inner, static = fun, {}
    if isinstance(fun, OutermostJit):
        inner = fun._fun
        static = {
            key: fun._options[key]
            for key in ("static_argnums", "static_argnames")
            if fun._options.get(key) is not None
        }
    elif hasattr(fun, "lower") and hasattr(fun, "__wrapped__"):
        inner = fun.__wrapped__
    if not static:
        inner, args = _over_arrays(inner, args, kwargs)
        kwargs = {}
    return audited(inner, args, kwargs, static, getattr(fun, "__name__", "fun"))


def _over_arrays(
    fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple]:
    """The function of the arrays among its arguments; everything else stays what it is."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    where = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))
    ]

    @functools.wraps(fun)
    def over_arrays(*arrays: Any) -> Any:
        filled = list(leaves)
        for i, array in zip(where, arrays, strict=True):
            filled[i] = array
        args, kwargs = jax.tree.unflatten(tree, filled)
        return fun(*args, **kwargs)

    del over_arrays.__wrapped__  # whose signature is another
    return over_arrays, tuple(leaves[i] for i in where)

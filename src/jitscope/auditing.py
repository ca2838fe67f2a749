"""Audit: do shared subroutines depend on anything beside their arguments?

A shared subroutine is traced once, so what it reads from Python is frozen at its first call:
a global flag, a random key held in an object, ``numpy.random``. `audit` traces a program
with every call of a shared subroutine traced anew, and compares what calls of one
signature trace to: with each other, and with the trace that an earlier program left.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from . import _jax
from .outermost.jit import OutermostJit
from .reuse.differences import compare
from .settings import not_counting
from .subroutine.static import shown
from .trail import TracedCall, Trail, keeping_trail

_MAX_DIFFERENCES = 4
"""Differences that a finding tells."""


@dataclasses.dataclass(frozen=True)
class AuditFinding:
    """A shared subroutine whose calls do not all compute the same.

    Attributes:
      name: of the subroutine.
      source: where it is defined.
      n_calls: calls of one signature.
      n_distinct: distinct bodies they trace to; sharing gives all of them the first.
      sites: lines of the calls that trace to another body than the first call.
      differences: what differs from the first, one text each.
      is_held: the first is no call of this program but the trace that an earlier one left, which
        all calls are given; it counts among ``n_distinct``.
    """

    name: str
    source: str
    n_calls: int
    n_distinct: int
    sites: tuple[str, ...]
    differences: tuple[str, ...]
    is_held: bool = False


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
      program: name of the function.
      n_calls: calls of shared subroutines that were traced anew.
      n_signatures: distinct subroutines and signatures among them.
      findings: subroutines that depend on hidden state.
    """

    program: str
    n_calls: int
    n_signatures: int
    findings: tuple[AuditFinding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether sharing changes nothing."""
        return not self.findings

    def __str__(self) -> str:
        from .report import findings  # renderers import records, never the reverse

        return findings.render(self)


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


def audited(
    fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any], static: dict[str, Any], name: str
) -> AuditReport:
    """As `audit`, with the options of ``jax.jit`` that say what is static."""

    @functools.wraps(fun)
    def fresh(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    with keeping_trail() as trail, not_counting():
        _jax.trace(fresh, args, kwargs, static)
    return _report(trail, name)


def _report(trail: Trail, name: str) -> AuditReport:
    findings = [
        _finding(key, calls, trail.held.get(key))
        for key, calls in trail.calls.items()
        if len({call.digest for call in _compared(calls, trail.held.get(key))}) > 1
    ]
    return AuditReport(name, sum(map(len, trail.calls.values())), len(trail.calls), tuple(findings))


def _compared(calls: Sequence[TracedCall], held: TracedCall | None) -> list[TracedCall]:
    return [*([] if held is None else [held]), *calls]


def _finding(
    key: tuple[Any, Hashable], calls: Sequence[TracedCall], held: TracedCall | None
) -> AuditFinding:
    first, *_ = compared = _compared(calls, held)
    others = [call for call in calls if call.digest != first.digest]
    found = compare(others[0].jaxpr, first.jaxpr, {})
    texts = tuple(difference.text for difference in found[:_MAX_DIFFERENCES])
    return AuditFinding(
        name=str(key[0]),
        source=key[0].source,
        n_calls=len(calls),
        n_distinct=len({call.digest for call in compared}),
        sites=tuple(dict.fromkeys(call.source for call in others)),
        differences=texts or ("it computes something else altogether",),
        is_held=held is not None,
    )


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

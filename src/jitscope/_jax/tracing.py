"""Tracing a function to a jaxpr, and staging a jaxpr into the trace under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import core as _core, source_info_util as _source_info
from jax._src.interpreters import partial_eval as pe
from jax.extend import source_info_util
from jax.extend.core import JaxprEqn, Literal

from .jaxprs import (
    AnyJaxpr,
    closed_over,
    constants_as_operands,
    consts,
    has_input_effects,
    holds,
    opened,
)
from .nested_jit import UNSPECIFIED, jit, jit_params, with_leading_operands
from .primitives import custom_lin_p, jit_p
from .runtime import HAS_INLINE_ENUM

Tracer = jax.core.Tracer

at_top_level = _core.trace_state_clean
"""Whether no trace is under way in this thread."""
TRACE_CONTEXT = _core.trace_ctx
NO_TRACE = _core.eval_trace
"""For dispatch: ``TRACE_CONTEXT.trace is NO_TRACE`` says the same in a quarter of the time, and
may be false where ``at_top_level()`` is true."""


def bound_axes() -> dict[Any, int]:
    """Sizes by name of the axes that ``vmap`` and ``shard_map`` around this trace have named."""
    return dict(_core.get_axis_env().axis_sizes)


class Boundary(NamedTuple):
    """How ``jax.jit`` treats what enters and leaves a function, leaf by leaf.

    Attributes:
      donated: whether the caller gives the buffer of an argument up.
      in_shardings: asked for by options, or None.
      out_shardings: likewise, of the results.
      has_layouts: whether options ask for a layout somewhere.
    """

    donated: tuple[bool, ...]
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    has_layouts: bool


class Traced(NamedTuple):
    """What one signature of a function traces to.

    Attributes:
      jaxpr: closed; the constants may be tracers of an enclosing trace.
      out_tree: tree of the function's result.
      boundary: what the options of ``jax.jit`` ask for.
    """

    jaxpr: AnyJaxpr
    out_tree: Any
    boundary: Boundary


def trace(fun: Callable[..., Any], args: tuple, kwargs: dict, static: Mapping[str, Any]) -> Traced:
    """Traces ``fun`` as ``jax.jit`` does, with its messages and argument names.

    Args:
      fun: must be a fresh function object, or JAX returns an earlier trace of it.
      args: positional arguments; arrays may be tracers.
      kwargs: keyword arguments.
      static: ``static_argnums`` and ``static_argnames`` as for ``jax.jit``, and of its other
        options those that ``boundary`` should tell about.
    """
    traced = jit(fun, **static).trace(*args, **kwargs)
    jaxpr, lifted = _without_dead_tangents(without_hijax(traced.jaxpr)), traced._consts
    if lifted:
        # jit makes tracers of an enclosing trace its leading operands: close over them again.
        open_ = opened(jaxpr)
        jaxpr = closed_over(
            jaxpr, open_.invars[: len(lifted)], lifted, invars=open_.invars[len(lifted) :]
        )
    return Traced(jaxpr, traced.out_tree, _boundary(traced._params, len(lifted)))


def without_hijax(jaxpr: AnyJaxpr) -> AnyJaxpr:
    """A jaxpr whose primitives all have lowering rules, as ``jax.jit`` makes it of its own.

    From JAX 0.12 on, ``jnp.nonzero`` and others trace to one equation of a primitive that is
    expanded when a whole program is lowered, if the program is known to contain one. Equations
    that are copied or moved do not make that known. A program that takes or returns
    values of such types is left as it is.
    """
    if not getattr(opened(jaxpr), "is_high", False) or any(
        getattr(aval, "is_high", False) for aval in (*jaxpr.in_avals, *jaxpr.out_avals)
    ):
        return jaxpr
    return pe.lower_jaxpr2(jaxpr)


def _without_dead_tangents(jaxpr: AnyJaxpr) -> AnyJaxpr:
    """A jaxpr rid of what nobody reads, if it holds tangents of a ``custom_vjp`` function.

    Those have no lowering rule. ``jax.jit`` drops the ones that nobody reads before it lowers, in
    nested jits as well, but not in calls of other primitives, which ours will be.
    """
    if not holds(jaxpr, custom_lin_p) or has_input_effects(jaxpr):
        return jaxpr
    values = consts(jaxpr)
    live, _ = pe.dce_jaxpr(opened(constants_as_operands(jaxpr)), True, True)
    n = len(values)
    return closed_over(
        jaxpr,
        live.invars[:n],
        values,
        invars=live.invars[n:],
        outvars=live.outvars,
        eqns=live.eqns,
        effects=live.effects,
    )


def _boundary(params: Mapping[str, Any], n_lifted: int) -> Boundary:
    def asked(key: str, first: int) -> tuple[Any, ...]:
        return tuple(None if s is UNSPECIFIED else s for s in params[key][first:])

    layouts = (*params["in_layouts"], *params["out_layouts"])
    return Boundary(
        tuple(params["donated_invars"][n_lifted:]),
        asked("in_shardings", n_lifted),
        asked("out_shardings", 0),
        any(one is not None for one in layouts),
    )


def emit(jaxpr: AnyJaxpr, args: Sequence[Any], name: str) -> list[Any]:
    """Stages the equations of a closed jaxpr into the current trace.

    Equations are copied with their source lines, not bound again: about 3 us each instead
    of 25. (JAX does the same for a nested jit that asks to be inlined while tracing, but
    gives every equation the source line of the call.)
    """
    tracing = _core.trace_ctx.trace
    if not isinstance(tracing, pe.DynamicJaxprTrace) or has_input_effects(jaxpr):
        return _emit_by_inlining(jaxpr, args, name)
    here = source_info_util.current()
    open_ = opened(jaxpr)
    tracers = dict(
        zip(
            (*open_.constvars, *open_.invars),
            (tracing.to_jaxpr_tracer(x, here) for x in (*consts(jaxpr), *args)),
            strict=True,
        )
    )

    def read(atom: Any, source: Any) -> Any:
        if isinstance(atom, Literal):
            return pe.DynamicJaxprTracer(tracing, atom.aval, atom, source)
        return tracers[atom]

    for eqn in open_.eqns:
        source = eqn.source_info
        if here.name_stack.stack:
            source = source.replace(name_stack=here.name_stack + source.name_stack)
        results = tracing.emit_eqn(
            [read(atom, source) for atom in eqn.invars],
            [var.aval for var in eqn.outvars],
            eqn.primitive,
            eqn.params,
            eqn.effects,
            source,
            eqn.ctx,
        )
        tracers.update(zip(eqn.outvars, results, strict=True))
    return [read(atom, here) for atom in open_.outvars]


def _emit_by_inlining(jaxpr: AnyJaxpr, args: Sequence[Any], name: str) -> list[Any]:
    """The same through a nested jit, whose rules know about ``Ref`` and other traces."""
    params = jit_params(constants_as_operands(jaxpr), name)
    params["inline"] = jax.Inline.JAX_EARLY if HAS_INLINE_ENUM else True
    return jit_p.bind(*consts(jaxpr), *args, **params)


def closed_over_by(traced: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """What a ``jax.jit(...).trace(...)`` closed over: arrays, and tracers of outer traces."""
    return [c for c in consts(traced.jaxpr) if not isinstance(c, Tracer)], [
        c for c in (*consts(traced.jaxpr), *traced._consts) if isinstance(c, Tracer)
    ]


def call_traced(traced: Any, lifted: AnyJaxpr, args: Sequence[Any]) -> list[Any]:
    """One nested jit equation for ``traced``, its constants as operands.

    Args:
      traced: a ``jax.jit(...).trace(...)``.
      lifted: its jaxpr after `constants_as_operands`; always the same object for one jaxpr.
      args: leaves of the arguments.
    """
    values = consts(traced.jaxpr)
    params = with_leading_operands(traced._params, lifted, len(values))
    return jit_p.bind(*values, *traced._consts, *args, **params)


def traced_as(fun: Callable[..., Any], avals: Sequence[Any], eqn: JaxprEqn) -> AnyJaxpr:
    """The closed jaxpr of a function of values of these types, with the source line of ``eqn``."""
    types = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals
    ]
    with _source_info.user_context(eqn.source_info.traceback):
        return jax.make_jaxpr(fun)(*types)


def call(jaxpr: AnyJaxpr, args: Sequence[Any], name: str) -> list[Any]:
    """Calls a closed jaxpr as a nested jit does."""
    return jit_p.bind(*args, **jit_params(jaxpr, name))

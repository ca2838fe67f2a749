"""The only door to JAX internals.

Every other module sees jaxprs, primitives and lowering through the names below, so
that a new JAX release is adapted to in this file alone. Each assumption made here has
a test in ``tests/test_jax_contract.py`` that fails first, by name.

Words: a *closed* jaxpr carries the values of its constvars; up to JAX 0.10 that is a
type of its own (``ClosedJaxpr``), from 0.11 every ``Jaxpr`` is one. ``equations``,
``consts`` and ``rebuilt`` hide the difference.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax._src import (
    core as _core,
    effects as _effects,
    shard_map as _shard_map,
    source_info_util as _source_info,
    traceback_util as _traceback_util,
)
from jax._src.interpreters import ad, partial_eval as pe, remat as _remat
from jax._src.util import fun_name as function_name
from jax.extend import random as jex_random, source_info_util
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
    DropVar as DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    primitives,
)
from jax.interpreters import batching, mlir

from .settings import PACKAGE

# As for JAX's own files: lowered programs and filtered tracebacks name the user's lines only.
source_info_util.register_exclusion(PACKAGE)
_traceback_util.register_exclusion(PACKAGE)

F = TypeVar("F", bound=Callable[..., Any])
AnyJaxpr = Any
"""A ``Jaxpr`` or ``ClosedJaxpr``: before JAX 0.11 the two are unrelated types."""

Tracer = jax.core.Tracer

jit = jax.jit
"""As it was when jitscope was imported. `jitscope.install` and others exchange ``jax.jit``."""

# True when `jax.jit(inline=...)` takes the `jax.Inline` enumeration (JAX >= 0.11).
# Delete when 0.10 is no longer supported.
HAS_INLINE_ENUM = hasattr(jax, "Inline")

jit_p: Primitive = primitives.jit_p

SUBPROGRAMS: dict[Primitive, tuple[str, ...]] = {
    jit_p: ("jaxpr",),
    primitives.scan_p: ("jaxpr",),
    primitives.while_p: ("cond_jaxpr", "body_jaxpr"),
    primitives.cond_p: ("branches",),
    primitives.custom_jvp_call_p: ("call_jaxpr",),
    primitives.custom_vjp_call_p: ("call_jaxpr",),
    primitives.remat_p: ("jaxpr",),
    _shard_map.shard_map_p: ("jaxpr",),
}
"""Primitives whose sub-jaxprs may be replaced by equivalent ones, and the parameters
that hold them. A primitive that is not listed is never looked into for rewriting."""

DERIVATIVE_ONLY: dict[Primitive, frozenset[str]] = {
    primitives.custom_jvp_call_p: frozenset({"jvp_jaxpr_fun"}),
    primitives.custom_vjp_call_p: frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees"}),
    primitives.remat_p: frozenset({"policy"}),
}
"""Parameters that matter only when the equation is differentiated, never to lowering."""

NAME_ONLY: dict[Primitive, frozenset[str]] = {
    jit_p: frozenset(
        {"name", "inline", "keep_unused", "donated_invars", "ctx_mesh", "compiler_options_kvs"}
    ),
}
"""Parameters that do not change what a nested equation computes. Donation, options and
``keep_unused`` of a *nested* jit are ignored by JAX itself."""

CONTEXT_PARTS = (
    "compute_type",
    "threefry_partitionable",
    "cur_abstract_mesh",
    "xla_metadata",
    "remove_size_one_mesh_axis",
    "cur_layout_mode",
    "no_collectives",
)
"""Parts of an equation's context, all of which reach the lowered program. The last two are
new in JAX 0.11 and 0.12."""

HEAVY: frozenset[Primitive] = frozenset(
    {
        primitives.dot_general_p,
        primitives.conv_general_dilated_p,
        primitives.scan_p,
        primitives.while_p,
        primitives.cholesky_p,
        primitives.eigh_p,
        primitives.lu_p,
        primitives.qr_p,
        primitives.svd_p,
        primitives.triangular_solve_p,
        primitives.fft_p,
        primitives.sort_p,
    }
)
"""Equations that XLA compiles on their own, whatever surrounds them."""


_PRNG_NAMES = {
    id(impl): impl.name
    for impl in (
        jex_random.threefry_prng_impl,
        jex_random.rbg_prng_impl,
        jex_random.unsafe_rbg_prng_impl,
    )
}


def prng_name(value: Any) -> str | None:
    """The name of one of JAX's own random number generators, or None for anything else."""
    return _PRNG_NAMES.get(id(value))


# --- jaxprs ------------------------------------------------------------------------


def is_jaxpr(value: object) -> bool:
    return isinstance(value, (Jaxpr, ClosedJaxpr))


def opened(jaxpr: AnyJaxpr) -> Jaxpr:
    """The ``Jaxpr`` that holds the equations of a closed or open one."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def equations(jaxpr: AnyJaxpr) -> list[JaxprEqn]:
    return opened(jaxpr).eqns


def consts(jaxpr: AnyJaxpr) -> Sequence[Any]:
    """The values of the constvars; empty for an open jaxpr of JAX 0.10."""
    return getattr(jaxpr, "consts", ())


def rebuilt(jaxpr: AnyJaxpr, **changes: Any) -> AnyJaxpr:
    """A jaxpr of the same kind with ``eqns``, ``invars`` or ``outvars`` exchanged."""
    if isinstance(jaxpr, Jaxpr):
        return jaxpr.replace(**changes)
    return ClosedJaxpr(jaxpr.jaxpr.replace(**changes), jaxpr.consts)


def closed_over(
    template: AnyJaxpr, constvars: Sequence[Var], values: Sequence[Any], **changes: Any
) -> AnyJaxpr:
    """``template`` with other constvars and their values, closed."""
    opened_ = opened(template).replace(constvars=list(constvars), **changes)
    return ClosedJaxpr(opened_, list(values))


def new_jaxpr(
    invars: Sequence[Var], outvars: Sequence[Any], eqns: Sequence[JaxprEqn], name: str
) -> AnyJaxpr:
    """A closed jaxpr without constants, for a body cut out of another program."""
    effects = _core.join_effects(*(eqn.effects for eqn in eqns))
    info = _core.DebugInfo(
        "jit",
        name,
        tuple(f"a{i}" for i in range(len(invars))),
        tuple(f"r{i}" for i in range(len(outvars))),
    )
    return ClosedJaxpr(Jaxpr((), invars, outvars, eqns, effects, info), [])


def new_equation(
    template: JaxprEqn,
    primitive: Primitive,
    invars: Sequence[Any],
    outvars: Sequence[Var],
    params: Mapping[str, Any],
    effects: Any = None,
) -> JaxprEqn:
    """An equation with the source line, name scope and context of ``template``."""
    return template.replace(
        invars=list(invars),
        outvars=list(outvars),
        primitive=primitive,
        params=dict(params),
        effects=effects,
    )


def is_array_type(aval: Any) -> bool:
    """Whether values of a type are arrays, rather than a ``Ref`` or a token."""
    return type(aval) is _core.ShapedArray


def literal_value(literal: Any) -> Any:
    """What a literal stands for, as an array of its type."""
    return np.asarray(literal.val, literal.aval.dtype)


def sub_jaxprs(eqn: JaxprEqn) -> Iterator[AnyJaxpr]:
    """Every jaxpr in the parameters of an equation, known primitive or not."""
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if is_jaxpr(item):
                yield item


def trip_count(eqn: JaxprEqn) -> int:
    """How often the jaxprs nested in an equation run; 1 where that is not known."""
    return eqn.params["length"] if eqn.primitive is primitives.scan_p else 1


def has_input_effects(jaxpr: AnyJaxpr) -> bool:
    """Whether an effect names a value: reads and writes of a ``Ref``, an operand's or its own."""
    open_ = opened(jaxpr)
    return any(
        isinstance(effect, _effects.JaxprInputEffect)
        for effects in (open_.effects, *(eqn.effects for eqn in open_.eqns))
        for effect in effects
    )


def has_ordered_effects(jaxpr: AnyJaxpr) -> bool:
    return bool(_effects.ordered_effects.filter_in(opened(jaxpr).effects))


def has_options(eqn: JaxprEqn) -> bool:
    """Whether a nested jit asks for shardings or layouts at its boundary."""
    unspecified = _plain_jit_params()
    params = eqn.params
    return any(
        any(value is not unspecified[key][0] for value in params[key])
        for key in ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    )


def _plain_jit_params() -> dict[str, Any]:
    """Parameters of a nested jit without options, of one operand and one result."""
    return _plain_jit_params_in(jax.sharding.get_abstract_mesh())


@functools.cache
def _plain_jit_params_in(mesh: Any) -> dict[str, Any]:
    """One of the parameters is the mesh in force, so there is one set per mesh."""
    traced = jax.make_jaxpr(jit(lambda x: x + 1))(0.0)
    return dict(equations(traced)[0].params)


def jit_params(jaxpr: AnyJaxpr, name: str) -> dict[str, Any]:
    """Parameters of a nested jit of ``jaxpr`` without options."""
    params = dict(_plain_jit_params(), jaxpr=jaxpr, name=name)
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
    plain = _plain_jit_params()
    changed = {
        key: (plain[key][0],) * n + tuple(params[key])
        for key in ("in_shardings", "in_layouts", "donated_invars")
    }
    return {**params, **changed, "jaxpr": jaxpr}


def wraps(fun: Callable[..., Any]) -> Callable[[F], F]:
    """``functools.wraps`` that names partials and callable objects too, as ``jax.jit`` does."""

    def wrapped(wrapper: F) -> F:
        functools.update_wrapper(wrapper, fun)
        wrapper.__name__ = function_name(fun)
        return wrapper

    return wrapped


# --- tracing -----------------------------------------------------------------------


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
    jaxpr, lifted = without_hijax(traced.jaxpr), traced._consts
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


def _boundary(params: Mapping[str, Any], n_lifted: int) -> Boundary:
    unspecified = _plain_jit_params()["in_shardings"][0]

    def asked(key: str, first: int) -> tuple[Any, ...]:
        return tuple(None if s is unspecified else s for s in params[key][first:])

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
    open_ = opened(jaxpr)
    values = list(consts(jaxpr))
    lifted = closed_over(jaxpr, (), (), invars=[*open_.constvars, *open_.invars])
    params = jit_params(lifted, name)
    params["inline"] = jax.Inline.JAX_EARLY if HAS_INLINE_ENUM else True
    return jit_p.bind(*values, *args, **params)


at_top_level = _core.trace_state_clean
"""Whether no trace is under way in this thread. JAX's own function: it is on every dispatch."""


def source_line(eqn: JaxprEqn) -> str:
    """``file:line (function)`` of the user's code behind an equation."""
    return source_info_util.summarize(eqn.source_info)


def current_source_line() -> str:
    """``file:line (function)`` of the user's code that runs now."""
    return source_info_util.summarize(source_info_util.current())


def within_call(inner: JaxprEqn, call: JaxprEqn) -> Any:
    """Source information of ``inner`` after it was spliced in place of ``call``."""
    stack = call.source_info.name_stack.extend(f"jit({call.params['name']})")
    return inner.source_info.replace(name_stack=stack + inner.source_info.name_stack)


_scoped: weakref.WeakKeyDictionary[Any, AnyJaxpr] = weakref.WeakKeyDictionary()


def _in_scope(jaxpr: AnyJaxpr, name: str) -> AnyJaxpr:
    """A body whose equations bear its name: XLA prefixes it only where it inlines."""
    if jaxpr not in _scoped:
        scope = source_info_util.new_name_stack().extend(f"jit({name})")
        _scoped[jaxpr] = rebuilt(
            jaxpr,
            eqns=[
                eqn.replace(
                    source_info=eqn.source_info.replace(
                        name_stack=scope + eqn.source_info.name_stack
                    )
                )
                for eqn in equations(jaxpr)
            ],
        )
    return _scoped[jaxpr]


# --- outlining: which equations may be moved into a body, and what the user calls them -----------


def is_movable(eqn: JaxprEqn) -> bool:
    """Whether an equation, if it has no effects, may become part of a nested jit.

    All its values must be such as a jit can pass, and it must not stand in a context of its
    own that attaches to it (``compute_on``, ``set_xla_metadata``).
    """
    return not (eqn.ctx.compute_type or eqn.ctx.xla_metadata) and all(
        isinstance(atom.aval, _core.ShapedArray) for atom in (*eqn.invars, *eqn.outvars)
    )


def user_functions(eqn: JaxprEqn) -> list[str]:
    """Qualified names of the user's functions around an equation, outermost first."""
    frames = _source_info.user_frames(eqn.source_info.traceback)
    return [frame.function_name for frame in frames][::-1]


def user_stack(eqn: JaxprEqn) -> tuple[str, ...]:
    """``file:line (function)`` of the user's functions around an equation, outermost first."""
    frames = _source_info.user_frames(eqn.source_info.traceback)
    return tuple(
        f"{frame.file_name}:{frame.start_line} ({frame.function_name})" for frame in frames
    )[::-1]


def is_transposed(eqn: JaxprEqn) -> bool:
    """Whether an equation belongs to the backward pass of a gradient."""
    return "transpose(" in str(eqn.source_info.name_stack)


def without_name_scope(eqn: JaxprEqn) -> JaxprEqn:
    """For a call whose body's equations carry all of their name scope themselves."""
    info = eqn.source_info.replace(name_stack=source_info_util.new_name_stack())
    return eqn.replace(source_info=info)


# --- calls that are lowered with attributes ----------------------------------------------


class Target(NamedTuple):
    """What an equation is being lowered for.

    Attributes:
      platforms: names such as ``"cpu"``; more than one when exporting.
      n_devices: devices the program will run on.
      manual: inside ``shard_map``, where shapes are per device.
    """

    platforms: tuple[str, ...]
    n_devices: int
    manual: bool


def _target(ctx: mlir.LoweringRuleContext) -> Target:
    axis_context = ctx.module_context.axis_context
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return Target(tuple(ctx.module_context.platforms), axis_context.mesh.size, True)
    return Target(tuple(ctx.module_context.platforms), axis_context.num_devices, False)


_FRONTEND = "mhlo.frontend_attributes"


def _tag_call(context: mlir.ModuleContext, results: Sequence[Any], tags: Mapping[str, str]) -> None:
    """Sets the frontend attributes of the call that made these values.

    (``set_xla_metadata`` around the call would do the same, but it also reaches operations
    in the body whose lowering traces, such as random bits.)
    """
    values, _ = mlir.ir_tree_registry.flatten(results)
    for call in {value.owner for value in values if value.owner.name == "func.call"}:
        attributes: dict[str, Any] = {k: mlir.ir.StringAttr.get(v) for k, v in tags.items()}
        if _FRONTEND in call.attributes:
            attributes = {**{a.name: a.attr for a in call.attributes[_FRONTEND]}, **attributes}
        call.attributes[_FRONTEND] = mlir.ir.DictAttr.get(attributes)
        _drop_lines(context, call.attributes["callee"].value)


def _drop_lines(context: mlir.ModuleContext, function: str) -> None:
    """Removes source lines from a function and from those it calls; names of operations stay.

    A body compiled as a unit loses the table that numbers its lines. Where XLA then inlines a
    call in the body it enters new numbers into an empty table and follows them in circles
    (``PropagateCallMetadata``): the compile of a unit that holds ``jax.random.split`` never
    ended in jaxlib 0.11.2 and 0.12.0.1.
    """
    done = context.cached_primitive_lowerings.setdefault(_drop_lines, set())
    if function in done:
        return
    done.add(function)

    def visit(op: Any) -> Any:
        op.location = _without_line(op.location)
        if op.name == "func.call":
            _drop_lines(context, op.attributes["callee"].value)
        return mlir.ir.WalkResult.ADVANCE

    context.symbol_table[function].operation.walk(visit)


def _without_line(location: Any) -> Any:
    if isinstance(location, mlir.ir.NameLoc):
        return mlir.ir.Location.name(location.name_str, _without_line(location.child_loc))
    return mlir.ir.Location.unknown()


def structured_call_primitive(
    name: str, attributes: Callable[[Target, str], Mapping[str, str]]
) -> Primitive:
    """A call that is a nested jit to every transformation and is tagged when lowered.

    The primitive takes the parameters of a nested jit, of its own call site, and beside
    them ``shared``, the closed jaxpr that is lowered instead of the call site's; ``operands``
    and ``results``, which pick that jaxpr's operands from the call's and the call's results
    from that jaxpr's; and ``unit``, a name that is the same in every process. Differentiation,
    batching and evaluation bind ``jit`` with the call site's parameters.

    Args:
      name: of the primitive.
      attributes: target and unit to the call's frontend attributes; empty for a plain call.
    """
    own = ("shared", "operands", "results", "unit")
    call_p = Primitive(name)
    call_p.multiple_results = True

    def jit_only(params: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in params.items() if key not in own}

    def as_jit(rule: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **params: rule(*args, **jit_only(params))

    def as_jit_equation(rule: Callable[..., Any]) -> Callable[..., Any]:
        def with_equation(*args: Any) -> Any:
            *rest, eqn = args
            return rule(*rest, eqn.replace(primitive=jit_p, params=jit_only(eqn.params)))

        return with_equation

    def lowered(
        *args: Any,
        name: str,
        shared: AnyJaxpr,
        operands: Sequence[int],
        results: Sequence[int],
        scoped: bool,
        **_: Any,
    ) -> list[Any]:
        body = _in_scope(shared, name) if scoped else shared
        out = jit_p.bind(*(args[i] for i in operands), **jit_params(body, name))
        return [out[i] for i in results]

    def lowering(ctx: mlir.LoweringRuleContext, *args: Any, **params: Any) -> Any:
        tags = attributes(_target(ctx), params["unit"])
        out = mlir.lower_fun(functools.partial(lowered, scoped=bool(tags)))(ctx, *args, **params)
        if tags:
            _tag_call(ctx.module_context, out, tags)
        return out

    call_p.def_impl(as_jit(jit_p.bind))
    call_p.def_effectful_abstract_eval(as_jit(jit_p.abstract_eval))
    mlir.register_lowering(call_p, lowering, cacheable=False)
    ad.primitive_jvps[call_p] = as_jit(ad.primitive_jvps[jit_p])
    ad.primitive_linearizations[call_p] = as_jit(ad.primitive_linearizations[jit_p])
    ad.fancy_transposes[call_p] = as_jit(ad.fancy_transposes[jit_p])
    batching.fancy_primitive_batchers[call_p] = as_jit(batching.fancy_primitive_batchers[jit_p])
    pe.custom_partial_eval_rules[call_p] = as_jit(pe.custom_partial_eval_rules[jit_p])
    pe.partial_eval_jaxpr_custom_rules[call_p] = as_jit_equation(
        pe.partial_eval_jaxpr_custom_rules[jit_p]
    )
    _remat.rules[call_p] = as_jit(_remat.rules[jit_p])
    return call_p


# --- traces of a nested jit, for shared subroutines -------------------------------------------


def closed_over_by(traced: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """What a ``jax.jit(...).trace(...)`` closed over: arrays, and tracers of outer traces."""
    return [c for c in consts(traced.jaxpr) if not isinstance(c, Tracer)], [
        c for c in (*consts(traced.jaxpr), *traced._consts) if isinstance(c, Tracer)
    ]


def constants_as_operands(jaxpr: AnyJaxpr) -> AnyJaxpr:
    """A closed jaxpr that takes the values of its constvars as its first operands."""
    open_ = opened(jaxpr)
    return closed_over(jaxpr, (), (), invars=[*open_.constvars, *open_.invars])


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


# --- frames that are nobody's source lines ------------------------------------------------------

# A program started by `python -m jitscope run` names the source lines that it has without.
source_info_util.register_exclusion("<frozen runpy>")


# --- progress ---------------------------------------------------------------------------------

_COMPILER = os.path.join("jax", "_src", "compiler.py")


def is_compiling(thread: int) -> bool:
    """Whether a thread of this process is in XLA's compiler now."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILER):
            return True
        frame = frame.f_back
    return False

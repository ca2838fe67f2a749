"""Calls that are lowered with attributes for XLA."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src.interpreters import ad, partial_eval as pe, remat as _remat
from jax._src.interpreters.mlir import custom_call as _custom_call
from jax._src.pjit import _pjit_lowering
from jax._src.random.threefry2x32 import _threefry2x32_lowering
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.extend.random import threefry2x32_p
from jax.interpreters import batching, mlir

from .jaxprs import AnyJaxpr, equations, rebuilt
from .nested_jit import jit, jit_params
from .primitives import jit_p


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

    def lowering(
        ctx: mlir.LoweringRuleContext,
        *args: Any,
        name: str,
        shared: AnyJaxpr,
        operands: Sequence[int],
        results: Sequence[int],
        unit: str,
        **_: Any,
    ) -> list[Any]:
        tags = attributes(_target(ctx), unit)
        if ctx.module_context.lowering_parameters.for_export and _has_layouts(shared):
            tags = {}  # JAX does not export what sets the layouts below
        body = shared
        if tags:
            body = _in_scope(shared, name)
            ctx = ctx.replace(module_context=_context_of_units(ctx.module_context))
        out = _lower_jit(ctx, body, name, [args[i] for i in operands])
        if tags:
            _tag_call(ctx.module_context, out, tags)
            out = _in_default_layouts(out) if _has_layouts(shared) else out
        return [out[i] for i in results]

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


def _lower_jit(
    ctx: mlir.LoweringRuleContext, body: AnyJaxpr, name: str, args: Sequence[Any]
) -> list[Any]:
    """Values of a nested jit of ``body`` that is lowered in place of the equation of ``ctx``.

    (``mlir.lower_fun`` would trace the nested jit once more for every call.)
    """
    ctx = ctx.replace(primitive=jit_p, avals_in=body.in_avals, avals_out=body.out_avals)
    return _pjit_lowering(ctx, *args, **jit_params(body, name))


def _has_layouts(body: AnyJaxpr) -> bool:
    """Whether calls have several results, and XLA could choose the layout of one.

    XLA:CPU aborts where one of several results of a kept call is wanted in another layout, as
    LAPACK wants it: it adds a copy of all of them at once, which it cannot compile. (JAX 0.10.2
    to 0.12.0.1; a single result is copied alone.)
    """
    return len(body.out_avals) > 1 and any(
        aval.ndim + jnp.issubdtype(aval.dtype, jax.dtypes.extended) > 1 for aval in body.out_avals
    )


def _in_default_layouts(results: Sequence[Any]) -> list[Any]:
    """The results of a kept call, in layouts that are not for XLA to choose."""
    values, tree = mlir.ir_tree_registry.flatten(results)
    return tree.unflatten(map(_in_default_layout, values))


def _in_default_layout(value: Any) -> Any:
    type_ = value.type
    if type_.rank < 2 or not type_.has_static_shape:
        return value
    order = list(reversed(range(type_.rank)))
    return _custom_call(
        "LayoutConstraint",
        result_types=[type_],
        operands=[value],
        api_version=1,
        operand_layouts=[order],
        result_layouts=[order],
    ).result


def _target(ctx: mlir.LoweringRuleContext) -> Target:
    axis_context = ctx.module_context.axis_context
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return Target(tuple(ctx.module_context.platforms), axis_context.mesh.size, True)
    return Target(tuple(ctx.module_context.platforms), axis_context.num_devices, False)


@jit
def threefry2x32(*operands: Any) -> Any:
    """Random bits, without a loop."""
    return _threefry2x32_lowering(*operands, use_rolled_loops=False)


_THREEFRY_RULE = (threefry2x32_p, mlir.lower_fun(threefry2x32, multiple_results=True))


def _context_of_units(context: mlir.ModuleContext) -> mlir.ModuleContext:
    """The context in which a module's units are lowered, with random bits that hold no loop.

    JAX lowers Threefry for the CPU to a loop. XLA:CPU makes one kernel of a small loop and compiles
    it again for each call of a unit, while of other kernels it compiles equal ones once. Units
    have caches of their own, since what is called from outside of them keeps the loop. So do
    bits that are not partitionable: XLA:CPU would fuse all rounds into the concatenation of
    their two halves, once for each half and reader.
    """
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if tuple(context.platforms) != ("cpu",) or not partitionable:
        return context
    caches = context.cached_primitive_lowerings.setdefault(
        _context_of_units, dict(lowering_cache={}, cached_primitive_lowerings={})
    )
    rules = context.lowering_parameters.override_lowering_rules or ()  # these come first
    parameters = dataclasses.replace(
        context.lowering_parameters, override_lowering_rules=(*rules, _THREEFRY_RULE)
    )
    return context.replace(lowering_parameters=parameters, **caches)


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

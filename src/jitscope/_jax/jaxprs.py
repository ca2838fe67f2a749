"""Jaxprs and their equations: reading them and building new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as _core, effects as _effects
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    primitives,
)

from .primitives import LEAVES, SUBPROGRAMS, jit_p

AnyJaxpr = Any
"""A ``Jaxpr`` or ``ClosedJaxpr``: before JAX 0.11 the two are unrelated types."""


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


def sub_jaxprs(eqn: JaxprEqn) -> Sequence[AnyJaxpr]:
    """Every jaxpr in the parameters of an equation, known primitive or not."""
    if eqn.primitive in LEAVES:
        return ()
    if eqn.primitive is jit_p:  # the most frequent one, with many other parameters
        return (eqn.params["jaxpr"],)
    return [
        item
        for value in eqn.params.values()
        for item in (value if isinstance(value, (tuple, list)) else (value,))
        if is_jaxpr(item)
    ]


def with_subprograms(eqn: JaxprEqn, changed: Callable[[AnyJaxpr], AnyJaxpr]) -> JaxprEqn:
    """An equation with what is nested in it exchanged, where its primitive allows that.

    Args:
      eqn: the equation; the same object is returned if nothing changes.
      changed: called with each nested jaxpr; returns the very same to leave it.
    """
    changes: dict[str, Any] = {}
    for name in SUBPROGRAMS.get(eqn.primitive, ()):
        value = eqn.params[name]
        before = value if isinstance(value, tuple) else (value,)
        after = tuple(map(changed, before))
        if any(a is not b for a, b in zip(after, before, strict=True)):
            changes[name] = after if isinstance(value, tuple) else after[0]
    return eqn.replace(params={**eqn.params, **changes}) if changes else eqn


def holds(jaxpr: AnyJaxpr, primitive: Primitive) -> bool:
    """Whether an equation of a primitive is in a jaxpr or in what is nested in it."""
    waiting, seen = [jaxpr], {id(jaxpr)}
    while waiting:
        for eqn in equations(waiting.pop()):
            if eqn.primitive is primitive:
                return True
            for sub in sub_jaxprs(eqn):
                if id(sub) not in seen:
                    seen.add(id(sub))
                    waiting.append(sub)
    return False


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


def is_array_type(aval: Any) -> bool:
    """Whether values of a type are arrays, rather than a ``Ref`` or a token."""
    return type(aval) is _core.ShapedArray


def is_movable(eqn: JaxprEqn) -> bool:
    """Whether an equation, if it has no effects, may become part of a nested jit.

    All its values must be such as a jit can pass, and it must not stand in a context of its
    own that attaches to it (``compute_on``, ``set_xla_metadata``).
    """
    return not (eqn.ctx.compute_type or eqn.ctx.xla_metadata) and all(
        isinstance(atom.aval, _core.ShapedArray) for atom in (*eqn.invars, *eqn.outvars)
    )


def variables(atoms: Iterable[Any]) -> Iterator[Var]:
    """Those of the atoms that are no literals."""
    return (atom for atom in atoms if not isinstance(atom, Literal))


def n_bytes(aval: Any) -> int:
    """Size of a value of a type; none where it has no elements or their number is symbolic."""
    size, dtype = getattr(aval, "size", 0), getattr(aval, "dtype", None)
    if dtype is None or not isinstance(size, int):
        return 0
    return size * getattr(dtype, "itemsize", 8)


def literal_value(literal: Any) -> Any:
    """What a literal stands for, as an array of its type."""
    return np.asarray(literal.val, literal.aval.dtype)


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


def constants_as_operands(jaxpr: AnyJaxpr) -> AnyJaxpr:
    """A closed jaxpr that takes the values of its constvars as its first operands."""
    open_ = opened(jaxpr)
    return closed_over(jaxpr, (), (), invars=[*open_.constvars, *open_.invars])


def new_jaxpr(
    invars: Sequence[Var], outvars: Sequence[Any], eqns: Sequence[JaxprEqn], name: str
) -> AnyJaxpr:
    """A closed jaxpr without constants, for a body cut out of another program."""
    effects = _core.join_effects(*(eqn.effects for eqn in eqns if eqn.effects))
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
) -> JaxprEqn:
    """An equation with the source line, name scope and context of ``template``."""
    return template.replace(
        invars=list(invars),
        outvars=list(outvars),
        primitive=primitive,
        params=dict(params),
    )


def can_stack(aval: Any) -> bool:
    """Whether values of a type can be put together along a new axis, and come out as they were."""
    if not is_array_type(aval) or aval.dtype == jax.dtypes.float0:
        return False
    if {*aval.sharding.mesh.axis_types} - {jax.sharding.AxisType.Auto}:  # part of the type
        return False
    if not all(isinstance(n, int) for n in aval.shape):
        return False
    dtype = aval.dtype
    return not isinstance(dtype, np.dtype) or jax.dtypes.canonicalize_dtype(dtype) == dtype


def is_inexact(aval: Any) -> bool:
    """Whether values of a type are real or complex numbers."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)

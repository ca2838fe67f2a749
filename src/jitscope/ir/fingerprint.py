"""Structural, process-stable identity of a jaxpr.

``fingerprint(jaxpr)`` is a digest over its equations: primitives, parameters (nested
jaxprs by their own fingerprint), the types of values (shape, dtype, weak type, sharding),
literals, and operands numbered by first appearance. It is blind to variable names, source
lines, function names, and to rules that matter only under differentiation.

Captured constants count by content. (``constants.hoisted`` first turns those of nested
``jit`` bodies into operands, so that bodies which differ only in captured arrays are one.)

A parameter without a stable value (a callable, an object whose repr holds an address) is
identified by the object itself. Such a fingerprint is *local*: right in this process, and
meaningless in another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _jax
from .digests import TRUSTED_REPR, Digest, Fingerprint, lock

_of_jaxpr: weakref.WeakKeyDictionary[Any, Fingerprint] = weakref.WeakKeyDictionary()
_of_equation: dict[Any, Fingerprint] = {}
_of_aval: dict[Any, str] = {}
_of_literal: dict[Any, str] = {}
_primitives: dict[str, Any] = {}
_CACHE_ENTRIES = 100_000


def fingerprint(jaxpr: _jax.AnyJaxpr, tokens: Sequence[Fingerprint] | None = None) -> Fingerprint:
    """The fingerprint of a closed or open jaxpr, memoised per object.

    Args:
      jaxpr: closed or open.
      tokens: `equation_token` of each of its equations, where that is known already.
    """
    with lock:
        found = _of_jaxpr.get(jaxpr)
        if found is None:
            found = _of_jaxpr[jaxpr] = _fingerprint(jaxpr, tokens)
        return found


def remember(jaxpr: _jax.AnyJaxpr, known: Fingerprint) -> None:
    """Notes the fingerprint of a jaxpr that was built just as one of this fingerprint was."""
    with lock:
        _of_jaxpr.setdefault(jaxpr, known)


class Tokens:
    """`equation_token` of the many equations of one program.

    Tracing gives like equations the same types and parameters, which are told apart sooner as
    objects than by value. What was met is kept, so that no other object gets its id.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Fingerprint]] = {}

    def of(self, eqn: Any) -> Fingerprint:
        """`equation_token` of an equation."""
        params = eqn.params
        key = (
            eqn.primitive,
            len(eqn.invars),
            id(eqn.ctx),
            *params,
            *map(id, params.values()),
            *[id(atom.aval) for atom in eqn.invars],
            *[id(var.aval) for var in eqn.outvars],
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = eqn, equation_token(eqn)
        return found[1]


def equation_token(eqn: Any) -> Fingerprint:
    """What an equation does, without which values it does it to.

    Covers the primitive, its parameters, and the types of operands and results. Literal
    operands count by type only.
    """
    try:
        key = _equation_key(eqn)
        found = _of_equation.get(key)
    except TypeError:
        return _hash_equation(eqn)
    if found is None:
        with lock:
            if len(_of_equation) > _CACHE_ENTRIES:
                _of_equation.clear()
            found = _of_equation[key] = _hash_equation(eqn)
    return found


def _fingerprint(jaxpr: _jax.AnyJaxpr, tokens: Sequence[Fingerprint] | None = None) -> Fingerprint:
    digest = Digest(fingerprint)
    open_ = _jax.opened(jaxpr)
    for var in (*open_.constvars, *open_.invars):
        digest.add(_aval_text(var.aval))
    _add_constants(digest, jaxpr)
    tokens = list(map(equation_token, open_.eqns)) if tokens is None else tokens
    for token in tokens:
        digest.local_because = digest.local_because or token.local_because
    digest.add(_code_text(open_, tokens, literal_text))
    return digest.result()


def text_but_for_literals(jaxpr: _jax.AnyJaxpr) -> str:
    """A text equal for jaxprs without constants that differ only in literals of equations."""
    open_ = _jax.opened(jaxpr)
    types = [_aval_text(var.aval) for var in open_.invars]
    tokens = list(map(equation_token, open_.eqns))
    return "\0".join([*types, _code_text(open_, tokens, lambda literal: "=")])


def _code_text(open_: Any, tokens: Sequence[Fingerprint], literal: Callable[[Any], str]) -> str:
    """Equations and results, their operands numbered by first appearance.

    Args:
      open_: an open jaxpr.
      tokens: `equation_token` of each of its equations.
      literal: text of a literal that is an operand of an equation.
    """
    numbers = {var: str(i) for i, var in enumerate((*open_.constvars, *open_.invars))}
    lines = []
    for eqn, token in zip(open_.eqns, tokens, strict=True):
        operands = [literal(a) if isinstance(a, _jax.Literal) else numbers[a] for a in eqn.invars]
        lines.append(f"{token.digest} {','.join(operands)}")
        for var in eqn.outvars:
            numbers[var] = str(len(numbers))
    results = [
        literal_text(a) if isinstance(a, _jax.Literal) else numbers[a] for a in open_.outvars
    ]
    return "\0".join([*lines, f"->{','.join(results)}"])


def literal_text(literal: Any) -> str:
    """Value and type of a literal; tells -0.0 from 0.0 and 1 from 1.0."""
    value = literal.val if isinstance(literal.val, np.ndarray) else np.asarray(literal.val)
    key = value.dtype, value.shape, value.tobytes(), literal.aval
    found = _of_literal.get(key)
    if found is None:
        if len(_of_literal) > _CACHE_ENTRIES:
            _of_literal.clear()
        dtype, shape, data, aval = key
        found = _of_literal[key] = f"={dtype.str}{shape}{data.hex()}:{_aval_text(aval)}"
    return found


def _hash_equation(eqn: Any) -> Fingerprint:
    digest = Digest(fingerprint)
    name = eqn.primitive.name
    digest.add(name)
    if _primitives.setdefault(name, eqn.primitive) is not eqn.primitive:
        digest.add_local(eqn.primitive, f"there are several primitives named {name}")
    ignored = _IGNORED.get(eqn.primitive, ())
    for name in sorted(eqn.params):
        if name not in ignored:
            digest.add(name)
            digest.add_value(eqn.params[name], f"parameter {name} of {eqn.primitive.name}")
    for atom in eqn.invars:
        digest.add(_aval_text(atom.aval))
    digest.add("->")
    for var in eqn.outvars:
        digest.add(_aval_text(var.aval))
    digest.add(_context_text(eqn.ctx))
    return digest.result()


_IGNORED = {**_jax.DERIVATIVE_ONLY, **_jax.NAME_ONLY}
"""Parameters that are no part of what an equation does."""


def _equation_key(eqn: Any) -> Any:
    """A key equal for equations with equal tokens.

    Python says 1 == 1.0 == True and 0.0 == -0.0, so the types go into the key too. It keeps
    neither jaxprs nor what belongs to the user alive.

    Raises:
      TypeError: there is no such key; or it may be one that cannot be hashed.
    """
    params = eqn.params
    ignored = _IGNORED.get(eqn.primitive)
    if ignored:
        params = {name: value for name, value in params.items() if name not in ignored}
    values = tuple(params.values())
    types = tuple(map(type, values))
    if not _EXACT.issuperset(types):
        values = tuple([_exact(value) for value in values])
    return (
        eqn.primitive,
        tuple(params),
        values,
        types,
        tuple([atom.aval for atom in eqn.invars]),
        tuple([var.aval for var in eqn.outvars]),
        eqn.ctx,
    )


_EXACT = frozenset(
    {
        *map(type, (None, True, 1, "", _jax.UNSPECIFIED)),
        *(
            type(np.dtype(code))
            for code in f"?{np.typecodes['AllInteger']}{np.typecodes['AllFloat']}"
        ),
    }
)
"""Types whose equal values of one type are the same value."""


def _exact(value: Any) -> Any:
    """Something hashable that is equal for the same value only.

    Raises:
      TypeError: there is nothing such, or it would keep objects of the user alive.
    """
    kind = type(value)
    if kind in _EXACT:
        return kind, value
    if isinstance(value, (tuple, list)):
        kinds = tuple(map(type, value))
        return kind, kinds, tuple(value if _EXACT.issuperset(kinds) else map(_exact, value))
    if _jax.is_jaxpr(value):
        return fingerprint(value)
    if isinstance(value, (float, complex, np.generic)):
        return kind, repr(value)
    if callable(value) or not f"{kind.__module__}.".startswith(TRUSTED_REPR):
        raise TypeError
    return kind, value


def _aval_text(aval: Any) -> str:
    found = _of_aval.get(aval)
    if found is None:
        if len(_of_aval) > _CACHE_ENTRIES:
            _of_aval.clear()
        weak = getattr(aval, "weak_type", "")
        space = getattr(aval, "memory_space", "")
        vma = sorted(map(str, getattr(aval, "vma", ()) or ()))
        sharding = getattr(aval, "sharding", None)
        found = _of_aval[aval] = (
            f"{type(aval).__name__} {aval.str_short()} {getattr(aval, 'dtype', '')} "
            f"{weak} {space} {vma} {sharding!r}"
        )
    return found


def _context_text(ctx: Any) -> str:
    """The part of an equation's context that reaches the lowered program."""
    parts = [getattr(ctx, part, None) for part in _jax.CONTEXT_PARTS]
    return " ".join(
        [
            repr(sorted(part, key=repr)) if isinstance(part, frozenset) else repr(part)
            for part in parts
        ]
    )


def _add_constants(digest: Digest, jaxpr: _jax.AnyJaxpr) -> None:
    for value in _jax.consts(jaxpr):
        if isinstance(value, _jax.Tracer):
            digest.add_local(value, "a traced value of an enclosing trace")
        else:
            digest.add_array(value, "a captured constant")

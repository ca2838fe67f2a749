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

import dataclasses
import enum
import functools
import hashlib
import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _jax

_DIGEST_BYTES = 16
_TRUSTED_REPR = ("jax.", "jaxlib.", "numpy.", "ml_dtypes.")
_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Identity of a body.

    Attributes:
      digest: hexadecimal, 32 characters.
      local_because: empty, or the first parameter that has no stable value, in which case
        the digest holds in this process only.
    """

    digest: str
    local_because: str = ""

    @property
    def is_local(self) -> bool:
        return bool(self.local_because)

    def __str__(self) -> str:
        return self.digest[:12]


class _Hasher:
    """A digest that also remembers why it is only local."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.local_because = ""

    def add(self, text: str) -> None:
        data = text.encode()
        self._hash.update(len(data).to_bytes(4, "little") + data)

    def add_local(self, value: Any, why: str) -> None:
        self.add(f"local {_local_number(value)}")
        self.local_because = self.local_because or why

    def include(self, other: Fingerprint) -> None:
        self.add(other.digest)
        self.local_because = self.local_because or other.local_because

    def result(self) -> Fingerprint:
        return Fingerprint(self._hash.hexdigest(), self.local_because)


_of_jaxpr: weakref.WeakKeyDictionary[Any, Fingerprint] = weakref.WeakKeyDictionary()
_of_equation: dict[Any, Fingerprint] = {}
_of_aval: dict[Any, str] = {}
_local_objects: dict[int, tuple[Any, int]] = {}
_local_numbers = itertools.count()
_primitives: dict[str, Any] = {}
_CACHE_ENTRIES = 100_000


def fingerprint(jaxpr: _jax.AnyJaxpr, tokens: Sequence[Fingerprint] | None = None) -> Fingerprint:
    """The fingerprint of a closed or open jaxpr, memoised per object.

    Args:
      jaxpr: closed or open.
      tokens: `equation_token` of each of its equations, where that is known already.
    """
    with _lock:
        found = _of_jaxpr.get(jaxpr)
        if found is None:
            found = _of_jaxpr[jaxpr] = _fingerprint(jaxpr, tokens)
        return found


def equation_token(eqn: Any) -> Fingerprint:
    """What an equation does, without which values it does it to.

    Covers the primitive, its parameters, and the types of operands and results. Literal
    operands count by type only.
    """
    key = _equation_key(eqn)
    if key is None:
        return _hash_equation(eqn)
    with _lock:
        found = _of_equation.get(key)
        if found is None:
            if len(_of_equation) > _CACHE_ENTRIES:
                _of_equation.clear()
            found = _of_equation[key] = _hash_equation(eqn)
        return found


def _fingerprint(jaxpr: _jax.AnyJaxpr, tokens: Sequence[Fingerprint] | None = None) -> Fingerprint:
    hasher = _Hasher()
    open_ = _jax.opened(jaxpr)
    numbers: dict[Any, int] = {}
    for var in (*open_.constvars, *open_.invars):
        numbers[var] = len(numbers)
        hasher.add(_aval_text(var.aval))
    _add_constants(hasher, jaxpr)
    lines = []
    for eqn, token in zip(open_.eqns, tokens or map(equation_token, open_.eqns), strict=True):
        hasher.local_because = hasher.local_because or token.local_because
        operands = ",".join([_atom_text(atom, numbers) for atom in eqn.invars])
        lines.append(f"{token.digest} {operands}")
        for var in eqn.outvars:
            numbers[var] = len(numbers)
    lines.append("->" + ",".join([_atom_text(atom, numbers) for atom in open_.outvars]))
    hasher.add("\0".join(lines))
    return hasher.result()


def _atom_text(atom: Any, numbers: Mapping[Any, int]) -> str:
    if isinstance(atom, _jax.Literal):
        return literal_text(atom)
    return str(numbers[atom])


def literal_text(literal: Any) -> str:
    """Value and type of a literal; tells -0.0 from 0.0 and 1 from 1.0."""
    value = np.asarray(literal.val)
    return f"={value.dtype.str}{value.shape}{value.tobytes().hex()}:{_aval_text(literal.aval)}"


def _hash_equation(eqn: Any) -> Fingerprint:
    hasher = _Hasher()
    name = eqn.primitive.name
    hasher.add(name)
    if _primitives.setdefault(name, eqn.primitive) is not eqn.primitive:
        hasher.add_local(eqn.primitive, f"there are several primitives named {name}")
    ignored = _ignored_parameters(eqn.primitive)
    for name in sorted(eqn.params):
        if name not in ignored:
            hasher.add(name)
            _add_value(hasher, eqn.params[name], f"parameter {name} of {eqn.primitive.name}")
    for atom in eqn.invars:
        hasher.add(_aval_text(atom.aval))
    hasher.add("->")
    for var in eqn.outvars:
        hasher.add(_aval_text(var.aval))
    hasher.add(_context_text(eqn.ctx))
    return hasher.result()


def _ignored_parameters(primitive: Any) -> frozenset[str]:
    nothing: frozenset[str] = frozenset()
    return _jax.DERIVATIVE_ONLY.get(primitive, nothing) | _jax.NAME_ONLY.get(primitive, nothing)


def _equation_key(eqn: Any) -> Any:
    """A hashable key equal for equations with equal tokens, or None if there is none.

    Python says 1 == 1.0 == True and 0.0 == -0.0, so the types go into the key too. It keeps
    neither jaxprs nor what belongs to the user alive.
    """
    params = eqn.params
    ignored = _ignored_parameters(eqn.primitive)
    if ignored:
        params = {name: value for name, value in params.items() if name not in ignored}
    values = tuple(params.values())
    types = tuple(map(type, values))
    try:
        if not _EXACT.issuperset(types):
            values = tuple(map(_exact, values))
        key = (
            eqn.primitive,
            tuple(params),
            values,
            types,
            tuple([atom.aval for atom in eqn.invars]),
            tuple([var.aval for var in eqn.outvars]),
            eqn.ctx,
        )
        hash(key)
    except TypeError:
        return None
    return key


_EXACT = frozenset({type(None), bool, int, str})
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
    if callable(value) or not f"{kind.__module__}.".startswith(_TRUSTED_REPR):
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


def _add_value(hasher: _Hasher, value: Any, what: str) -> None:
    """Adds one parameter value; ``what`` names it should it have no stable form."""
    if _jax.is_jaxpr(value):
        hasher.include(fingerprint(value))
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        hasher.add(f"{type(value).__name__} {value!r}")
    elif isinstance(value, enum.Enum):
        _add_type(hasher, type(value), what)
        hasher.add(value.name)
    elif _jax.prng_name(value):  # a tuple of functions
        hasher.add(f"random numbers by {_jax.prng_name(value)}")
    elif isinstance(value, (tuple, list)):
        hasher.add(f"{type(value).__name__} {len(value)}")
        for item in value:
            _add_value(hasher, item, what)
    elif isinstance(value, (dict, set, frozenset)):
        _add_unordered(hasher, value, what)
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        _add_array(hasher, value, what)
    elif isinstance(value, np.dtype):
        hasher.add(f"dtype {value!r}")
    elif isinstance(value, type):
        _add_type(hasher, value, what)
    elif isinstance(value, (jax.sharding.Mesh, jax.sharding.NamedSharding)):
        _add_devices(hasher, value)
    elif dataclasses.is_dataclass(value):
        _add_type(hasher, type(value), what)
        for field in dataclasses.fields(value):
            _add_value(hasher, getattr(value, field.name), what)
    else:
        _add_object(hasher, value, what)


def _add_unordered(hasher: _Hasher, value: Any, what: str) -> None:
    items: Iterable[Any] = value.items() if isinstance(value, dict) else value
    hasher.add(f"{type(value).__name__} {len(value)}")
    for item in sorted(items, key=repr):
        _add_value(hasher, item, what)


def _add_type(hasher: _Hasher, kind: type, what: str) -> None:
    hasher.add(f"{kind.__module__}.{kind.__qualname__}")
    if "<locals>" in kind.__qualname__:  # every run of the function around it makes another
        hasher.add_local(kind, f"{what} is of {kind.__qualname__}, a type local to a function")


def _add_devices(hasher: _Hasher, value: Any) -> None:
    """A mesh or what is sharded over one. Their repr leaves out the order of the devices."""
    hasher.add(f"{type(value).__qualname__} {value!r}")
    mesh = getattr(value, "mesh", value)
    if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
        hasher.add(str([device.id for device in mesh.devices.flat]))


def _add_object(hasher: _Hasher, value: Any, what: str) -> None:
    text = repr(value)
    module = f"{type(value).__module__}."
    if not callable(value) and " at 0x" not in text and module.startswith(_TRUSTED_REPR):
        hasher.add(f"{type(value).__qualname__} {text}")
    else:
        hasher.add_local(value, f"{what} is a {type(value).__name__}, which has no stable value")


def _add_array(hasher: _Hasher, value: Any, what: str) -> None:
    if isinstance(value, jax.Array) and not (
        value.is_fully_addressable and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
    ):
        hasher.add_local(value, f"{what} holds an array that this process cannot read")
        return
    array = np.asarray(value)
    hasher.add(f"array {array.dtype} {array.shape}")
    hasher.add(
        hashlib.blake2b(
            np.ascontiguousarray(array).data.cast("B") if array.size else b""
        ).hexdigest()
    )


def _add_constants(hasher: _Hasher, jaxpr: _jax.AnyJaxpr) -> None:
    for value in _jax.consts(jaxpr):
        if isinstance(value, _jax.Tracer):
            hasher.add_local(value, "a traced value of an enclosing trace")
        else:
            _add_array(hasher, value, "a captured constant")


def _local_number(value: Any) -> int:
    """A number for an object, by identity, that no other object ever has."""
    key = id(value)
    with _lock:
        found = _local_objects.get(key)
        if found is None or found[0]() is not value:
            try:
                reference: Any = weakref.ref(value)
            except TypeError:  # kept, so that its id is not used again
                reference = functools.partial(_identity, value)
            found = _local_objects[key] = (reference, next(_local_numbers))
        return found[1]


def _identity(value: Any) -> Any:
    return value

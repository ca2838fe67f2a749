"""Identity of a value: which Python values are equal to a trace.

A function that is traced once may be used again in place of another function if both have
the same code and captured equal values. `key_of` turns a value into a hashable key, and two
values are *equal* when their keys are:

* Python scalars, strings, bytes and enums by type and value (1, 1.0 and True differ, as do
  0.0 and -0.0; nan equals nan);
* tuples, lists, dicts, sets and their kin by content; where a function captured them,
  lists, dicts and sets by identity as well;
* functions by code, globals, defaults, attributes and captured values, recursively, and
  likewise ``functools.partial`` and bound methods;
* hashable objects whose class defines ``==`` by type and that ``==``;
* arrays, modules and everything else by identity, and an object that is an argument also by the
  attributes that it has at the call.

A key holds what it compares by identity weakly where Python allows, and is equal to nothing
once that died, so an ``id`` that is used again never makes two values equal.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np

_ATOMS = (int, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range)
_MAX_DEPTH = 50


class ByIdentity:
    """Equal only to itself and to another key of the same living object."""

    __slots__ = ("_hash", "_strong", "_weak")

    def __init__(self, value: Any, *, strong: bool = False) -> None:
        self._hash = id(value)
        self._weak = self._strong = None
        try:
            self._weak = None if strong else weakref.ref(value)
        except TypeError:
            pass
        if self._weak is None:
            self._strong = (value,)

    @property
    def value(self) -> Any:
        """The object, or None once it is gone."""
        return self._strong[0] if self._strong else self._weak()  # type: ignore[misc]

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ByIdentity):
            return NotImplemented
        mine = self.value
        return mine is not None and mine is other.value

    def __repr__(self) -> str:
        return f"<the {type(self.value).__name__} at {self._hash:#x}>"


class ByState(ByIdentity):
    """Equal to a key of the same living object made while its attributes were the same.

    Attributes:
      attributes: their keys, by name.
    """

    __slots__ = ("attributes",)

    def __init__(self, value: Any, attributes: Mapping[str, Hashable]) -> None:
        super().__init__(value)
        self.attributes = attributes
        self._hash = hash((self._hash, *attributes.items()))

    __hash__ = ByIdentity.__hash__

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ByState)
            and super().__eq__(other) is True
            and self.attributes == other.attributes
        )


class Keys:
    """Turns values into keys, and collects what of them cannot outlive a trace.

    Args:
      captured: lists, dicts and sets count by identity too, since what a function writes to
        one that it captured must not go to another that merely looked the same.

    Attributes:
      tracers: the different tracers met on the way, in order. A key says only which of them it
        was, so keys of values with tracers are equal only if the tracers are too.
    """

    def __init__(self, *, captured: bool = False) -> None:
        self._captured = captured
        self.tracers: list[Any] = []
        self._open: dict[int, int] = {}

    def of(self, value: Any) -> Hashable:
        """The key of one value."""
        kind = type(value)
        if kind in _ATOMS:
            return (kind, value)
        if kind is float:
            return (kind, value.hex())
        if kind is complex:
            return (kind, value.real.hex(), value.imag.hex())
        if isinstance(value, jax.core.Tracer):
            return ("tracer", self._place_of(value))
        if isinstance(value, (jax.Array, np.ndarray, types.ModuleType, type)):
            return ByIdentity(value)
        # A value that contains itself: its place among the values that contain it.
        if id(value) in self._open:
            return ("cycle", self._open[id(value)])
        if len(self._open) >= _MAX_DEPTH:
            return ByIdentity(value)
        self._open[id(value)] = len(self._open)
        try:
            return self._compound(kind, value)
        finally:
            del self._open[id(value)]

    def of_argument(self, value: Any) -> Hashable:
        """The key of an object that is an argument, such as that of a method: as it is now.

        Attributes that are numbers, strings or tuples of these count by value, others by identity.
        """
        key = self.of(value)
        if type(key) is not ByIdentity or isinstance(value, (types.ModuleType, type)):
            return key
        attributes = _attributes(value)
        if not attributes:
            return key
        return ByState(value, {str(name): _shallow(each) for name, each in attributes.items()})

    def _place_of(self, tracer: Any) -> int:
        for place, known in enumerate(self.tracers):
            if known is tracer:
                return place
        self.tracers.append(tracer)
        return len(self.tracers) - 1

    def _compound(self, kind: type, value: Any) -> Hashable:
        if isinstance(value, types.FunctionType):
            return self.of_function(value)
        if isinstance(value, types.MethodType):
            return (kind, self.of(value.__func__), self.of(value.__self__))
        if kind is functools.partial:
            return (kind, self.of(value.func), self.of(value.args), *self._items(value.keywords))
        if isinstance(value, tuple) and not _overrides(kind, "__eq__", (tuple,)):
            return (kind, *map(self.of, value))
        if isinstance(value, list):
            return (kind, *self._itself(value), *map(self.of, value))
        if isinstance(value, (dict, types.MappingProxyType)):
            return (kind, *self._itself(value), *self._items(value))
        if isinstance(value, frozenset):
            return (kind, frozenset(map(self.of, value)))
        if isinstance(value, set):
            return (kind, *self._itself(value), frozenset(map(self.of, value)))
        if isinstance(value, np.generic):
            return (kind, value.dtype.str, value.tobytes())
        parts = getattr(kind, "__jitscope_parts__", None)
        if parts is not None:
            return (kind, *map(self.of, parts(value)))
        return self._object(kind, value)

    def of_function(self, fun: types.FunctionType) -> Hashable:
        """The key of a plain function, its defaults included."""
        return (
            "function",
            fun.__code__,
            ByIdentity(fun.__globals__),
            self.of(fun.__defaults__),
            self._items(fun.__kwdefaults__ or {}),
            self._items(fun.__dict__),
            *(self.of_cell(cell) for cell in fun.__closure__ or ()),
        )

    def _itself(self, container: Any) -> tuple[Hashable, ...]:
        return (ByIdentity(container),) if self._captured else ()

    def _items(self, mapping: Mapping[Any, Any]) -> tuple[Hashable, ...]:
        return tuple((self.of(key), self.of(value)) for key, value in mapping.items())

    def of_cell(self, cell: types.CellType) -> Hashable:
        """The key of what a closure cell holds now."""
        try:
            contents = cell.cell_contents
        except ValueError:
            return ("empty cell",)
        return self.of(contents)

    def _object(self, kind: type, value: Any) -> Hashable:
        if isinstance(value, enum.Enum) or _overrides(kind, "__eq__", (object,)):
            try:
                return ByEquality(value)
            except Exception:  # noqa: BLE001 - whatever a user's __hash__ raises
                pass
        return ByIdentity(value)


class ByEquality:
    """A hashable object: equal to one of the same type that is ``==``."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByEquality) or type(self.value) is not type(other.value):
            return False
        if self._hash != other._hash:  # as of one object that was changed in between
            return False
        try:
            return self.value is other.value or bool(self.value == other.value)
        except Exception:  # noqa: BLE001 - an == that cannot answer is not equality
            return False

    def __repr__(self) -> str:
        return repr(self.value)


def _attributes(value: Any) -> dict[str, Any]:
    """Those of the object itself, whether in its ``__dict__`` or in slots."""
    slots = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
    own = getattr(value, "__dict__", None)
    return {**slots, **own} if type(own) is dict else slots


@functools.lru_cache(maxsize=256)
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for base in kind.__mro__
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    )


def _shallow(value: Any) -> Hashable:
    """The key of an attribute: what it holds may change, which is not looked for."""
    kind = type(value)
    if kind is tuple:
        return (kind, *map(_shallow, value))
    if kind in _ATOMS or kind in (float, complex) or isinstance(value, (enum.Enum, np.generic)):
        return Keys().of(value)
    return ByIdentity(value)


def key_of(value: Any) -> Hashable:
    """The key under which `value` equals another value, see the module's docstring."""
    return Keys().of(value)


def text_of(key: Hashable) -> str:
    """A short text for the value behind a key."""
    match key:
        case (kind, value) if kind in _ATOMS:
            return repr(value)
        case (kind, value) if kind is float:
            return repr(float.fromhex(value))
        case ("function", code, *_):
            return f"function {code.co_qualname}"
        case ("tracer", _):
            return "a tracer"
        case ByIdentity():
            kind = "Array" if isinstance(key.value, jax.Array) else type(key.value).__name__
            return f"{kind} object"
        case ByEquality():
            return repr(key)[:60]
        case (kind, ByIdentity(), *parts) if kind is list:
            return f"list({', '.join(map(text_of, parts))})"[:60]
        case (kind, *parts) if kind is tuple:
            return f"{kind.__name__}({', '.join(map(text_of, parts))})"[:60]
        case (type() as kind, *_):
            return f"{kind.__name__} object"
    return str(key)[:60]


def parts_of(key: Hashable) -> dict[str, Hashable]:
    """What the function behind a key captured, or the object holds; nothing for other keys."""
    match key:
        case ("function", types.CodeType() as code, _, defaults, keyword_defaults, _, *cells):
            parts = dict(zip(code.co_freevars, cells, strict=True))
            values = defaults[1:] if defaults and defaults[0] is tuple else ()
            names = code.co_varnames[: code.co_argcount]
            parts |= zip(names[len(names) - len(values) :], values, strict=True)
            return parts | {name: value for (_, name), value in keyword_defaults}
        case (types.MethodType, function, instance):
            return {**parts_of(function), "__self__": instance}
        case ByState():
            return dict(key.attributes)
    return {}


def _overrides(kind: type, method: str, bases: tuple[type, ...]) -> bool:
    """Whether a class defines a method anew, rather than inherit it from one of `bases`."""
    found = getattr(kind, method, None)
    return all(found is not getattr(base, method) for base in bases)

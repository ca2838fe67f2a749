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
* arrays, modules and everything else by identity.

A key holds what it compares by identity weakly where Python allows, and is equal to nothing
once that died, so an ``id`` that is used again never makes two values equal.
"""

from __future__ import annotations

import enum
import functools
import gc
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping
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
        try:
            return self.value is other.value or bool(self.value == other.value)
        except Exception:  # noqa: BLE001 - an == that cannot answer is not equality
            return False

    def __repr__(self) -> str:
        return repr(self.value)


def key_of(value: Any) -> Hashable:
    """The key under which `value` equals another value, see the module's docstring."""
    return Keys().of(value)


def captures_of(fun: Any, keys: Keys) -> dict[str, Hashable]:
    """What a function captured, by name: its closure's cells, a partial's arguments.

    Args:
      fun: a function, ``functools.partial`` or other callable.
      keys: makes the keys, and collects captured tracers.
    """
    if isinstance(fun, types.FunctionType):
        named = zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True)
        found = {name: keys.of_cell(cell) for name, cell in named}
        if fun.__dict__:
            found["attributes"] = keys.of(tuple(fun.__dict__.items()))
        return found
    if isinstance(fun, functools.partial):
        found = {f"args[{i}]": keys.of(arg) for i, arg in enumerate(fun.args)}
        found |= {name: keys.of(value) for name, value in sorted(fun.keywords.items())}
        return found | {f"func.{k}": v for k, v in _captures_inside(fun.func, keys).items()}
    return {"function": keys.of(fun)}


def _captures_inside(fun: Any, keys: Keys) -> dict[str, Hashable]:
    """As `captures_of`, for a function that is called with its own defaults."""
    found = captures_of(fun, keys)
    if isinstance(fun, types.FunctionType):
        found["defaults"] = keys.of((fun.__defaults__, *(fun.__kwdefaults__ or {}).items()))
    return found


def code_of(fun: Any) -> Hashable:
    """What functions with the same source share: the code object and the globals."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    if isinstance(fun, types.FunctionType):
        return (fun.__code__, ByIdentity(fun.__globals__))
    return key_of(fun)


def globals_of(fun: Any) -> Hashable:
    """What the code of a function names in its module, as it is now.

    A function that is defined again with the same text (a notebook's cell, a reloaded module)
    computes something else once a helper of its module did change. Functions of the same
    module are followed, wrapped ones too; other objects count as captured values do.
    """
    keys, found = Keys(captured=True), {}

    def visit(function: types.FunctionType) -> None:
        cells = [
            (f"{function.__qualname__}.{name}", cell)
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            )
        ]
        for name in _names_in(function.__code__):
            if name in function.__globals__ and name not in found:
                follow(name, function.__globals__[name])
        for name, cell in cells:
            if name not in found and cell != types.CellType():
                found[name] = None  # the value itself is among the captures
                follow_function(cell.cell_contents)

    def follow(name: str, value: Any) -> None:
        found[name] = keys.of(value)
        follow_function(value)

    def follow_function(value: Any) -> None:
        inner = (
            value if isinstance(value, types.FunctionType) else getattr(value, "__wrapped__", None)
        )
        if isinstance(inner, types.FunctionType) and inner.__globals__ is start.__globals__:
            visit(inner)

    start = fun
    while isinstance(start, functools.partial):
        start = start.func
    if isinstance(start, types.FunctionType):
        visit(start)
    return tuple(sorted(found.items(), key=lambda item: item[0]))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names_in(const)


_MAX_OBJECTS = 10_000


def tracers_in(value: Any) -> list[Any]:
    """Tracers that a value holds, however deep: captured, contained or in attributes."""
    found, seen, waiting = [], {id(value)}, [value]
    while waiting and len(seen) < _MAX_OBJECTS:
        here = waiting.pop()
        if isinstance(here, jax.core.Tracer):
            found.append(here)
            continue
        for held in _held_by(here):
            if id(held) not in seen:
                seen.add(id(held))
                waiting.append(held)
    return found


def _held_by(value: Any) -> Iterable[Any]:
    """Objects that a value refers to, without the modules and classes that all refer to."""
    if isinstance(value, types.FunctionType):
        return (value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__)
    if isinstance(value, (types.ModuleType, type, types.CodeType, jax.Array, str, bytes)):
        return ()
    return gc.get_referents(value)


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


def _overrides(kind: type, method: str, bases: tuple[type, ...]) -> bool:
    """Whether a class defines a method anew, rather than inherit it from one of `bases`."""
    found = getattr(kind, method, None)
    return all(found is not getattr(base, method) for base in bases)

"""What a function captured: values in closures and partials, names of its module, tracers."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import jax

from .keys import ByIdentity, Keys, key_of

_MAX_OBJECTS = 10_000


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

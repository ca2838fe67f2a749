"""What a user hands over to be traced: the Python function behind it, its name and place."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

from .static import shown


def check_traceable(fun: Any) -> None:
    """Refuses what JAX cannot trace.

    Raises:
      TypeError: `fun` is no callable, or one that does not return its results.
    """
    if isinstance(fun, (classmethod, staticmethod)):
        kind = type(fun).__name__
        raise TypeError(
            f"shared_subroutine() got a {kind}; write @{kind} above "
            "@shared_subroutine, not below it."
        )
    if not callable(fun):
        raise TypeError(
            f"shared_subroutine() needs a callable, got {shown(fun)} of type "
            f"{type(fun).__name__}. Options are given by keyword."
        )
    inner = source_function(fun)
    for is_such, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if is_such(inner):
            raise TypeError(
                f"shared_subroutine() got {kind}, {name_of(fun)!r}, which JAX cannot "
                "trace. Make it a function that returns its results, and decorate "
                "the part that computes with arrays."
            )


def source_function(fun: Any) -> Any:
    """The Python function that a partial, method or callable object calls."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    fun = inspect.unwrap(fun)
    if not isinstance(fun, (types.FunctionType, types.MethodType, type)):
        return type(fun).__call__ if callable(fun) else fun
    return fun


def name_of(fun: Any) -> str:
    """The name of a function, or of what a partial or callable object is made of."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def source_of(fun: Any) -> str:
    """``file:line`` of its definition, empty if it is not written in Python."""
    code = getattr(source_function(fun), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""

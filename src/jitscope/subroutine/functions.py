"""What a user hands over to be traced: the Python function behind it, its name and place."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
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
    if isinstance(fun, type):
        raise TypeError(
            f"shared_subroutine() got the class {fun.__qualname__}, and calls of it make objects. "
            "Decorate the method that computes, such as __call__, or pass an object of the class."
        )
    check_returns("shared_subroutine", fun)


def check_returns(decorator: str, fun: Any) -> None:
    """Refuses async functions and generators, which return before they compute.

    What wraps one may well run it, so that it is the wrapper that counts.

    Raises:
      TypeError: with the cure.
    """
    called = fun
    while isinstance(called, functools.partial):
        called = called.func
    if not isinstance(called, (types.FunctionType, types.MethodType)):
        called = type(called).__call__
    for is_such, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if is_such(called):
            raise TypeError(
                f"{decorator}() got {kind}, {name_of(fun)!r}, which JAX cannot "
                "trace. Make it a function that returns its results, and decorate "
                "the part that computes with arrays."
            )


def check_static_options(decorator: str, name: str, options: Mapping[str, Any]) -> None:
    """Refuses numbers for the names of static arguments, and names for their numbers.

    Raises:
      TypeError: with what was given, and what is allowed.
    """
    for option, kind, such, other in (
        ("static_argnames", str, "names, such as 'n' or ('n', 'mode')", "static_argnums"),
        ("static_argnums", int, "positions, such as 1 or (1, 2)", "static_argnames"),
    ):
        given = options.get(option)
        several = given if isinstance(given, (list, tuple)) else (given,)
        wrong = [one for one in several if not isinstance(one, kind) and not _is_such(one, option)]
        if given is not None and wrong:
            raise TypeError(
                f"{decorator}({option}={given!r}) of {name!r}: {option} takes {such}, got "
                f"{shown(wrong[0])} of type {type(wrong[0]).__name__}. Did you mean {other}?"
            )


def _is_such(value: Any, option: str) -> bool:
    """Whether a value may hold several, or is a number of another library."""
    if isinstance(value, (str, bytes)):
        return False
    return hasattr(value, "__iter__") or (
        option == "static_argnums" and hasattr(value, "__index__")
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
    name = str(getattr(fun, "__name__", type(fun).__name__))
    if name.startswith("__"):  # `Block.__call__`, since every class has one
        return ".".join(getattr(fun, "__qualname__", name).split(".")[-2:])
    return name


def source_of(fun: Any) -> str:
    """``file:line`` of its definition, empty if it is not written in Python."""
    code = getattr(source_function(fun), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""

"""``shared_subroutine``: a function that is traced once per signature, however often called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from ..structuring.plan import Structure
from .functions import check_static_options, check_traceable, name_of
from .shared import SharedSubroutine
from .static import shown

_OUTERMOST_OPTIONS = (
    "in_shardings",
    "out_shardings",
    "donate_argnums",
    "donate_argnames",
    "device",
    "backend",
    "compiler_options",
    "keep_unused",
    "inline",
)

F = TypeVar("F", bound=Callable[..., Any])


@overload
def shared_subroutine(fun: F, /) -> F: ...
@overload
def shared_subroutine(
    fun: None = None,
    /,
    *,
    name: str | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    structure: Structure | str | None = None,
) -> Callable[[F], F]: ...
@overload
def shared_subroutine(
    fun: F,
    /,
    *,
    name: str | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    structure: Structure | str | None = None,
) -> F: ...
def shared_subroutine(
    fun: Any = None,
    /,
    *,
    name: str | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    structure: Structure | str | None = None,
    **unsupported: Any,
) -> Any:
    """Makes a function a subroutine that is traced once, however often it is called.

    Under a trace every call is one nested ``jax.jit`` call of one shared body, which an
    enclosing `outermost_jit` counts and structures. Outside any trace it is a compiled
    function. For functions, methods, callable objects and pytree modules.

    **Signature.** The body is traced once for each tree, shapes, dtypes and weak types of the
    arguments, and values of their static leaves. Leaves that JAX cannot trace (strings,
    callables, enums, any hashable object) are static by themselves; Python numbers are traced
    unless they equal the parameter's default. Positional, keyword and default spellings of a
    call are one signature. Results that are not arrays come back as they are.

    **Closures.** Functions with the same code that captured equal values share their traces (if
    the names of their module that they use have equal values when they are decorated),
    so a lambda, a ``functools.partial`` or a function defined anew for every call is traced
    once. Equal are: Python scalars, strings, bytes and enums of the same type and value; tuples
    and frozen sets with equal contents; functions with the same code and equal captures;
    hashable objects whose class defines ``==``, if of one type and ``==``; a list, dict or set
    only if it is the same object and unchanged; and everything else, arrays among them, only
    if it is the same object. Values are compared at
    each call. A captured array of 64 KiB or more is an operand of the body. A captured tracer
    keeps the trace from being used by any other function or in any other trace.

    **Pitfalls**, those of ``jax.jit``: Python side effects of the function happen once per
    signature, not once per call. Python code cannot branch on values of traced arguments. What
    the function reads beside its arguments and captures is frozen when it is traced: a
    global flag flipped later is not seen, and ``numpy.random``, or a random key held in an
    object, gives every call the same numbers. Pass such things as arguments.

    Args:
      fun: the function; leave out to use it as ``@shared_subroutine(name=...)``.
      name: shown in reports and profiles; the function's own by default.
      static_argnums: positions of arguments that are static as a whole.
      static_argnames: names of arguments that are static as a whole.
      structure: ``"inline"``, ``"nested"``, ``"shared"``, ``"rolled"`` (a loop where its calls
        form a chain) or ``"staged"`` (under ``outermost_jit(staged=True)``), or a `Structure`, to
        decide in place of the policy.
      **unsupported: options of ``jax.jit`` belong on the outermost function.

    Returns:
      A callable with ``stats()`` and ``clear_cache()``, that is a method where `fun` is one.

    Raises:
      TypeError: `fun` cannot be traced, an option belongs elsewhere, or, in a call, a static
        leaf is not hashable.
      ValueError: there is no such structure or argument, or the name is empty.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from jitscope import shared_subroutine
      >>> @shared_subroutine
      ... def layer(w, x):
      ...     return jnp.tanh(x @ w)
      >>> def model(ws, x):
      ...     for w in ws:
      ...         x = layer(w, x)
      ...     return x
      >>> y = jax.jit(model)([jnp.eye(3)] * 12, jnp.ones(3))
      >>> layer.stats().n_calls, layer.stats().n_traces
      (12, 1)
    """
    _check_options(unsupported)
    options: dict[str, Any] = dict(
        name=_checked_name(name),
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        structure=_checked_structure(structure),
    )
    if fun is None:
        return functools.partial(shared_subroutine, **options)
    check_traceable(fun)
    check_static_options("shared_subroutine", name_of(fun), options)
    return SharedSubroutine(fun, **options)


def _check_options(options: dict[str, Any]) -> None:
    for option in options:
        if option in _OUTERMOST_OPTIONS:
            raise TypeError(
                f"shared_subroutine() does not take {option}: JAX ignores or rejects it on a "
                f"nested jit. It belongs on outermost_jit({option}=...), the outermost function."
            )
        hint = (
            " A policy is for a whole program: outermost_jit(policy=...). For this function alone, "
            "structure='shared' decides."
            if option == "policy"
            else ""
        )
        raise TypeError(
            f"shared_subroutine() got an unexpected option {option!r}; it takes name, "
            f"static_argnums, static_argnames and structure.{hint}"
        )


def _checked_name(name: str | None) -> str | None:
    if name is None or (name and isinstance(name, str)):
        return name
    error = ValueError if isinstance(name, str) else TypeError
    raise error(
        "shared_subroutine(name=...) takes a text for reports and profiles to show, such as "
        f"'layer', got {shown(name)} of type {type(name).__name__}. Leave it out to take the "
        "function's own name."
    )


def _checked_structure(structure: Structure | str | None) -> str | None:
    if structure is None:
        return None
    return Structure.named(structure, "shared_subroutine(structure=...)").value

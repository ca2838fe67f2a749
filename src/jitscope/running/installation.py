"""``install()``: every ``jax.jit`` made from now on acts as ``outermost_jit``.

``jax.jit`` is exchanged in the module ``jax`` and wherever an imported module holds it
under a name of its own (``from jax import jit``, or a ``functools.partial`` of it). Calls
from JAX's own modules still reach the original. ``uninstall()`` puts everything back; what
it cannot find, such as a function that a library has cached, acts as ``jax.jit`` again.

Functions that were jitted before are not touched: nobody knows where they are held.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from ..settings import PACKAGE
from ..structuring.checks import check_policy
from ..structuring.policy import Policy, PolicyLike
from .standin import Installation, InstalledPjitFunction

_INTERNAL = frozenset({"jax", "jaxlib", "jitscope"})
"""Packages whose use of ``jax.jit`` stays as it is."""

_INTERNAL_FILES = (os.path.dirname(os.path.abspath(jax.__file__)) + os.sep, PACKAGE)

_lock = threading.RLock()
_original: Any = None
"""The ``jax.jit`` found by the first installation."""
_partials: list[tuple[functools.partial[Any], functools.partial[Any]]] = []
"""Partials of the original, with those that replace them."""


def install(*, policy: PolicyLike | None = None, observe: bool = False) -> None:
    """Makes every ``jax.jit`` from now on act as ``jitscope.outermost_jit``.

    Holds for the process. Call it before the modules that define the model are imported:
    what they have jitted already stays as it is. To install again with other options
    replaces the options; with the same, it reaches modules imported in between.

    Args:
      policy: callable from ``Census`` to ``Plan``; ``jitscope.Policy()`` by default.
      observe: compile everything exactly as ``jax.jit`` does, and only record what repeats
        and what would be done about it.

    Raises:
      TypeError: for a policy that is not callable.

    Examples:
      >>> import jax, jax.numpy as jnp, jitscope
      >>> jitscope.install()
      >>> step = jax.jit(lambda x: jnp.sin(x) + 1)
      >>> float(step(0.0)), step.reuse().census.n_equations
      (1.0, 2)
      >>> jitscope.uninstall()
    """
    policy = Policy() if policy is None else policy
    check_policy(policy)
    with _lock:
        now = InstalledPjitFunction.current
        if now is None or (now.policy, now.observe) != (policy, observe):
            InstalledPjitFunction.current = Installation(policy, observe)
        _patch()


def uninstall() -> None:
    """Undoes `install`; does nothing where nothing is installed.

    Functions made in between act as plain ``jax.jit`` functions from now on.
    """
    with _lock:
        InstalledPjitFunction.current = None
        if _original is not None:
            _exchange(_jit, _original)
            _partials.clear()


@contextmanager
def installed(*, policy: PolicyLike | None = None, observe: bool = False) -> Iterator[None]:
    """`install` for the time of a with-block, for all threads.

    Args:
      policy: as for `install`.
      observe: as for `install`.

    Examples:
      >>> import jax, jitscope
      >>> with jitscope.installed():
      ...     double = jax.jit(lambda x: 2 * x)
      ...     float(double(1.0))
      2.0
    """
    before = InstalledPjitFunction.current
    install(policy=policy, observe=observe)
    try:
        yield
    finally:
        if before is None:
            uninstall()
        else:
            InstalledPjitFunction.current = before


_ABSENT: Any = object()


def _jit(fun: Any = _ABSENT, /, **options: Any) -> Any:
    caller = sys._getframe(1).f_code.co_filename
    if InstalledPjitFunction.current is None or caller.startswith(_INTERNAL_FILES):
        return _original(**options) if fun is _ABSENT else _original(fun, **options)
    options = {key: _repeatable(value) for key, value in options.items()}
    if fun is _ABSENT:
        _original(**options)  # for its errors
        return lambda fun: InstalledPjitFunction(_original(fun, **options), options)
    return InstalledPjitFunction(_original(fun, **options), options)


def _repeatable(value: Any) -> Any:
    """The value itself, or the items of an iterator, which the first reader would use up."""
    return tuple(value) if isinstance(value, Iterator) else value


def _patch() -> None:
    global _original
    if _original is None:
        # Once and for all: later, `jax.jit` may be somebody's wrapper of ours.
        _original = jax.jit
        functools.update_wrapper(_jit, _original)  # for help() and for tools
    _exchange(_original, _jit)


def _exchange(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Puts ``new`` wherever an imported module holds ``old``, or a partial of it."""
    if jax.jit is old:
        jax.jit = new
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _INTERNAL:
            names = _namespace(module)
            for key, value in list(names.items()):
                replacement = _replacement(value, old, new)
                if replacement is not value:
                    names[key] = replacement


def _namespace(module: Any) -> dict[str, Any]:
    """The globals of a module, without waking one that loads itself when first used."""
    if not issubclass(type(module), types.ModuleType):
        return {}
    return types.ModuleType.__getattribute__(module, "__dict__")


def _replacement(value: Any, old: Callable[..., Any], new: Callable[..., Any]) -> Any:
    if value is old:
        return new
    if type(value) is not functools.partial or value.func is not old:
        return value
    for first, second in _partials:
        if value is first or value is second:
            return second if value is first else first
    replacement = functools.partial(new, *value.args, **value.keywords)
    _partials.append((value, replacement))
    return replacement

"""The public decorator of outermost functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax

from ..structuring.checks import check_policy
from ..structuring.policy import Policy, PolicyLike
from ..subroutine.functions import check_returns, check_static_options, name_of
from ..subroutine.static import shown
from .jit import OutermostJit

F = TypeVar("F", bound=Callable[..., Any])
_JIT_OPTIONS = frozenset(inspect.signature(jax.jit).parameters) - {"fun"}


@overload
def outermost_jit(
    fun: F,
    /,
    *,
    policy: PolicyLike | None = None,
    outline: bool = True,
    audit: bool = False,
    staged: bool = False,
    **jit_options: Any,
) -> F: ...
@overload
def outermost_jit(
    fun: None = None,
    /,
    *,
    policy: PolicyLike | None = None,
    outline: bool = True,
    audit: bool = False,
    staged: bool = False,
    **jit_options: Any,
) -> Callable[[F], F]: ...
def outermost_jit(
    fun: Any = None,
    /,
    *,
    policy: PolicyLike | None = None,
    outline: bool = True,
    audit: bool = False,
    staged: bool = False,
    **jit_options: Any,
) -> Any:
    """``jax.jit`` for the outermost function of a program, which it structures first.

    When JAX traces ``fun``, the parts that repeat are counted, and the policy decides for
    each whether its calls stay shared in the compiled program. Results, errors, effects and
    steady-state dispatch are those of ``jax.jit(fun, **jit_options)``. Inside another
    ``outermost_jit`` it acts as a nested ``jit``; under ``grad``, ``vmap`` and the like, or
    inside ``jax.jit``, it behaves as ``jax.jit`` would.

    Args:
      fun: the function. Without it, a decorator is returned.
      policy: callable from ``Census`` to ``Plan``; ``jitscope.Policy()`` by default.
      outline: whether to look for repeats in code that marks no subroutines.
      audit: before each trace, trace with every call of a shared subroutine traced anew, and
        warn of those that depend on hidden state; see `jitscope.audit`.
      staged: compile what repeats on its own and run the program as a list of executables, for
        platforms that cannot keep calls (GPU). Where that cannot be done, as with ordered
        effects, the program stays one executable and the plan says why. ``policy`` decides
        which bodies repeat enough: by default all large ones with four uses, since settings that
        a ``jitscope.Policy`` leaves at their defaults are lower here. ``lower`` gives all stages,
        ``trace`` the program as one.
      **jit_options: every option of ``jax.jit``.

    Returns:
      A callable with the methods of a ``jax.jit`` function, and ``reuse()``, the record of
      what repeats in its latest program.

    Raises:
      TypeError: for a ``fun`` that is no function or cannot be traced, an option that ``jax.jit``
        lacks, or one of ours that is no bool.

    Examples:
      >>> import jax.numpy as jnp, jitscope
      >>> @jitscope.outermost_jit
      ... def step(x):
      ...     return jnp.sin(x) + 1
      >>> float(step(jnp.zeros(())))
      1.0
    """
    unknown = sorted(set(jit_options) - _JIT_OPTIONS)
    if unknown:
        raise TypeError(
            f"outermost_jit got unknown option(s) {', '.join(unknown)}. It takes policy=..., "
            f"outline=..., audit=..., staged=... and the options of jax.jit: "
            f"{', '.join(sorted(_JIT_OPTIONS))}."
        )
    for name, value in (("outline", outline), ("audit", audit), ("staged", staged)):
        if not isinstance(value, bool):
            raise TypeError(f"outermost_jit({name}=...) must be True or False, got {value!r}.")
    if policy is None:
        policy = Policy()
    check_policy(policy)
    kind = OutermostJit
    if staged:
        # What only staged programs need takes 6 ms to import.
        from ..staged.jit import for_stages
        from .staged import StagedOutermostJit

        kind, policy = StagedOutermostJit, for_stages(policy)
    if fun is None:
        return lambda fun: kind(
            _checked(fun, jit_options), policy, jit_options, outline=outline, audit=audit
        )
    fun = _checked(fun, jit_options)
    return kind(fun, policy, jit_options, outline=outline, audit=audit)


def _checked(fun: Any, options: dict[str, Any]) -> Callable[..., Any]:
    if not callable(fun):
        raise TypeError(
            f"outermost_jit() needs a function, got {shown(fun)} of type {type(fun).__name__}. "
            "Write @jitscope.outermost_jit above a function, or outermost_jit(function); options "
            "are given by keyword."
        )
    if isinstance(fun, type):
        raise TypeError(
            f"outermost_jit() got the class {fun.__qualname__}, and calls of it make objects. "
            "Decorate the method that computes, such as __call__, or pass an object of the class."
        )
    check_returns("outermost_jit", fun)
    check_static_options("outermost_jit", name_of(fun), options)
    return fun

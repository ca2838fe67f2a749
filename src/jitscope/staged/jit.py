"""STAGED: a program runs as a short list of executables that are compiled on their own.

For platforms that cannot keep calls inside one executable. ``StagedJit`` stands in for the
``jax.jit`` function of an outermost function. Which program a call belongs to is found by
``jax.jit`` itself: `StagedJit` compiles, for every signature, an empty program whose result
is the tree ``_Carrier``, and the tree knows the `StagedProgram`. So tracing, its cache,
static arguments and the settings that a trace depends on are ``jax.jit``'s.

Distinct stages are compiled in parallel where all values live on one device. On several, the
sharding of a value is known only once the stage that makes it is compiled, and each stage is
compiled when it first runs, or when it is lowered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from .. import _jax
from ..structuring.policy import Policy, PolicyLike
from .program import UNSTAGED, StagedProgram

_SUPPORTED = frozenset(
    {
        "static_argnums",
        "static_argnames",
        "donate_argnums",
        "donate_argnames",
        "in_shardings",
        "out_shardings",
        "keep_unused",
        "inline",
        "compiler_options",
    }
)
_SIGNATURE = ("static_argnums", "static_argnames", "in_shardings")

STAGE_POLICY = Policy(
    min_equations=8,
    min_equations_per_product=1,
    min_saved=1,
    min_saved_growing=1,
    min_uses_steady=4,
    max_side_by_side=1_000_000,
    min_uses_drawing=1_000_000,
)
"""A stage costs the host some microseconds and saves the same time on every platform, so that
every body of twelve equations with a matrix product is worth one."""


def for_stages(policy: PolicyLike) -> PolicyLike:
    """The policy of a staged function, given the user's.

    Args:
      policy: settings that a `Policy` leaves at their defaults become those of `STAGE_POLICY`;
        functions decide as they do.
    """
    if not isinstance(policy, Policy):
        return policy
    default = Policy()
    left = {
        field.name: getattr(STAGE_POLICY, field.name)
        for field in dataclasses.fields(Policy)
        if getattr(policy, field.name) == getattr(default, field.name)
    }
    return dataclasses.replace(policy, **left)


class _Carrier:
    """A tree without leaves that knows what a signature was made into."""

    def __init__(self, staged: StagedProgram | None) -> None:
        self.staged = staged


jax.tree_util.register_pytree_node(
    _Carrier, lambda carrier: ((), carrier), lambda carrier, _: carrier
)


class StagedJit:
    """As the ``jax.jit`` function ``as_one``, run in stages wherever that is possible.

    Args:
      fun: the user's function.
      as_one: runs the program as one executable.
      traced: the same, to look at where calls run in stages. Another object, since other calls may
        run as one, and JAX would not trace again.
      stage: makes the stages of one signature, or None where it has to be one executable.
        Called with the arguments as tracers, while JAX traces.
      options: of ``jax.jit``.
    """

    BOUNDARY = (
        "static_argnums",
        "static_argnames",
        "donate_argnums",
        "donate_argnames",
        "in_shardings",
        "out_shardings",
    )
    """Options that the stages of a program must know of."""

    def __init__(
        self,
        fun: Callable[..., Any],
        as_one: Any,
        traced: Any,
        stage: Callable[[tuple, dict], StagedProgram | None],
        options: dict[str, Any],
    ) -> None:
        self._as_one = as_one
        self._traced = traced

        @_jax.wraps(fun)
        def signature(*args: Any, **kwargs: Any) -> _Carrier:
            # At top level only under `jax.disable_jit`, where it is plain Python.
            if not supported or _jax.at_top_level():
                return _Carrier(None)
            return _Carrier(stage(args, kwargs))

        supported = options.keys() <= _SUPPORTED and not options.get("keep_unused")
        self._signature = _jax.jit(
            signature, **{key: options[key] for key in _SIGNATURE if key in options}
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        staged = self._staged(self._signature, args, kwargs)
        result = UNSTAGED if staged is None else staged(args, kwargs)
        if result is UNSTAGED:
            return self._as_one(*args, **kwargs)
        return result

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """All stages, lowered; ``jax.jit``'s where the program is not staged."""
        staged = self._staged(self._signature.eval_shape, args, kwargs)
        lowered = None if staged is None else staged.lower(args, kwargs)
        if lowered is None:
            return self._as_one.lower(*args, **kwargs)
        return lowered

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).trace``, of the program as one executable."""
        staged = self._staged(self._signature.eval_shape, args, kwargs)
        in_stages = staged is not None and staged.runs_in_stages(args, kwargs)
        return (self._traced if in_stages else self._as_one).trace(*args, **kwargs)

    def _staged(
        self, signature: Callable[..., _Carrier], args: tuple, kwargs: dict
    ) -> StagedProgram | None:
        if _jax.checks_results():  # which may change after the signature was traced
            return None
        return signature(*args, **kwargs).staged

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).eval_shape``."""
        return self._traced.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As ``jax.jit(f).clear_cache``."""
        self._signature.clear_cache()
        self._as_one.clear_cache()
        self._traced.clear_cache()

"""``outermost_jit``: ``jax.jit`` over a function that restructures itself when traced.

The compiled function, its cache, its dispatch and its options are ``jax.jit``'s. What is
ours runs only while JAX traces: capture the program, count, plan, restructure, and stage
the result in place of the original.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import jax

from . import _jax
from .ir.constants import hoisted
from .ir.program import Program, capture
from .outlining.outline import outline as with_repeats_outlined
from .reuse import records
from .reuse.evidence import evidence_of
from .reuse.phases import Phases, claim_phases
from .reuse.reuse import Reuse
from .rolled.roll import roll, without_loops
from .settings import is_disabled, strict
from .staged.jit import STAGE_POLICY, StagedJit, StagedProgram
from .staged.stages import cut_into_stages, obstacle, with_calls_outermost, with_stages
from .structuring.census import Census, take_census
from .structuring.policy import Plan, Policy, PolicyLike, check_policy
from .structuring.restructure import restructure
from .structuring.variants import find_variants
from .subroutine.functions import check_static_options, name_of
from .subroutine.reasons import advice_on_objects

F = TypeVar("F", bound=Callable[..., Any])


class _Active(threading.local):
    """How many outermost functions this thread is tracing."""

    depth = 0


_active = _Active()
_context, _NO_TRACE = _jax.TRACE_CONTEXT, _jax.NO_TRACE
_JIT_OPTIONS = frozenset(inspect.signature(jax.jit).parameters) - {"fun"}


class OutermostJit:
    """A function compiled by ``jax.jit`` after its program was structured.

    Calls, ``lower``, ``trace``, ``eval_shape`` and ``clear_cache`` are those of ``jax.jit``.
    """

    _is_applied = True
    """Whether the programs it makes are the ones that run."""

    def __init__(
        self,
        fun: Callable[..., Any],
        policy: PolicyLike,
        options: dict[str, Any],
        *,
        outline: bool = True,
        audit: bool = False,
        staged: bool = False,
    ) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun
        self._policy = policy
        self._outline = outline
        self._audit = audit
        self._options = options
        self._latest: Reuse | None = None
        self._staged = staged
        self._jitted, self._plain = _jitted((self._structured(fun), fun), options)
        if staged:
            self._jitted = StagedJit(fun, self._jitted, self._in_stages, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # `_chosen` spelled out: dispatch may cost 0.5 us more than jax.jit's.
        if (_context.trace is _NO_TRACE or _jax.at_top_level()) and not is_disabled():
            return self._jitted(*args, **kwargs)
        return self._plain(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else _BoundOutermostJit(self, instance)

    def __getattr__(self, name: str) -> Any:
        hint = ". What repeats in its program tells .reuse()" if name == "stats" else ""
        raise AttributeError(
            f"a function of outermost_jit has no attribute {name!r}: it has those of jax.jit, and "
            f"reuse(){hint}; stats() belongs to a shared subroutine, and jitscope.stats() to the "
            "process."
        )

    def __repr__(self) -> str:
        return f"<outermost_jit of {getattr(self._fun, '__qualname__', self._fun)!s}>"

    @property
    def _chosen(self) -> Any:
        # Under a trace of another's (`checkify`, `sparsify`, `jet`, `vmap`) the program is read
        # by rules for the primitives of JAX, to which ours is unknown.
        plain = is_disabled() or not _jax.at_top_level()
        return self._plain if plain else self._jitted

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).lower``."""
        return self._chosen.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).trace``."""
        return self._chosen.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit(f).eval_shape``."""
        return self._chosen.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As ``jax.jit(f).clear_cache``."""
        self._jitted.clear_cache()
        self._plain.clear_cache()

    def reuse(self) -> Reuse:
        """What repeats in the latest program, how often, and what was done about it.

        Raises:
          RuntimeError: nothing has been traced yet.
        """
        if self._latest is not None:
            return self._latest
        if is_disabled():  # a program that prints its reuse runs without jitscope as well
            name = f"{_jax.function_name(self._fun)} (jitscope is disabled)"
            return Reuse(Census(name, 0, ()), Plan({}), Phases())
        raise RuntimeError(
            f"{self!r} has traced no program yet. Call it, or its .lower(...), first, and not "
            "from within jax.jit, jax.grad or another outermost_jit function: there it is part "
            "of a program that is not its own."
        )

    def _structured(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        static = self._given("static_argnums", "static_argnames")

        @_jax.wraps(fun)
        def structured(*args: Any, **kwargs: Any) -> Any:
            operands = _operands(args, kwargs)
            if operands is None:
                return fun(*args, **kwargs)
            phases = claim_phases(_jax.function_name(fun))
            program = self._captured(args, kwargs, static)
            with phases.structuring():
                return self._pipeline(program, phases).emit(operands)

        return structured

    def _given(self, *names: str) -> dict[str, Any]:
        return {key: self._options[key] for key in names if self._options.get(key) is not None}

    def _captured(self, args: tuple, kwargs: dict, options: dict[str, Any]) -> Program:
        with _outermost():
            if self._audit:
                self._warn_of_hidden_state(
                    args, kwargs, self._given("static_argnums", "static_argnames")
                )
            return capture(self._fun, args, kwargs, options)

    def _in_stages(self, args: tuple, kwargs: dict) -> StagedProgram | None:
        """The stages of one signature; None where it has to be compiled as one."""
        phases = claim_phases(_jax.function_name(self._fun))
        program = self._captured(args, kwargs, self._given(*StagedJit.BOUNDARY))
        with phases.structuring():
            program = self._pipeline(program, phases)
            try:
                return (
                    None
                    if obstacle(program)
                    else StagedProgram(
                        program,
                        cut_into_stages(program),
                        (args, kwargs),
                        self._options.get("compiler_options"),
                        phases,
                    )
                )
            except Exception as error:
                if strict():
                    raise
                _warn_fallback(self, error)
                return None

    def _warn_of_hidden_state(self, args: tuple, kwargs: dict, static: dict[str, Any]) -> None:
        from .auditing import audited  # which imports this module

        found = audited(self._fun, args, kwargs, static, _jax.function_name(self._fun))
        if not found.is_clean:
            warnings.warn(str(found), RuntimeWarning, stacklevel=2)

    def _pipeline(self, program: Program, phases: Phases) -> Program:
        try:
            lifted = hoisted(program)
            if self._outline:
                lifted = with_repeats_outlined(lifted)
            variants = find_variants(lifted)
            census = take_census(lifted, variants)
            plan = self._policy(census)
            if not isinstance(plan, Plan):
                raise TypeError(
                    f"policy must return a jitscope.Plan, got {type(plan).__name__} "
                    f"from {self._policy!r}."
                )
            if self._staged:
                plan = with_calls_outermost(without_loops(plan), lifted, variants)
                restructured = restructure(lifted, plan, variants)
                plan = with_stages(plan, restructured)
            else:
                restructured, plan = roll(lifted, plan, variants)
            evidence = evidence_of(lifted, restructured, variants)
        except Exception as error:
            if strict():
                raise
            records.note_failure(program.name, error)
            _warn_fallback(self, error)
            return program
        self._latest = Reuse(census, plan, phases, evidence, self._is_applied)
        records.note(self._latest)
        return restructured


class _BoundOutermostJit:
    """``outermost_jit`` of a method, bound to an instance."""

    def __init__(self, function: OutermostJit, instance: Any) -> None:
        self.__func__ = function
        self.__self__ = instance
        self.__wrapped__ = function.__wrapped__.__get__(instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except TypeError as error:
            if "path self" in str(error):
                kind = type(self.__self__).__name__
                error.add_note(
                    f"jitscope: {self.__func__.__name__!r} is a method, and JAX cannot trace its "
                    f"first argument, a {kind} object. Either {advice_on_objects(kind)}; or, if "
                    "no attribute of the object ever changes, outermost_jit(static_argnums=0)."
                )
            raise

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__func__, name)
        if name in ("lower", "trace", "eval_shape"):
            return functools.partial(found, self.__self__)
        return found


def _operands(args: tuple, kwargs: dict) -> list[Any] | None:
    """The traced leaves in order, or None where there are none to trace over.

    Static arguments reach the function as they are; everything else is a tracer, except
    where JAX runs the function as plain Python: under ``jax.disable_jit``, and to find the
    operation that made a NaN (``jax_debug_nans``).
    """
    if jax.config.jax_disable_jit or _jax.at_top_level():
        return None
    return [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, _jax.Tracer)]


@contextmanager
def _outermost() -> Iterator[None]:
    """While this holds, other outermost functions of the thread step aside."""
    _active.depth += 1
    try:
        yield
    finally:
        _active.depth -= 1


def _jitted(functions: Sequence[Callable[..., Any]], options: dict[str, Any]) -> list[Any]:
    """``jax.jit`` of each, with one warning, at the user's line, for an option it deprecates."""
    if not options.keys() & {"device", "backend"}:
        return [_jax.jit(fun, **options) for fun in functions]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jitted = [_jax.jit(fun, **options) for fun in functions]
    for warning in caught[: len(caught) // len(functions)]:
        warnings.warn(warning.message, warning.category, stacklevel=4)
    return jitted


def _warn_fallback(function: OutermostJit, error: Exception) -> None:
    warnings.warn(
        f"jitscope could not structure {function!r} and left it as jax.jit would compile it: "
        f"{type(error).__name__}: {error}. The result is right, the compile no faster. Please "
        "report this with the traceback that JITSCOPE_STRICT=1 raises.",
        RuntimeWarning,
        stacklevel=2,
    )


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
        effects, the program stays one executable and the plan says why. Then ``policy`` decides
        which bodies repeat enough, by default all large ones with four uses; ``lower`` gives
        all stages, ``trace`` the program as one.
      **jit_options: every option of ``jax.jit``.

    Returns:
      A callable with the methods of a ``jax.jit`` function, and ``reuse()``, the record of
      what repeats in its latest program.

    Raises:
      TypeError: for a ``fun`` that is not callable, or an option that ``jax.jit`` lacks.

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
    if policy is None:
        policy = STAGE_POLICY if staged else Policy()
    check_policy(policy)
    if fun is None:
        return lambda fun: OutermostJit(
            _checked(fun, jit_options),
            policy,
            jit_options,
            outline=outline,
            audit=audit,
            staged=staged,
        )
    fun = _checked(fun, jit_options)
    return OutermostJit(fun, policy, jit_options, outline=outline, audit=audit, staged=staged)


def _checked(fun: Any, options: dict[str, Any]) -> Callable[..., Any]:
    if not callable(fun):
        raise TypeError(
            f"outermost_jit() needs a function, got {fun!r} of type {type(fun).__name__}. Write "
            "@jitscope.outermost_jit above a function, or outermost_jit(function); options are "
            "given by keyword."
        )
    check_static_options("outermost_jit", name_of(fun), options)
    return fun

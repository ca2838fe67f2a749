"""``outermost_jit``: ``jax.jit`` over a function that restructures itself when traced.

The compiled function, its cache, its dispatch and its options are ``jax.jit``'s. What is
ours runs only while JAX traces: capture the program, count, plan, restructure, and stage
the result in place of the original.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from .. import _jax
from ..ir.program import Program, capture
from ..phases import Phases, claim_phases
from ..progress import watch
from ..reuse import records
from ..reuse.reuse import Reuse
from ..settings import is_disabled, strict
from ..structuring.census import Census
from ..structuring.plan import Plan
from ..structuring.policy import PolicyLike
from ..subroutine.reasons import advice_on_objects
from .interpreter import unhindered
from .pipeline import Structured, structured

_DISABLED = (
    "has no record of it, since jitscope was disabled. Call it, or its .lower(...), outside of "
    "jitscope.disabled()."
)
_NOT_STRUCTURED = (
    "has no record of it, since jitscope could not structure the program and left it as jax.jit "
    "would compile it: {}: {}. JITSCOPE_STRICT=1 raises that, with its traceback."
)


class _Active(threading.local):
    """How many outermost functions this thread is tracing."""

    depth = 0


_active = _Active()
_context, _NO_TRACE = _jax.TRACE_CONTEXT, _jax.NO_TRACE


class OutermostJit:
    """A function compiled by ``jax.jit`` after its program was structured.

    Calls, ``lower``, ``trace``, ``eval_shape`` and ``clear_cache`` are those of ``jax.jit``.
    """

    _is_applied = True
    """Whether the programs it makes are the ones that run."""
    _is_staged = False
    """Whether its programs are made to be cut into stages."""
    _why_no_program = ""
    """Why there is no record of a call that was made."""

    def __init__(
        self,
        fun: Callable[..., Any],
        policy: PolicyLike,
        options: dict[str, Any],
        *,
        outline: bool = True,
        audit: bool = False,
    ) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun
        self._policy = policy
        self._outline = outline
        self._audit = audit
        self._options = options
        self._latest: Reuse | None = None
        self._jitted, self._plain = self._compiled(fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # `_chosen` spelled out: dispatch may cost 0.5 us more than jax.jit's.
        if (_context.trace is _NO_TRACE or _jax.at_top_level()) and not is_disabled():
            return self._jitted(*args, **kwargs)
        return self._chosen(*args, **kwargs)

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
        if is_disabled():
            self._why_no_program = _DISABLED
            return self._plain
        return self._jitted if _jax.at_top_level() else self._plain

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
        if self._why_no_program:
            raise RuntimeError(f"{self!r} was called, and {self._why_no_program}")
        raise RuntimeError(
            f"{self!r} has traced no program yet. Call it, or its .lower(...), first, and not "
            "from within jax.jit, jax.grad or another outermost_jit function: there it is part "
            "of a program that is not its own."
        )

    def _compiled(self, fun: Callable[..., Any]) -> tuple[Any, Any]:
        """What calls go to, and the function as ``jax.jit`` alone compiles it."""
        structured, plain = jitted((self._structured(fun), fun), self._options)
        return structured, plain

    def _structured(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        return self._through(self._pipeline, fun)

    def _through(
        self, pipeline: Callable[[Program, Phases], Program], fun: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The function as it is after a pipeline, for ``jax.jit`` to trace."""
        static = self._given("static_argnums", "static_argnames")

        @_jax.wraps(fun)
        def structured(*args: Any, **kwargs: Any) -> Any:
            operands = _operands(args, kwargs)
            if operands is None:
                return fun(*args, **kwargs)
            phases = claim_phases(_jax.function_name(fun))

            def traced() -> Any:
                program = self._captured(args, kwargs, static)
                with phases.structuring():
                    return pipeline(program, phases).emit(operands)

            return unhindered(traced)

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

    def _warn_of_hidden_state(self, args: tuple, kwargs: dict, static: dict[str, Any]) -> None:
        from ..audited import audited  # few programs ask for it

        found = audited(self._fun, args, kwargs, static, _jax.function_name(self._fun))
        if not found.is_clean:
            warnings.warn(str(found), RuntimeWarning, stacklevel=_jax.stacklevel_of_user())

    def _pipeline(self, program: Program, phases: Phases) -> Program:
        """The program structured, and its plan noted."""
        made = self._made(program)
        if made is None:
            return program
        self._note(made, made.plan, phases)
        return made.program

    def _made(self, program: Program) -> Structured | None:
        """The program structured; None where that failed, of which the user is told."""
        try:
            return structured(program, self._policy, outline=self._outline, staged=self._is_staged)
        except Exception as error:
            if strict():
                raise
            records.note_failure(program.name, error)
            self._why_no_program = _NOT_STRUCTURED.format(type(error).__name__, error)
            warn_of_fallback(self, error)
            return None

    def _note(self, made: Structured, plan: Plan, phases: Phases) -> None:
        self._latest = Reuse(made.census, plan, phases, made.evidence, self._is_applied)
        records.note(self, self._latest)
        watch(self._latest)


class _BoundOutermostJit:
    """``outermost_jit`` of a method, bound to an instance."""

    def __init__(self, function: OutermostJit, instance: Any) -> None:
        self.__func__ = function
        self.__self__ = instance
        self.__wrapped__ = types.MethodType(function.__wrapped__, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except TypeError as error:
            if re.search(rf"path {re.escape(self._first_parameter())}(?!\w)", str(error)):
                kind = type(self.__self__).__name__
                error.add_note(
                    f"jitscope: {self.__func__.__name__!r} is a method, and JAX cannot trace its "
                    f"first argument, an object of class {kind}. Either "
                    f"{advice_on_objects(kind)}; or, if no attribute of the object ever changes, "
                    "outermost_jit(static_argnums=0)."
                )
            raise

    def __eq__(self, other: object) -> bool:
        """As of bound methods: of one function and the very same instance."""
        return (
            isinstance(other, _BoundOutermostJit)
            and self.__func__ is other.__func__
            and self.__self__ is other.__self__
        )

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))

    def _first_parameter(self) -> str:
        """What JAX calls the instance in its messages."""
        first = next(iter(inspect.signature(self.__func__._fun).parameters.values()))
        return f"{first.name}[0]" if first.kind is first.VAR_POSITIONAL else first.name

    def __repr__(self) -> str:
        kind = type(self.__self__).__name__
        return f"<bound {repr(self.__func__)[1:-1]} of an object of class {kind}>"

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


def jitted(functions: Sequence[Callable[..., Any]], options: dict[str, Any]) -> list[Any]:
    """``jax.jit`` of each, with one warning, at the user's line, for an option it deprecates."""
    if not options.keys() & {"device", "backend"}:
        return [_jax.jit(fun, **options) for fun in functions]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = [_jax.jit(fun, **options) for fun in functions]
    for warning in caught[: len(caught) // len(functions)]:
        warnings.warn(warning.message, warning.category, stacklevel=5)
    return made


def warn_of_fallback(function: OutermostJit, error: Exception) -> None:
    """Says that a program is compiled as it was written, since jitscope failed."""
    warnings.warn(
        f"jitscope could not structure {function!r} and left it as jax.jit would compile it: "
        f"{type(error).__name__}: {error}. The result is right, the compile no faster. Please "
        "report this with the traceback that JITSCOPE_STRICT=1 raises.",
        RuntimeWarning,
        stacklevel=_jax.stacklevel_of_user(),
    )

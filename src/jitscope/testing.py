"""Checks for your own tests: that a program still shares what it shared.

They trace and count, and measure no time, so they fail on every machine or on none. Where
a refactoring makes a subroutine trace twelve times, or splits one body into five, the
message says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from contextlib import ContextDecorator
from typing import Any

from .outermost.jit import OutermostJit
from .report import text
from .reuse.body_report import BodyReport
from .reuse.retraces import counts_so_far, subroutine_reports
from .reuse.reuse_report import ProgramReport, ReuseReport, SubroutineReport
from .settings import not_counting
from .structuring.plan import Structure
from .structuring.policy import Policy
from .subroutine.shared import SharedSubroutine
from .words import count

__all__ = ["assert_max_bodies", "assert_max_traces", "assert_structure"]


def __dir__() -> list[str]:
    return sorted(__all__)


def assert_max_traces(
    n: int, *misplaced: Any, of: Callable[..., Any] | str | None = None
) -> _MaxTraces:
    """Fails if shared subroutines are traced more than ``n`` times in a with-block.

    Args:
      n: most traces of each subroutine. A trace from before the block may be used in it.
      *misplaced: refused; the subroutine is given as ``of``.
      of: a shared subroutine, or the name of some; all of them by default.

    Raises:
      AssertionError: with the subroutine, its counts, and why it was traced again.

    Warns:
      RuntimeWarning: it was called without ``with``, and so checked nothing.

    Examples:
      >>> import jax, jax.numpy as jnp, jitscope
      >>> from jitscope.testing import assert_max_traces
      >>> @jitscope.shared_subroutine
      ... def layer(x):
      ...     return jnp.sin(x) / 2
      >>> with assert_max_traces(1, of=layer):
      ...     y = jax.jit(lambda x: layer(layer(x)))(1.0)
    """
    if misplaced:
        raise TypeError(
            f"assert_max_traces() takes the subroutine as of=..., got {misplaced[0]!r} without it. "
            f"Write `with assert_max_traces({n!r}, of=layer): ...`."
        )
    _checked(n)
    if not isinstance(getattr(of, "__func__", of), (SharedSubroutine, str, type(None))):
        raise TypeError(
            f"assert_max_traces(of=...) takes a shared subroutine or the name of some, got {of!r}, "
            "whose traces are not counted. Decorate it with jitscope.shared_subroutine."
        )
    return _MaxTraces(n, of if isinstance(of, (str, type(None))) else _code(of))


class _MaxTraces(ContextDecorator):
    """What `assert_max_traces` returns."""

    def __init__(self, n: int, of: Hashable) -> None:
        """`of` is a name, a subroutine's code, or None for all subroutines."""
        self._n, self._of = n, of
        self._is_used = False

    def __call__(self, fun: Any) -> Any:
        """A function that is checked whenever it is called."""
        self._is_used = True
        return super().__call__(fun)

    def _recreate_cm(self) -> _MaxTraces:  # for each of those calls
        return _MaxTraces(self._n, self._of)

    def __enter__(self) -> None:
        self._is_used = True
        self._before = counts_so_far()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        if isinstance(self._of, str):
            _check_known(self._of)
        found = [
            report
            for code, report in subroutine_reports(self._before).items()
            if self._of in (None, code, report.name) and report.n_traces > self._n
        ]
        if found:
            raise AssertionError("\n".join(_too_many_traces(report, self._n) for report in found))

    def __del__(self) -> None:
        if not self._is_used:
            warnings.warn(
                f"assert_max_traces({self._n}) checked nothing, since it was called without with. "
                f"Write `with assert_max_traces({self._n}): ...` around the calls that trace.",
                RuntimeWarning,
                stacklevel=2,
            )


def _check_known(name: str) -> None:
    known = sorted({stats.name for stats in counts_so_far().values()})
    if name not in known:
        raise AssertionError(
            f"assert_max_traces(of={name!r}) checked nothing, since no shared subroutine has that "
            f"name; there are: {', '.join(known) or 'none'}"
        )


def _code(of: Any) -> Hashable:
    return getattr(of, "__func__", of)._code


def assert_max_bodies(
    n: int, fun: Callable[..., Any], /, *args: Any, jitscope_name: str | None = None, **kwargs: Any
) -> None:
    """Fails if a program has more than ``n`` distinct bodies of 12 equations or more.

    Args:
      n: most bodies.
      fun: any callable; one of `outermost_jit` keeps its policy and options.
      *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
      jitscope_name: count only bodies of this name, of any size.
      **kwargs: keyword arguments of ``fun``.

    Raises:
      AssertionError: with the bodies, and how they differ.

    Examples:
      >>> import jax, jax.numpy as jnp, jitscope
      >>> from jitscope.testing import assert_max_bodies
      >>> @jitscope.shared_subroutine
      ... def layer(x):
      ...     return jnp.sin(x) / 2
      >>> assert_max_bodies(1, lambda x: layer(layer(x)), 1.0, jitscope_name="layer")
    """
    _checked(n)
    _check_function("assert_max_bodies(2, train_step, ...)", fun)
    program = _program(fun, args, kwargs)
    bodies = [body for body in program.bodies if _counts(body, jitscope_name)]
    if len(bodies) > n:
        shown = text.render(ReuseReport((program,)), width=100)
        what = f"named {jitscope_name!r}" if jitscope_name else "of 12 equations or more"
        raise AssertionError(
            f"{program.name} has {count(len(bodies), 'distinct body', 'distinct bodies')} {what}, "
            f"expected at most {n}:\n"
            f"{_bodies(bodies)}\n\n{shown}"
        )


def assert_structure(
    expected: Mapping[str, Structure | str],
    fun: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Fails if bodies have another structure than expected.

    Args:
      expected: name of a body to ``"inline"``, ``"nested"``, ``"shared"``, ``"rolled"`` or
        ``"staged"``, in lower or upper case, or a `Structure`. A name that several bodies bear,
        as under a gradient, stands for all of them.
      fun: any callable; one of `outermost_jit` keeps its policy and options.
      *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
      **kwargs: its keyword arguments, likewise.

    Raises:
      AssertionError: with the structure that was chosen, and why.

    Examples:
      >>> import jax, jax.numpy as jnp, jitscope
      >>> from jitscope.testing import assert_structure
      >>> @jitscope.shared_subroutine
      ... def head(x):
      ...     return jnp.sin(x) / 2
      >>> assert_structure({"head": "inline"}, lambda x: head(x), 1.0)
    """
    usage = "assert_structure({'layer': 'shared'}, train_step, ...)"
    if not isinstance(expected, Mapping):
        raise TypeError(
            f"assert_structure() needs a dict from the name of a body to its structure, got "
            f"{expected!r}. For example {usage}."
        )
    _check_function(usage, fun)
    named = {
        name: str(Structure.named(structure, f"assert_structure() for the body {name!r}"))
        for name, structure in expected.items()
    }
    program = _program(fun, args, kwargs)
    problems = []
    for name, structure in named.items():
        bodies = [body for body in program.bodies if body.name == name]
        if not bodies:
            names = ", ".join(sorted({body.name for body in program.bodies})) or "none"
            problems.append(f"{program.name} has no body named {name!r}; its bodies are: {names}")
        problems += [
            f"{name!r} is {body.structure}, expected {structure}: {body.reason}"
            for body in bodies
            if body.structure != structure
        ]
    if problems:
        raise AssertionError("\n".join(problems))


def _check_function(usage: str, fun: Any) -> None:
    if not callable(fun):
        raise TypeError(
            f"{usage.partition('(')[0]}() needs a function after what is expected of it, got "
            f"{fun!r} of type {type(fun).__name__}. For example {usage}."
        )


def _program(fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> ProgramReport:
    """The structured program of a function, traced anew and not compiled."""
    inner = getattr(fun, "__func__", fun)
    kind, policy, outline = OutermostJit, Policy(), True
    if isinstance(inner, OutermostJit):
        if inner is not fun:
            args = (fun.__self__, *args)
        options, called = inner._options, inner._fun
        if not hasattr(inner, "_installation"):  # what `install` made of jax.jit has none of these
            kind, policy = type(inner), inner._policy
            outline = inner._outline
    else:
        options, called = {}, fun

    def fresh(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    fresh.__name__ = fresh.__qualname__ = getattr(called, "__name__", type(called).__name__)
    if options:
        fresh.__wrapped__ = called  # whose signature the options refer to
    traced = kind(fresh, policy, options, outline=outline)
    with not_counting():
        traced.trace(*args, **kwargs)
    return traced.reuse().report().programs[0]


def _counts(body: BodyReport, name: str | None) -> bool:
    return body.name == name if name else body.n_equations >= 12


def _bodies(bodies: list[BodyReport]) -> str:
    lines = []
    for body in bodies:
        lines.append(
            f"  {body.name} {body.digest[:12]}: {count(body.n_uses, 'use')}, "
            f"{count(body.n_equations, 'equation')}, first called at {body.source}"
        )
        lines += [
            f"    differs from {miss.other[:12]}: {'; '.join(miss.differences)}. To merge: "
            f"{miss.change}."
            for miss in body.near_misses
        ]
    return "\n".join(lines)


def _too_many_traces(report: SubroutineReport, n: int) -> str:
    reasons = [
        f"  traced again: {retrace.reason} ({count(retrace.n_traces, 'time')})"
        for retrace in report.retraces
    ]
    return "\n".join(
        [
            f"{report.name} ({report.source}) was traced {count(report.n_traces, 'time')} "
            f"in {count(report.n_calls, 'call')}, expected at most {n}:",
            *reasons,
        ]
    )


def _checked(n: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        hint = " It comes before the function." if callable(n) else ""
        raise ValueError(
            f"the most that is allowed must be a whole number from 0, got {n!r}.{hint}"
        )

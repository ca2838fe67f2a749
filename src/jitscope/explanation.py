"""What jitscope does, or would do, to a function, and what the compiler makes of it.

`explain` traces, structures, lowers and compiles a function for some arguments, which may
be shapes only, and runs nothing. `compare` compiles it without jitscope as well. Both read
the counts from the compiled program rather than from what was planned.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import jax

from . import _jax
from .ir.program import Program
from .outermost import OutermostJit
from .reuse.phases import Phases
from .reuse.reuse import Reuse
from .reuse.reuse_report import Compiled, ReuseReport, Seconds
from .structuring.policy import Policy
from .subroutine.functions import name_of

_FUNCTION = re.compile(r"^\s*func\.func ", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*? (?P<kind>[a-z][\w\-]*)\(", re.MULTILINE)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?[\w.\-]+ (?:\([^\n]*)?\{$", re.MULTILINE)
_KEPT = re.compile(r" call\([^\n]*to_apply=[^\n]*compilation_unit=\"(?P<unit>[^\"]*)\"")


def explain(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ReuseReport:
    """What repeats in a function, what is done about it, and what the compiler makes of it.

    Nothing is run. The function is compiled as jitscope structures it, as one program even
    where `outermost_jit` was asked for stages; see `compare` for both ways.

    Args:
      fun: any callable, a ``jax.jit`` function, or one of `outermost_jit`, whose options
        and policy it keeps.
      *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
      **kwargs: its keyword arguments, likewise.

    Returns:
      A record of one program, with what was read from the compiled program in
      ``.programs[0].compiled``.

    Raises:
      TypeError: `fun` is not callable. Errors of the function itself pass through.

    Examples:
      >>> import jax, jax.numpy as jnp, jitscope
      >>> def net(x):
      ...     for _ in range(3):
      ...         x = jnp.sin(x) * 2
      ...     return x
      >>> report = jitscope.explain(net, jax.ShapeDtypeStruct((4,), jnp.float32))
      >>> report.n_equations
      6
    """
    return _explained(fun, args, kwargs, with_plain=False)


def compare(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ReuseReport:
    """As `explain`, and compiles the function without jitscope too.

    That takes as long as ``jax.jit`` would. The seconds of the two are one measurement
    each, made one after the other.

    Args:
      fun: as for `explain`.
      *args: as for `explain`.
      **kwargs: as for `explain`.

    Returns:
      As `explain`, with the counts of the plain program in ``.programs[0].plain``.
    """
    return _explained(fun, args, kwargs, with_plain=True)


def _explained(
    fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any], *, with_plain: bool
) -> ReuseReport:
    if not callable(fun):
        raise TypeError(f"explain() needs a callable, got {fun!r} of type {type(fun).__name__}.")
    reuse, structured, plain = _both(fun, args, kwargs)
    compiled = structured()
    (program,) = reuse().report().programs
    return ReuseReport(
        (dataclasses.replace(program, compiled=compiled, plain=plain() if with_plain else None),)
    )


_Both = tuple[Callable[[], Reuse], Callable[[], Compiled], Callable[[], Compiled]]


def _both(fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> _Both:
    """The record, and what compiles the structured and the plain program."""
    if isinstance(fun, OutermostJit) and type(fun)._structured is OutermostJit._structured:
        if not hasattr(fun, "_installation"):
            return _of_outermost(fun, args, kwargs)
        fun = fun._plain
    if isinstance(getattr(fun, "__func__", None), OutermostJit):
        return _both(fun.__func__, (fun.__self__, *args), kwargs)
    if hasattr(fun, "trace") and hasattr(fun, "lower"):
        return _of_jitted(fun, args, kwargs)
    return _of_outermost(OutermostJit(fun, Policy(), {}), args, kwargs)


def _of_outermost(fun: OutermostJit, args: tuple, kwargs: dict[str, Any]) -> _Both:
    """Traced anew: JAX may remember the program of these arguments, and we a later one."""
    structured = OutermostJit(_fresh(fun._fun), fun._policy, fun._options, outline=fun._outline)

    def plain() -> Compiled:
        return _compiled(_jax.jit(_fresh(fun._fun), **fun._options), args, kwargs)

    return structured.reuse, lambda: _compiled(structured, args, kwargs), plain


def _of_jitted(fun: Any, args: tuple, kwargs: dict[str, Any]) -> _Both:
    """Through the trace that ``jax.jit`` makes, since its options cannot be read."""
    start = time.perf_counter()
    traced = fun.trace(*args, **kwargs)
    phases = Phases(Seconds(trace_s=time.perf_counter() - start))
    name = getattr(fun, "__name__", "fun")
    program = Program(name, _jax.without_hijax(traced.jaxpr), traced.out_tree)
    structurer = OutermostJit(getattr(fun, "__wrapped__", fun), Policy(), {})
    with phases.structuring():
        restructured = structurer._pipeline(program, phases)
    shapes = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in _jax.opened(traced.jaxpr).invars
    ]

    def compiled(program: Program) -> Compiled:
        def emitted(*leaves: Any) -> Any:
            return program.emit(leaves)

        emitted.__name__ = emitted.__qualname__ = name
        return _compiled(_jax.jit(emitted), tuple(shapes), {})

    return structurer.reuse, lambda: compiled(restructured), lambda: compiled(program)


def _fresh(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function object of its own, which JAX has no trace of."""

    @functools.wraps(fun)
    def fresh(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    if not hasattr(fun, "__name__"):  # a partial or a callable object
        fresh.__name__ = name_of(fun)
    return fresh


def _compiled(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> Compiled:
    """Compiles a function and reads the counts from what comes out."""
    clock = [time.perf_counter()]
    traced = jitted.trace(*args, **kwargs)
    clock.append(time.perf_counter())
    lowered = traced.lower()
    clock.append(time.perf_counter())
    executable = lowered.compile()
    clock.append(time.perf_counter())
    trace_s, lower_s, compile_s = (b - a for a, b in zip(clock, clock[1:], strict=False))
    return counted(
        lowered.as_text(),
        executable.as_text() or "",
        executable.memory_analysis(),
        Seconds(trace_s, 0.0, lower_s, compile_s),
    )


def counted(stablehlo: str, hlo: str, memory: Any, seconds: Seconds) -> Compiled:
    """Counts of a lowered and compiled program.

    Args:
      stablehlo: text of the lowered program.
      hlo: text of the compiled program.
      memory: what its ``memory_analysis()`` returned, or None.
      seconds: that both took.
    """
    kinds = [found["kind"] for found in _INSTRUCTION.finditer(hlo)]
    kept = [found["unit"] for found in _KEPT.finditer(hlo)]

    def n_bytes(name: str) -> int:
        return int(getattr(memory, f"{name}_size_in_bytes", 0) or 0)

    return Compiled(
        seconds=seconds,
        n_functions=len(_FUNCTION.findall(stablehlo)),
        n_instructions=len(kinds),
        n_computations=len(_COMPUTATION.findall(hlo)),
        n_kept_calls=len(kept),
        n_kept_bodies=len(set(kept)),
        n_fusions=kinds.count("fusion"),
        n_copies=kinds.count("copy"),
        argument_bytes=n_bytes("argument"),
        result_bytes=n_bytes("output"),
        temporary_bytes=n_bytes("temp"),
        code_bytes=n_bytes("generated_code"),
    )

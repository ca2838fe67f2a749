"""What jitscope does, or would do, to a function, and what the compiler makes of it.

`explain` traces, structures, lowers and compiles a function for some arguments, which may
be shapes only, and runs nothing. `compare` compiles it without jitscope as well. Both read
the counts from the compiled program rather than from what was planned. Nothing of it counts as
done by the user, and the function stays what it was.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import textwrap
import time
from collections.abc import Callable
from typing import Any

import jax

from . import _jax
from .compiling import compiled
from .gpu_target import compile_for, is_array
from .ir.program import Program
from .outermost.jit import OutermostJit
from .phases import Phases
from .reuse.compiled import Compiled, ForTarget
from .reuse.reuse import Reuse
from .reuse.reuse_report import ReuseReport
from .seconds import Seconds
from .settings import not_counting
from .staged.executables import asked_sharding
from .structuring.policy import Policy
from .subroutine.functions import name_of


def explain(
    fun: Callable[..., Any], /, *args: Any, target: str | None = None, **kwargs: Any
) -> ReuseReport:
    """What repeats in a function, what is done about it, and what the compiler makes of it.

    Nothing is run, and the function stays what it is. It is compiled as jitscope structures it,
    as one program even where `outermost_jit` was asked for stages; a ``jax.jit`` function also
    as it is, which takes as long as it always does. `compare` compiles any function both ways.

    Args:
      fun: any callable, a ``jax.jit`` function, or one of `outermost_jit`, whose options
        and policy it keeps.
      *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
      target: one of `jitscope.gpu_target.TARGETS`, such as ``"h200"``: compile for this GPU, which
        need not be there, and in stages where `outermost_jit` was asked for them. An argument of
        `fun` by that name has to be given by ``functools.partial``.
      **kwargs: its keyword arguments, likewise.

    Returns:
      A record of one program, with what was read from the compiled program in
      ``.programs[0].compiled``, or for a target in ``.programs[0].for_target``.

    Raises:
      TypeError: `fun` is not callable. Errors of the function itself pass through.
      ImportError: what compiles for the target is not installed; the message says what is needed.
      RuntimeError: JAX has left out what compiles for the target; the message says how to have it.
      ValueError: there is no such target, or no array among the arguments.

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
    if target is not None:
        return _explained_for(target, fun, args, kwargs)
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

    Raises:
      TypeError: `fun` is not callable. Errors of the function itself pass through.
    """
    return _explained(fun, args, kwargs, with_plain=True)


def _explained(
    fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any], *, with_plain: bool
) -> ReuseReport:
    if not callable(fun):
        raise _not_callable("compare" if with_plain else "explain", fun)
    with not_counting():
        both = _both(fun, args, kwargs)
        structured = both.structured()
        plain = both.plain() if with_plain or both.is_jitted else None
        (program,) = both.reuse().report().programs
    spent, seconds = program.seconds, structured.seconds
    realised = {kept.unit.rpartition("_")[2]: kept.n_calls for kept in structured.kept}
    return ReuseReport(
        (
            dataclasses.replace(
                program,
                compiled=structured,
                plain=plain,
                seconds=dataclasses.replace(
                    seconds,
                    trace_s=max(spent.trace_s, seconds.trace_s),
                    structure_s=spent.structure_s,
                ),
                bodies=tuple(
                    dataclasses.replace(body, n_realised=realised.get(body.digest[:12], 0))
                    for body in program.bodies
                ),
                is_applied=both.is_applied,
                notes=(*program.notes, both.note),
            ),
        )
    )


def _not_callable(name: str, fun: object) -> TypeError:
    hint = f"For example jitscope.{name}(train_step, params, batch)."
    if isinstance(fun, (ReuseReport, Reuse, str, os.PathLike)):
        hint = (
            "To compare two reports, save both with jitscope.report.save and run "
            "`python -m jitscope diff before.json after.json`."
        )
    return TypeError(
        f"{name}() needs a function, and after it the arguments to trace it for; got "
        f"{textwrap.shorten(repr(fun), 60, placeholder='...')} of type {type(fun).__name__}. {hint}"
    )


@dataclasses.dataclass(frozen=True)
class _Both:
    """One function, structured and plain.

    Attributes:
      reuse: gives the record, once the structured program was compiled.
      structured: compiles the structured program.
      plain: compiles the program without jitscope.
      is_applied: the function is structured when it is called, too.
      is_jitted: the plain program is the one that runs.
      note: what was done to find out.
    """

    reuse: Callable[[], Reuse]
    structured: Callable[[], Compiled]
    plain: Callable[[], Compiled]
    is_applied: bool = True
    is_jitted: bool = False
    note: str = "traced and compiled anew for this report; nothing was run"


_UNCHANGED = (
    "{} was left as it is, without jitscope: a copy was structured and compiled for this report, "
    "and nothing was run. jitscope.outermost_jit in place of jax.jit makes it so"
)
_AS_ONE = (
    "compiled anew for this report, as one program; what runs is compiled in stages (staged=True). "
    "Nothing was run"
)


def _both(fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> _Both:
    if isinstance(fun, OutermostJit) and type(fun)._structured is OutermostJit._structured:
        if not hasattr(fun, "_installation"):
            both = _of_outermost(fun, args, kwargs)
            return dataclasses.replace(both, note=_AS_ONE) if fun._is_staged else both
        fun = fun._plain
    if isinstance(getattr(fun, "__func__", None), OutermostJit):
        return _both(fun.__func__, (fun.__self__, *args), kwargs)
    if hasattr(fun, "trace") and hasattr(fun, "lower"):
        both = _of_jitted(fun, args, kwargs)
    else:
        both = _of_outermost(OutermostJit(fun, Policy(), {}), args, kwargs)
    return dataclasses.replace(both, is_applied=False, note=_UNCHANGED.format(name_of(fun)))


def _of_outermost(fun: OutermostJit, args: tuple, kwargs: dict[str, Any]) -> _Both:
    """Traced anew: JAX may remember the program of these arguments, and we a later one."""
    structured = OutermostJit(_fresh(fun._fun), fun._policy, fun._options, outline=fun._outline)

    def plain() -> Compiled:
        return compiled(_jax.jit(_fresh(fun._fun), **fun._options), args, kwargs)

    return _Both(structured.reuse, lambda: compiled(structured, args, kwargs), plain)


def _of_jitted(fun: Any, args: tuple, kwargs: dict[str, Any]) -> _Both:
    """Through the trace that ``jax.jit`` makes, since its options cannot be read."""
    start = time.perf_counter()
    traced = fun.trace(*args, **kwargs)
    phases = Phases()
    name = getattr(fun, "__name__", "fun")
    program = Program(name, _jax.without_hijax(traced.jaxpr), traced.out_tree)
    structurer = OutermostJit(getattr(fun, "__wrapped__", fun), Policy(), {})
    with phases.structuring():
        restructured = structurer._pipeline(program, phases)
    phases.add(trace_s=time.perf_counter() - start)
    infos = jax.tree.leaves(traced.args_info)
    donated = tuple(i for i, info in enumerate(infos) if info.donated)
    types = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=asked)
        for aval, asked in zip(
            jax.tree.leaves(traced.in_avals), _asked(args, kwargs, len(infos)), strict=True
        )
    ]

    def alone(program: Program) -> Compiled:
        def emitted(*leaves: Any) -> Any:
            return program.emit(leaves)

        emitted.__name__ = emitted.__qualname__ = name
        return compiled(_jax.jit(emitted, donate_argnums=donated), tuple(types), {})

    return _Both(
        structurer.reuse,
        lambda: alone(restructured),
        lambda: alone(program),
        is_jitted=True,
    )


def _asked(args: tuple, kwargs: dict[str, Any], n_operands: int) -> list[Any]:
    """The sharding that each operand asks for; none where static arguments hide which is which."""
    leaves = jax.tree.leaves((args, kwargs))
    for operands in (leaves, list(filter(is_array, leaves))):
        if len(operands) == n_operands:
            return list(map(asked_sharding, operands))
    return [None] * n_operands


def _explained_for(
    target: str, fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
) -> ReuseReport:
    if isinstance(getattr(fun, "__func__", None), OutermostJit):
        fun, args = fun.__func__, (fun.__self__, *args)
    if not callable(fun):
        raise _not_callable("explain", fun)
    function, args, kwargs = _outermost_alike(fun, args, kwargs)
    with not_counting():
        made = compile_for(target, function, *args, **kwargs)
        (program,) = function.reuse().report().programs
    kernels = made.kernels
    for_target = ForTarget(
        target=target,
        seconds=Seconds(trace_s=made.trace_s, compile_s=made.compile_s),
        n_executables=made.n_executables,
        n_products=sum(kernels.products),
        n_loop_products=kernels.loop_dots,
        n_fusions=kernels.fusions,
        n_others=kernels.others,
        temporary_bytes=made.temp_bytes,
        peak_bytes=made.peak_bytes,
    )
    return ReuseReport(
        (
            dataclasses.replace(
                program, platform="cuda", for_target=for_target, notes=(_NOT_RUN.format(target),)
            ),
        )
    )


_NOT_RUN = "traced and compiled anew for the target {}, which need not be there; nothing was run"


def _outermost_alike(
    fun: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[OutermostJit, tuple, dict[str, Any]]:
    """An outermost function that JAX has no trace of, and what to call it with."""
    if isinstance(fun, OutermostJit) and not hasattr(fun, "_installation"):
        alike = type(fun)(_fresh(fun._fun), fun._policy, fun._options, outline=fun._outline)
        return alike, args, kwargs
    if not (hasattr(fun, "trace") and hasattr(fun, "lower")):
        return OutermostJit(fun, Policy(), {}), args, kwargs
    # The options of a jax.jit function cannot be read, so whatever may be static stays outside.
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = {i: leaf for i, leaf in enumerate(leaves) if is_array(leaf)}

    @functools.wraps(fun)
    def with_arrays(arrays: dict[int, Any]) -> Any:
        filled = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = jax.tree.unflatten(tree, filled)
        return fun(*args, **kwargs)

    return OutermostJit(with_arrays, Policy(), {}), (arrays,), {}


def _fresh(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function object of its own, which JAX has no trace of."""

    @functools.wraps(fun)
    def fresh(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    if not hasattr(fun, "__name__"):  # a partial or a callable object
        fresh.__name__ = name_of(fun)
    return fresh

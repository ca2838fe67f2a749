"""The text at the end of ``python -m jitscope run``: a register -> str."""

from __future__ import annotations

from ..report.titles import title
from ..reuse.recorder import Recording
from ..reuse.records import Register
from ..reuse.reuse import Reuse
from ..reuse.reuse_report import ProgramReport
from ..seconds import Seconds
from ..words import count, printable

_SHOWN = 20
"""Programs shown one by one."""
_NAMED = 4
"""Bodies named in the estimate."""


def summary(register: Register, *, observed: bool, disabled: bool = False) -> str:
    """What was compiled, what repeated, and where the time went.

    Args:
      register: filled while the script ran.
      observed: programs were compiled as ``jax.jit`` compiles them.
      disabled: jitscope was switched off, so that programs were not even looked at.
    """
    if disabled and not register.programs:
        return (
            "jitscope: disabled by JITSCOPE_DISABLE, nothing was changed or looked at\n"
            f"lower {register.lower_s:.2f} s, compile {register.compile_s:.2f} s in all\n"
        )
    if not (register.programs or register.failures):
        return _nothing(register)
    programs = sorted(register.programs, key=lambda reuse: -reuse.phases.seconds.cold_s)
    parts = ["\n".join(_totals(register, observed))]
    parts += [str(reuse) for reuse in programs[:_SHOWN]]
    rest = programs[_SHOWN:]
    if rest:
        parts.append(
            f"and {count(len(rest), 'program')} more, "
            f"{sum(reuse.phases.seconds.cold_s for reuse in rest):.2f} s"
        )
    return "\n\n".join(parts) + "\n"


def _nothing(register: Register) -> str:
    if not register.lower_s + register.compile_s:
        return "jitscope: nothing was compiled\n"
    return (
        "jitscope: no jax.jit function was compiled; lowering and compiling anything else "
        f"{register.lower_s + register.compile_s:.2f} s\n"
    )


def _totals(register: Register, observed: bool) -> list[str]:
    looked_at = [reuse for reuse in register.programs if not reuse.is_applied]
    # What the script itself gave to `outermost_jit` is structured though all else is observed.
    structured = [reuse for reuse in register.programs if reuse.is_applied]
    lines = ["jitscope: observed, nothing was changed" if observed else "jitscope: structured"]
    if looked_at:
        lines.append(_calls(looked_at, "would become"))
    if structured or not observed:
        by_script = ", structured by the script's own outermost_jit" if observed else ""
        lines.append(_calls(structured, "->") + by_script)
    lines.append(_seconds(register))
    if looked_at:
        lines += _estimate(looked_at)
    lines += [
        f"left as it was: {failure.program}: {failure.reason}" for failure in register.failures
    ]
    return lines


def _calls(programs: list[Reuse], become: str) -> str:
    calls, bodies = (sum(column) for column in zip(*map(_shared, programs), (0, 0), strict=True))
    return (
        f"{count(len(programs), 'program')}, {count(_n_equations(programs), 'equation')}; "
        f"{count(calls, 'call')} {become} {count(bodies, 'shared body', 'shared bodies')}"
    )


def _n_equations(programs: list[Reuse]) -> int:
    return sum(reuse.census.n_equations for reuse in programs)


def _seconds(register: Register) -> str:
    report = Recording(register, {}).report(details=False)
    ours, other = report.seconds, report.other
    alone = sum((subroutine.seconds for subroutine in report.subroutines), Seconds())
    alone_s = alone.lower_s + alone.compile_s
    on_their_own = f"shared subroutines on their own {alone_s:.2f} s, " if alone_s else ""
    # What JAX lowers and compiles besides: single operations, functions jitted by libraries.
    return (
        f"trace {ours.trace_s:.2f} s (jitscope's part {ours.structure_s:.2f} s), "
        f"lower {ours.lower_s:.2f} s, compile {ours.compile_s:.2f} s; lowering and compiling "
        f"{on_their_own}anything else {other.lower_s + other.compile_s:.2f} s"
    )


def _estimate(programs: list[Reuse]) -> list[str]:
    reports = [_plain(reuse) for reuse in programs]
    keeping = [program for program in reports if program.shared and program.keeps_calls]
    n_equations = sum(program.n_equations for program in reports)
    n_compiled = n_equations - sum(program.n_saved for program in keeping)
    compiled = f"XLA would compile {n_compiled:,} of {n_equations:,} equations"
    if not keeping:
        return [f"estimate: no calls would be kept; {compiled}"]
    names = dict.fromkeys(title(body) for program in keeping for body in program.shared)
    named = list(map(printable, names))
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    n_calls = sum(program.n_shared_calls for program in keeping)
    return [
        f"estimate: {count(n_calls, 'call')} would be kept ({', '.join(named)}); {compiled}",
        "It counts equations, all alike, and is no forecast of seconds: XLA may take as long all "
        "the same. Run without --observe to measure.",
    ]


def _shared(reuse: Reuse) -> tuple[int, int]:
    """Calls of shared bodies, and the bodies."""
    program = _plain(reuse)
    return program.n_shared_calls, len(program.shared)


def _plain(reuse: Reuse) -> ProgramReport:
    return reuse.report(details=False).programs[0]

"""A reuse report as text: ReuseReport -> str.

Made to be read by someone who has never seen one: the headline says what was won, the table
what repeats and what was done about it, the last lines what the words mean. What does
not matter is folded into one line.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from ..reuse.compiled import Compiled
from ..reuse.reuse_report import ProgramReport, ReuseReport, SubroutineReport
from ..words import compiled_alone, count, percent, printable, size, traced_in
from .advice import advice
from .layout import cut, wrapped
from .table import table

_MAX_RETRACES = 3
_MAX_PROGRAMS = 20


def render(report: ReuseReport, *, width: int | None = None, colour: bool = False) -> str:
    """The report as text.

    Args:
      report: a record.
      width: columns; that of the terminal by default, 120 where there is none.
      colour: mark rows by their share of the program with ANSI colours.
    """
    width = max(width or shutil.get_terminal_size((120, 24)).columns, 40)
    programs = sorted(report.programs, key=lambda program: -program.seconds.cold_s)
    parts = [_program(program, width, colour) for program in programs[:_MAX_PROGRAMS]]
    rest = programs[_MAX_PROGRAMS:]
    if rest:
        parts.append(
            f"and {count(len(rest), 'program')} more, "
            f"{sum(program.seconds.cold_s for program in rest):.2f} s"
        )
    slowest = sorted(report.subroutines, key=lambda subroutine: -subroutine.seconds.trace_s)
    parts += [_subroutine(subroutine, width) for subroutine in slowest]
    if report.other.cold_s:
        parts.append(
            wrapped(
                "anything else, such as plain jax.jit functions and single operations: lower "
                f"{report.other.lower_s:.2f} s, compile {report.other.compile_s:.2f} s",
                width,
            )
        )
    parts += [
        wrapped(f"left as it was: {printable(failure)}", width) for failure in report.failures
    ]
    return "\n\n".join(parts) or "nothing was traced"


def show(report: ReuseReport, file: TextIO | None = None) -> None:
    """Prints a report, coloured where that is a terminal and ``NO_COLOR`` is not set."""
    file = file or sys.stdout
    is_plain = bool(os.environ.get("NO_COLOR")) or not (file and file.isatty())
    print(render(report, colour=not is_plain), file=file)


# --- one program --------------------------------------------------------------------------


def _program(program: ProgramReport, width: int, colour: bool) -> str:
    lines = [
        wrapped(line, width)
        for line in (*_headline(program), *map(printable, program.notes), _seconds(program))
    ]
    lines += _compiled(program, width) + _for_target(program, width)
    rows = table(program, width, colour)
    if rows:
        lines += ["", *rows]
    lines += advice(program, width)
    return "\n".join(lines)


def _headline(program: ProgramReport) -> list[str]:
    name, n = printable(program.name), program.n_equations
    if not any(body.n_uses > 1 for body in program.bodies):
        return [f"{name}: {count(n, 'equation')}; nothing repeats"]
    shared, is_applied = program.shared, program.is_applied
    units = (
        f"{count(program.n_shared_calls, 'call')} {'->' if is_applied else 'would become'} "
        f"{count(len(shared), 'shared body', 'shared bodies')}"
    )
    if not shared:
        return [f"{name}: {count(n, 'equation')}; something repeats, but nothing that pays"]
    lines = [f"{name}: {count(n, 'equation')}; {units}"]
    if program.n_saved < 0:
        lines.append(
            f"predicted: XLA compiles {program.n_compiled:,}, {-program.n_saved:,} more than that: "
            "its loops copy values into and out of stacks"
        )
    elif program.n_saved and program.keeps_calls:
        lines.append(
            f"predicted: XLA {'compiles' if is_applied else 'would compile'} "
            f"{program.n_compiled:,} of them; the other {program.n_saved:,} "
            f"({percent(program.n_saved, n)}) are repeats of these"
        )
    elif program.n_saved:
        lines.append(
            f"{program.n_saved:,} ({percent(program.n_saved, n)}) are repeats; on "
            f"{program.platform} XLA compiles them all the same"
        )
    return lines


def _seconds(program: ProgramReport) -> str:
    s = program.seconds
    parts = [f"trace {s.trace_s:.2f} s (jitscope's part {s.structure_s:.2f} s)"]
    parts += [
        f"{name} {value:.2f} s" if value else f"not yet {past}"
        for name, value, past in (
            ("lower", s.lower_s, "lowered"),
            ("compile", s.compile_s, "compiled"),
        )
    ]
    return ", ".join(parts)


def _compiled(program: ProgramReport, width: int) -> list[str]:
    compiled, plain = program.compiled, program.plain
    if compiled is None:
        return []
    counts = {
        "equations": (f"{program.n_equations:,}", f"{program.n_compiled:,}"),
        "nested functions": (f"{program.n_bodies_before:,}", f"{program.n_bodies_after:,}"),
    }
    if plain is None:  # a column of its own would be all but empty
        rows = [("", "with jitscope")]
        rows += [(label, f"{before} -> {after}") for label, (before, after) in counts.items()]
        rows += [(label, value(compiled)) for label, value in _COMPILED_ROWS]
    else:
        rows = [("", "plain jax.jit", "with jitscope")]
        rows += [(label, *both) for label, both in counts.items()]
        rows += [(label, value(plain), value(compiled)) for label, value in _COMPILED_ROWS]
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [""]
    for label, *cells in rows:
        cells = [f"{cell:>{n}}" for cell, n in zip(cells, others, strict=True)]
        lines.append(cut("  ".join([f"{label:<{first}}", *cells]), width))
    return lines + [wrapped(line, width) for line in _realised(program)]


def _for_target(program: ProgramReport, width: int) -> list[str]:
    made = program.for_target
    if made is None:
        return []
    s = made.seconds
    loops = f" ({made.n_loop_products:,} of them plain loops)" if made.n_loop_products else ""
    lines = [
        f"compiled for {made.target}: trace and lower {s.trace_s + s.lower_s:.2f} s, compile "
        f"{s.compile_s:.2f} s, {count(made.n_executables, 'executable')}",
        f"one run launches {count(made.n_products, 'matrix product')}{loops}, "
        f"{count(made.n_fusions, 'other fused kernel')}, {made.n_others:,} more",
        f"memory besides the arguments: {size(made.peak_bytes)} at most, "
        f"{size(made.temporary_bytes)} of it temporary in one executable",
    ]
    return ["", *(wrapped(line, width) for line in lines)]


def _realised(program: ProgramReport) -> list[str]:
    compiled, plain = program.compiled, program.plain
    assert compiled is not None
    lines = []
    if program.n_shared_calls:
        lines.append(
            f"predicted: {count(program.n_shared_calls, 'call')} of "
            f"{count(len(program.shared), 'body', 'bodies')}; realised: "
            f"{count(compiled.n_kept_calls, 'call')} of "
            f"{count(compiled.n_kept_bodies, 'body', 'bodies')}"
        )
    if plain is None:
        return [*lines, "jitscope.compare(...) compiles it without jitscope as well"]
    return [
        *lines,
        *_brought(plain, compiled),
        _ratio(plain.seconds.cold_s, compiled.seconds.cold_s),
    ]


def _brought(plain: Compiled, compiled: Compiled) -> list[str]:
    """What a call costs: copies at its boundary, fusion across it, memory for what it returns."""
    n_copies = compiled.n_copies - plain.n_copies
    n_fusions = compiled.n_fusions - plain.n_fusions
    n_bytes = compiled.temporary_bytes - plain.temporary_bytes
    parts = [
        text
        for n, text in (
            (n_copies, f"{count(n_copies, 'array copy', 'array copies')} more"),
            (n_fusions, f"{count(n_fusions, 'kernel')} more, since nothing is fused across calls"),
            (n_bytes, f"{size(n_bytes)} of temporary memory more"),
        )
        if n > 0
    ]
    return [f"what the structure brought: {'; '.join(parts)}"] if parts else []


def _ratio(before: float, after: float) -> str:
    if not before or not after:
        return "the seconds of one of the two are not known"
    ratio = before / after
    if 1 / _NOISE < ratio < _NOISE or abs(before - after) < _NOISE_S:
        return (
            f"cold start {before:.2f} s -> {after:.2f} s: no difference that one measurement "
            f"of each can tell (they vary by up to {_NOISE}x, and by up to {_NOISE_S} s)"
        )
    return (
        f"cold start {before:.2f} s -> {after:.2f} s, {ratio:.1f}x: one measurement of each, "
        f"which vary by up to {_NOISE}x"
    )


_NOISE = 1.5
"""Factor between two compilations of one program on a busy machine; up to 2.5 was seen."""
_NOISE_S = 0.5
"""Seconds by which short compilations differ for no reason."""
_COMPILED_ROWS = (
    ("cold start", lambda c: f"{c.seconds.cold_s:.2f} s"),
    ("functions lowered", lambda c: f"{c.n_functions:,}"),
    ("instructions in the result", lambda c: f"{c.n_instructions:,}"),
    ("calls kept", lambda c: f"{c.n_kept_calls:,}"),
    ("fused kernels", lambda c: f"{c.n_fusions:,}"),
    ("array copies", lambda c: f"{c.n_copies:,}"),
    ("temporary memory", lambda c: size(c.temporary_bytes)),
)


# --- subroutines ----------------------------------------------------------------------------


def _subroutine(subroutine: SubroutineReport, width: int) -> str:
    head = (
        f"{printable(subroutine.name)}: "
        f"{count(subroutine.n_calls, 'call')} while tracing, "
        f"{count(subroutine.n_traces, 'trace')}, {subroutine.n_reused:,} reused"
    )
    lines = [head, *traced_in(subroutine.seconds.trace_s)]
    if subroutine.n_compiled:
        lines.append(f"  {compiled_alone(subroutine.n_compiled, subroutine.seconds)}")
    lines += [f"! {printable(problem)}" for problem in subroutine.problems]
    lines += [
        f"  traced again: {printable(retrace.reason)}"
        + (f" ({retrace.n_traces} times)" if retrace.n_traces > 1 else "")
        for retrace in subroutine.retraces[:_MAX_RETRACES]
    ]
    if len(subroutine.retraces) > _MAX_RETRACES:
        n_more = len(subroutine.retraces) - _MAX_RETRACES
        lines.append(f"  and {count(n_more, 'reason')} more")
    return "\n".join(wrapped(line, width) for line in lines)

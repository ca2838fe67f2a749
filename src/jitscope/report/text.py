"""A reuse report as text: ReuseReport -> str.

Made to be read by someone who has never seen one: the headline says what was won, the table
what repeats and what was done about it, the last lines what the words mean. What does
not matter is folded into one line.
"""

from __future__ import annotations

import collections
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from ..reuse.reuse_report import (
    BodyReport,
    Compiled,
    NearMiss,
    ProgramReport,
    ReuseReport,
    SubroutineReport,
)
from ..words import LEGEND, compiled_alone, count, percent, place, printable, size, traced_in

_DETAIL = 12
"""Smallest body, in equations, that has a row although its calls are not kept, or advice."""
_MAX_ROWS = 14
"""Rows of one program: with headline and legend they fit a screen of 24 lines."""
_MAX_RETRACES = 3
_MAX_DECORATED = 6
_MAX_PROGRAMS = 20
_COLOURS = ((0.25, "\x1b[1;31m"), (0.05, "\x1b[33m"))
"""Share of the program from which a row has a colour."""
_RESET = "\x1b[0m"


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
            _wrapped(
                "anything else, such as plain jax.jit functions and single operations: lower "
                f"{report.other.lower_s:.2f} s, compile {report.other.compile_s:.2f} s",
                width,
            )
        )
    parts += [
        _wrapped(f"left as it was: {printable(failure)}", width) for failure in report.failures
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
        _wrapped(line, width)
        for line in (*_headline(program), *map(printable, program.notes), _seconds(program))
    ]
    lines += _compiled(program, width) + _for_target(program, width)
    table = _table(program, width, colour)
    if table:
        lines += ["", *table]
    lines += _advice(program, width)
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
    if program.n_saved and program.keeps_calls:
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
    if program.compiled is None:
        return []
    rows = [("", "plain jax.jit", "with jitscope")]
    rows.append(("equations", f"{program.n_equations:,}", f"{program.n_compiled:,}"))
    rows.append(("nested functions", f"{program.n_bodies_before:,}", f"{program.n_bodies_after:,}"))
    for label, value in _COMPILED_ROWS:
        rows.append(
            (label, value(program.plain) if program.plain else "-", value(program.compiled))
        )
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "",
        *(_cut(f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}", width) for a, b, c in rows),
    ]
    return lines + [_wrapped(line, width) for line in _realised(program)]


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
    return ["", *(_wrapped(line, width) for line in lines)]


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
            f"of each can tell (they vary by up to {_NOISE}x)"
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


# --- its bodies ---------------------------------------------------------------------------


def _table(program: ProgramReport, width: int, colour: bool) -> list[str]:
    bodies = sorted(program.bodies, key=lambda body: -body.n_uses * body.n_equations)
    shown = _with_rows(bodies)[:_MAX_ROWS]
    folded = [body for body in bodies if body not in shown]
    lines = []
    rows = _rows(program, shown, width) if shown else []
    for body, row in zip((None, *shown), rows, strict=bool(rows)):
        lines.append(_coloured(row, body, program) if colour and body else row)
    if folded:
        lines.append(_wrapped(_folded(folded, shown), width))
    structures = [name for name in LEGEND if any(body.structure == name for body in shown)]
    legend = "; ".join(f"{name}: {LEGEND[name]}" for name in structures)
    if legend and not program.is_applied:
        legend = f"only looked at, not applied. {legend}"
    return [*lines, *([_wrapped(legend, width)] if legend else [])]


def _with_rows(bodies: Sequence[BodyReport]) -> list[BodyReport]:
    """The bodies that matter, and one of each function that a user decorated, however small."""
    large = [body for body in bodies if not _is_detail(body)]
    names = {body.name for body in large}
    small: dict[str, BodyReport] = {}
    for body in sorted(bodies, key=lambda body: body.is_backward):
        if body.is_decorated and body.name not in names:
            small.setdefault(body.name, body)
    return [body for body in bodies if not _is_detail(body) or body is small.get(body.name)]


def _folded(bodies: Sequence[BodyReport], shown: Sequence[BodyReport]) -> str:
    """One line for many bodies; what a user decorated with reasons that no row has."""
    n_calls = sum(body.n_uses for body in bodies)
    line = (
        f"and {count(len(bodies), 'body', 'bodies')} not worth a row, "
        f"called {count(n_calls, 'time')}"
    )
    reasons = collections.Counter(
        f"{printable(title(body))}, {printable(body.reason)} ({body.structure})"
        for body in bodies
        if body.is_decorated
        and not any((row.name, row.reason) == (body.name, body.reason) for row in shown)
    )
    texts = [f"{n} of {text}" if n > 1 else text for text, n in reasons.items()]
    if len(texts) > _MAX_DECORATED:
        texts[_MAX_DECORATED:] = [f"{len(texts) - _MAX_DECORATED} more"]
    return line + (f"; decorated: {'; '.join(texts)}" if texts else "")


_HEADS = ("body", "where", "uses", "equations", "share", "structure", "why")
_RIGHT = (2, 3, 4)
"""Columns of numbers."""
_MIN_WHY = 40
"""Columns that the last column needs, or it goes to a line of its own."""


def _rows(program: ProgramReport, bodies: Sequence[BodyReport], width: int) -> list[str]:
    """One text of a line or more for the heads and for each body."""
    rows = [
        _HEADS,
        *(_row(program, body, name) for body, name in zip(bodies, titles(bodies), strict=True)),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS) - 1)]
    indent = sum(widths) + 2 * len(widths)
    if width - indent < _MIN_WHY:
        indent = 4
    texts = []
    for *cells, why in rows:
        line = "  ".join(
            f"{cell:>{n}}" if i in _RIGHT else f"{cell:<{n}}"
            for i, (cell, n) in enumerate(zip(cells, widths, strict=True))
        )
        if indent > 4:
            line = f"{line}  {why}"
        elif why != _HEADS[-1]:
            line = f"{_cut(line, width)}\n    {why}"
        else:
            line = _cut(line, width)
        texts.append("\n".join(_hanging(part, width, indent) for part in line.split("\n")))
    return texts


def _hanging(line: str, width: int, indent: int) -> str:
    """The line, its end under its last column where it is too long."""
    lines = textwrap.wrap(line[indent:], max(width - indent, 20), break_on_hyphens=False)
    if len(line.rstrip()) <= width or not lines:
        return line.rstrip()
    return "\n".join([line[:indent] + lines[0], *(" " * indent + rest for rest in lines[1:])])


def _row(program: ProgramReport, body: BodyReport, name: str) -> tuple[str, ...]:
    why = body.reason
    if body.is_shared and body.n_realised not in (None, body.n_uses):
        why += f"; {body.n_realised:,} calls kept in the compiled program"
    return (
        printable(name),
        _cut(printable(place(body.source)), 28),
        f"{body.n_uses:,}",
        f"{body.n_equations:,}",
        percent(body.n_uses * body.n_equations, program.n_equations),
        body.structure,
        printable(why),
    )


def _coloured(line: str, body: BodyReport, program: ProgramReport) -> str:
    share = body.n_uses * body.n_equations / max(program.n_equations, 1)
    for least, code in _COLOURS:
        if share >= least:
            return f"{code}{line}{_RESET}"
    return line


def _is_detail(body: BodyReport) -> bool:
    return not body.is_shared and (body.n_equations < _DETAIL or body.n_uses == 1)


def _advice(program: ProgramReport, width: int) -> list[str]:
    """What the user may change, the most worthwhile first, and what nobody can."""
    bodies = sorted(program.bodies, key=lambda body: -body.n_uses * body.n_equations)
    bodies = [body for body in bodies if body.n_equations >= _DETAIL]
    lines = [_retraced(body) for body in bodies if body.is_retraced]
    misses = [(body, miss) for body in bodies for miss in body.near_misses]
    forward = {body.name for body, miss in misses if not body.is_backward}
    misses = [
        (body, miss)
        for body, miss in misses  # the gradient differs as the function does
        if miss.is_of_gradient or not (body.is_backward and body.name in forward)
    ]
    told: set[tuple[str, ...]] = set()
    for body, miss in misses:
        # A difference within a body is one of the body around it, too.
        if not (miss.is_shape_only or miss.is_of_gradient or miss.differences in told):
            told.add(miss.differences)
            lines.append(_missed(body, miss))
    lines += _too_small(program)
    if len(lines) > _MAX_ADVICE:
        lines[_MAX_ADVICE:] = [f"! and {len(lines) - _MAX_ADVICE} more such; the HTML page has all"]
    n_shapes = sum(miss.is_shape_only for _, miss in misses)
    if n_shapes:
        lines.append(
            f"{count(n_shapes, 'body differs', 'bodies differ')} from another of the same "
            "name in shapes only, and cannot share code with it"
        )
    n_gradients = sum(miss.is_of_gradient for _, miss in misses)
    if n_gradients:
        lines.append(
            f"{count(n_gradients, 'body differs', 'bodies differ')} from another of the same "
            "name only in what a gradient needs of it, as the first and the last layer do; there "
            "is nothing to change"
        )
    return ["", *(_wrapped(line, width) for line in lines)] if lines else []


def _too_small(program: ProgramReport) -> list[str]:
    """What to do where a user decorated parts of what repeats, none of which pays by itself."""
    names = dict.fromkeys(
        printable(body.name)
        for body in program.bodies
        if body.is_decorated and body.n_uses >= 4 and body.structure == "NESTED"
    )
    if program.shared or len(names) < 2:
        return []
    return [
        f"! {', '.join(names)}: none of them pays as a kept call by itself. Decorate the function "
        "around them that repeats, such as a whole layer, as well: a larger body saves more."
    ]


def _retraced(body: BodyReport) -> str:
    start = (
        f"! {printable(title(body))} was traced {body.n_traces} times for {body.n_uses} calls, "
        "with one result: "
    )
    if body.why_retraced:
        return f"{start}{printable(body.why_retraced)}."
    return (
        f"{start}a new function object or static value each time? Decorate it with "
        "jitscope.shared_subroutine."
    )


def _missed(body: BodyReport, miss: NearMiss) -> str:
    here, there = place(body.source), place(miss.source)
    if here == there and body.first_call != miss.first_call:
        here, there = f"call {body.first_call} at {here}", f"call {miss.first_call} there"
    return printable(
        f"! {title(body)} ({here}) is almost {title(body, miss.name)} ({there}): "
        f"{'; '.join(miss.differences)}. To share: {miss.change}."
    )


def title(body: BodyReport, name: str = "", more: str = "") -> str:
    """The name of a body, and which pass of a gradient it is of."""
    parts = [part for part in ("gradient" if body.is_backward else "", more) if part]
    return _cut(name or body.name, 32) + (f" ({', '.join(parts)})" if parts else "")


def titles(bodies: Sequence[BodyReport]) -> list[str]:
    """The names of bodies, with what tells those of one name apart."""
    alike: dict[str, list[BodyReport]] = {}
    for body in bodies:
        alike.setdefault(title(body), []).append(body)
    return [title(body, more=_distinction(body, alike[title(body)])) for body in bodies]


def _distinction(body: BodyReport, alike: Sequence[BodyReport]) -> str:
    """The first operand whose type differs among bodies of one name, or the number of a call."""
    if len(alike) > 1 and len({len(other.operands) for other in alike}) == 1:
        for types in zip(*(other.operands for other in alike), strict=True):
            if len(set(types)) > 1:
                return types[alike.index(body)]
    if all(other.first_call == body.first_call for other in alike):
        return ""
    return f"{'from ' if body.n_uses > 1 else ''}call {body.first_call}"


_MAX_ADVICE = 4


# --- subroutines ----------------------------------------------------------------------------


def _subroutine(subroutine: SubroutineReport, width: int) -> str:
    head = (
        f"{printable(subroutine.name)}: {count(subroutine.n_calls, 'call')} under a trace, "
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
    return "\n".join(_wrapped(line, width) for line in lines)


def _cut(text: str, width: int) -> str:
    text = text.rstrip()
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."


def _wrapped(text: str, width: int) -> str:
    return (
        "\n".join(
            textwrap.wrap(
                text,
                width,
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
        or text
    )

"""The table of bodies as text: ProgramReport -> lines.

A row for each that matters, the others folded into one line.
"""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Sequence

from ..reuse.body_report import BodyReport
from ..reuse.reuse_report import ProgramReport
from ..words import LEGEND, count, percent, place, printable
from .layout import cut, wrapped
from .titles import title, titles

_DETAIL = 12
"""Smallest body, in equations, that has a row although its calls are not kept."""
_MAX_ROWS = 14
"""Rows of one program: with headline and legend they fit a screen of 24 lines."""
_MAX_DECORATED = 6
_COLOURS = ((0.25, "\x1b[1;31m"), (0.05, "\x1b[33m"))
"""Share of the program from which a row has a colour."""
_RESET = "\x1b[0m"


def table(program: ProgramReport, width: int, colour: bool) -> list[str]:
    """The rows, the line for what has none, and what the structures mean."""
    bodies = sorted(program.bodies, key=lambda body: -body.n_uses * body.n_equations)
    shown = _with_rows(bodies)[:_MAX_ROWS]
    folded = [body for body in bodies if body not in shown]
    lines = []
    rows = _rows(program, shown, width) if shown else []
    for body, row in zip((None, *shown), rows, strict=bool(rows)):
        lines.append(_coloured(row, body, program) if colour and body else row)
    if folded:
        lines.append(wrapped(_folded(folded, shown), width))
    structures = [name for name in LEGEND if any(body.structure == name for body in shown)]
    legend = "; ".join(f"{name}: {LEGEND[name]}" for name in structures)
    if legend and not program.is_applied:
        legend = f"only looked at, not applied. {legend}"
    return [*lines, *([wrapped(legend, width)] if legend else [])]


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
            line = f"{cut(line, width)}\n    {why}"
        else:
            line = cut(line, width)
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
    if body.n_of_its_name:
        why += f"; holds {count(body.n_of_its_name, 'call')} of another {body.name}"
    return (
        printable(name),
        cut(printable(place(body.source)), 28),
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

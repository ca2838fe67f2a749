"""An audit as text: AuditReport -> str."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ..words import count, place, printable

if TYPE_CHECKING:
    from ..audited import AuditFinding, AuditReport

_MAX_SITES = 8


def render(report: AuditReport, *, width: int = 100) -> str:
    """What was found, with the cure."""
    name = printable(report.program)
    plain = [
        _filled(f"  {subroutine} ran as the plain function: {reason}", width)
        for subroutine, reason in report.plain
    ]
    return "\n".join([_of_traced(report, name, width), *plain])


def _of_traced(report: AuditReport, name: str, width: int) -> str:
    if not report.n_calls and report.plain:
        return f"{name}: nothing to audit, since no call of a shared subroutine shared a trace:"
    if not report.n_calls:
        return (
            f"{name}: nothing to audit, since it called no function decorated with "
            "jitscope.shared_subroutine. Repeats that jitscope finds by itself are compared as "
            "they were traced, and depend on nothing else."
        )
    if report.is_clean:
        return (
            f"{name}: {count(report.n_calls, 'call')} of shared subroutines traced anew, equal to "
            "each other and to earlier traces:\n  no dependence on hidden state found"
        )
    parts = [
        f"{name}: {count(len(report.findings), 'shared subroutine')} of "
        f"{report.n_signatures} not the same at every call"
    ]
    return "\n".join([*parts, *(_finding(finding, width) for finding in report.findings)])


def _finding(finding: AuditFinding, width: int) -> str:
    sites = list(dict.fromkeys(map(place, finding.sites)))
    if len(sites) > _MAX_SITES:
        sites[_MAX_SITES:] = [f"{len(sites) - _MAX_SITES} lines more"]
    calls = f"{count(finding.n_calls, 'call')} of one signature"
    found = (
        f"the trace that an earlier program left, which {calls} would be given, is another "
        "computation than the function is now. Calls"
        if finding.is_held
        else f"{calls} are {finding.n_distinct} different computations; shared, all would be the "
        "first. Calls"
    )
    lines = [
        f"! {finding.name} ({place(finding.source)}): {found} that differ from it: "
        f"{', '.join(sites)}.",
        f"  what differs: {'; '.join(finding.differences)}",
        "  It reads something beside its arguments (a global, an attribute, a random generator). "
        "Pass that as an argument, or do not share this function."
        + (f" {finding.name}.clear_cache() after a change forgets it." if finding.is_held else ""),
    ]
    return "\n".join(_filled(line, width) for line in lines)


def _filled(line: str, width: int) -> str:
    return textwrap.fill(
        printable(line),
        width,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )

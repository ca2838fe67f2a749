"""Counts of the shared subroutines of this process as plain data: Counters -> reports."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Hashable, Mapping

from ..subroutine.cores import registry
from ..subroutine.counters import SubroutineStats, not_called
from ..words import count
from .reuse_report import Retrace, SubroutineReport

_MAX_RETRACES = 32
"""Different reasons kept for one subroutine."""


def subroutine_reports(
    since: Mapping[Hashable, SubroutineReport] | None = None,
) -> dict[Hashable, SubroutineReport]:
    """Every shared subroutine of this process with its counts.

    Args:
      since: what this function returned earlier; only what happened in between is counted,
        and only subroutines to which something happened are left.

    Returns:
      By the code of the function.
    """
    stats = {code: counters.record(counters.name) for code, counters in registry.all_counters()}
    reports = {code: subroutine_report(one, _place(code)) for code, one in stats.items()}
    if since is None:
        return reports
    differences = (
        (code, _difference(now, since.get(code), stats[code].was_asked_about))
        for code, now in reports.items()
    )
    return {
        code: report
        for code, report in differences
        if report.n_calls
        or report.n_traces
        or report.n_functions
        or report.n_plain_calls
        or report.n_compiled
    }


def subroutine_report(stats: SubroutineStats, source: str) -> SubroutineReport:
    """The counts of one subroutine as plain data."""
    reasons = collections.Counter(stats.retrace_reasons)
    report = SubroutineReport(
        name=stats.name,
        source=source,
        n_calls=stats.n_calls,
        n_traces=stats.n_traces,
        n_reused=stats.n_reused,
        n_functions=stats.n_functions,
        n_plain_calls=sum(stats.plain_calls.values()),
        retraces=_most_common(reasons),
        n_compiled=stats.own.n_compiled,
        seconds=dataclasses.replace(stats.own.seconds, trace_s=stats.trace_s),
    )
    return dataclasses.replace(
        report,
        problems=(
            *_problems(report, stats.was_asked_about),
            *(
                f"{count(n, 'call')} ran as the plain function: {reason}"
                for reason, n in stats.plain_calls.items()
            ),
        ),
    )


def subroutine_stats() -> dict[str, SubroutineStats]:
    """Where each shared subroutine is defined to its counts, those of explanations included."""
    return {
        _place(code): counters.record(counters.name, with_uncounted=True)
        for code, counters in registry.all_counters()
    }


def _problems(report: SubroutineReport, was_asked_about: bool) -> list[str]:
    """What is likely not as its user wants it."""
    if not report.n_calls and not report.n_traces:
        return [f"decorated but {not_called(was_asked_about)}"]
    if not report.n_calls:
        return [
            "called, but never under a trace, so it was compiled on its own and nothing was "
            "shared: is the function around it compiled?"
        ]
    if report.n_calls > 1 and not report.n_reused:
        return [f"never reused: each of its {report.n_calls} calls was traced anew"]
    if report.n_calls == 1:
        return ["called once, so there is nothing to share"]
    return []


def _difference(
    now: SubroutineReport, before: SubroutineReport | None, was_asked_about: bool
) -> SubroutineReport:
    if before is None:
        return now
    counts = {
        name: getattr(now, name) - getattr(before, name)
        for name in (
            "n_calls",
            "n_traces",
            "n_reused",
            "n_functions",
            "n_plain_calls",
            "n_compiled",
            "seconds",
        )
    }
    reasons = collections.Counter({r.reason: r.n_traces for r in now.retraces})
    reasons.subtract({r.reason: r.n_traces for r in before.retraces})
    report = dataclasses.replace(now, **counts, retraces=_most_common(+reasons))
    return dataclasses.replace(report, problems=tuple(_problems(report, was_asked_about)))


def _most_common(reasons: collections.Counter[str]) -> tuple[Retrace, ...]:
    return tuple(Retrace(reason, n) for reason, n in reasons.most_common(_MAX_RETRACES))


def _place(code: Hashable) -> str:
    """``file:line`` of a function, where its code is written in Python."""
    first = code[0] if isinstance(code, tuple) and code else None
    if isinstance(first, types.CodeType):
        return f"{first.co_filename}:{first.co_firstlineno}"
    return ""

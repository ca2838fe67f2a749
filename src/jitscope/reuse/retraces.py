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


def counts_so_far() -> dict[Hashable, SubroutineStats]:
    """Every shared subroutine of this process with its counts, by the code of the function."""
    return {code: counters.record(counters.name) for code, counters in registry.all_counters()}


def subroutine_reports(
    since: Mapping[Hashable, SubroutineStats] | None = None,
) -> dict[Hashable, SubroutineReport]:
    """Every shared subroutine of this process as plain data.

    Args:
      since: what `counts_so_far` returned earlier; only what happened in between is counted,
        and only subroutines to which something happened are left.

    Returns:
      By the code of the function.
    """
    earlier = since or {}
    reports = {
        code: subroutine_report(stats, _place(code), earlier.get(code))
        for code, stats in counts_so_far().items()
    }
    if since is None:
        return reports
    return {
        code: report
        for code, report in reports.items()
        if report.n_calls
        or report.n_traces
        or report.n_functions
        or report.n_plain_calls
        or report.n_compiled
    }


def subroutine_report(
    stats: SubroutineStats, source: str, since: SubroutineStats | None = None
) -> SubroutineReport:
    """The counts of one subroutine as plain data, less those of an earlier time."""
    before = since or SubroutineStats(stats.name, 0, 0, 0, 0, {}, ())
    reasons = collections.Counter(stats.retrace_reasons)
    plain = collections.Counter(stats.plain_calls) - collections.Counter(before.plain_calls)
    seconds = stats.own.seconds - before.own.seconds
    report = SubroutineReport(
        name=stats.name,
        source=source,
        n_calls=stats.n_calls - before.n_calls,
        n_traces=stats.n_traces - before.n_traces,
        n_reused=stats.n_reused - before.n_reused,
        n_functions=stats.n_functions - before.n_functions,
        n_plain_calls=plain.total(),
        retraces=_most_common(reasons - collections.Counter(before.retrace_reasons)),
        n_compiled=stats.own.n_compiled - before.own.n_compiled,
        seconds=dataclasses.replace(seconds, trace_s=stats.trace_s - before.trace_s),
    )
    problems = _problems(report, stats) + [
        f"{count(n, 'call')} ran as the plain function: {reason}" for reason, n in plain.items()
    ]
    return dataclasses.replace(report, problems=tuple(problems))


def subroutine_stats() -> dict[str, SubroutineStats]:
    """Where each shared subroutine is defined to its counts, those of explanations included."""
    return {
        _place(code): counters.record(counters.name, with_uncounted=True)
        for code, counters in registry.all_counters()
    }


def _problems(report: SubroutineReport, stats: SubroutineStats) -> list[str]:
    """What is likely not as its user wants it."""
    if not report.n_calls and not report.n_traces:
        return [f"decorated but {not_called(stats)}"]
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


def _most_common(reasons: collections.Counter[str]) -> tuple[Retrace, ...]:
    return tuple(Retrace(reason, n) for reason, n in reasons.most_common(_MAX_RETRACES))


def _place(code: Hashable) -> str:
    """``file:line`` of a function, where its code is written in Python."""
    first = code[0] if isinstance(code, tuple) and code else None
    if isinstance(first, types.CodeType):
        return f"{first.co_filename}:{first.co_firstlineno}"
    return ""

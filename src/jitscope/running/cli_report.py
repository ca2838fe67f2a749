"""The commands that read reports: ``python -m jitscope report`` and ``diff``. Without JAX."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..report import diff, load, profiles, save, text
from ..report.json import ReportFormatError

if TYPE_CHECKING:
    from ..reuse.reuse_report import ReuseReport

_REPORT = """\
Shows a report that `run --json` or `jitscope.report.save` wrote: as text, as one page that
works offline, or as counts for other viewers (https://speedscope.app, `go tool pprof`).
"""
_DIFF = """\
Shows which counts changed from one report to another. With budgets, the exit status is 1
when a count of a program grew by more: for a test that fails where a change of the code breaks
sharing. Counts are the same on every machine; seconds are not.
"""
_EXPORTS = {
    "html": "one page that works offline",
    "speedscope": "equations by source line",
    "pprof": "the same, as a gzipped pprof profile",
}


def add_commands(commands: Any) -> None:
    """Adds both to the commands of a parser."""
    report = commands.add_parser(
        "report", allow_abbrev=False, help="show a saved report", description=_REPORT
    )
    report.add_argument("file", help="a report, as JSON")
    for name, what in _EXPORTS.items():
        report.add_argument(f"--{name}", metavar="FILE", help=f"write {what}")
    report.set_defaults(command=_report, fail=report.error)
    compared = commands.add_parser(
        "diff", allow_abbrev=False, help="compare two saved reports", description=_DIFF
    )
    compared.add_argument("before", help="the earlier report, as JSON")
    compared.add_argument("after", help="the later one")
    compared.add_argument(
        "--budget",
        metavar="COUNT=PERCENT",
        action="append",
        type=_budget,
        default=[],
        help=f"most that a count may grow; COUNT is one of {', '.join(_countable())}",
    )
    compared.set_defaults(command=_diff, fail=compared.error)


def _report(options: argparse.Namespace) -> int:
    found = _load(options, options.file)
    wanted = {name: getattr(options, name) for name in _EXPORTS if getattr(options, name)}
    if not wanted:
        _quietly_if_cut_off(lambda: text.show(found))
    for name, path in wanted.items():
        try:
            if name == "html":
                save(found, path)
            else:
                profiles.save(found, path, kind=name)
        except (OSError, ValueError) as error:
            print(f"jitscope could not write {path!r}: {error}", file=sys.stderr)
            return 2
    return 0


def _diff(options: argparse.Namespace) -> int:
    budgets = dict(options.budget)
    found = diff.difference(_load(options, options.before), _load(options, options.after))
    _quietly_if_cut_off(lambda: print(diff.render(found, budgets)))
    return 1 if found.exceeding(budgets) else 0


def _quietly_if_cut_off(show: Callable[[], None]) -> None:
    """Prints; a reader that has seen enough (``| head``) is no error."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        # Or the interpreter complains when it flushes on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _load(options: argparse.Namespace, path: str) -> ReuseReport:
    try:
        return load(path)
    except FileNotFoundError:
        options.fail(
            f"no file {path!r}. `python -m jitscope run --json {path} script.py` writes one, and "
            f"so does jitscope.report.save(train_step.reuse(), {path!r})."
        )
        raise
    except (OSError, ReportFormatError) as error:
        options.fail(str(error))
        raise


def _countable() -> list[str]:
    return [*diff.COUNTS, diff.TRACES]


def _budget(argument: str) -> tuple[str, float]:
    count, _, percent = argument.partition("=")
    if count not in _countable():
        raise argparse.ArgumentTypeError(
            f"{argument!r} is no COUNT=PERCENT; COUNT is one of {', '.join(_countable())}."
        )
    try:
        return count, float(percent.rstrip("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{argument!r}: {percent!r} is no number of percent, such as 5."
        ) from None

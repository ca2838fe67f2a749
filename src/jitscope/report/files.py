"""Files that hold a report; the one place that opens them."""

from __future__ import annotations

import contextlib
import errno
import os
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..reuse.reuse_report import ReuseReport
from . import html, json, text

if TYPE_CHECKING:
    from ..reuse.reuse import Reuse


def save(report: ReuseReport | Reuse, path: str | os.PathLike[str]) -> None:
    """Writes a report to a file, in the format of its suffix.

    The file holds the old text or the new one, whatever happens.

    Args:
      report: a record, live or frozen.
      path: ends in ``.json`` (to be loaded again), ``.html`` (one page, works offline), or
        ``.txt``.

    Raises:
      TypeError: it is no report.
      ValueError: the path has another suffix.
      OSError: it cannot be written; a file that was there is as it was.

    Examples:
      >>> import jax.numpy as jnp, jitscope, os, tempfile
      >>> step = jitscope.outermost_jit(lambda x: jnp.sin(x) + 1)
      >>> y = step(1.0)
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     path = os.path.join(directory, "run.json")
      ...     jitscope.report.save(step.reuse(), path)
      ...     jitscope.report.load(path).n_equations
      2
    """
    record = _record(report)
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"save() needs a path behind the report, got {path!r} of type {type(path).__name__}."
        )
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in _RENDERERS:
        raise ValueError(
            f"save() got the path {os.fspath(path)!r}; it must end in one of "
            f"{', '.join(_RENDERERS)}, which says what to write."
        )
    save_as(record, path, suffix)


def save_as(report: ReuseReport, path: str | os.PathLike[str], suffix: str) -> None:
    """As `save`, in the format of a suffix other than that of the path."""
    replace_file(path, _RENDERERS[suffix](report))


def _record(report: Any) -> ReuseReport:
    if isinstance(report, ReuseReport):
        return report
    method = getattr(report, "report", None)
    found = method() if callable(method) else None
    if isinstance(found, ReuseReport):
        return found
    hint = (
        " The report comes first."
        if isinstance(report, (str, os.PathLike))
        else " Did you mean that function's .reuse()?"
        if callable(getattr(report, "reuse", None))
        else " For the counts of a shared subroutine, save jitscope.stats()."
        if callable(getattr(report, "stats", None)) or hasattr(report, "n_reused")
        else ""
    )
    shown = textwrap.shorten(repr(report), 60, placeholder="...")
    raise TypeError(
        f"save() needs a report and then a path, got {shown} of type {type(report).__name__}. "
        "Reports are train_step.reuse(), jitscope.explain(...), jitscope.stats() and what "
        f"jitscope.recording() gives.{hint}"
    )


def load(path: str | os.PathLike[str]) -> ReuseReport:
    """Reads a report that `save` wrote as JSON.

    Raises:
      TypeError: it is no path.
      ReportFormatError: a ValueError; the file is no report that this version can read.
      OSError: there is no such file, or it cannot be read.
    """
    if not isinstance(path, (str, os.PathLike)):  # a number would be a file that is open already
        raise TypeError(f"load() needs a path, got {path!r} of type {type(path).__name__}.")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            content = file.read()
    except FileNotFoundError as error:
        wanted = (
            "no such report. `python -m jitscope run --json FILE script.py` writes one, and so "
            "does jitscope.report.save(train_step.reuse(), FILE)"
        )
        raise FileNotFoundError(error.errno, wanted, os.fspath(path)) from None
    try:
        return json.loads(content)
    except json.ReportFormatError as error:
        raise json.ReportFormatError(f"cannot read {os.fspath(path)!r}: {error}") from None


def replace_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file so that it holds the old content or the new, whatever happens.

    A device, pipe or socket is written to as it is; a link stays a link.

    Raises:
      OSError: naming the path as it was given.
    """
    data = content.encode() if isinstance(content, str) else content
    with _errors_of(path):
        real = os.path.realpath(path)
        if not is_replaceable(real):
            with open(real, "wb") as file:
                file.write(data)
            return
        with _unfinished(real) as unfinished:
            with open(unfinished, "wb") as file:
                file.write(data)
            os.replace(unfinished, real)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Makes and removes the file that `replace_file` fills first, and touches no other.

    Whether a directory takes files is known only by trying: not every one says so.

    Raises:
      OSError: `replace_file` would fail; naming the path as it was given.
    """
    with _errors_of(path):
        real = os.path.realpath(path)
        if is_replaceable(real):
            with _unfinished(real) as unfinished, open(unfinished, "wb"):
                pass
        elif os.path.isdir(real) or not os.access(real, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), real)


def is_replaceable(path: str) -> bool:
    """Whether nothing, or a plain file, is there; not a device, pipe or socket."""
    return os.path.isfile(path) or not os.path.exists(path)


@contextlib.contextmanager
def _unfinished(path: str) -> Iterator[str]:
    """The path of the new file while it is written, removed if it is still there then."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {folder!r}", path)
    unfinished = f"{path}.{os.getpid()}.unfinished"
    try:
        yield unfinished
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)


@contextlib.contextmanager
def _errors_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the system name this path, not one that the user never gave."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _plain(report: ReuseReport) -> str:
    return text.render(report, width=100).encode(errors="replace").decode() + "\n"


_RENDERERS = {".json": json.dumps, ".html": html.render, ".txt": _plain}
SUFFIXES = tuple(_RENDERERS)
"""What the path of a report may end in."""

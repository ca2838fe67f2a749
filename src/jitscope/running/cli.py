"""The command line: ``python -m jitscope run script.py``.

Nothing here imports JAX before the script does, because scripts set up JAX through the
environment (``JAX_PLATFORMS``, ``JAX_ENABLE_X64``) in their first lines.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .. import __version__
from ..report.files import SUFFIXES, check_writable, is_replaceable, replace_file, save_as
from ..reuse.reuse_report import ReuseReport
from ..settings import is_disabled, strict
from .after_import import after_import
from .cli_report import add_commands
from .script import (
    CannotRunError,
    own_traceback,
    remember_interrupt,
    run_module,
    run_script,
)

if TYPE_CHECKING:
    from ..reuse.records import Register

_RUN = """\
Runs a Python script with every jax.jit in it acting as jitscope.outermost_jit, and writes a
report when the process ends: what was compiled, what repeated, what was done about it, and
the seconds of each phase. Arguments after the script are its own, and so are its exit status,
input, output and signals. A process that is killed (SIGTERM without a handler, os._exit)
writes no report; processes that it starts run as they would without jitscope.
"""


_COMMANDS = ("run", "report", "diff")
_OPTIONS = ("--observe", "--report", "--json")
"""Options of `run` that somebody may write after the script, where they are the script's."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status of those that have one of their own."""
    parser = _parser()
    argv = sys.argv[1:] if argv is None else argv
    first = next((argument for argument in argv if not argument.startswith("-")), "")
    if first not in _COMMANDS and any(argument.endswith(".py") for argument in argv):
        parser.error(
            f"{first!r} is no command. Did you mean: python -m jitscope run {shlex.join(argv)}"
        )
    two = [argument for argument in argv if argument.endswith(".json")]
    compares_two = "does not compare two reports. Did you mean: python -m jitscope diff "
    if first not in (*_COMMANDS, *two) and len(two) == 2:
        parser.error(f"{first!r} {compares_two}{shlex.join(two)}")
    options, unknown = parser.parse_known_args(argv)
    if first == "report" and len(unknown) == 1 and unknown[0] in two:
        parser.error(f"{first!r} {compares_two}{shlex.join([options.file, *unknown])}")
    if unknown:
        options.fail(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.print_help()
        return 0
    options.argv = argv
    return options.command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jitscope",
        allow_abbrev=False,
        description="Decides how a JAX program is structured before XLA compiles it.",
    )
    parser.add_argument("--version", action="version", version=f"jitscope {__version__}")
    parser.set_defaults(command=None, fail=parser.error)
    commands = parser.add_subparsers(title="commands", metavar="command")
    _add_run(commands)
    add_commands(commands)
    return parser


# --- run -----------------------------------------------------------------------------------


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="run a script with every jax.jit structured",
        description=_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] [--observe] [--report FILE] [--json FILE] (script | -m module) "
        "[args ...]",
    )
    run.add_argument(
        "--observe",
        action="store_true",
        help="compile exactly as jax.jit does; only report what repeats",
    )
    run.add_argument(
        "--report",
        metavar="FILE",
        type=_report_path_with_suffix,
        help="write the report to FILE, replacing it, instead of to stderr: as one page that "
        "works offline if FILE ends in .html, as JSON if in .json, as text if in .txt",
    )
    run.add_argument(
        "--json",
        metavar="FILE",
        type=_report_path,
        help="write the record to FILE too, for `report` and `diff`",
    )
    run.add_argument(
        "-m", dest="module", action="store_true", help="the script is a module, as for python -m"
    )
    run.add_argument("script", help="Python file, or directory or zip file with a __main__.py")
    args = run.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    args.required = False  # or they are asked for where the script is missing
    run.set_defaults(command=_run, fail=run.error)


def _report_path(text: str) -> str:
    """The path in full, since the script may change directories."""
    path = os.path.realpath(text)
    directory = os.path.dirname(path)
    if os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{text!r} is a directory. Name a file.")
    if not os.path.isdir(directory):
        raise argparse.ArgumentTypeError(
            f"{text!r} lies in {directory!r}, which is no directory. Make it first."
        )
    try:
        check_writable(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written here ({error.strerror}). Choose a file in a directory "
            "that you may write."
        ) from None
    return path


def _report_path_with_suffix(text: str) -> str:
    path = _report_path(text)
    if is_replaceable(path) and not path.lower().endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(
            f"{text!r} must end in one of {', '.join(SUFFIXES)}, which says what to write."
        )
    return path


def _run(options: argparse.Namespace) -> int:
    args = _args_of_the_script(options)
    _note_options_of_the_script(args)
    registers: list[Register] = []
    after_import("jax", lambda: _start(options.observe, registers))
    finish = _Report(registers, options.observe, options.report, options.json)
    run: Callable[[str, Sequence[str]], None] = run_module if options.module else run_script
    # First in, last out: threads and the script's own atexit functions end before it.
    atexit.register(finish)
    try:
        with own_traceback(keep_inner=strict()):
            run(options.script, args)
    except CannotRunError as error:
        atexit.unregister(finish)
        options.fail(str(error))
    except KeyboardInterrupt:
        finish.was_interrupted = True
        raise
    return 0


def _args_of_the_script(options: argparse.Namespace) -> list[str]:
    """All that stands behind the script; argparse drops a ``--`` in front of the rest."""
    before = options.argv[: len(options.argv) - len(options.args)]
    return [*(["--"] if list(before[-2:]) == [options.script, "--"] else []), *options.args]


def _note_options_of_the_script(args: Sequence[str]) -> None:
    """Says that what looks like an option of ours is given to the script."""
    given = [argument for argument in args if argument.partition("=")[0] in _OPTIONS]
    if given and "--" not in args[: args.index(given[0])]:
        _say(
            f"jitscope: {given[0]} stands after the script and is given to it; options of jitscope "
            "stand before the script"
        )


def _start(observe: bool, registers: list[Register]) -> None:
    """Installs jitscope into the JAX that was just imported, or says why it cannot."""
    try:
        from ..reuse.records import open_register
        from .installation import install

        registers.append(open_register())
        install(observe=observe)
    except Exception as error:
        if strict():
            raise
        _say(
            f"jitscope could not be installed and the script runs without it: "
            f"{type(error).__name__}: {error}"
        )


class _Report:
    """Writes the report when the process that ran the script ends.

    Attributes:
      was_interrupted: whether the script ended so.
    """

    def __init__(
        self, registers: list[Register], observe: bool, path: str | None, json: str | None
    ) -> None:
        self._registers = registers
        self._observe = observe
        self._path = path
        self._json = json
        self._process = os.getpid()
        self.was_interrupted = False

    def __call__(self) -> None:
        if os.getpid() == self._process:  # else it is a fork of it
            self._write_reports()
        if self.was_interrupted:
            remember_interrupt()

    def _write_reports(self) -> None:
        try:
            text = self._text()
        except Exception as error:
            if strict():
                raise
            text = f"jitscope could not make its report: {type(error).__name__}: {error}\n"
        if self._path is not None and self._path.lower().endswith((".html", ".json")):
            self._write_record(self._path)
        else:
            self._write(text)
        if self._json is not None:
            self._write_record(self._json, ".json")

    def _text(self) -> str:
        if not self._registers:
            return "jitscope: the script did not import JAX\n"
        from .summary import summary

        return summary(self._registers[0], observed=self._observe, disabled=is_disabled())

    def _write(self, text: str) -> None:
        if self._path is None:
            _say(text.rstrip("\n"))
            return
        try:
            replace_file(self._path, text)
            _say_where(self._path)
        except OSError as error:
            _say(
                f"jitscope could not write its report to {self._path!r} ({error}), and shows it "
                f"here:\n{text.rstrip()}"
            )

    def _write_record(self, path: str, suffix: str = "") -> None:
        try:
            save_as(self._record(), path, suffix or os.path.splitext(path)[1].lower())
            _say_where(path)
        except Exception as error:
            if strict() and not isinstance(error, OSError):
                raise
            _say(
                f"jitscope could not write its record to {path!r}, and left what is there as it "
                f"is: {type(error).__name__}: {error}"
            )

    def _record(self) -> ReuseReport:
        if not self._registers:
            return ReuseReport()
        from ..reuse.recorder import Recording

        return Recording(self._registers[0], {}).report()


def _say_where(path: str) -> None:
    if os.path.isfile(path):
        _say(f"jitscope: the report is in {path}")


def _say(text: str) -> None:
    # The script may have closed or exchanged stderr; its end is not to fail for a report.
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr, flush=True)

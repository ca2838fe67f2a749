"""Runs somebody's script or module as if the interpreter had been started with it.

``runpy.run_path`` takes ``__main__`` away again when the code is finished. Threads, process
pools and ``atexit`` functions that outlive it and look for their classes there then fail,
so the code is run here in a ``__main__`` that stays.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..settings import PACKAGE


class CannotRunError(Exception):
    """There is nothing to run. The message is for whoever typed the command."""


def run_script(path: str, args: Sequence[str]) -> None:
    """Runs a file, or the ``__main__.py`` of a directory or zip file, as ``__main__``.

    Args:
      path: as given on the command line.
      args: ``sys.argv`` of the script, after its name.

    Raises:
      CannotRunError: nothing was run, because there is nothing that can be.
    """
    if not os.path.exists(path):
        raise CannotRunError(
            f"no file {path!r} in {os.getcwd()}. Give the path of a Python file, of a directory "
            "or zip file with a __main__.py, or -m and the name of a module."
        )
    sys.argv = [path, *args]
    if pkgutil.get_importer(path) is None:
        _replace_path0(os.path.dirname(os.path.realpath(path)))
        _run_file(os.path.abspath(path))
        return
    spec = importlib.machinery.PathFinder.find_spec("__main__", [os.path.abspath(path)])
    if spec is None:
        raise CannotRunError(
            f"{path!r} is a directory or archive without a __main__.py. Name the file in it "
            "that is to be run, or add a __main__.py."
        )
    _replace_path0(os.path.abspath(path), even_if_safe=True)
    _run_spec(spec)


def run_module(name: str, args: Sequence[str]) -> None:
    """Runs a module, or the ``__main__`` of a package, found as by ``python -m``.

    Args:
      name: dotted name of the module.
      args: ``sys.argv`` of the module, after its name.

    Raises:
      CannotRunError: nothing was run, because there is nothing that can be.
    """
    sys.argv = ["-m", *args]
    spec = _module_spec(name)
    if spec.submodule_search_locations is not None:
        spec = _module_spec(f"{name}.__main__", of_package=name)
    sys.argv[0] = spec.origin or name
    _run_spec(spec)


def _module_spec(name: str, of_package: str = "") -> importlib.machinery.ModuleSpec:
    try:
        spec = None if name.startswith(".") else importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # A parent of the module that is missing, not an import that fails within one.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    except ValueError:  # such as an empty name
        spec = None
    if spec is not None:
        return spec
    if of_package:
        raise CannotRunError(
            f"{of_package!r} is a package without a __main__ module. Name the module in it that "
            "is to be run."
        )
    hint = f" Did you mean -m {name[:-3]}, or {name} without -m?" if name.endswith(".py") else ""
    raise CannotRunError(
        f"no module named {name!r} on sys.path, which begins with {sys.path[0]!r}. Check the "
        f"name and the directory you are in, or give a path without -m.{hint}"
    )


def _replace_path0(directory: str, even_if_safe: bool = False) -> None:
    """Puts the script's directory where ``python -m`` put the current one.

    Under ``python -P`` nothing was put there, and for a single file nothing is to be.
    """
    if not sys.flags.safe_path:
        sys.path[0] = directory
    elif even_if_safe:
        sys.path.insert(0, directory)


def _run_file(path: str) -> None:
    if path.endswith(".pyc"):
        compiled = importlib.machinery.SourcelessFileLoader("__main__", path)
        _execute(compiled.get_code("__main__"), path, compiled, None)
        return
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        # Not the loader's get_code: it would leave a __pycache__ beside the script.
        code = compile(file.read(), path, "exec", dont_inherit=True)
    _execute(code, path, loader, None)


def _run_spec(spec: importlib.machinery.ModuleSpec) -> None:
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise CannotRunError(f"{spec.name!r} ({spec.origin}) has no Python code that could be run.")
    _execute(code, spec.origin, loader, spec)


def _execute(
    code: Any, path: str | None, loader: Any, spec: importlib.machinery.ModuleSpec | None
) -> None:
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path,
        __loader__=loader,
        __spec__=spec,
        __builtins__=sys.modules["builtins"],
        __package__=None if spec is None else spec.parent,
        __annotations__={},
        __cached__=None if spec is None else spec.cached,
    )
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


# --- exceptions --------------------------------------------------------------------------


@contextmanager
def own_traceback(keep_inner: bool) -> Iterator[None]:
    """Lets an exception pass to the interpreter, which then shows it without our frames.

    It passes, rather than being printed here, so that the interpreter does all it does at
    such an end: the script's own ``sys.excepthook``, the exit status, death by SIGINT.

    Args:
      keep_inner: leave frames of jitscope that lie between those of the script.
    """
    try:
        yield
    except (CannotRunError, SystemExit):
        raise
    except BaseException:
        show = sys.excepthook

        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            _strip(error, keep_inner, set())
            show(kind, error, error.__traceback__)

        sys.excepthook = excepthook
        raise


def remember_interrupt() -> None:
    """Tells the interpreter that the script ended by an interrupt, of which it is to die.

    It remembers whether the last source text that it ran ended so, and reports are made by modules
    that run some when they are imported, as ``dataclasses`` does.
    """
    with suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def _strip(error: BaseException | None, keep_inner: bool, seen: set[int]) -> None:
    """Takes our frames out of the tracebacks of an exception and of those that led to it."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    frames = list(_frames(error.__traceback__))
    while frames and _is_ours(frames[0]):
        frames.pop(0)
    shown = None
    for frame in reversed(frames):
        if keep_inner or not _is_ours(frame):
            shown = types.TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = shown
    _strip(error.__cause__, keep_inner, seen)
    _strip(error.__context__, keep_inner, seen)


def _frames(traceback: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(traceback: types.TracebackType) -> bool:
    file = traceback.tb_frame.f_code.co_filename
    return file.startswith(PACKAGE) or file in ("<frozen runpy>", "<frozen importlib._bootstrap>")

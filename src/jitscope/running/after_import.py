"""Runs a function when a module has been imported, whoever imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def after_import(name: str, action: Callable[[], None]) -> None:
    """Runs ``action`` once: now, or right after the module is first imported."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Waiting(name, action))


class _Waiting(importlib.abc.MetaPathFinder):
    """Leaves finding the module to the other finders, and itself when it was found."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        place = sys.meta_path.index(self)
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(place, self)
        else:
            _follow(spec.loader, self._action)
        return spec


def _follow(loader: importlib.abc.Loader, action: Callable[[], None]) -> None:
    """Makes this loader, which belongs to one module, run ``action`` after it."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the instance's, so that the class's shows again
        execute(module)
        action()

    loader.exec_module = exec_module  # type: ignore[method-assign]

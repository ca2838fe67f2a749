"""What tracing is spared by Python's interpreter: looking for garbage, and a stack in pieces."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

_SLOTS = 70_000
"""Asks for a piece of a mebibyte, of which this leaves room for more frames than Python allows."""


def unhindered(work: Callable[[], _T]) -> _T:
    """Calls ``work``, which traces a program, with less trouble from the interpreter.

    CPython keeps the frames of Python functions in pieces of 16 KiB, some eighty frames each. It
    asks the operating system for a piece whenever a call does not fit into the last one, and gives
    it back when the call returns. JAX traces a hundred frames deep and more, and where its busiest
    calls happen to cross into another piece, tracing takes up to a third longer. One frame that
    asks for much gets a piece as large as that, which all calls from there on share. Memory that no
    frame touches is not taken.
    """
    with _not_collected():
        return _on_one_piece(work)


def _on_one_piece(work: Callable[[], _T]) -> _T:
    return work()


_on_one_piece.__code__ = _on_one_piece.__code__.replace(co_stacksize=_SLOTS)


@contextlib.contextmanager
def _not_collected() -> Iterator[None]:
    """While this holds, Python does not look for garbage in cycles.

    What a trace makes stays until its end, and a collection goes through that and all else that JAX
    has made: a tenth of the tracing of ResNet-50, a fifth of that of a transformer of 96 layers.
    Another thread may end its own block sooner, and then looks for both.
    """
    if not gc.isenabled():
        yield
        return
    try:
        gc.disable()  # within, since an interrupt may come before the next line
        yield
    finally:
        gc.enable()

"""Python's garbage collector while a program is structured.

A program is many small objects, all of which are needed until it is done: a collection finds
nothing to free and goes through all that JAX has allocated as well, 80 ms for each of one or two.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_was_on: list[bool] = []  # when each block under way began, in any thread: the first one tells


@contextlib.contextmanager
def not_collected() -> Iterator[None]:
    """While this holds in any thread, the collector is off; then it is as it was."""
    with _lock:
        _was_on.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            first = _was_on[0]
            _was_on.pop()
            if first and not _was_on:
                gc.enable()

"""A word on the terminal while a program compiles for longer than a few seconds.

Printed once per program, to stderr, and only where that is a terminal. ``JITSCOPE_PROGRESS=0``
turns it off. Nothing is known about how long the rest will take, so nothing is said about it.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

from . import _jax
from .settings import SHOWS_PROGRESS
from .words import count, printable

if TYPE_CHECKING:
    from .reuse.reuse import Reuse

_AFTER_S = 5.0
_POLL_S = 1.0
_GIVE_UP_S = 60.0
"""A program that is not being compiled for so long is likely lowered only."""


def watch(reuse: Reuse) -> None:
    """Watches a program that this thread has just structured."""
    if SHOWS_PROGRESS and _on_terminal():
        _watcher.add(_Watched(weakref.ref(reuse), threading.get_ident(), time.monotonic()))


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except Exception:  # noqa: BLE001 - a stderr of somebody's own making, or none
        return False


@dataclasses.dataclass
class _Watched:
    """A program that may be compiling.

    Attributes:
      reuse: its record; weak.
      thread: number of the thread that traced it.
      seen_s: when it was last traced or seen compiling.
      since_s: when it was first seen compiling, or None.
    """

    reuse: weakref.ref[Reuse]
    thread: int
    seen_s: float
    since_s: float | None = None

    def look(self, now_s: float, is_compiling: bool) -> tuple[bool, str]:
        """Whether to go on watching, and what to print."""
        reuse = self.reuse()
        if reuse is None or reuse.phases.seconds.compile_s:
            return False, ""
        if not is_compiling:
            self.since_s = None
            return now_s - self.seen_s < _GIVE_UP_S, ""
        self.seen_s = now_s
        self.since_s = now_s if self.since_s is None else self.since_s
        if now_s - self.since_s < _AFTER_S:
            return True, ""
        return False, message(reuse, now_s - self.since_s)


def message(reuse: Reuse, seconds: float) -> str:
    """One line: which program, which phase, and its largest repeated body."""
    name = printable(reuse.census.program)
    text = f"jitscope: XLA has been compiling {name} for {seconds:.0f} s"
    repeated = [body for body in reuse.census.bodies if body.n_uses > 1]
    if not repeated:
        return f"{text}; nothing in it repeats"
    body = max(repeated, key=lambda body: body.n_uses * body.n_equations)
    structure = reuse.plan[body.fingerprint.digest].structure
    return (
        f"{text}; its largest repeated body is {printable(body.name)}, "
        f"{count(body.n_uses, 'call')} of {count(body.n_equations, 'equation')} ({structure})"
    )


class _Watcher:
    """One thread for all programs, alive while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._is_running = False

    def add(self, watched: _Watched) -> None:
        with self._lock:
            self._watched.append(watched)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="jitscope progress", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_POLL_S)
            with self._lock:
                self._watched = [one for one in self._watched if self._look(one)]
                if not self._watched:
                    self._is_running = False
                    return

    def _look(self, watched: _Watched) -> bool:
        go_on, text = watched.look(time.monotonic(), _jax.is_compiling(watched.thread))
        if text:
            try:
                print(text, file=sys.stderr, flush=True)
            except Exception:  # noqa: BLE001 - the terminal is gone; nobody reads it
                return False
        return go_on


_watcher = _Watcher()

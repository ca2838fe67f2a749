"""Seconds per phase of one program: trace, restructure, lower, compile.

JAX reports the end of each phase to ``jax.monitoring`` with the name of the function, in
the thread that did the work. A program under way in a thread claims the reports that bear
its name until a later program of the same name replaces it.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from ..settings import is_counting
from .reuse_report import Seconds

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": ("trace_s", "{}"),
    "/jax/core/compile/jaxpr_to_mlir_module_duration": ("lower_s", "jit({})"),
    "/jax/core/compile/backend_compile_duration": ("compile_s", "jit({})"),
}
_threads = threading.local()
_lock = threading.Lock()
_named: dict[object, weakref.WeakSet[Compilations]] = {}


@dataclasses.dataclass
class Phases:
    """Seconds spent on a program so far.

    Attributes:
      seconds: of each phase.
    """

    seconds: Seconds = Seconds()

    def add(self, **seconds: float) -> None:
        """Adds to phases of `Seconds`, by name."""
        self.seconds += Seconds(**seconds)

    @contextmanager
    def structuring(self) -> Iterator[None]:
        """Adds the time of a with-block to ``structure_s``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(structure_s=time.perf_counter() - start)


@dataclasses.dataclass(eq=False)
class Compilations(Phases):
    """Seconds spent on a function that is compiled on its own, and how often it was."""

    n_compiled: int = 0

    def __hash__(self) -> int:
        return id(self)


def claim_phases(name: str) -> Phases:
    """Phases of a program that this thread is tracing now; JAX's reports fill them in."""
    _listen()
    claims = vars(_threads).setdefault("claims", {})
    phases = Phases()
    for event, (field, pattern) in _EVENTS.items():
        claims[event, pattern.format(name)] = (phases, field)
    return phases


def compilations_of(name: str) -> Compilations:
    """Filled in with what JAX compiles under a name, as long as nobody else asks for that name.

    Not with traces: those of nested functions bear their names, too.
    """
    _listen()
    found = Compilations()
    with _lock:
        for unused in [key for key, owners in _named.items() if not owners]:
            del _named[unused]
        _named.setdefault(f"jit({name})", weakref.WeakSet()).add(found)
    return found


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **details: object) -> None:
    name = details.get("fun_name")
    claim = vars(_threads).get("claims", {}).get((event, name))
    if claim is not None:
        phases, field = claim
        phases.add(**{field: duration_secs})
    elif event in _EVENTS and name in _named and is_counting():
        with _lock:
            found = list(_named[name])
            if len(found) == 1:
                field = _EVENTS[event][0]
                found[0].add(**{field: duration_secs})
                found[0].n_compiled += field == "compile_s"

"""Seconds per phase of one program: trace, restructure, lower, compile.

JAX reports the end of each phase to ``jax.monitoring`` with the name of the function, in
the thread that did the work; nested functions are part of the one around them and have no
reports of their own. A program under way in a thread claims the reports that bear its name,
until a function of that name is traced that is not this program.
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

from .seconds import Seconds
from .settings import is_counting

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": ("trace_s", "{}"),
    "/jax/core/compile/jaxpr_to_mlir_module_duration": ("lower_s", "jit({})"),
    "/jax/core/compile/backend_compile_duration": ("compile_s", "jit({})"),
}
"""Event to the phase that it is the end of, and to what it makes of the function's name."""
_threads = threading.local()
_lock = threading.Lock()
_named: dict[str, weakref.WeakSet[Compilations]] = {}


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
    phases = vars(_threads).setdefault("claims", {})[name] = Phases()
    return phases


def compilations_of(name: str) -> Compilations:
    """Filled in with what JAX compiles under a name that no program claims.

    Where several ask for one name, it is filled in for none of them, nor for a lambda.
    """
    _listen()
    found = Compilations()
    if name.startswith("<"):
        return found
    with _lock:
        for unused in [key for key, owners in _named.items() if not owners]:
            del _named[unused]
        _named.setdefault(name, weakref.WeakSet()).add(found)
    return found


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **details: object) -> None:
    if event not in _EVENTS:
        return
    field, pattern = _EVENTS[event]
    before, after = pattern.split("{}")
    name = str(details.get("fun_name")).removeprefix(before).removesuffix(after)
    claims = vars(_threads).get("claims", {})
    if field == "trace_s" and name in claims and claims[name].seconds.trace_s:
        del claims[name]  # a trace is one of the program that claimed it, and this is another
    if name in claims:
        claims[name].add(**{field: duration_secs})
    elif is_counting():
        with _lock:
            found = list(_named.get(name, ()))
            if len(found) == 1:
                found[0].add(**{field: duration_secs})
                found[0].n_compiled += field == "compile_s"

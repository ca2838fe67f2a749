"""A register of the programs that outermost functions trace, for whoever asks for one.

Off by default: then an outermost function looks once per trace and goes on. While a
register is open, every program's record is kept, with the ones that could not be
structured, and JAX's own seconds for all it lowers and compiles.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reuse import Reuse

_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A program that jitscope left as it was, and the error that made it do so."""

    program: str
    reason: str


@dataclasses.dataclass
class Register:
    """What was traced, lowered and compiled while the register was open.

    Attributes:
      programs: records in the order in which the programs were traced.
      failures: programs that were left as they were.
      lower_s: seconds JAX took to lower these and all other programs.
      compile_s: seconds the compiler took for these and all other programs.
    """

    programs: list[Reuse] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    lower_s: float = 0.0
    compile_s: float = 0.0


_open: Register | None = None
_lock = threading.Lock()


def note(reuse: Reuse) -> None:
    """Keeps the record of a program, where a register is open."""
    if _open is not None:
        with _lock:
            _open.programs.append(reuse)


def note_failure(program: str, error: BaseException) -> None:
    """Keeps the reason for which a program was left as it was."""
    if _open is not None:
        with _lock:
            _open.failures.append(Failure(program, f"{type(error).__name__}: {error}"))


def open_register() -> Register:
    """A register that is filled until `close_register`, in place of any other."""
    global _open
    _listen()
    _open = Register()
    return _open


def close_register() -> None:
    """Keeps nothing from now on."""
    global _open
    _open = None


@contextmanager
def registering() -> Iterator[Register]:
    """A register that is filled while a with-block runs."""
    try:
        yield open_register()
    finally:
        close_register()


@functools.cache
def _listen() -> None:
    # Imported here so that a command line may import this module before its script
    # decides, through environment variables, how JAX is to be set up.
    import jax

    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **_details: object) -> None:
    if _open is not None and event in (_LOWER, _COMPILE):
        with _lock:
            if event == _LOWER:
                _open.lower_s += duration_secs
            else:
                _open.compile_s += duration_secs

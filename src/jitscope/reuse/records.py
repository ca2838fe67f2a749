"""A register of the programs that outermost functions trace, for whoever asks for one.

Off by default: then an outermost function looks once per trace and goes on. While a
register is open, every program's record is kept, with the ones that could not be
structured, and JAX's own seconds for all it lowers and compiles. Several may be open, in
this thread or others; each is filled with everything.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..settings import is_counting

if TYPE_CHECKING:
    from .reuse import Reuse

_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A program that jitscope left as it was, and the error that made it do so."""

    program: str
    reason: str


@dataclasses.dataclass(eq=False)
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


_open: tuple[Register, ...] = ()
_latest: weakref.WeakKeyDictionary[Hashable, weakref.ref[Reuse]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def note(function: Hashable, reuse: Reuse) -> None:
    """Keeps the record of a program that an outermost function traced in every open register."""
    if is_counting():
        with _lock:
            _latest.pop(function, None)  # or it would keep its place in the order
            _latest[function] = weakref.ref(reuse)
            for register in _open:
                register.programs.append(reuse)


def latest() -> list[Reuse]:
    """The latest program of every outermost function that is still alive."""
    with _lock:
        return [reuse for known in _latest.values() if (reuse := known()) is not None]


def note_failure(program: str, error: BaseException) -> None:
    """Keeps the reason for which a program was left as it was."""
    if not is_counting():
        return
    with _lock:
        for register in _open:
            register.failures.append(Failure(program, f"{type(error).__name__}: {error}"))


def open_register() -> Register:
    """A register that is filled until it is closed."""
    global _open
    _listen()
    register = Register()
    with _lock:
        _open = (*_open, register)
    return register


def close_register(register: Register) -> None:
    """Adds nothing to a register from now on."""
    global _open
    with _lock:
        _open = tuple(one for one in _open if one is not register)


@contextmanager
def registering() -> Iterator[Register]:
    """A register that is filled while a with-block runs."""
    register = open_register()
    try:
        yield register
    finally:
        close_register(register)


@functools.cache
def _listen() -> None:
    # Imported here so that a command line may import this module before its script
    # decides, through environment variables, how JAX is to be set up.
    import jax

    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **_details: object) -> None:
    if event in (_LOWER, _COMPILE) and is_counting():
        with _lock:
            for register in _open:
                if event == _LOWER:
                    register.lower_s += duration_secs
                else:
                    register.compile_s += duration_secs

"""Switches that hold for the whole process or for a block of code.

``JITSCOPE_DISABLE=1`` and ``with disabled():`` leave the program as it would be without
jitscope, for debugging and for comparing: a shared subroutine is a plain call of its
function, an outermost function plain ``jax.jit``. ``JITSCOPE_STRICT=1`` makes a failure inside
jitscope's own rewriting an error where it would otherwise be a warning. The environment is
read once, on import.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Where jitscope's own files are: their frames are left out of tracebacks and source lines."""


_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS |= {"0": False, "false": False, "no": False, "off": False}


def switch(variable: str, default: bool = False) -> bool:
    """What a variable of the environment says; the default where it is empty or not set.

    Raises:
      ValueError: it is neither yes nor no.
    """
    word = os.environ.get(variable, "").strip().lower()
    if word not in ("", *_WORDS):
        raise ValueError(
            f"the environment has {variable}={os.environ[variable]!r}; allowed are "
            f"{', '.join(_WORDS)}, in lower or upper case, or nothing."
        )
    return _WORDS.get(word, default)


_STRICT = switch("JITSCOPE_STRICT")
_DISABLED = switch("JITSCOPE_DISABLE")
SHOWS_PROGRESS = switch("JITSCOPE_PROGRESS", default=True)
"""Whether a word may be printed while XLA compiles for long."""
_disabled = contextvars.ContextVar("jitscope_disabled", default=_DISABLED)

is_disabled = _disabled.get
"""Whether the decorators are plain calls here. The bare method: it is on every dispatch."""


_counting = contextvars.ContextVar("jitscope_counting", default=True)

is_counting = _counting.get
"""Whether what is traced and compiled here is the user's own doing."""


@contextlib.contextmanager
def not_counting() -> Iterator[None]:
    """While this holds, jitscope traces and compiles to answer a question: that counts nowhere."""
    token = _counting.set(False)
    try:
        yield
    finally:
        _counting.reset(token)


def strict() -> bool:
    """Whether a failure of jitscope itself raises (``JITSCOPE_STRICT=1``)."""
    return _STRICT


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Leaves programs as they would be without jitscope.

    Inside the block a shared subroutine is a plain call of its function, and an outermost
    function is ``jax.jit`` of it with the same options (``jax.disable_jit`` turns that off
    too). Holds for calls made in this thread or task. A ``jax.jit`` function that was traced
    outside the block keeps what it traced.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jitscope
      >>> @jitscope.shared_subroutine
      ... def double(x):
      ...     print("runs")
      ...     return 2 * x
      >>> with jitscope.disabled():
      ...     y = double(jnp.ones(2)), double(jnp.ones(2))
      runs
      runs
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)

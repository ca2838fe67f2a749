"""The JAX at hand: its version, what it can do, whether it compiles now, how it runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax._src import core as _core
from jax._src.array import ArrayImpl as _ArrayImpl
from jaxlib import version as _jaxlib_version

VERSION: str = jax.__version__
"""For records. What a version can do is asked of JAX itself, by a flag named for it."""

JAXLIB: tuple[int, ...] = tuple(map(int, re.findall(r"\d+", _jaxlib_version.__version__)[:3]))
"""Of the compiler for CPU, compared with the one that a measurement was made with."""

# True when `jax.jit(inline=...)` takes the `jax.Inline` enumeration (JAX >= 0.11).
# Delete when 0.10 is no longer supported.
HAS_INLINE_ENUM = hasattr(jax, "Inline")


_COMPILER = os.path.join("jax", "_src", "compiler.py")


def direct_call(compiled: Any) -> Callable[..., Any]:
    """What a ``jax.stages.Compiled`` calls in the end, without the Python around it (1 us).

    Args:
      compiled: returned as it is where it is something else, or where its calls need Python.
    """
    if not isinstance(compiled, jax.stages.Compiled):
        return compiled
    return compiled._executable.create_cpp_call(compiled._params) or compiled


def placed(value: Any, sharding: Any) -> Any:
    """A value of nobody else's where a sharding says, and of the type of such a result of jit.

    ``jax.device_put`` gives back what is there already, whose type may name no mesh.
    """
    moved = jax.device_put(value, sharding)
    if not isinstance(moved, _ArrayImpl):
        return moved
    aval = _core.update_aval_with_sharding(moved.aval, sharding)
    if aval == moved.aval:
        return moved
    return _ArrayImpl(aval, sharding, moved._arrays, committed=True, _skip_checks=True)


def is_compiling(thread: int) -> bool:
    """Whether a thread of this process is in XLA's compiler now."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILER):
            return True
        frame = frame.f_back
    return False

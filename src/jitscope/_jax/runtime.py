"""The JAX at hand: its version, what it can do, and whether it is compiling now."""

from __future__ import annotations

import os
import re
import sys

import jax
from jaxlib import version as _jaxlib_version

VERSION: str = jax.__version__
"""For records. What a version can do is asked of JAX itself, by a flag named for it."""

JAXLIB: tuple[int, ...] = tuple(map(int, re.findall(r"\d+", _jaxlib_version.__version__)[:3]))
"""Of the compiler for CPU, compared with the one that a measurement was made with."""

# True when `jax.jit(inline=...)` takes the `jax.Inline` enumeration (JAX >= 0.11).
# Delete when 0.10 is no longer supported.
HAS_INLINE_ENUM = hasattr(jax, "Inline")


_COMPILER = os.path.join("jax", "_src", "compiler.py")


def is_compiling(thread: int) -> bool:
    """Whether a thread of this process is in XLA's compiler now."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILER):
            return True
        frame = frame.f_back
    return False

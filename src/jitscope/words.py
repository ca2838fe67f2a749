"""Numbers and names in the words that every renderer uses."""

from __future__ import annotations

import math
import os
import re
from typing import Any

_SOURCE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::\d+)?(?P<rest>( \(.*\))?)$", re.DOTALL)

LEGEND = {
    "SHARED": "compiled once, and called",
    "ROLLED": "compiled once, as the body of a loop",
    "STAGED": "compiled on its own, and run by the host",
    "NESTED": "lowered once; XLA copies it to each call",
    "INLINE": "dissolved into its caller",
}
"""What each structure means."""


def count(n: int, one: str, many: str = "") -> str:
    """``1 call``, ``2,000 calls``."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def percent(part: float, whole: float) -> str:
    """A share that reads 0 % or 100 % only where it is."""
    if not whole or not part:
        return "0 %"
    if part == whole:
        return "100 %"
    share = 100 * part / whole
    if 0.5 <= share <= 99.5:
        return f"{math.floor(share + 0.5)} %"  # as the script of the page rounds
    return "<1 %" if share < 50 else ">99 %"


def compiled_alone(n: int, seconds: Any) -> str:
    """How often a subroutine was compiled for calls outside any trace, and how long that took."""
    return (
        f"compiled on its own {count(n, 'time')}: lower {seconds.lower_s:.2f} s, "
        f"compile {seconds.compile_s:.2f} s"
    )


def traced_in(trace_s: float) -> list[str]:
    """A line on how long the traces of a subroutine took, where that is worth one."""
    return [f"  traced in {trace_s:.2f} s, with what it calls"] if trace_s >= 0.1 else []


def size(n_bytes: int) -> str:
    """``512 B``, ``1.5 MB``."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def place(source: str) -> str:
    """``file.py:12`` for ``/somewhere/file.py:12:4 (function)``; a plain word as it is."""
    found = _SOURCE.match(source)
    if not found:
        return source
    return f"{os.path.basename(found['file'].replace(chr(92), '/'))}:{found['line']}"


def printable(text: str) -> str:
    """The text on one line, with characters that would move the cursor made visible."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)

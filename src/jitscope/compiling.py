"""A function compiled as it is, and what the compiler made of it."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

from .hlo import computations_of, kept_units
from .reuse.compiled import Compiled, KeptBody
from .seconds import Seconds

_FUNCTION = re.compile(r"^\s*func\.func ", re.MULTILINE)


def compiled(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> Compiled:
    """Compiles a function and reads the counts from what comes out."""
    clock = [time.perf_counter()]
    traced = jitted.trace(*args, **kwargs)
    clock.append(time.perf_counter())
    lowered = traced.lower()
    clock.append(time.perf_counter())
    executable = lowered.compile()
    clock.append(time.perf_counter())
    trace_s, lower_s, compile_s = (b - a for a, b in zip(clock, clock[1:], strict=False))
    return _counted(
        lowered.as_text(),
        executable.as_text() or "",
        executable.memory_analysis(),
        Seconds(trace_s, 0.0, lower_s, compile_s),
    )


def _counted(stablehlo: str, hlo: str, memory: Any, seconds: Seconds) -> Compiled:
    """Counts of a lowered and compiled program.

    Args:
      stablehlo: text of the lowered program.
      hlo: text of the compiled program.
      memory: what its ``memory_analysis()`` returned, or None.
      seconds: that both took.
    """
    computations = computations_of(hlo)
    kinds = [kind for instructions in computations.values() for kind, _ in instructions]
    kept = kept_units(hlo)

    def n_bytes(name: str) -> int:
        return int(getattr(memory, f"{name}_size_in_bytes", 0) or 0)

    return Compiled(
        seconds=seconds,
        n_functions=len(_FUNCTION.findall(stablehlo)),
        n_instructions=len(kinds),
        n_computations=len(computations),
        n_kept_calls=len(kept),
        n_kept_bodies=len(set(kept)),
        n_fusions=kinds.count("fusion"),
        n_copies=kinds.count("copy"),
        argument_bytes=n_bytes("argument"),
        result_bytes=n_bytes("output"),
        temporary_bytes=n_bytes("temp"),
        code_bytes=n_bytes("generated_code"),
        kept=tuple(KeptBody(unit, n) for unit, n in Counter(kept).items()),
    )

"""Seconds of each phase of a program, from the trace to the compiled program."""

from __future__ import annotations

import dataclasses
import operator


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds of each phase of one program; a phase that did not happen has 0.

    Attributes:
      trace_s: tracing, structuring included.
      structure_s: structuring alone.
      lower_s: lowering to StableHLO.
      compile_s: XLA, or reading the persistent compilation cache.
    """

    trace_s: float = 0.0
    structure_s: float = 0.0
    lower_s: float = 0.0
    compile_s: float = 0.0

    @property
    def cold_s(self) -> float:
        """All of it."""
        return self.trace_s + self.lower_s + self.compile_s

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(*map(operator.sub, dataclasses.astuple(self), dataclasses.astuple(other)))

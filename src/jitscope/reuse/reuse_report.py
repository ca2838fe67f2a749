"""The record of what repeated in programs and what was done about it: data alone.

A `ReuseReport` is made from a live `Reuse`, can be added to another, saved, and turned into
text or a page later and elsewhere. Everything in it is a number, a text, or a tuple of such;
raw counts are stored, totals and shares are properties. It knows nothing of its renderers.
"""

from __future__ import annotations

import dataclasses

from ..seconds import Seconds
from .body_report import ON_EVERY_PLATFORM, BodyReport
from .compiled import Compiled, ForTarget


@dataclasses.dataclass(frozen=True)
class SourceCount:
    """Equations that come from one stack of the user's functions.

    Attributes:
      stack: ``file:line (function)``, outermost first.
      n_before: equations, with every call spelled out.
      n_after: equations that the compiler sees, where shared calls stay calls.
    """

    stack: tuple[str, ...]
    n_before: int
    n_after: int


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """One program: before and after, and its bodies.

    Attributes:
      name: of the function.
      platform: default platform of the process that traced it, such as ``"cpu"``.
      jax_version: of that process.
      n_equations: equations of the program with every call spelled out.
      n_compiled: equations the compiler sees, where shared calls stay calls.
      n_bodies_before: distinct nested functions in the program as it was traced.
      n_bodies_after: distinct nested functions in the restructured program.
      seconds: of each phase so far.
      bodies: in the order in which they are first called.
      lines: equations by source line; empty where the report was made without details.
      compiled: what the compiler made of it, where that was asked for.
      plain: what it makes of the program without jitscope, where that was asked for.
      is_applied: what runs is this structure; False where the program was only looked at.
      notes: what else is to be known about how the report came about.
      for_target: what it makes of the program for a named GPU, where that was asked for.
    """

    name: str
    platform: str
    jax_version: str
    n_equations: int
    n_compiled: int
    n_bodies_before: int
    n_bodies_after: int
    seconds: Seconds
    bodies: tuple[BodyReport, ...]
    lines: tuple[SourceCount, ...] = ()
    compiled: Compiled | None = None
    plain: Compiled | None = None
    is_applied: bool = True
    notes: tuple[str, ...] = ()
    for_target: ForTarget | None = None

    @property
    def n_calls(self) -> int:
        """Calls of all bodies."""
        return sum(body.n_uses for body in self.bodies)

    @property
    def shared(self) -> tuple[BodyReport, ...]:
        """Bodies whose calls stay calls."""
        return tuple(body for body in self.bodies if body.is_shared)

    @property
    def n_shared_calls(self) -> int:
        """Calls that stay calls, where the platform allows it."""
        return sum(body.n_uses for body in self.shared)

    @property
    def keeps_calls(self) -> bool:
        """Whether shared bodies are compiled once, by what is known when tracing."""
        return self.platform == "cpu" or any(
            body.structure in ON_EVERY_PLATFORM for body in self.bodies
        )

    @property
    def n_saved(self) -> int:
        """Equations that the compiler need not see again: the predicted saving.

        Less than 0 where loops copy more values into and out of stacks than they save equations.
        """
        return self.n_equations - self.n_compiled


@dataclasses.dataclass(frozen=True)
class Retrace:
    """Why a shared subroutine was traced once more.

    Attributes:
      reason: what changed since the closest earlier trace.
      n_traces: traces for this reason.
    """

    reason: str
    n_traces: int


@dataclasses.dataclass(frozen=True)
class SubroutineReport:
    """Calls and traces of one shared subroutine in a process.

    Attributes:
      name: of the subroutine.
      source: where it is defined.
      n_calls: calls under a trace.
      n_traces: how often its body was traced.
      n_reused: calls under a trace that needed no trace.
      n_functions: functions with this code that were decorated.
      n_plain_calls: calls that ran as the plain function.
      retraces: reasons of the traces after the first.
      problems: what is likely not as its user wants it.
      n_compiled: how often it was compiled on its own, for calls outside any trace.
      seconds: of its traces, with what it calls, and of compiling it on its own.
    """

    name: str
    source: str
    n_calls: int
    n_traces: int
    n_reused: int
    n_functions: int
    n_plain_calls: int
    retraces: tuple[Retrace, ...] = ()
    problems: tuple[str, ...] = ()
    n_compiled: int = 0
    seconds: Seconds = Seconds()


@dataclasses.dataclass(frozen=True)
class ReuseReport:
    """What repeated in one program or in many, and what was done about it.

    Reports add up: ``a + b`` has the programs and subroutines of both.

    Attributes:
      programs: in the order in which they were traced.
      subroutines: shared subroutines with their counts.
      failures: programs that jitscope left as they were, with the error.
      other: seconds of lowering and compiling anything else, such as plain ``jax.jit`` functions
        and single operations, where they were measured.
    """

    programs: tuple[ProgramReport, ...] = ()
    subroutines: tuple[SubroutineReport, ...] = ()
    failures: tuple[str, ...] = ()
    other: Seconds = Seconds()

    def __add__(self, other: ReuseReport) -> ReuseReport:
        if not isinstance(other, ReuseReport):
            return NotImplemented
        return ReuseReport(
            self.programs + other.programs,
            self.subroutines + other.subroutines,
            self.failures + other.failures,
            self.other + other.other,
        )

    @property
    def n_equations(self) -> int:
        """Equations of all programs with every call spelled out."""
        return sum(program.n_equations for program in self.programs)

    @property
    def n_compiled(self) -> int:
        """Equations the compiler sees of all programs."""
        return sum(program.n_compiled for program in self.programs)

    @property
    def seconds(self) -> Seconds:
        """Of all programs."""
        return sum((program.seconds for program in self.programs), Seconds())

    def __str__(self) -> str:
        from ..report import text  # renderers import records, never the reverse

        return text.render(self)

    def _repr_html_(self) -> str:
        from ..report import html

        return html.notebook(self)

"""The record of what repeated in programs and what was done about it: data alone.

A `ReuseReport` is made from a live `Reuse`, can be added to another, saved, and turned into
text or a page later and elsewhere. Everything in it is a number, a text, or a tuple of such;
raw counts are stored, totals and shares are properties. It knows nothing of its renderers.
"""

from __future__ import annotations

import dataclasses
import operator

_ON_EVERY_PLATFORM = ("ROLLED", "STAGED")
"""Structures whose bodies are compiled once on all platforms."""


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


@dataclasses.dataclass(frozen=True)
class Site:
    """Call sites of a body on one line of the user's code.

    Attributes:
      source: ``file:line (function)``.
      scope: name scope around the call, as profiles show it.
      n_calls: calls made there, where every body around them counts once.
    """

    source: str
    scope: str
    n_calls: int


@dataclasses.dataclass(frozen=True)
class NearMiss:
    """A body that is almost another one, and so is not shared with it.

    Attributes:
      other: digest of the other body.
      name: of the other body.
      source: line of the other body's first call.
      differences: what differs, one text each.
      change: what would merge the two.
      kinds: what sort of differences these are: ``"shape"``, ``"value"`` and so on.
      first_call: as of the other body, see `BodyReport`.
    """

    other: str
    name: str
    source: str
    differences: tuple[str, ...]
    change: str
    kinds: tuple[str, ...] = ()
    first_call: int = 0

    @property
    def is_shape_only(self) -> bool:
        """Whether they differ in shapes alone, which is rarely an oversight."""
        return self.kinds == ("shape",)

    @property
    def is_of_gradient(self) -> bool:
        """Whether they differ only in what a gradient needs of them, which nobody can change."""
        return self.kinds == ("gradient",)


@dataclasses.dataclass(frozen=True)
class BodyReport:
    """One distinct body: its counts, its structure, and why.

    Attributes:
      digest: identity, the same in every process.
      name: of the function it was traced from.
      source: line of its first call.
      n_uses: call sites, where every body around them counts once; of a shared body, the calls
        that stay calls.
      n_executions: how often it runs per call of the program, at least.
      n_equations: equations with everything nested in it.
      n_heavy: matrix products, convolutions, loops and library calls among them.
      operand_bytes: size of the operands of one call.
      result_bytes: size of the results of one call.
      structure: ``INLINE``, ``NESTED``, ``SHARED``, ``ROLLED`` or ``STAGED``.
      reason: why it has this structure.
      outlined: it was found in the program, not marked by a decorator.
      is_backward: all its calls are in the backward pass of a gradient.
      n_traces: traces that its calls were made from, though all are equal.
      sites: where it is called.
      covers: digests of smaller bodies whose calls are calls of this one.
      near_misses: bodies that are almost this one.
      jaxpr: the body as text; empty where the report was made without details.
      is_decorated: it is a shared subroutine of the user.
      first_call: number of its first call among the calls of all bodies of its name.
      operands: types of its operands.
      why_retraced: of a shared subroutine that `is_retraced`, why.
      n_realised: calls of it that are calls in the compiled program, where that was looked at.
    """

    digest: str
    name: str
    source: str
    n_uses: int
    n_executions: int
    n_equations: int
    n_heavy: int
    operand_bytes: int
    result_bytes: int
    structure: str
    reason: str
    outlined: bool
    is_backward: bool = False
    n_traces: int = 1
    sites: tuple[Site, ...] = ()
    covers: tuple[str, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    jaxpr: str = ""
    is_decorated: bool = False
    first_call: int = 0
    operands: tuple[str, ...] = ()
    why_retraced: str = ""
    n_realised: int | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it is compiled once, where the platform allows it."""
        return self.structure in ("SHARED", *_ON_EVERY_PLATFORM)

    @property
    def is_retraced(self) -> bool:
        """Whether about every call was traced anew, though all traces are equal."""
        return self.n_uses > 2 and 2 * self.n_traces > self.n_uses

    @property
    def n_repeated(self) -> int:
        """Equations of its calls after the first."""
        return (self.n_uses - 1) * self.n_equations


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
class KeptBody:
    """A body that is still called in a compiled program.

    Attributes:
      unit: its name there, which ends in the first twelve digits of its digest.
      n_calls: calls of it.
    """

    unit: str
    n_calls: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler made of a program, read from the compiled program.

    Attributes:
      seconds: of trace, lowering and compilation.
      n_functions: functions in the lowered program, the main one included.
      n_instructions: instructions in the optimised program; a body that was compiled once has
        its copy at every call there, put in place after compilation.
      n_computations: computations that hold them.
      n_kept_calls: calls of shared bodies that are still calls.
      n_kept_bodies: distinct bodies that they call.
      n_fusions: fused kernels.
      n_copies: copies of arrays.
      argument_bytes: size of the operands.
      result_bytes: size of the results.
      temporary_bytes: memory needed besides.
      code_bytes: size of the machine code; 0 where the platform does not tell.
      kept: the bodies behind the kept calls.
    """

    seconds: Seconds
    n_functions: int
    n_instructions: int
    n_computations: int
    n_kept_calls: int
    n_kept_bodies: int
    n_fusions: int
    n_copies: int
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    code_bytes: int
    kept: tuple[KeptBody, ...] = ()


@dataclasses.dataclass(frozen=True)
class ForTarget:
    """What the compiler made of a program for a device that need not be there.

    Attributes:
      target: name of the device, such as ``"h200"``.
      seconds: of trace, lowering and compilation.
      n_executables: programs compiled: one, or all stages.
      n_products: kernels of one run that are matrix products.
      n_loop_products: those among them that are plain loops.
      n_fusions: other fused kernels.
      n_others: everything else that one run launches.
      temporary_bytes: the largest temporary memory of an executable.
      peak_bytes: results and temporary values at the worst moment, arguments left out.
    """

    target: str
    seconds: Seconds
    n_executables: int
    n_products: int
    n_loop_products: int
    n_fusions: int
    n_others: int
    temporary_bytes: int
    peak_bytes: int


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
            body.structure in _ON_EVERY_PLATFORM for body in self.bodies
        )

    @property
    def n_saved(self) -> int:
        """Equations that the compiler need not see again: the predicted saving."""
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

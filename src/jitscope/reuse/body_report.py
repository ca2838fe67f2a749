"""The record of one body: its counts, where it is called, its structure, and why.

Data alone, as everything in a `ReuseReport`.
"""

from __future__ import annotations

import dataclasses

ON_EVERY_PLATFORM = ("ROLLED", "STAGED")
"""Structures whose bodies are compiled once on all platforms."""


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
      source: line of its first call, or the first line within it where JAX knows none.
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
      n_of_its_name: calls within it of others of its name, where all of them were found: several
        calls of a function together, or a function and a part of it that repeats.
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
    n_of_its_name: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether it is compiled once, where the platform allows it."""
        return self.structure in ("SHARED", *ON_EVERY_PLATFORM)

    @property
    def is_retraced(self) -> bool:
        """Whether about every call was traced anew, though all traces are equal."""
        return self.n_uses > 2 and 2 * self.n_traces > self.n_uses

    @property
    def n_repeated(self) -> int:
        """Equations of its calls after the first."""
        return (self.n_uses - 1) * self.n_equations

"""The bodies of a program and their counts, as data.

A *body* is a distinct computation used as a subroutine, a *call site* an equation that
calls it. *Uses* are call sites over the call graph of distinct bodies: a body called 4
times in a block that is itself called 48 times has 4 uses. *Executions* are uses times the
executions of what surrounds them, loops included as far as their trip counts are known.
"""

from __future__ import annotations

import dataclasses

from ..ir.fingerprint import Fingerprint


@dataclasses.dataclass(frozen=True)
class Body:
    """A distinct body with its counts.

    Attributes:
      fingerprint: identity of the body.
      name: of the function it was traced from (at its first call site).
      source: user's line of the first call site, or the first line within the body.
      n_uses: call sites, where every body around them counts once.
      n_executions: how often it runs per call of the program, at least.
      n_paths: chains of calls from the program to the body; the number of copies there
        would be if every call were expanded.
      n_equations: equations with everything nested in it.
      n_heavy: those of them that are matrix products, convolutions, loops or library calls.
      operand_bytes: size of the operands of one call.
      result_bytes: size of the results of one call.
      forced: structure that the user asked for, or None.
      obstacle: why calls of it cannot be restructured, or empty.
      outlined: found in the program rather than written as a subroutine.
      calls: digests of the bodies it calls, with the number of call sites in it.
      n_chained: uses that take a result of another use, those of written bodies of some
        size without heavy equations also through element-wise equations between the two.
      n_boundary: operands and results of one call.
      n_residuals: those of them that no neighbour in a chain of calls gives or takes: results, or
        operands in the backward pass of a gradient. 0 for a body that is in no chain.
      n_convolutions: those of the heavy equations that are convolutions.
      n_successive: those of its uses that wait for one another, at most; the others may run side
        by side. All of them for a body without heavy equations, and for one called in chains.
      grows: whether XLA would fuse a chain of its uses into ever larger kernels. None where no use
        is seen to wait for another one with little between them, and for a body of thousands of
        equations.
      n_done_before: heavy equations of a call that the call before it has done, on the same values,
        where one call follows another; not counted in found bodies, out of which they are kept.
      n_draws: equations that draw random bits, which XLA:CPU compiles as a loop for each call,
        and once where calls are kept.
    """

    fingerprint: Fingerprint
    name: str
    source: str
    n_uses: int
    n_executions: int
    n_paths: int
    n_equations: int
    n_heavy: int
    operand_bytes: int
    result_bytes: int
    forced: str | None = None
    obstacle: str = ""
    outlined: bool = False
    calls: tuple[tuple[str, int], ...] = ()
    n_chained: int = 0
    n_boundary: int = 0
    n_residuals: int = 0
    n_convolutions: int = 0
    n_successive: int = 0
    grows: bool | None = None
    n_done_before: int = 0
    n_draws: int = 0

    @property
    def is_chained(self) -> bool:
        """Whether most of its uses take a result of another one."""
        return 2 * self.n_chained >= self.n_uses

    @property
    def is_in_a_row(self) -> bool:
        """Whether most of its uses wait for another one, whatever is between them."""
        return self.is_chained or 2 * self.n_successive >= self.n_uses

    @property
    def n_side_by_side(self) -> int:
        """How many of its uses may run at the same time, on average."""
        return self.n_uses // (self.n_successive or self.n_uses)


@dataclasses.dataclass(frozen=True)
class Census:
    """The bodies of a program, in the order in which they are first called.

    Attributes:
      program: name of the program.
      n_equations: equations of the program with every call spelled out.
      bodies: distinct bodies.
      calls: digests of the bodies that the program itself calls, with the number of call
        sites outside all bodies.
    """

    program: str
    n_equations: int
    bodies: tuple[Body, ...]
    calls: tuple[tuple[str, int], ...] = ()

    @property
    def n_calls(self) -> int:
        """Call sites of all bodies."""
        return sum(body.n_uses for body in self.bodies)

    def __str__(self) -> str:
        lines = [
            f"{self.program}: {self.n_calls} calls of {len(self.bodies)} bodies, "
            f"{self.n_equations} equations"
        ]
        lines += [
            f"  {b.name:<24} {b.fingerprint}  {b.n_uses} uses, {b.n_equations} equations"
            for b in self.bodies
        ]
        return "\n".join(lines)

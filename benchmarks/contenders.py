"""The ways to compile a program that are measured against each other.

A contender says what becomes of the program's repeated body (`share`) and of its outermost function
(`outermost`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax

import jitscope
from benchmarks.programs.program import Case, Fun, Program, Settings, Share


def _unchanged(fun: Fun) -> Fun:
    return fun


def _inlined_late_by_xla(fun: Fun) -> Fun:
    return jax.jit(fun, inline=jax.Inline.XLA_LATE)  # pyright: ignore


@dataclass(frozen=True)
class Contender:
    """One way to compile a program.

    Attributes:
        name: What the command line calls it.
        outermost: What becomes of the outermost function.
        share: What becomes of the program's repeated body.
        scan: Whether it takes the program's hand-written scan instead.
        runs: Whether `measure` can time it; False for what only `gpu_target` compiles.
    """

    name: str
    outermost: Callable[[Fun], Fun]
    share: Share = _unchanged
    scan: bool = False
    runs: bool = True

    @property
    def works_here(self) -> bool:
        """Whether the installed JAX has what the contender needs."""
        return self.share is not _inlined_late_by_xla or hasattr(jax, "Inline")

    def covers(self, program: Program) -> bool:
        """Whether the contender can compile the program, with what is installed."""
        if not (self.works_here and program.works_here):
            return False
        if self.scan:
            return program.make_scan is not None
        return program.has_marks or self.share is _unchanged

    def case(self, program: Program, settings: Settings) -> Case:
        """Builds the program for this contender, its outermost function wrapped to be compiled."""
        if self.scan:
            if program.make_scan is None:
                raise ValueError(f"{program.name} has no hand-written scan; drop this contender")
            case = program.make_scan(**settings)
        else:
            case = program.make(self.share, **settings)
        return Case(self.outermost(case.fun), case.args, case.finish)


# The first is the baseline: the others' results are checked against it. A row is all that a new
# contender needs; every suite, the tests and the plots take it up.
CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("jit", jax.jit),
        Contender("nested_jit", jax.jit, share=jax.jit),
        Contender("xla_late", jax.jit, share=_inlined_late_by_xla),
        Contender("scan", jax.jit, scan=True),
        Contender("outermost_annotated", jitscope.outermost_jit, share=jitscope.shared_subroutine),
        Contender("outermost_plain", jitscope.outermost_jit),
        # Traced, it is not cut into stages yet, so its phases cannot be timed one by one.
        Contender(
            "outermost_staged", functools.partial(jitscope.outermost_jit, staged=True), runs=False
        ),
    )
}
BASELINE = "jit"

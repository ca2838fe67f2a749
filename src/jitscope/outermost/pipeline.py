"""All stages in a row: captured program -> structured program, with what was found and decided."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ..ir.constants import hoisted
from ..ir.literals import with_literals_lifted
from ..ir.program import Program
from ..outlining.outline import outline as with_repeats_outlined
from ..reuse.evidence import Evidence, evidence_of
from ..structuring.census import Census
from ..structuring.counting import take_census
from ..structuring.plan import Plan, Structure
from ..structuring.policy import PolicyLike
from ..structuring.restructure import restructure
from ..structuring.variants import Variants, find_variants

_NO_LOOPS = "not rolled: no loops are made in staged programs"
_NO_STAGES = "not staged: this is one program, and outermost_jit(staged=True) makes stages"


class Structured(NamedTuple):
    """A structured program, and what led to it."""

    program: Program
    census: Census
    plan: Plan
    evidence: Evidence | None


def structured(program: Program, policy: PolicyLike, *, outline: bool, staged: bool) -> Structured:
    """Runs the pipeline.

    Args:
      program: as captured.
      policy: decides the plan.
      outline: whether to look for repeats that nobody marked.
      staged: whether the program is to be cut into stages, which takes calls at the outermost
        level and no loops. What the plan calls shared is then what it can be cut at.

    Raises:
      TypeError: the policy returned something else than a plan.
    """
    as_written = with_literals_lifted(hoisted(program))
    lifted = with_repeats_outlined(as_written) if outline else as_written
    variants = find_variants(lifted)
    census = take_census(lifted, variants)
    plan = policy(census)
    if not isinstance(plan, Plan):
        raise TypeError(
            f"policy must return a jitscope.Plan, got {type(plan).__name__} from {policy!r}."
        )
    if staged:
        from ..staged.plan import with_calls_outermost  # few programs need anything of staged/

        # Kept calls are what the program is cut at.
        plan = plan.replacing(Structure.ROLLED, Structure.SHARED, _NO_LOOPS)
        plan = plan.replacing(Structure.STAGED, Structure.SHARED)
        plan = with_calls_outermost(plan, lifted, variants)
        source, restructured = lifted, restructure(lifted, plan, variants)
    else:
        plan = plan.replacing(Structure.STAGED, Structure.NESTED, _NO_STAGES)
        # Nothing found is used: then XLA gets the equations in their own order.
        source = lifted if _uses_repeats(census, plan) else as_written
        restructured, plan = _restructured(source, plan, variants)
    if source is not lifted:
        # The search left out equations that repeat an earlier one on the same operands.
        census = dataclasses.replace(census, n_equations=source.n_equations)
    evidence = evidence_of(source, lifted, restructured, variants)
    return Structured(restructured, census, plan, evidence)


def _restructured(program: Program, plan: Plan, variants: Variants) -> tuple[Program, Plan]:
    """The program with every call as the plan says, and what became of the plan."""
    if not any(plan[digest].structure is Structure.ROLLED for digest in plan):
        return restructure(program, plan, variants), plan
    from ..rolled.roll import roll  # few programs ask for loops

    return roll(program, plan, variants)


def _uses_repeats(census: Census, plan: Plan) -> bool:
    """Whether repeats that were found, or calls they may lie in, are more than spliced back."""
    structures = ((plan[body.fingerprint.digest].structure, body) for body in census.bodies)
    return any(
        structure is not Structure.INLINE and (body.outlined or structure is not Structure.NESTED)
        for structure, body in structures
    )

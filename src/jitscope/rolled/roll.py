"""Chains of calls become loops: Program x Plan -> Program x Plan.

`roll` gives every call the structure that the plan says, and what the plan wants ROLLED becomes
``lax.scan`` where there are chains of calls: operands that are equal in all calls
stay constants of the loop, those that come from the call before are carried, the others
are rows of stacks. Results that only loops read stay stacked; others are copied out behind
their loop. What cannot be rolled gets the structure that its decision names otherwise.

Loops are made at the outermost level of a program. They have the derivative rules of their body's
first call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from .. import _jax
from ..ir.program import Program, count_equations
from ..names import structure_of
from ..structuring.plan import Decision, LoopLimits, Plan, Structure
from ..structuring.restructure import restructure
from ..structuring.shared_call import shared_call_p
from ..structuring.variants import Variants
from ..words import size
from .chains import Line, find_chains
from .demand import Demand
from .emission import Emission
from .glue import glued

_FEWEST_ASKED_FOR = 2
"""Calls of the shortest chain of a body that its user wants rolled."""


def roll(program: Program, plan: Plan, variants: Variants) -> tuple[Program, Plan]:
    """Restructures a program, loops included.

    Args:
      program: with captured constants already hoisted.
      plan: structures by fingerprint.
      variants: bodies that stand in for others.

    Returns:
      The new program, and the plan that says what became of the bodies that were to be rolled.
    """
    while True:
        restructured = restructure(program, plan, variants)
        wanted = {d[:12]: d for d in plan if plan[d].structure is Structure.ROLLED}
        if not wanted:
            return restructured, plan
        rolled = _rolled(restructured, plan, wanted)
        if not isinstance(rolled, Mapping):
            return rolled
        plan = _with(plan, {d: _otherwise(plan[d], why) for d, why in rolled.items()})


def _with(plan: Plan, decisions: Mapping[str, Decision]) -> Plan:
    return dataclasses.replace(plan, decisions={**plan.decisions, **decisions})


def _otherwise(decision: Decision, why_not: str) -> Decision:
    rolls = decision.otherwise is Structure.ROLLED
    return Decision(
        Structure.NESTED if rolls else decision.otherwise,
        f"{decision.reason}; not rolled: {why_not}",
    )


def _rolled(
    program: Program, plan: Plan, wanted: Mapping[str, str]
) -> tuple[Program, Plan] | dict[str, str]:
    """The program with loops and its plan; or why bodies cannot be rolled, by digest."""

    def digest(unit: str) -> str:
        return wanted.get(unit.rpartition("_")[2], "")

    open_ = _jax.opened(program.jaxpr)
    names = {
        eqn.params["unit"]: eqn.params["name"]
        for eqn in open_.eqns
        if eqn.primitive is shared_call_p and digest(eqn.params["unit"])
    }
    asked_for = {u for u, name in names.items() if structure_of(name) == Structure.ROLLED.value}
    line, found = _with_chains(
        open_.eqns,
        {u: _FEWEST_ASKED_FOR if u in asked_for else plan.loops.min_trip_count for u in names},
    )
    missing = set(wanted.values()) - set(map(digest, names))
    why_not = dict.fromkeys(sorted(missing), "it is not called at the outermost level")
    why_not |= {digest(unit): reason for unit, reason in found.items()}
    if why_not:
        return why_not
    demand = Demand(line, open_.outvars)
    refused = _too_dear(demand, plan.loops, set(map(digest, asked_for)), digest)
    if refused:
        return refused
    jaxpr = Emission(demand).jaxpr(program.jaxpr)
    decisions = dict(plan.decisions)
    for loop in demand.loops:
        d = digest(loop.chain.unit)
        note = f"{len(loop.chain)} calls are a loop, stacking copies"
        reason = f"{decisions[d].reason}; {note} {size(demand.cost(loop).copied_bytes)}"
        decisions[d] = dataclasses.replace(decisions[d], reason=reason)
    return dataclasses.replace(program, jaxpr=jaxpr), _with(plan, decisions)


def _with_chains(eqns: Sequence[Any], fewest: Mapping[str, int]) -> tuple[Line, dict[str, str]]:
    """As `find_chains`; calls that do not feed each other are tried with their glue."""
    line, why_not = find_chains(eqns, fewest)
    for unit in list(why_not):
        larger = glued(line, unit)
        if larger is None:
            continue
        with_chains, found_none = find_chains(larger.line, {larger.unit: fewest[unit]})
        if not found_none:
            line = larger.taken_apart(with_chains)
            del why_not[unit]
    return line, why_not


def _too_dear(
    demand: Demand, limits: LoopLimits, asked_for: Set[str], digest: Callable[[str], str]
) -> dict[str, str]:
    """A body whose loop copies too much, with the reason; empty if there is none."""
    memo: dict[int, int] = {}
    for loop in demand.loops:
        body = digest(loop.chain.unit)
        n_copies = demand.cost(loop).n_copies
        n_saved = (len(loop.chain) - 1) * count_equations(loop.chain.body, memo)
        if n_copies * limits.min_saved_per_copy > n_saved and body not in asked_for:
            return {
                body: f"its loop would save {n_saved} equations and copy {n_copies} values into "
                f"and out of stacks, it pays from {limits.min_saved_per_copy} a value"
            }
    if demand.copied_bytes <= limits.max_stacked_bytes:
        return {}
    dearest = max(demand.loops, key=lambda loop: demand.cost(loop).copied_bytes)
    return {
        digest(dearest.chain.unit): f"stacking would copy {size(demand.copied_bytes)} a run, "
        f"at most {size(limits.max_stacked_bytes)} are allowed"
    }

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
from collections.abc import Mapping

from .. import _jax
from ..ir.program import Program, count_equations
from ..names import structure_of
from ..structuring.policy import Decision, LoopLimits, Plan, Structure
from ..structuring.restructure import restructure
from ..structuring.shared_call import shared_call_p
from ..structuring.variants import Variants
from .chains import find_chains
from .demand import Demand
from .emission import Emission
from .glue import glued
from .stacks import Loop

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


def without_loops(plan: Plan) -> Plan:
    """The plan with the calls kept that were to be rolled, for stages."""
    return _with(
        plan,
        {
            digest: dataclasses.replace(plan[digest], structure=Structure.SHARED)
            for digest in plan
            if plan[digest].structure is Structure.ROLLED
        },
    )


def _with(plan: Plan, decisions: Mapping[str, Decision]) -> Plan:
    return dataclasses.replace(plan, decisions={**plan.decisions, **decisions})


def _otherwise(decision: Decision, why_not: str) -> Decision:
    return Decision(decision.otherwise, f"{decision.reason}; not rolled: {why_not}")


def _rolled(
    program: Program, plan: Plan, wanted: Mapping[str, str]
) -> tuple[Program, Plan] | dict[str, str]:
    """The program with loops and its plan; or why bodies cannot be rolled, by digest."""
    open_ = _jax.opened(program.jaxpr)

    def digest(unit: str) -> str:
        return wanted.get(unit.rpartition("_")[2], "")

    fewest: dict[str, int] = {}
    for eqn in open_.eqns:
        if eqn.primitive is shared_call_p and digest(eqn.params["unit"]):
            asked_for = structure_of(eqn.params["name"]) == Structure.ROLLED.value
            fewest[eqn.params["unit"]] = (
                _FEWEST_ASKED_FOR if asked_for else plan.loops.min_trip_count
            )
    why_not = dict.fromkeys(wanted.values(), "it is not called at the outermost level")
    for unit in fewest:
        why_not.pop(digest(unit), None)
    line, found = find_chains(open_.eqns, fewest)
    for unit in list(found):
        larger = glued(line, unit)
        if larger is None:
            continue
        with_chains, found_none = find_chains(larger.line, {larger.unit: fewest[unit]})
        if not found_none:
            line = larger.taken_apart(with_chains)
            del found[unit]
    why_not |= {digest(unit): reason for unit, reason in found.items()}
    if why_not:
        return why_not
    demand = Demand(line, open_.outvars)
    refused = _too_dear(demand, plan.loops)
    if refused is not None:
        return {digest(refused[0].chain.unit): refused[1]}
    jaxpr = Emission(demand).jaxpr(program.jaxpr)
    notes: dict[str, list[str]] = {}
    for loop in demand.loops:
        notes.setdefault(digest(loop.chain.unit), []).append(
            f"{len(loop.chain)} calls are a loop, stacking copies "
            f"{_size(demand.cost(loop).copied_bytes)}"
        )
    decisions = {
        d: dataclasses.replace(plan[d], reason="; ".join([plan[d].reason, *lines]))
        for d, lines in notes.items()
    }
    return dataclasses.replace(program, jaxpr=jaxpr), _with(plan, decisions)


def _too_dear(demand: Demand, limits: LoopLimits) -> tuple[Loop, str] | None:
    """A loop that copies too much, and the reason in words."""
    memo: dict[int, int] = {}
    for loop in demand.loops:
        n_copies = demand.cost(loop).n_copies
        n_saved = (len(loop.chain) - 1) * count_equations(loop.chain.body, memo)
        if n_copies * limits.min_saved_per_copy > n_saved:
            return loop, (
                f"its loop would save {n_saved} equations and copy {n_copies} values into and out "
                f"of stacks, it pays from {limits.min_saved_per_copy} a value"
            )
    if demand.copied_bytes <= limits.max_stacked_bytes:
        return None
    dearest = max(demand.loops, key=lambda loop: demand.cost(loop).copied_bytes)
    return dearest, (
        f"stacking would copy {_size(demand.copied_bytes)} a run, "
        f"at most {_size(limits.max_stacked_bytes)} are allowed"
    )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.3g} MB"

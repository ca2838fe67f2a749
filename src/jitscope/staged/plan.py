"""What a plan says of a program that is to run in stages: which bodies are ones, or why none is."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _jax
from ..ir.fingerprint import fingerprint
from ..ir.program import Program, live_equations
from ..structuring.plan import Decision, Plan, Structure
from ..structuring.shared_call import shared_call_p
from ..structuring.variants import Variants
from .stages import can_cross, kept_bodies


def obstacle(program: Program) -> str:
    """Why a restructured program has to be compiled as one, or empty."""
    jaxpr = program.jaxpr
    if _jax.has_ordered_effects(jaxpr):
        return "the program has effects in an order that only one executable keeps"
    if _jax.has_input_effects(jaxpr):
        return "the program reads or writes a Ref"
    if any(isinstance(value, _jax.Tracer) for value in _jax.consts(jaxpr)):
        return "the program captures tracers"
    for eqn in _jax.equations(jaxpr):
        for atom in (*eqn.invars, *eqn.outvars):
            if not can_cross(atom.aval):
                return f"a value of type {atom.aval} cannot pass between executables"
    if program.boundary is not None and program.boundary.has_layouts:
        return "its options ask for layouts"
    open_ = _jax.opened(jaxpr)
    if not kept_bodies(live_equations(open_.eqns, open_.outvars)):
        return "no body that repeats is called from the outermost level"
    return ""


def with_calls_outermost(plan: Plan, program: Program, variants: Variants) -> Plan:
    """The plan with those calls dissolved that hide kept calls from the outermost level.

    Args:
      plan: of the program.
      program: before it is restructured.
      variants: bodies that stand in for others.
    """
    dissolved: dict[str, Decision] = {}
    known: dict[int, bool] = {}

    def has_kept_calls(jaxpr: _jax.AnyJaxpr) -> bool:
        if id(jaxpr) not in known:
            # A list, so that every call is looked into.
            known[id(jaxpr)] = any(
                [
                    is_or_has_kept(eqn)
                    for eqn in _jax.equations(jaxpr)
                    if eqn.primitive is _jax.jit_p
                ]
            )
        return known[id(jaxpr)]

    def is_or_has_kept(eqn: Any) -> bool:
        digest = variants.canonical(fingerprint(eqn.params["jaxpr"]).digest)
        planned = plan[digest]
        if planned.structure is Structure.SHARED or not has_kept_calls(eqn.params["jaxpr"]):
            return planned.structure is Structure.SHARED
        if planned.structure is Structure.NESTED:
            dissolved[digest] = Decision(
                Structure.INLINE, f"{planned.reason}; calls within it become stages"
            )
        return True

    has_kept_calls(program.jaxpr)
    return Plan({**plan.decisions, **dissolved}) if dissolved else plan


def with_stages(plan: Plan, program: Program) -> Plan:
    """The plan of a restructured program that runs in stages."""
    open_ = _jax.opened(program.jaxpr)
    live = live_equations(open_.eqns, open_.outvars)
    kept = kept_bodies(live)
    units = {
        eqn.params["unit"].rpartition("_")[2]
        for eqn in live
        if eqn.primitive is shared_call_p and id(eqn.params["shared"]) in kept
    }

    def staged(digest: str) -> Decision:
        if digest[:12] in units:
            return dataclasses.replace(plan[digest], structure=Structure.STAGED)
        return plan[digest]

    return Plan({digest: staged(digest) for digest in plan})


def without_stages(plan: Plan, why_not: str) -> Plan:
    """The plan of a restructured program that is compiled as one all the same."""

    def unstaged(decision: Decision) -> Decision:
        if decision.structure is Structure.INLINE:
            return decision
        return dataclasses.replace(decision, reason=f"{decision.reason}; not staged: {why_not}")

    return Plan({digest: unstaged(plan[digest]) for digest in plan})

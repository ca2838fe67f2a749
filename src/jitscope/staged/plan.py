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
    dissolver = _Dissolver(plan, variants)
    dissolver.has_kept_calls(program.jaxpr)
    return Plan({**plan.decisions, **dissolver.dissolved}) if dissolver.dissolved else plan


class _Dissolver:
    """Looks for the calls that hide kept calls, each distinct jaxpr once."""

    def __init__(self, plan: Plan, variants: Variants) -> None:
        self.dissolved: dict[str, Decision] = {}
        self._plan = plan
        self._variants = variants
        self._known: dict[int, bool] = {}

    def has_kept_calls(self, jaxpr: _jax.AnyJaxpr) -> bool:
        if id(jaxpr) not in self._known:
            calls = (eqn for eqn in _jax.equations(jaxpr) if eqn.primitive is _jax.jit_p)
            # A list, so that every call is looked into.
            self._known[id(jaxpr)] = any([self._is_or_has_kept(call) for call in calls])
        return self._known[id(jaxpr)]

    def _is_or_has_kept(self, call: Any) -> bool:
        digest = self._variants.canonical(fingerprint(call.params["jaxpr"]).digest)
        planned = self._plan[digest]
        if planned.structure is Structure.SHARED:
            return True
        if not self.has_kept_calls(call.params["jaxpr"]):
            return False
        if planned.structure is Structure.NESTED:
            self.dissolved[digest] = Decision(
                Structure.INLINE, f"{planned.reason}; calls within it become stages"
            )
        return True


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

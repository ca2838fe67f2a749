"""The live record of what repeats in a program and what was done about it."""

from __future__ import annotations

import dataclasses

import jax

from .. import _jax
from ..structuring.census import Body, Census
from ..structuring.policy import Plan, Structure
from .evidence import Evidence
from .near_misses import Candidate, Statics, near_misses
from .phases import Phases
from .retraces import static_values
from .reuse_report import BodyReport, NearMiss, ProgramReport, ReuseReport

_COMPILED_ONCE = (Structure.SHARED, Structure.STAGED)


@dataclasses.dataclass(frozen=True)
class Reuse:
    """Census, plan and phases of the latest program of an outermost function.

    `report()` is a frozen copy of it, to be kept, added up, saved or shown.

    Attributes:
      census: what repeats.
      plan: what was decided.
      phases: seconds spent; filled in as JAX lowers and compiles.
      evidence: the program before and after, for call sites and the like, where kept.
    """

    census: Census
    plan: Plan
    phases: Phases
    evidence: Evidence | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def n_shared_calls(self) -> int:
        """Calls that stay calls where the platform allows it."""
        return sum(body.n_uses for body in self._shared)

    @property
    def _shared(self) -> list[Body]:
        return [
            body
            for body in self.census.bodies
            if self.plan[body.fingerprint.digest].structure in _COMPILED_ONCE
        ]

    def report(self, *, details: bool = True, statics: Statics | None = None) -> ReuseReport:
        """The record as it is now, as plain data.

        Args:
          details: with call sites, the jaxpr of each body and the equations by source line.
          statics: static values of subroutines by definition, which near misses are named after;
            by default those of this process.
        """
        return ReuseReport((program_report(self, details, statics),))

    def __str__(self) -> str:
        from ..report import text  # renderers import records, never the reverse

        return text.render(self.report(details=False))

    def _repr_html_(self) -> str:
        from ..report import html

        return html.notebook(self.report())


def program_report(reuse: Reuse, details: bool, statics: Statics | None = None) -> ProgramReport:
    """One program as plain data; see `Reuse.report`."""
    census, evidence = reuse.census, reuse.evidence
    n_repeated = sum((body.n_uses - 1) * body.n_equations for body in reuse._shared)
    missed = _near_misses(reuse, statics)
    return ProgramReport(
        name=census.program,
        platform=jax.default_backend(),
        jax_version=_jax.VERSION,
        n_equations=census.n_equations,
        n_compiled=evidence.n_compiled if evidence else census.n_equations - n_repeated,
        n_bodies_before=evidence.n_bodies_before if evidence else len(census.bodies),
        n_bodies_after=evidence.n_bodies_after if evidence else len(census.bodies),
        seconds=reuse.phases.seconds,
        bodies=tuple(_body_report(reuse, body, details, missed) for body in census.bodies),
        lines=evidence.lines() if evidence and details else (),
    )


def _body_report(
    reuse: Reuse, body: Body, details: bool, missed: dict[str, tuple[NearMiss, ...]]
) -> BodyReport:
    digest, evidence = body.fingerprint.digest, reuse.evidence
    decision = reuse.plan[digest]
    return BodyReport(
        digest=digest,
        name=body.name,
        source=body.source,
        n_uses=body.n_uses,
        n_executions=body.n_executions,
        n_equations=body.n_equations,
        n_heavy=body.n_heavy,
        operand_bytes=body.operand_bytes,
        result_bytes=body.result_bytes,
        structure=str(decision.structure),
        reason=decision.reason,
        outlined=body.outlined,
        is_backward=evidence.is_backward(digest) if evidence else False,
        n_traces=evidence.n_traces(digest) if evidence else 1,
        sites=evidence.sites(digest) if evidence and details else (),
        covers=evidence.covered_by(digest) if evidence else (),
        near_misses=missed.get(digest, ()),
        jaxpr=evidence.jaxpr_text(digest) if evidence and details else "",
    )


def _near_misses(reuse: Reuse, statics: Statics | None) -> dict[str, tuple[NearMiss, ...]]:
    evidence = reuse.evidence
    if evidence is None:
        return {}
    if statics is None:
        statics = static_values()
    return near_misses(
        [
            Candidate(
                digest, body.name, body.source, evidence.definition(digest), evidence.bodies[digest]
            )
            for body in reuse.census.bodies
            if (digest := body.fingerprint.digest) in evidence.bodies
        ],
        statics,
    )

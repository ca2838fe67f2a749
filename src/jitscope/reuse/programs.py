"""One program as plain data: Reuse -> ProgramReport."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import jax

from .. import _jax
from ..structuring.census import Body, Census
from .body_report import BodyReport, NearMiss, Site
from .evidence import Evidence
from .near_misses import Candidate, Subroutines, near_misses
from .notes import notes
from .retraces import subroutine_stats
from .reuse import Reuse
from .reuse_report import ProgramReport, SourceCount

_MAX_SITES = 256
"""Lines shown for one body; an outlined update of a large model is called from one line."""


def program_report(reuse: Reuse, details: bool) -> ProgramReport:
    """One program as plain data; see `Reuse.report`."""
    census, evidence = reuse.census, reuse.evidence
    n_repeated = sum((reuse.n_uses(body) - 1) * body.n_equations for body in reuse._shared)
    subroutines = subroutine_stats()
    missed = _near_misses(reuse, subroutines)
    return ProgramReport(
        name=census.program,
        platform=jax.default_backend(),
        jax_version=_jax.VERSION,
        n_equations=census.n_equations,
        n_compiled=evidence.n_compiled if evidence else census.n_equations - n_repeated,
        n_bodies_before=evidence.n_bodies_before if evidence else len(census.bodies),
        n_bodies_after=evidence.n_bodies_after if evidence else len(census.bodies),
        seconds=reuse.phases.seconds,
        bodies=tuple(
            _with_evidence(evidence, _body_report(reuse, body), subroutines, missed, details)
            if evidence and body.fingerprint.digest in evidence.bodies
            else _body_report(reuse, body)
            for body in census.bodies
        ),
        lines=_lines(evidence) if evidence and details else (),
        is_applied=reuse.is_applied,
        notes=notes(evidence) if evidence else (),
    )


def _body_report(reuse: Reuse, body: Body) -> BodyReport:
    decision = reuse.plan[body.fingerprint.digest]
    return BodyReport(
        digest=body.fingerprint.digest,
        name=body.name,
        source=body.source,
        n_uses=reuse.n_uses(body),
        n_executions=body.n_executions,
        n_equations=body.n_equations,
        n_heavy=body.n_heavy,
        operand_bytes=body.operand_bytes,
        result_bytes=body.result_bytes,
        structure=str(decision.structure),
        reason=decision.reason,
        outlined=body.outlined,
        n_of_its_name=_n_of_its_name(reuse.census, body),
    )


def _n_of_its_name(census: Census, body: Body) -> int:
    if not (body.outlined and body.calls):
        return 0
    alike = {b.fingerprint.digest for b in census.bodies if b.outlined and b.name == body.name}
    return sum(n for digest, n in body.calls if digest in alike)


def _with_evidence(
    evidence: Evidence,
    report: BodyReport,
    subroutines: Subroutines,
    missed: dict[str, tuple[NearMiss, ...]],
    details: bool,
) -> BodyReport:
    digest = report.digest
    is_decorated, n_traces = evidence.is_decorated(digest), evidence.n_traces(digest)
    stats = subroutines.get(evidence.definition(digest)) if is_decorated else None
    if is_decorated:
        # Variants that a gradient made are no traces of the user's code, whose number is known.
        n_traces = evidence.n_traces(digest, with_variants=True)
        n_traces = min(n_traces, stats.n_traces) if stats else 1
    report = dataclasses.replace(
        report,
        name=evidence.name(digest),
        is_backward=evidence.is_backward(digest),
        n_traces=max(n_traces, 1),
        sites=_sites(evidence, digest) if details else (),
        covers=evidence.covered_by(digest),
        near_misses=missed.get(digest, ()),
        jaxpr=evidence.jaxpr_text(digest) if details else "",
        is_decorated=is_decorated,
        first_call=evidence.first_call(digest),
        operands=evidence.operands(digest),
    )
    reasons = collections.Counter(stats.retrace_reasons).most_common(1) if stats else []
    if report.is_retraced and reasons:
        report = dataclasses.replace(report, why_retraced=reasons[0][0])
    return report


def _near_misses(reuse: Reuse, subroutines: Subroutines) -> dict[str, tuple[NearMiss, ...]]:
    evidence = reuse.evidence
    if evidence is None:
        return {}
    return near_misses(
        [
            Candidate(
                digest,
                evidence.name(digest),
                body.source,
                evidence.definition(digest),
                evidence.bodies[digest],
                evidence.first_call(digest),
                evidence.is_backward(digest),
                evidence.is_differentiated(digest),
            )
            for body in reuse.census.bodies
            if (digest := body.fingerprint.digest) in evidence.bodies
            and not evidence.is_of_jax(digest)
        ],
        subroutines,
    )


def _sites(evidence: Evidence, digest: str) -> tuple[Site, ...]:
    sites = itertools.islice(evidence.sites(digest).items(), _MAX_SITES)
    return tuple(Site(source, scope, n_calls) for (source, scope), n_calls in sites)


def _lines(evidence: Evidence) -> tuple[SourceCount, ...]:
    before, after = evidence.lines()
    return tuple(SourceCount(stack, before[stack], after[stack]) for stack in {**before, **after})

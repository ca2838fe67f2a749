"""What an audit finds: calls of shared subroutines, each traced anew -> AuditReport."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from . import _jax
from .reuse.differences import compare
from .settings import not_counting
from .trail import TracedCall, Trail, keeping_trail

_MAX_DIFFERENCES = 4
"""Differences that a finding tells."""


@dataclasses.dataclass(frozen=True)
class AuditFinding:
    """A shared subroutine whose calls do not all compute the same.

    Attributes:
      name: of the subroutine.
      source: where it is defined.
      n_calls: calls of one signature.
      n_distinct: distinct bodies they trace to; sharing gives all of them the first.
      sites: lines of the calls that trace to another body than the first call.
      differences: what differs from the first, one text each.
      is_held: the first is no call of this program but the trace that an earlier one left, which
        all calls are given; it counts among ``n_distinct``.
    """

    name: str
    source: str
    n_calls: int
    n_distinct: int
    sites: tuple[str, ...]
    differences: tuple[str, ...]
    is_held: bool = False


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
      program: name of the function.
      n_calls: calls of shared subroutines that were traced anew.
      n_signatures: distinct subroutines and signatures among them.
      findings: subroutines that depend on hidden state.
      plain: subroutines with calls that ran as the plain function, which share nothing, and why.
    """

    program: str
    n_calls: int
    n_signatures: int
    findings: tuple[AuditFinding, ...]
    plain: tuple[tuple[str, str], ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether sharing changes nothing."""
        return not self.findings

    def __str__(self) -> str:
        from .report import findings  # renderers import records, never the reverse

        return findings.render(self)


def audited(
    fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any], static: dict[str, Any], name: str
) -> AuditReport:
    """As `audit`, with the options of ``jax.jit`` that say what is static."""

    @functools.wraps(fun)
    def fresh(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    with keeping_trail() as trail, not_counting():
        _jax.trace(fresh, args, kwargs, static)
    return _report(trail, name)


def _report(trail: Trail, name: str) -> AuditReport:
    findings = [
        _finding(key, calls, trail.held.get(key))
        for key, calls in trail.calls.items()
        if len({call.digest for call in _compared(calls, trail.held.get(key))}) > 1
    ]
    return AuditReport(
        name,
        n_calls=sum(map(len, trail.calls.values())),
        n_signatures=len(trail.calls),
        findings=tuple(findings),
        plain=tuple((str(subroutine), reason) for subroutine, reason in trail.plain.items()),
    )


def _compared(calls: Sequence[TracedCall], held: TracedCall | None) -> list[TracedCall]:
    return [*([] if held is None else [held]), *calls]


def _finding(
    key: tuple[Any, Hashable], calls: Sequence[TracedCall], held: TracedCall | None
) -> AuditFinding:
    first, *_ = compared = _compared(calls, held)
    others = [call for call in calls if call.digest != first.digest]
    found = compare(others[0].jaxpr, first.jaxpr, {})
    texts = tuple(difference.text for difference in found[:_MAX_DIFFERENCES])
    return AuditFinding(
        name=str(key[0]),
        source=key[0].source,
        n_calls=len(calls),
        n_distinct=len({call.digest for call in compared}),
        sites=tuple(dict.fromkeys(call.source for call in others)),
        differences=texts or ("it computes something else altogether",),
        is_held=held is not None,
    )

"""The live record of what repeats in a program and what was done about it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from ..phases import Phases
from ..structuring.callgraph import CallGraph
from ..structuring.census import Body, Census
from ..structuring.plan import Plan, Structure
from .evidence import Evidence

if TYPE_CHECKING:
    from .reuse_report import ReuseReport

_COMPILED_ONCE = (Structure.SHARED, Structure.ROLLED, Structure.STAGED)


@dataclasses.dataclass(frozen=True)
class Reuse:
    """Census, plan and phases of the latest program of an outermost function.

    `report()` is a frozen copy of it, to be kept, added up, saved or shown.

    Attributes:
      census: what repeats.
      plan: what was decided.
      phases: seconds spent; filled in as JAX lowers and compiles.
      evidence: the program before and after, for call sites and the like, where kept.
      is_applied: the program that runs is structured so, rather than only looked at.
    """

    census: Census
    plan: Plan
    phases: Phases
    evidence: Evidence | None = dataclasses.field(default=None, repr=False, compare=False)
    is_applied: bool = True

    @property
    def n_shared_calls(self) -> int:
        """Calls that stay calls where the platform allows it."""
        return sum(self.n_uses(body) for body in self._shared)

    def n_uses(self, body: Body) -> int:
        """Uses of a body; of a shared one, the calls that stay calls."""
        return self._kept_uses.get(body.fingerprint.digest) or body.n_uses

    @functools.cached_property
    def _kept_uses(self) -> dict[str, int]:
        digests = {body.fingerprint.digest for body in self._shared}
        uses = CallGraph(self.census).uses_outside(digests) if digests else {}
        return {digest: uses[digest] for digest in digests}

    @property
    def _shared(self) -> list[Body]:
        return [
            body
            for body in self.census.bodies
            if self.plan[body.fingerprint.digest].structure in _COMPILED_ONCE
        ]

    def report(self, *, details: bool = True) -> ReuseReport:
        """The record as it is now, as plain data.

        Args:
          details: with call sites, the jaxpr of each body and the equations by source line.
        """
        # Reports and what fills them take 13 ms to import, and few programs are asked about.
        from .programs import program_report
        from .reuse_report import ReuseReport

        return ReuseReport((program_report(self, details),))

    def __str__(self) -> str:
        from ..report import text  # renderers import records, never the reverse

        return text.render(self.report(details=False))

    def _repr_html_(self) -> str:
        from ..report import html

        return html.notebook(self.report())

"""What a report shows of a program beyond its census: (Programs, Variants) -> facts.

*Evidence* is what must be taken down while a program is traced: what it calls, once per
distinct body and without the values it captures, and counts of its equations. The rest is
found out when a report is asked for.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

from .. import _jax
from ..ir.fingerprint import fingerprint
from ..ir.program import Program, count_equations
from ..names import OutlinedName, SubroutineName, is_outlined
from ..structuring.call_sites import CallSite, call_sites
from ..structuring.variants import Variants
from ..subroutine.reasons import type_text
from .lines import Counts, counted

_MAX_LINES = 400
"""Lines of a body's jaxpr that are kept."""
_MAX_PRINTED = 100_000
"""Equations of a body that is printed at all: JAX's printer follows every path of calls."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The calls of a program, and its equations counted before and after restructuring.

    Attributes:
      program: with constants hoisted and repeats outlined; calls that were found share the
        jaxpr of their body.
      variants: bodies that stand in for others.
      n_constants: operands of ``program``, the first ones, that are values it captured.
      before: equations by traceback of what was restructured.
      after: likewise when restructured, with kept bodies counted once.
      n_bodies_after: distinct nested functions of the restructured program.
    """

    program: _jax.AnyJaxpr
    variants: Variants
    n_constants: int
    before: Counts
    after: Counts
    n_bodies_after: int

    @functools.cached_property
    def bodies(self) -> dict[str, Any]:
        """Digest of every body before restructuring to its jaxpr."""
        found: dict[str, Any] = {}
        for _, site in self._sites:
            digest = self.variants.canonical(site.identity.digest)
            found.setdefault(digest, self.variants.bodies.get(digest, site.jaxpr))
        return found

    @functools.cached_property
    def n_bodies_before(self) -> int:
        """Distinct nested functions of the program as traced: those found in it are none."""
        return len(
            {
                site.identity.digest
                for _, site in self._sites
                if not is_outlined(site.eqn.params["name"])
            }
        )

    @functools.cached_property
    def _sites(self) -> list[tuple[str, CallSite]]:
        """Every call site, with the digest of the body that it lies in."""
        found: list[tuple[str, CallSite]] = []
        seen: set[str] = set()
        waiting: list[tuple[str, Any]] = [("", self.program)]
        while waiting:
            caller, jaxpr = waiting.pop(0)
            for site in call_sites(jaxpr):
                found.append((caller, site))
                digest = self.variants.canonical(site.identity.digest)
                if digest not in seen:
                    seen.add(digest)
                    waiting.append((digest, self.variants.bodies.get(digest, site.jaxpr)))
        return found

    @functools.cached_property
    def eqns_of_bodies(self) -> dict[str, list[Any]]:
        """Digest of every body to the equations that call it."""
        return {digest: [s.eqn for s in sites] for digest, sites in self._sites_of_bodies.items()}

    @functools.cached_property
    def _sites_of_bodies(self) -> dict[str, list[CallSite]]:
        found: dict[str, list[CallSite]] = {}
        for _, site in self._sites:
            digest = self.variants.canonical(site.identity.digest)
            found.setdefault(digest, []).append(site)
        return found

    def sites(self, digest: str) -> Counts:
        """Call sites of a body by line and name scope."""
        return collections.Counter(
            (_jax.source_line_of_call(eqn), str(eqn.source_info.name_stack))
            for eqn in self.eqns_of_bodies.get(digest, ())
        )

    def n_traces(self, digest: str, *, with_variants: bool = False) -> int:
        """Traces that the calls of a body were made from; derivatives may add a few.

        Args:
          digest: of the body.
          with_variants: counts those of bodies that this one stands in for, too.
        """
        return (
            len(
                {
                    id(eqn.params["jaxpr"])
                    for eqn in self.eqns_of_bodies.get(digest, ())
                    if not is_outlined(eqn.params["name"])
                    and (with_variants or fingerprint(eqn.params["jaxpr"]).digest == digest)
                }
            )
            or 1
        )

    def name(self, digest: str) -> str:
        """Name of the user's function behind a body, whichever pass of a gradient it is of."""
        name = self._names(digest)[0]
        return name.function if isinstance(name, OutlinedName) else str(name)

    def definition(self, digest: str) -> str:
        """``file:line`` where the subroutine behind a body is defined, if there is one."""
        return getattr(self._names(digest)[0], "source", "")

    def is_decorated(self, digest: str) -> bool:
        """Whether a body is that of a shared subroutine."""
        names = self._names(digest)
        return any(isinstance(name, SubroutineName) and not is_outlined(name) for name in names)

    def is_of_jax(self, digest: str) -> bool:
        """Whether a body is a function of JAX itself, such as the ``_where`` in ``jnp.where``."""
        return _jax.is_function_of_jax(self.bodies[digest])

    def is_backward(self, digest: str) -> bool:
        """Whether all calls of a body are in the backward pass of a gradient."""
        return digest not in self._forward

    @functools.cached_property
    def _forward(self) -> set[str]:
        """Digests of the bodies that a forward pass calls, itself or within other bodies."""
        calls: dict[str, list[str]] = {}
        for caller, site in self._sites:
            if not site.is_backward:
                digest = self.variants.canonical(site.identity.digest)
                calls.setdefault(caller, []).append(digest)
        found: set[str] = set()
        waiting = [""]
        while waiting:
            new = set(calls.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return found

    def is_differentiated(self, digest: str) -> bool:
        """Whether a body is called, in part or as a whole, where a gradient is taken."""
        inside = _jax.equations(self.bodies[digest])
        return any(
            "jvp(" in str(eqn.source_info.name_stack)
            for eqn in (*self.eqns_of_bodies[digest], *inside)
        )

    def operands(self, digest: str) -> tuple[str, ...]:
        """Types of the operands of a body."""
        return tuple(type_text(var.aval) for var in _jax.opened(self.bodies[digest]).invars)

    def first_call(self, digest: str) -> int:
        """Number of a body's first call among all calls of its name in that pass of a gradient."""
        return self._first_calls[digest]

    @functools.cached_property
    def _first_calls(self) -> dict[str, int]:
        numbers: Counts = collections.Counter()
        found: dict[str, int] = {}
        for _, site in self._sites:
            digest = self.variants.canonical(site.identity.digest)
            title = self.name(digest), self.is_backward(digest)
            numbers[title] += 1
            found.setdefault(digest, numbers[title])
        return found

    def _names(self, digest: str) -> list[str]:
        return [eqn.params["name"] for eqn in self.eqns_of_bodies[digest]]

    def jaxpr_text(self, digest: str) -> str:
        """A body as JAX prints it, cut where it is very long."""
        jaxpr = self.bodies.get(digest)
        if jaxpr is None:
            return ""
        n_equations = count_equations(jaxpr, {})
        if n_equations > _MAX_PRINTED:
            return f"{n_equations:,} equations with every call spelled out: too many to show"
        lines = str(_jax.opened(jaxpr)).split("\n")
        if len(lines) > _MAX_LINES:
            lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} lines more"]
        return "\n".join(lines)

    def covered_by(self, digest: str) -> tuple[str, ...]:
        """Bodies whose calls are calls of this one."""
        return tuple(small for small, cover in self.variants.covers.items() if cover.body == digest)

    @property
    def n_compiled(self) -> int:
        """Equations of the restructured program with kept bodies counted once."""
        return self.after.total()

    def lines(self) -> tuple[Counts, Counts]:
        """Equations by the user's functions and lines, before and after."""
        return _by_stack(self.before), _by_stack(self.after)


def evidence_of(
    source: Program, lifted: Program, restructured: Program, variants: Variants
) -> Evidence | None:
    """Evidence without the values that the program captures; None if it holds tracers.

    Tracers belong to a trace under way, which must not be kept alive.

    Args:
      source: what was restructured: ``lifted``, or as traced where nothing found is used.
      lifted: with constants hoisted and repeats outlined.
      restructured: as it is compiled.
      variants: bodies that stand in for others.
    """
    values = (*_jax.consts(lifted.jaxpr), *_jax.consts(restructured.jaxpr))
    if any(isinstance(value, _jax.Tracer) for value in values):
        return None
    after = counted(restructured.jaxpr, once=True)
    return Evidence(
        _OneBodyEach().jaxpr(_jax.constants_as_operands(lifted.jaxpr)),
        variants,
        len(_jax.consts(lifted.jaxpr)),
        counted(source.jaxpr, once=False).lines,
        after.lines,
        after.n_bodies,
    )


class _OneBodyEach:
    """Rebuilds jaxprs so that the calls found of a body hold one jaxpr, not each its own.

    A report needs no more, and a program takes the memory of what is distinct in it.
    """

    def __init__(self) -> None:
        self._bodies: dict[str, _jax.AnyJaxpr] = {}
        self._rebuilt: dict[int, tuple[_jax.AnyJaxpr, _jax.AnyJaxpr]] = {}

    def jaxpr(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """The rebuilt jaxpr; the same object if nothing in it changes."""
        if id(jaxpr) not in self._rebuilt:
            # The original is kept beside the result, so that its id is not used again.
            self._rebuilt[id(jaxpr)] = (jaxpr, self._rebuild(jaxpr))
        return self._rebuilt[id(jaxpr)][1]

    def _rebuild(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        before = _jax.equations(jaxpr)
        eqns = list(map(self._equation, before))
        changed = any(a is not b for a, b in zip(eqns, before, strict=True))
        return _jax.rebuilt(jaxpr, eqns=eqns) if changed else jaxpr

    def _equation(self, eqn: Any) -> Any:
        if eqn.primitive is _jax.jit_p and is_outlined(eqn.params["name"]):
            return _jax.with_subprograms(eqn, self._body)
        return _jax.with_subprograms(eqn, self.jaxpr)

    def _body(self, body: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        digest = fingerprint(body).digest
        if digest not in self._bodies:
            self._bodies[digest] = self.jaxpr(body)
        return self._bodies[digest]


def _by_stack(counts: Counts) -> Counts:
    """Equations by the user's functions around them, of those by traceback."""
    found: Counts = collections.Counter()
    for traceback, n in counts.items():
        found[_jax.user_stack(traceback)] += n
    return found

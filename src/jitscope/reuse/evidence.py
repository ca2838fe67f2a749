"""What a report shows of a program beyond its census: (Programs, Variants) -> facts.

*Evidence* is the program before and after restructuring, without the values it captures. It
is looked at only when a report is asked for, so that keeping it costs nothing but its
memory while a program is traced.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .. import _jax
from ..ir.fingerprint import fingerprint
from ..ir.program import Program, count_equations
from ..names import OutlinedName, SubroutineName, is_outlined
from ..structuring.call_sites import CallSite, call_sites
from ..structuring.shared_call import shared_call_p
from ..structuring.variants import Variants
from ..subroutine.reasons import type_text

_MAX_LINES = 400
"""Lines of a body's jaxpr that are kept."""
_MAX_PRINTED = 100_000
"""Equations of a body that is printed at all: JAX's printer follows every path of calls."""
Counts = collections.Counter[Any]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A program before and after restructuring, and what is known about similar bodies.

    Attributes:
      source: what was restructured: ``before``, or as traced where nothing found is used.
      before: with constants hoisted and repeats outlined.
      after: restructured.
      variants: bodies that stand in for others.
      n_constants: operands of ``before``, the first ones, that are values the program captured.
    """

    source: _jax.AnyJaxpr
    before: _jax.AnyJaxpr
    after: _jax.AnyJaxpr
    variants: Variants
    n_constants: int = 0

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
        waiting: list[tuple[str, Any]] = [("", self.before)]
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
        return sum(_by_key(self.after, lambda eqn: None, once=True).values())

    @property
    def n_bodies_after(self) -> int:
        """Distinct nested functions of the restructured program."""
        return len({id(jaxpr) for jaxpr, _ in _calls(self.after, set())})

    def lines(self) -> tuple[Counts, Counts]:
        """Equations by the user's functions and lines, before and after."""
        before = _by_key(self.source, _jax.user_stack, once=False)
        return before, _by_key(self.after, _jax.user_stack, once=True)


def evidence_of(
    source: Program, before: Program, after: Program, variants: Variants
) -> Evidence | None:
    """Evidence without the values that the program captures; None if it holds tracers.

    Tracers belong to a trace under way, which must not be kept alive.
    """
    values = (*_jax.consts(before.jaxpr), *_jax.consts(after.jaxpr))
    if any(isinstance(value, _jax.Tracer) for value in values):
        return None
    return Evidence(
        _jax.constants_as_operands(source.jaxpr),
        _jax.constants_as_operands(before.jaxpr),
        _jax.constants_as_operands(after.jaxpr),
        variants,
        len(_jax.consts(before.jaxpr)),
    )


# --- counting equations by some key ----------------------------------------------------------


def _by_key(jaxpr: _jax.AnyJaxpr, key_of: Callable[[Any], Any], *, once: bool) -> Counts:
    """Equations by key, every call spelled out; with ``once``, kept calls but once."""
    kept: dict[tuple[str, int], Any] = {}
    memo: dict[int, Counts] = {}

    def count(jaxpr: _jax.AnyJaxpr) -> Counts:
        found = memo.get(id(jaxpr))
        if found is None:
            found = memo[id(jaxpr)] = collections.Counter()
            for eqn in _jax.equations(jaxpr):
                if once and eqn.primitive is shared_call_p and eqn.params["unit"]:
                    body = eqn.params["shared"]
                    kept.setdefault((eqn.params["unit"], id(body)), body)
                    continue
                subs = list(_subs(eqn))
                if not any(map(_jax.equations, subs)):
                    found[key_of(eqn)] += 1
                for sub in subs:
                    found.update(count(sub))
        return found

    total = collections.Counter(count(jaxpr))
    done: set[tuple[str, int]] = set()
    while len(done) < len(kept):
        for unit, body in list(kept.items()):
            if unit not in done:
                done.add(unit)
                total.update(count(body))
    return total


def _subs(eqn: Any) -> Iterator[Any]:
    """The jaxprs that an equation runs; a call has the call site's beside the shared one."""
    if eqn.primitive is shared_call_p:
        yield eqn.params["shared"]
    else:
        yield from _jax.sub_jaxprs(eqn)


def _calls(jaxpr: _jax.AnyJaxpr, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Bodies called in a jaxpr and in everything below it, each jaxpr looked into once."""
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for eqn in _jax.equations(jaxpr):
        for sub in _subs(eqn):
            if eqn.primitive in (shared_call_p, _jax.jit_p):
                yield sub, eqn
            yield from _calls(sub, seen)

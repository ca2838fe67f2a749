"""What repeats in a program: Program -> Census.

Structurally equal bodies are one body, whoever traced them. Counting walks into scans,
loops, conditionals, custom rules, remat and shard_map. It decides nothing.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from .. import _jax
from ..ir.fingerprint import fingerprint
from ..ir.program import Program, count_equations
from ..names import is_outlined, structure_of
from .call_sites import CallSite, call_sites
from .census import Body, Census
from .growth import between, grows
from .rework import n_done_before
from .rows import Caller, IsCall, from_call_to_call, links_between, n_successive
from .variants import Variants

_NO_VARIANTS = Variants()
_FEWEST_IN_CHAIN = 4  # uses, and thrice as many equations: programs call many small functions
_MOST_SPELLED_OUT = 2000  # equations; calls of what is larger are worth keeping in any case


def take_census(program: Program, variants: Variants = _NO_VARIANTS) -> Census:
    """Counts the bodies of a program.

    Args:
      program: with captured constants already hoisted.
      variants: calls of a covered body count as calls of the body that covers it.
    """
    counter = _Counter(variants)
    counter.visit(program.jaxpr)
    return Census(
        program.name,
        program.n_equations,
        counter.bodies(program.jaxpr),
        counter.calls(call_sites(program.jaxpr)),
    )


class _Counter:
    """Call graph of the distinct bodies."""

    def __init__(self, variants: Variants) -> None:
        self._variants = variants
        self._first: dict[str, CallSite] = {}
        self._callees: dict[str, list[CallSite]] = {}
        self._equation_memo: dict[int, int] = {}
        self._heavy_memo: dict[int, int] = {}
        self._convolutions_memo: dict[int, int] = {}
        self._draws_memo: dict[int, int] = {}
        self._finished: list[str] = []

    def visit(self, jaxpr: _jax.AnyJaxpr) -> None:
        """Depth first over distinct bodies, so that callees finish before callers."""
        for site in call_sites(jaxpr):
            digest = self._digest(site)
            if digest not in self._first:
                body = self._variants.bodies.get(digest, site.jaxpr)
                eqn = site.eqn.replace(params={**site.eqn.params, "jaxpr": body})
                self._first[digest] = dataclasses.replace(site, eqn=eqn)
                self._callees[digest] = list(call_sites(body))
                self.visit(body)
                self._finished.append(digest)

    def _digest(self, site: CallSite) -> str:
        return self._variants.canonical(site.identity.digest)

    def calls(self, sites: Iterable[CallSite]) -> tuple[tuple[str, int], ...]:
        """How often each body is called from these call sites, in order."""
        return tuple(collections.Counter(map(self._digest, sites)).items())

    def _callers(
        self, jaxpr: _jax.AnyJaxpr, sites: Sequence[CallSite]
    ) -> Iterator[tuple[str, Caller]]:
        """A jaxpr as caller of each body that these sites in it call."""
        index = {id(eqn): i for i, eqn in enumerate(_jax.equations(jaxpr))} if sites else {}
        places: dict[str, list[int]] = {}
        for site in sites:
            outermost = site.around[0] if site.around else site.eqn
            places.setdefault(self._digest(site), []).append(index[id(outermost)])
        for digest, at in places.items():
            yield digest, Caller(jaxpr, len(at), at[0], at[-1])

    def bodies(self, main: _jax.AnyJaxpr) -> tuple[Body, ...]:
        uses = dict.fromkeys(self._first, 0)
        executions = dict.fromkeys(self._first, 0)
        paths = dict.fromkeys(self._first, 0)
        chained = dict.fromkeys(self._first, 0)
        links: dict[str, set[tuple[int, int]]] = {digest: set() for digest in self._first}

        callers: dict[str, list[Caller]] = {digest: [] for digest in self._first}

        def spread(
            jaxpr: _jax.AnyJaxpr, sites: Sequence[CallSite], n_executions: int, n_paths: int
        ) -> None:
            for digest, caller in self._callers(jaxpr, sites):
                callers[digest].append(caller)
            for site in sites:
                digest = self._digest(site)
                uses[digest] += 1
                chained[digest] += bool(site.links)
                if site.identity.digest == digest:  # a covered call has other positions
                    links[digest].update(site.links)
                executions[digest] += n_executions * site.trips
                paths[digest] += n_paths

        spread(main, list(call_sites(main)), 1, 1)
        for digest in reversed(self._finished):
            body = self._first[digest].jaxpr
            spread(body, self._callees[digest], executions[digest], paths[digest])
        return tuple(
            self._body(
                d,
                n_uses=uses[d],
                n_executions=executions[d],
                n_paths=paths[d],
                n_chained=chained[d],
                links=links[d],
                callers=callers[d],
            )
            for d in self._first
        )

    def _body(
        self,
        digest: str,
        callers: Sequence[Caller],
        links: Set[tuple[int, int]],
        **counts: int,
    ) -> Body:
        site = self._first[digest]
        name = site.eqn.params["name"]
        open_ = _jax.opened(site.jaxpr)
        n_equations = count_equations(site.jaxpr, self._equation_memo)
        body = Body(
            fingerprint=dataclasses.replace(site.identity, digest=digest),
            name=str(name),
            source=_jax.source_line_of_call(site.eqn),
            n_equations=n_equations,
            n_heavy=_count(_is_heavy, site.jaxpr, self._heavy_memo),
            n_convolutions=_count(_is_convolution, site.jaxpr, self._convolutions_memo),
            n_draws=_count(_jax.is_draw, site.jaxpr, self._draws_memo),
            operand_bytes=sum(_jax.n_bytes(v.aval) for v in (*open_.constvars, *open_.invars)),
            result_bytes=sum(_jax.n_bytes(v.aval) for v in open_.outvars),
            forced=structure_of(name),
            obstacle=_obstacle(site),
            outlined=is_outlined(name),
            calls=self.calls(self._callees[digest]),
            n_boundary=len(open_.constvars) + len(open_.invars) + len(open_.outvars),
            n_residuals=_n_residuals(site, links),
            grows=None,
            **counts,
        )
        if body.n_heavy and not body.is_chained:
            row = n_successive(callers, self._is_call_of(digest))
            body = dataclasses.replace(body, n_successive=row)
        elif (
            not (body.is_chained or body.outlined)
            and body.n_uses >= _FEWEST_IN_CHAIN
            and n_equations >= 3 * _FEWEST_IN_CHAIN
        ):
            body = self._chained_through_glue(body, callers)
        return dataclasses.replace(
            body,
            grows=self._grows(body, links, callers),
            n_done_before=self._n_done_before(body, callers),
        )

    def _chained_through_glue(self, body: Body, callers: Iterable[Caller]) -> Body:
        """With the uses that take a result of the one before through a sum or the like.

        So do the gradients of steps, each of which adds to what is differentiated.
        """
        digest = body.fingerprint.digest
        stretches = self._stretches(digest, callers)
        links = [found for stretch in stretches if (found := links_between(stretch))]
        return dataclasses.replace(
            body,
            n_chained=max(body.n_chained, len(links)),
            n_residuals=_n_residuals(self._first[digest], set().union(*links)),
        )

    def _n_done_before(self, body: Body, callers: Iterable[Caller]) -> int:
        if not body.n_heavy or not body.is_in_a_row or body.outlined:
            return 0
        # The first will do: the calls that follow it are like it.
        stretch = next(self._stretches(body.fingerprint.digest, callers), ())
        n_equations = sum(
            count_equations(sub, self._equation_memo)
            for eqn in stretch
            for sub in _jax.sub_jaxprs(eqn)
        )
        spelled_out = len(stretch) + n_equations
        return n_done_before(stretch) if 0 < spelled_out <= 2 * _MOST_SPELLED_OUT else 0

    def _grows(
        self, body: Body, links: Set[tuple[int, int]], callers: Iterable[Caller]
    ) -> bool | None:
        digest = body.fingerprint.digest
        if body.n_equations > _MOST_SPELLED_OUT:
            return None
        if links:
            return grows(self._first[digest].jaxpr, links)
        if body.n_heavy and body.is_in_a_row:
            for stretch in self._stretches(digest, callers):
                if period := between(stretch):
                    return grows(*period)
        return None

    def _stretches(self, digest: str, callers: Iterable[Caller]) -> Iterator[Sequence[Any]]:
        """Equations from each call to the next one, where both have the positions of the body."""
        for stretch in from_call_to_call(callers, self._is_call_of(digest)):
            ends = stretch[0], stretch[-1]
            if all(fingerprint(eqn.params["jaxpr"]).digest == digest for eqn in ends):
                yield stretch

    def _is_call_of(self, digest: str) -> IsCall:
        def is_call(eqn: Any) -> bool:
            if eqn.primitive is not _jax.jit_p:
                return False
            return self._variants.canonical(fingerprint(eqn.params["jaxpr"]).digest) == digest

        return is_call


def _n_residuals(site: CallSite, links: Set[tuple[int, int]]) -> int:
    if not links:
        return 0
    given, taken = zip(*links, strict=True)
    open_ = _jax.opened(site.jaxpr)
    if site.is_backward:
        return len(open_.invars) - len(set(taken))
    return len(open_.outvars) - len(set(given))


def _obstacle(site: CallSite) -> str:
    jaxpr = site.jaxpr
    if _jax.has_options(site.eqn):
        return "its jit asks for shardings or layouts of its own"
    if _jax.opened(jaxpr).effects:
        return "it has side effects, whose order and number must stay as they are"
    if site.identity.is_local:
        return f"it has no process-stable identity: {site.identity.local_because}"
    return ""


def _is_heavy(eqn: Any) -> bool:
    return eqn.primitive in _jax.HEAVY


def _is_convolution(eqn: Any) -> bool:
    return eqn.primitive in _jax.CONVOLUTIONS


def _count(counts: Callable[[Any], bool], jaxpr: _jax.AnyJaxpr, memo: dict[int, int]) -> int:
    """Equations that count, and in others those that are nested in them."""
    found = memo.get(id(jaxpr))
    if found is None:
        found = memo[id(jaxpr)] = sum(
            1 if counts(eqn) else sum(_count(counts, sub, memo) for sub in _jax.sub_jaxprs(eqn))
            for eqn in _jax.equations(jaxpr)
        )
    return found

"""What repeats in a program: Program -> Census.

A *body* is a distinct computation used as a subroutine, a *call site* an equation that
calls it. *Uses* are call sites over the call graph of distinct bodies: a body called 4
times in a block that is itself called 48 times has 4 uses. *Executions* are uses times the
executions of what surrounds them, loops included as far as their trip counts are known.

Structurally equal bodies are one body, whoever traced them. The census walks into scans,
loops, conditionals, custom rules, remat and shard_map. It decides nothing.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from .. import _jax
from ..ir.fingerprint import Fingerprint, fingerprint
from ..ir.program import Program, count_equations
from ..names import is_outlined, structure_of
from .call_sites import CallSite, call_sites
from .growth import between, grows
from .rework import n_done_before
from .rows import Caller, IsCall, from_call_to_call, links_between, n_successive
from .variants import Variants

_NO_VARIANTS = Variants()
_FEWEST_IN_CHAIN = 4  # uses, and thrice as many equations: programs call many small functions
_MOST_SPELLED_OUT = 2000  # equations; calls of what is larger are worth keeping in any case


@dataclasses.dataclass(frozen=True)
class Body:
    """A distinct body with its counts.

    Attributes:
      fingerprint: identity of the body.
      name: of the function it was traced from (at its first call site).
      source: user's line of the first call site, or the first line within the body.
      n_uses: call sites, where every body around them counts once.
      n_executions: how often it runs per call of the program, at least.
      n_paths: chains of calls from the program to the body; the number of copies there
        would be if every call were expanded.
      n_equations: equations with everything nested in it.
      n_heavy: those of them that are matrix products, convolutions, loops or library calls.
      operand_bytes: size of the operands of one call.
      result_bytes: size of the results of one call.
      forced: structure that the user asked for, or None.
      obstacle: why calls of it cannot be restructured, or empty.
      outlined: found in the program rather than written as a subroutine.
      calls: digests of the bodies it calls, with the number of call sites in it.
      n_chained: uses that take a result of another use, those of written bodies of some
        size without heavy equations also through element-wise equations between the two.
      n_boundary: operands and results of one call.
      n_residuals: those of them that no neighbour in a chain of calls gives or takes: results, or
        operands in the backward pass of a gradient. 0 for a body that is in no chain.
      n_convolutions: those of the heavy equations that are convolutions.
      n_successive: those of its uses that wait for one another, at most; the others may run side
        by side. All of them for a body without heavy equations, and for one called in chains.
      grows: whether XLA would fuse a chain of its uses into ever larger kernels. None where no use
        is seen to wait for another one with little between them, and for a body of thousands of
        equations.
      n_done_before: heavy equations of a call that the call before it has done, on the same values,
        where one call follows another; not counted in found bodies, out of which they are kept.
      n_draws: equations that draw random bits, which XLA:CPU compiles as a loop for each call,
        and once where calls are kept.
    """

    fingerprint: Fingerprint
    name: str
    source: str
    n_uses: int
    n_executions: int
    n_paths: int
    n_equations: int
    n_heavy: int
    operand_bytes: int
    result_bytes: int
    forced: str | None = None
    obstacle: str = ""
    outlined: bool = False
    calls: tuple[tuple[str, int], ...] = ()
    n_chained: int = 0
    n_boundary: int = 0
    n_residuals: int = 0
    n_convolutions: int = 0
    n_successive: int = 0
    grows: bool | None = None
    n_done_before: int = 0
    n_draws: int = 0

    @property
    def is_chained(self) -> bool:
        """Whether most of its uses take a result of another one."""
        return 2 * self.n_chained >= self.n_uses

    @property
    def is_in_a_row(self) -> bool:
        """Whether most of its uses wait for another one, whatever is between them."""
        return self.is_chained or 2 * self.n_successive >= self.n_uses

    @property
    def n_side_by_side(self) -> int:
        """How many of its uses may run at the same time, on average."""
        return self.n_uses // (self.n_successive or self.n_uses)


@dataclasses.dataclass(frozen=True)
class Census:
    """The bodies of a program, in the order in which they are first called.

    Attributes:
      program: name of the program.
      n_equations: equations of the program with every call spelled out.
      bodies: distinct bodies.
      calls: digests of the bodies that the program itself calls, with the number of call
        sites outside all bodies.
    """

    program: str
    n_equations: int
    bodies: tuple[Body, ...]
    calls: tuple[tuple[str, int], ...] = ()

    @property
    def n_calls(self) -> int:
        """Call sites of all bodies."""
        return sum(body.n_uses for body in self.bodies)

    def __str__(self) -> str:
        lines = [
            f"{self.program}: {self.n_calls} calls of {len(self.bodies)} bodies, "
            f"{self.n_equations} equations"
        ]
        lines += [
            f"  {b.name:<24} {b.fingerprint}  {b.n_uses} uses, {b.n_equations} equations"
            for b in self.bodies
        ]
        return "\n".join(lines)


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

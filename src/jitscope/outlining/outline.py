"""Repeated runs of equations become calls: Program -> Program.

Code that nobody annotated repeats too: the layers of a network and of its gradient, an
optimiser's update of many like leaves, the stages of an unrolled solver. Their equations
have equal *tokens* (what an equation does, not to which values), so that repeats of the
program are repeats of a sequence of tokens (`repeats`). Those whose operands come from the
same places (`dataflow`) become calls of one body; the stages behind this one count the
calls and decide what becomes of them.

Every call keeps the equations of its own site, so that derivative rules and source lines
stay what they were. Runs are consecutive equations; what repeats in another order is put in
the same one before (`finding`). Equations with side effects, without a process-stable identity,
or in a context of their own are in no body and are not moved past each other.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Sequence
from typing import Any

from .. import _jax
from ..ir.fingerprint import Fingerprint, Tokens, equation_token, fingerprint, remember
from ..ir.program import Program
from ..names import OutlinedName
from .cut import Cut, cut
from .dataflow import Interface
from .duplicates import merged
from .finding import MIN_EQUATIONS, Line, found
from .kinds import Kinds, is_marked

_MAX_ROUNDS = 16  # of repeats among what earlier rounds left; two or three are the rule
_NAME_SAMPLES = 6


def outline(program: Program) -> Program:
    """Replaces repeated runs of equations by calls, at every level of the program.

    Returns:
      The program itself where nothing repeats.
    """
    outlined = _Outliner(program.jaxpr).jaxpr(program.jaxpr)
    if outlined is program.jaxpr:
        return program
    return dataclasses.replace(program, jaxpr=outlined)


@dataclasses.dataclass(frozen=True)
class _Class:
    """Runs that become calls of one body."""

    interface: Interface
    name: OutlinedName


@dataclasses.dataclass(frozen=True)
class _Round:
    """What becomes of a line at once: it is put in an order, and runs of it become calls."""

    order: list[int] | None
    classes: list[_Class]


class _Outliner:
    """Rebuilds jaxprs, each distinct one once."""

    def __init__(self, main: _jax.AnyJaxpr) -> None:
        self._main = main
        self._done: dict[int, tuple[Any, Any]] = {}
        self._rounds: dict[Hashable, list[_Round]] = {}
        self._kinds = Kinds()
        self._tokens = Tokens()

    def jaxpr(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """The jaxpr with its repeats outlined; the same object if nothing in it repeats."""
        key = id(jaxpr)
        if key not in self._done:
            # The original is kept beside the result, so that its id is not used again.
            self._done[key] = (jaxpr, self._rebuilt(jaxpr))
        return self._done[key][1]

    def _rebuilt(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        before = _jax.equations(jaxpr)
        eqns = [_jax.with_subprograms(eqn, self.jaxpr) for eqn in before]
        outvars = _jax.opened(jaxpr).outvars
        if len(eqns) > 1:
            line = self._line(eqns, list(map(self._tokens.of, eqns)))
            line, new_outvars = self._without_duplicates(line, outvars)
            line, found = self._searched(
                line, new_outvars, self._identity(jaxpr, line, new_outvars)
            )
            if found:
                return _jax.rebuilt(jaxpr, eqns=list(line.eqns), outvars=list(new_outvars))
        if all(map(_is, eqns, before)):
            return jaxpr
        return _jax.rebuilt(jaxpr, eqns=eqns)

    def _without_duplicates(self, line: Line, outvars: Sequence[Any]) -> tuple[Line, Sequence[Any]]:
        without = merged(line.eqns, line.tokens, line.kinds, outvars)
        if without is None:
            return line, outvars
        eqns, outvars = without
        return self._line(list(eqns.values()), [line.tokens[i] for i in eqns]), outvars

    def _line(self, eqns: Sequence[Any], tokens: Sequence[Fingerprint]) -> Line:
        return Line(eqns, tokens, list(map(self._kinds.of, eqns, tokens)))

    # --- rounds: what repeats, what then still repeats, ... -------------------------------

    def _identity(self, jaxpr: _jax.AnyJaxpr, line: Line, outvars: Sequence[Any]) -> Hashable:
        """Equal for jaxprs in whose lines the same is found. Nothing equals the program itself.

        Jaxprs that are equal may have lines that are not: marks further in, which no fingerprint
        knows of, change what is outlined there, and so what is done twice here.
        """
        if jaxpr is self._main:
            return None
        before = _jax.equations(jaxpr)
        if len(line.eqns) < len(before) or not all(map(_is, line.eqns, before)):
            jaxpr = _jax.rebuilt(jaxpr, eqns=list(line.eqns), outvars=list(outvars))
        return fingerprint(jaxpr, line.tokens), tuple(map(is_marked, line.eqns))

    def _searched(
        self, line: Line, outvars: Sequence[Any], identity: Hashable
    ) -> tuple[Line, bool]:
        """The line with its repeats outlined, and whether there are any.

        What was found in one line is not looked for again in those of the same identity.
        """
        rounds = self._rounds.get(identity)
        if rounds is None:
            rounds = self._rounds[identity] = []
            while len(rounds) < _MAX_ROUNDS and (repeats := _round(line, outvars)).classes:
                rounds.append(repeats)
                line = self._with_calls(line, repeats)
        else:
            for repeats in rounds:
                line = self._with_calls(line, repeats)
        return line, bool(rounds)

    def _body(self, body: _jax.AnyJaxpr, run: Line) -> _jax.AnyJaxpr:
        """The body made of a run, with its own repeats outlined, in each equal body alike."""
        if len(run.eqns) < 2 * MIN_EQUATIONS:
            return body
        line = dataclasses.replace(run, eqns=_jax.equations(body))
        identity = fingerprint(body, run.tokens)
        line, found = self._searched(line, _jax.opened(body).outvars, identity)
        return _jax.rebuilt(body, eqns=list(line.eqns)) if found else body

    def _with_calls(self, line: Line, repeats: _Round) -> Line:
        line = line.in_order(repeats.order)
        calls: dict[int, tuple[int, Any, Fingerprint]] = {}
        for cls in repeats.classes:
            calls.update(self._calls(line, cls))
        parts: list[Line] = []
        at = 0
        for start in sorted(calls):
            length, call, token = calls[start]
            parts += [line[at:start], self._line([call], [token])]
            at = start + length
        return _joined([*parts, line[at:]])

    def _calls(self, line: Line, cls: _Class) -> dict[int, tuple[int, Any, Fingerprint]]:
        """Start to length, call and token, for the runs whose bodies prove to be equal."""
        interface, name = cls.interface, cls.name
        by_code: dict[Hashable, list[tuple[int, Cut]]] = {}
        for run, start in enumerate(interface.starts):
            piece = cut(line.eqns, interface, run)
            code = piece.code(line.tokens[start : start + interface.length])
            by_code.setdefault(code, []).append((start, piece))
        calls: dict[int, tuple[int, Any, Fingerprint]] = {}
        for sites in by_code.values():
            known: Fingerprint | None = None
            token: Fingerprint | None = None
            outlined: Fingerprint | None = None
            for start, piece in sites if len(sites) > 1 else ():
                run = line[start : start + interface.length]
                written = piece.body(name)
                known = fingerprint(written, run.tokens) if known is None else known
                remember(written, known)
                body = self._body(written, run)
                outlined = fingerprint(body) if outlined is None else outlined
                remember(body, outlined)
                call = piece.call(line.eqns[start], body, name)
                token = equation_token(call) if token is None else token
                calls[start] = interface.length, call, token
        return calls


def _round(line: Line, outvars: Sequence[Any]) -> _Round:
    repeats = found(line, outvars)
    eqns = line.in_order(repeats.order).eqns
    return _Round(
        repeats.order,
        [_Class(interface, _name(eqns, interface)) for interface in repeats.interfaces],
    )


def _joined(lines: Sequence[Line]) -> Line:
    eqns, tokens, kinds = zip(*((one.eqns, one.tokens, one.kinds) for one in lines), strict=True)
    chain = itertools.chain.from_iterable
    return Line([*chain(eqns)], [*chain(tokens)], [*chain(kinds)])


def _name(eqns: Sequence[Any], interface: Interface) -> OutlinedName:
    """Named after the innermost function of the user around all equations of a run.

    A few are looked at, which takes 8 us each; the last ones often are what a function makes of
    those that it calls.
    """
    start = interface.starts[0]
    run = eqns[start : start + interface.length]
    sampled = [*run[:: -(-len(run) // _NAME_SAMPLES)], run[-1]]
    stacks = [stack for stack in map(_jax.user_functions, sampled) if stack]
    common = [
        names[0]
        for names in itertools.takewhile(
            lambda names: len(set(names)) == 1, zip(*stacks, strict=False)
        )
    ]
    return OutlinedName(
        _short_name(common),
        _jax.source_line(run[0]),
        is_backward=all(map(_jax.is_transposed, sampled)),
    )


def _short_name(functions: Sequence[str]) -> str:
    """``Block`` for ``pkg.Block.__call__``, ``f`` for ``f.<locals>.<lambda>``."""
    for qualified in reversed(functions):
        parts = [part for part in qualified.split(".") if not part.startswith("<")]
        if len(parts) > 1 and parts[-1].startswith("__"):
            parts.pop()
        if parts:
            return parts[-1]
    return "repeat"


def _is(a: object, b: object) -> bool:
    return a is b

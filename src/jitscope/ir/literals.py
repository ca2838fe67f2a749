"""Numbers in which bodies differ become operands: Program -> Program.

A Python number that a body was traced with, such as the index of a layer, is a literal of its
equations, and makes another body of every call. Passed as an operand instead, bodies that
differ in nothing else are one body. A call that is put back in line gets its literal back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .. import _jax
from .constants import can_lift, with_operands
from .fingerprint import fingerprint, literal_text, text_but_for_literals
from .program import Program

_MIN_EQUATIONS = 12
_MIN_CALLS = 4
"""Smaller bodies, and fewer calls, are not worth a kept call: see `structuring.policy`."""

_Places: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]
"""For each operand, the literals that it stands for: number of equation and of its operand."""


def with_literals_lifted(program: Program) -> Program:
    """Passes the literals in which calls of nested jits differ as operands.

    Returns:
      The program itself where no bodies differ in literals alone.
    """
    jaxpr = program.jaxpr
    # Bodies around bodies that are one now may be one in the next round.
    while (lifted := _Lifter(jaxpr).jaxpr(jaxpr)) is not jaxpr:
        jaxpr = lifted
    return program if jaxpr is program.jaxpr else dataclasses.replace(program, jaxpr=jaxpr)


@dataclasses.dataclass
class _Family:
    """Bodies that are one but for literals, by digest, and how many calls they have."""

    bodies: dict[str, Any] = dataclasses.field(default_factory=dict)
    n_calls: int = 0


class _Lifter:
    """Rewrites each distinct jaxpr once."""

    def __init__(self, main: _jax.AnyJaxpr) -> None:
        self._done: dict[int, tuple[Any, Any]] = {}
        self._with_operands: dict[int, tuple[Any, Any, Sequence[Any]]] = {}
        self._places: dict[str, _Places] = {}
        for family in _families(main):
            if len(family.bodies) > 1 and family.n_calls >= _MIN_CALLS:
                self._places.update(dict.fromkeys(family.bodies, _places(family.bodies)))

    def jaxpr(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """The jaxpr with operands for literals; the same object if nothing in it changes."""
        key = id(jaxpr)
        if key not in self._done:
            eqns = [self._equation(eqn) for eqn in _jax.equations(jaxpr)]
            same = all(a is b for a, b in zip(eqns, _jax.equations(jaxpr), strict=True))
            self._done[key] = (jaxpr, jaxpr if same else _jax.rebuilt(jaxpr, eqns=eqns))
        return self._done[key][1]

    def _equation(self, eqn: Any) -> Any:
        if self._places and _may_merge(eqn):
            body = eqn.params["jaxpr"]
            places = self._places.get(fingerprint(body).digest)
            if places is not None:
                # Each body apart, not the first for all: they may differ in derivative rules.
                if id(body) not in self._with_operands:
                    self._with_operands[id(body)] = (body, *_lifted(body, places))
                _, lifted, literals = self._with_operands[id(body)]
                return with_operands(eqn, self.jaxpr(lifted), literals)
        return _jax.with_subprograms(eqn, self.jaxpr)


def _may_merge(eqn: Any) -> bool:
    return (
        eqn.primitive is _jax.jit_p
        and len(_jax.equations(eqn.params["jaxpr"])) >= _MIN_EQUATIONS
        and can_lift(eqn)
        and not _jax.consts(eqn.params["jaxpr"])
        and not _jax.opened(eqn.params["jaxpr"]).effects
    )


def _families(main: _jax.AnyJaxpr) -> Sequence[_Family]:
    found: dict[str, _Family] = {}
    keys: dict[str, str] = {}
    waiting, seen = [main], {id(main)}
    while waiting:
        for eqn in _jax.equations(waiting.pop()):
            if _may_merge(eqn):
                body = eqn.params["jaxpr"]
                digest = fingerprint(body).digest
                if digest not in keys:
                    keys[digest] = text_but_for_literals(body)
                family = found.setdefault(keys[digest], _Family())
                family.bodies.setdefault(digest, body)
                family.n_calls += 1
            for name in _jax.SUBPROGRAMS.get(eqn.primitive, ()):
                value = eqn.params[name]
                for sub in value if isinstance(value, tuple) else (value,):
                    if id(sub) not in seen:
                        seen.add(id(sub))
                        waiting.append(sub)
    return list(found.values())


def _places(bodies: Mapping[str, Any]) -> _Places:
    """Literals in which bodies differ; those that are equal in each body are one operand."""
    alike = [_jax.opened(body).eqns for body in bodies.values()]
    operands: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for i, eqn in enumerate(alike[0]):
        for j, atom in enumerate(eqn.invars):
            if isinstance(atom, _jax.Literal):
                values = tuple(literal_text(eqns[i].invars[j]) for eqns in alike)
                if len(set(values)) > 1:
                    operands.setdefault(values, []).append((i, j))
    return tuple(map(tuple, operands.values()))


def _lifted(body: _jax.AnyJaxpr, places: _Places) -> tuple[_jax.AnyJaxpr, Sequence[Any]]:
    """A body with leading operands for the literals at these places, and the literals."""
    open_ = _jax.opened(body)
    literals = [open_.eqns[i].invars[j] for ((i, j), *_) in places]
    new = [_jax.Var(literal.aval) for literal in literals]
    replaced = {place: var for var, each in zip(new, places, strict=True) for place in each}
    eqns = [
        eqn.replace(invars=[replaced.get((i, j), atom) for j, atom in enumerate(eqn.invars)])
        for i, eqn in enumerate(open_.eqns)
    ]
    return _jax.rebuilt(body, invars=[*new, *open_.invars], eqns=eqns), literals

"""Bodies that another body can stand in for: Program -> Variants.

Differentiation makes variants of one body: the first layer needs no gradient of its input,
a frozen layer writes fewer residuals. Where all that a body computes is also computed by a
larger one, from operands at hand at every call, its calls can be calls of the larger body
with some results dropped. ``find_variants`` looks for such pairs; it changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _jax
from ..ir.fingerprint import equation_token, fingerprint, literal_text
from ..ir.program import Program

_MIN_EQUATIONS = 12
"""Smaller bodies are not worth a comparison."""
_MAX_EXTRA_SHARE = 0.1
"""Most equations that a call may compute in vain, as a share of the body standing in."""


@dataclasses.dataclass(frozen=True)
class Cover:
    """How calls of one body are expressed as calls of another.

    Attributes:
      body: digest of the body that stands in.
      operands: for each operand of that body, its position among those of the call.
      results: for each result of the call, its position among those of that body.
    """

    body: str
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Variants:
    """Which bodies are covered by which.

    Attributes:
      covers: by the digest of the covered body.
      bodies: closed jaxprs, by digest, of the bodies that stand in for others, with every
        result that any call needs.
      notes: why similar bodies stay apart, by digest.
    """

    covers: Mapping[str, Cover] = dataclasses.field(default_factory=dict)
    bodies: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def canonical(self, digest: str) -> str:
        """The body that calls of a body are calls of."""
        return self.covers[digest].body if digest in self.covers else digest


def find_variants(program: Program) -> Variants:
    """Compares the bodies of a program that bear the same name, larger ones first."""
    covers: dict[str, Cover] = {}
    bodies: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for family in _families(program.jaxpr):
        leaders: list[Any] = []
        for body in family:
            digest = fingerprint(body).digest
            for i, leader in enumerate(leaders):
                found = _cover(body, leader)
                if isinstance(found, str):
                    notes.setdefault(digest, found)
                    continue
                leader_digest, wider, operands, results = found
                leaders[i] = (leader[0], wider)
                covers[digest] = Cover(leader_digest, operands, results)
                bodies[leader_digest] = wider
                notes.pop(digest, None)
                break
            else:
                leaders.append((digest, body))
    return Variants(covers, bodies, notes)


def _families(main: Any) -> Iterable[list[Any]]:
    """Distinct bodies of the same name and worth comparing, the largest first."""
    by_name: dict[str, dict[str, Any]] = {}
    _sort_bodies(main, by_name, {})
    for family in by_name.values():
        if len(family) > 1:
            yield sorted(family.values(), key=lambda body: -len(_jax.equations(body)))


def _sort_bodies(
    jaxpr: Any, by_name: dict[str, dict[str, Any]], seen: dict[int, _jax.AnyJaxpr]
) -> None:
    for eqn in _jax.equations(jaxpr):
        for sub in _jax.sub_jaxprs(eqn) if eqn.primitive in _jax.SUBPROGRAMS else ():
            if id(sub) in seen:
                continue
            seen[id(sub)] = sub
            if eqn.primitive is _jax.jit_p and len(_jax.equations(sub)) >= _MIN_EQUATIONS:
                same = by_name.setdefault(str(eqn.params["name"]), {})
                if same.setdefault(fingerprint(sub).digest, sub) is not sub:
                    continue  # what is called there has been seen in its equal
            _sort_bodies(sub, by_name, seen)


def _cover(body: Any, leader: tuple[str, Any]) -> Any:
    """Digest, widened leader, operand and result positions; or why there is no cover."""
    digest, large = leader
    n_extra = len(_jax.equations(large)) - len(_jax.equations(body))
    if n_extra > _MAX_EXTRA_SHARE * len(_jax.equations(large)):
        return f"{n_extra} equations fewer than {digest[:12]}: too much would be computed in vain"
    if _jax.opened(body).effects or _jax.opened(large).effects or _jax.consts(body):
        return "it has side effects or captured constants"
    match = _Match(_jax.opened(body), _jax.opened(large))
    if not match.equations():
        return f"it computes other things than {digest[:12]}"
    operands = match.operands()
    if operands is None or not match.results_exist():
        return f"its operands or results are not those of {digest[:12]}"
    wider, results = match.widened(large)
    return digest, wider, operands, results


class _Match:
    """Finds the equations of a small jaxpr, in order, among those of a large one.

    Equal tokens on equal operands compute equal values, so the first match is as good as
    any. Operands of the jaxprs are paired where equations first use them.
    """

    def __init__(self, small: Any, large: Any) -> None:
        self._small, self._large = small, large
        self._large_inputs = {var: i for i, var in enumerate(large.invars)}
        self._small_inputs = {var: i for i, var in enumerate(small.invars)}
        self._large_of: dict[Any, Any] = {}
        self._paired: set[Any] = set()

    def equations(self) -> bool:
        """Whether every equation of the small jaxpr was found."""
        wanted = iter(self._small.eqns)
        eqn = next(wanted, None)
        for candidate in self._large.eqns:
            if eqn is not None and self._same(eqn, candidate):
                self._large_of.update(zip(eqn.outvars, candidate.outvars, strict=True))
                eqn = next(wanted, None)
        return eqn is None

    def _same(self, small: Any, large: Any) -> bool:
        if equation_token(small).digest != equation_token(large).digest:
            return False
        new: dict[Any, Any] = {}
        for a, b in zip(small.invars, large.invars, strict=True):
            if isinstance(a, _jax.Literal) or isinstance(b, _jax.Literal):
                if type(a) is not type(b) or literal_text(a) != literal_text(b):
                    return False
            elif self._large_of.get(a, new.get(a)) is not b:
                if a in self._large_of or a in new or not self._may_pair(a, b, new):
                    return False
                new[a] = b
        self._large_of.update(new)
        self._paired.update(new.values())
        return True

    def _may_pair(self, a: Any, b: Any, new: dict[Any, Any]) -> bool:
        return (
            a in self._small_inputs
            and b in self._large_inputs
            and b not in self._paired
            and b not in new.values()
        )

    def operands(self) -> tuple[int, ...] | None:
        """For each input of the large jaxpr, the small one's that is passed for it."""
        small_of = {
            large: small for small, large in self._large_of.items() if small in self._small_inputs
        }
        if any(var not in small_of for var in self._large.invars):
            return None
        return tuple(self._small_inputs[small_of[var]] for var in self._large.invars)

    def results_exist(self) -> bool:
        """Whether each result of the small jaxpr is a value of the large one."""
        return all(
            isinstance(atom, _jax.Literal)
            or isinstance(self._large_of.get(atom), _jax.Var)
            and not isinstance(self._large_of[atom], _jax.DropVar)
            for atom in self._small.outvars
        )

    def widened(self, large: Any) -> tuple[Any, tuple[int, ...]]:
        """The large jaxpr with every result the small one has, and where they are."""
        outvars = list(self._large.outvars)
        positions = []
        for atom in self._small.outvars:
            wanted = atom if isinstance(atom, _jax.Literal) else self._large_of[atom]
            position = next((i for i, out in enumerate(outvars) if out is wanted), len(outvars))
            if position == len(outvars):
                outvars.append(wanted)
            positions.append(position)
        if len(outvars) == len(self._large.outvars):
            return large, tuple(positions)
        return _jax.rebuilt(large, outvars=outvars), tuple(positions)

"""Program x Plan -> Program.

The only module that changes a program. Calls of a body become what the plan says: spliced
into their caller (INLINE), or a ``shared_call`` of one jaxpr for the whole body, kept
(SHARED, and ROLLED, of which `roll` makes loops) or left to XLA to inline (NESTED).
Derivative rules stay those of each call site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .. import _jax
from ..ir.fingerprint import fingerprint
from ..ir.program import Program
from ..names import is_outlined
from .plan import Plan, Structure
from .shared_call import shared_call_p, shared_call_params
from .variants import Cover, Variants

_NO_VARIANTS = Variants()
_KEPT = (Structure.SHARED, Structure.ROLLED)


def restructure(program: Program, plan: Plan, variants: Variants = _NO_VARIANTS) -> Program:
    """Gives every call the structure that the plan says.

    Args:
      program: with captured constants already hoisted.
      plan: structures by fingerprint.
      variants: bodies that stand in for others, where their calls are kept.

    Returns:
      The program itself where the plan changes nothing.
    """
    rebuilt = _Restructurer(plan, variants, keep=True).jaxpr(program.jaxpr)
    if rebuilt is program.jaxpr:
        return program
    return dataclasses.replace(program, jaxpr=rebuilt)


class _Restructurer:
    """Rebuilds jaxprs, each distinct one once.

    Args:
      plan: structures by fingerprint.
      variants: bodies that stand in for others.
      keep: False within a body whose calls are kept: kept calls do not nest.
    """

    def __init__(self, plan: Plan, variants: Variants, *, keep: bool) -> None:
        self._plan = plan
        self._variants = variants
        self._keep = keep
        self._within_kept = _Restructurer(plan, variants, keep=False) if keep else self
        self._rebuilt: dict[int, tuple[Any, Any]] = {}
        self._bodies: dict[str, _jax.AnyJaxpr] = {}
        self._names: dict[str, str] = {}

    def jaxpr(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """The restructured jaxpr; the same object if nothing in it changes."""
        key = id(jaxpr)
        if key not in self._rebuilt:
            # The original is kept beside the result, so that its id is not used again.
            self._rebuilt[key] = (jaxpr, self._rebuild(jaxpr))
        return self._rebuilt[key][1]

    def _rebuild(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        block = _Block()
        for eqn in _jax.equations(jaxpr):
            self._equation(eqn, block)
        if not block.changed:
            return jaxpr
        outvars = [block.read(atom) for atom in _jax.opened(jaxpr).outvars]
        return _jax.rebuilt(jaxpr, eqns=block.equations, outvars=outvars)

    def _equation(self, eqn: Any, block: _Block) -> None:
        if eqn.primitive is _jax.jit_p:
            self._call(eqn, block)
        elif eqn.primitive in _jax.SUBPROGRAMS:
            self._append_rebuilt(eqn, block)
        else:
            block.append(eqn)

    def _append_rebuilt(self, eqn: Any, block: _Block) -> None:
        """The equation as it is, but for what is nested in it."""
        rebuilt = _jax.with_subprograms(eqn, self.jaxpr)
        block.append(rebuilt)
        block.changed |= rebuilt is not eqn

    def _call(self, eqn: Any, block: _Block) -> None:
        # The census judged the first call of each body, and a policy may be the user's: each call
        # says for itself whether it can be what the plan asks for.
        body = eqn.params["jaxpr"]
        digest = fingerprint(body).digest
        structure = self._structure(eqn, digest)
        if _jax.has_options(eqn):
            self._append_rebuilt(eqn, block)
        elif structure is Structure.INLINE and _can_splice(body):
            block.splice(eqn, self.jaxpr(body))
        elif _jax.opened(body).effects:
            self._append_rebuilt(eqn, block)
        elif structure in _KEPT:
            self._kept_call(eqn, digest, block)
        else:
            self._plain_call(eqn, digest, block)

    def _structure(self, eqn: Any, digest: str) -> Structure:
        planned = self._plan[self._variants.canonical(digest)].structure
        if planned not in _KEPT or self._keep:
            return planned
        return Structure.INLINE if is_outlined(eqn.params["name"]) else Structure.NESTED

    def _kept_call(self, eqn: Any, digest: str, block: _Block) -> None:
        canonical = self._variants.canonical(digest)
        body = self._variants.bodies.get(canonical, eqn.params["jaxpr"])
        # A widened body has more results than plain calls of it expect, so it is another one.
        shared = self._within_kept._body(f"{canonical} kept", body)
        name = self._names.setdefault(canonical, eqn.params["name"])
        block.append(
            _shared_call(
                eqn, shared, name, f"{name}_{canonical[:12]}", self._variants.covers.get(digest)
            )
        )
        block.changed = True

    def _plain_call(self, eqn: Any, digest: str, block: _Block) -> None:
        shared = self._body(digest, eqn.params["jaxpr"])
        name = self._names.setdefault(digest, eqn.params["name"])
        if shared is eqn.params["jaxpr"]:
            block.append(eqn)
            return
        block.append(_shared_call(eqn, shared, name, "", None))
        block.changed = True

    def _body(self, digest: str, body: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """The one jaxpr that all calls of a body are lowered to."""
        if digest not in self._bodies:
            self._bodies[digest] = self.jaxpr(body)
        return self._bodies[digest]


def _shared_call(eqn: Any, shared: _jax.AnyJaxpr, name: str, unit: str, cover: Cover | None) -> Any:
    """The call, under the name of the first call of its body: JAX lowers a body by its name."""
    params = shared_call_params({**eqn.params, "name": name}, shared, unit, cover)
    return _jax.new_equation(eqn, shared_call_p, eqn.invars, eqn.outvars, params)


class _Block:
    """Equations under construction, and what replaced the variables of spliced calls."""

    def __init__(self) -> None:
        self.equations: list[Any] = []
        self.changed = False
        self._replaced: dict[Any, Any] = {}

    def read(self, atom: Any) -> Any:
        if isinstance(atom, _jax.Literal):
            return atom
        return self._replaced.get(atom, atom)

    def append(self, eqn: Any) -> None:
        if self._replaced:
            invars = [self.read(atom) for atom in eqn.invars]
            if any(a is not b for a, b in zip(invars, eqn.invars, strict=True)):
                eqn = eqn.replace(invars=invars)
        self.equations.append(eqn)

    def splice(self, call: Any, body: _jax.AnyJaxpr) -> None:
        """Puts the equations of a body in place of a call of it."""
        self.changed = True
        open_ = _jax.opened(body)
        local: dict[Any, Any] = dict(zip(open_.invars, map(self.read, call.invars), strict=True))

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, _jax.Literal) else local[atom]

        outlined = is_outlined(call.params["name"])  # such equations carry their whole scope
        for inner in open_.eqns:
            outvars = [_fresh(var, local) for var in inner.outvars]
            self.equations.append(
                inner.replace(
                    invars=[read(atom) for atom in inner.invars],
                    outvars=outvars,
                    source_info=inner.source_info if outlined else _jax.within_call(inner, call),
                )
            )
        for var, atom in zip(call.outvars, open_.outvars, strict=True):
            self._replaced[var] = read(atom)


def _fresh(var: Any, local: dict[Any, Any]) -> Any:
    if isinstance(var, _jax.DropVar):
        return var
    new = local[var] = _jax.Var(var.aval)
    return new


def _can_splice(body: _jax.AnyJaxpr) -> bool:
    return not (_jax.has_input_effects(body) or _jax.consts(body))


def restructured_calls(jaxpr: _jax.AnyJaxpr) -> Mapping[str, int]:
    """How many ``shared_call`` equations there are, by unit; '' counts plain calls."""
    counts: dict[str, int] = {}
    for eqn in _jax.equations(jaxpr):
        if eqn.primitive is shared_call_p:
            counts[eqn.params["unit"]] = counts.get(eqn.params["unit"], 0) + 1
        for sub in _jax.sub_jaxprs(eqn):
            for unit, n in restructured_calls(sub).items():
                counts[unit] = counts.get(unit, 0) + n
    return counts

"""Captured constants of nested jits become operands: Program -> Program.

A body that captures an array holds it as a constant of its own. Passed as an operand
instead, bodies that differ only in captured arrays are one body, and a large array exists
once in the program rather than once per body. Constants inside loops, conditionals and
custom rules stay where they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import _jax
from .program import Program


def hoisted(program: Program) -> Program:
    """Passes constants of nested jit bodies as operands, from the innermost outwards.

    Returns:
      The program itself where no nested jit captures anything.
    """
    lifted = _Hoister().closed(program.jaxpr)
    return program if lifted is program.jaxpr else dataclasses.replace(program, jaxpr=lifted)


class _Hoister:
    """Rewrites each distinct body once."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, Any]] = {}

    def closed(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """The jaxpr with the constants of the jits in it among its own constants."""
        key = id(jaxpr)
        if key not in self._done:
            self._done[key] = (jaxpr, self._rewrite(jaxpr))
        return self._done[key][1]

    def _rewrite(self, jaxpr: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        open_ = _jax.opened(jaxpr)
        values = list(_jax.consts(jaxpr))
        constvars = list(open_.constvars)
        known = {id(value): var for value, var in zip(values, constvars, strict=True)}
        eqns = []
        for eqn in open_.eqns:
            body = self.closed(eqn.params["jaxpr"]) if can_lift(eqn) else None
            if body is None or not (body is not eqn.params["jaxpr"] or _jax.consts(body)):
                eqns.append(eqn)
                continue
            operands = []
            for value, inner in zip(_jax.consts(body), _jax.opened(body).constvars, strict=True):
                if id(value) not in known:
                    known[id(value)] = _jax.Var(inner.aval)
                    constvars.append(known[id(value)])
                    values.append(value)
                operands.append(known[id(value)])
            eqns.append(with_operands(eqn, self._without_constants(body), operands))
        if all(a is b for a, b in zip(eqns, open_.eqns, strict=True)):
            return jaxpr
        return _jax.closed_over(jaxpr, constvars, values, eqns=eqns)

    def _without_constants(self, body: _jax.AnyJaxpr) -> _jax.AnyJaxpr:
        """One object per body, so that equal calls stay calls of one jaxpr."""
        key = -id(body)
        if key not in self._done:
            self._done[key] = body, _jax.constants_as_operands(body)
        return self._done[key][1]


def can_lift(eqn: Any) -> bool:
    """Whether a call is one of a nested jit that may be given operands more."""
    return (
        eqn.primitive is _jax.jit_p
        and not _jax.has_options(eqn)
        and not _jax.has_input_effects(eqn.params["jaxpr"])
    )


def with_operands(eqn: Any, body: _jax.AnyJaxpr, operands: Sequence[Any]) -> Any:
    """A call with another body, which takes ``operands`` before those of the call."""
    params = _jax.with_leading_operands(eqn.params, body, len(operands))
    return eqn.replace(invars=[*operands, *eqn.invars], params=params)

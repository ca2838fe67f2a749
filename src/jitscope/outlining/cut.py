"""A run of equations becomes a call of a body made of them.

The body is built of the equations and variables of its own site wherever possible: only
equations that read a literal which became an operand, an operand that stands for two
places, or write a result that this site drops are made anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from .. import _jax
from ..ir.fingerprint import Fingerprint, literal_text
from .dataflow import Interface


@dataclasses.dataclass(frozen=True)
class Cut:
    """A run taken out of its line.

    Attributes:
      eqns: of the body.
      invars: of the body.
      outvars: of the body.
      operands: what the call passes, variables or literals of the line.
      results: what the call gives back to the line; dropped where the line needs it not.
    """

    eqns: list[Any]
    invars: list[Any]
    outvars: list[Any]
    operands: list[Any]
    results: list[Any]

    def code(self, tokens: Sequence[Fingerprint]) -> Hashable:
        """Equal for runs whose bodies have equal fingerprints, and told in a third of the time.

        Args:
          tokens: of the equations.
        """
        numbers = {var: i for i, var in enumerate(self.invars)}
        operands: list[int | str] = []
        for eqn in self.eqns:
            operands += [_number(atom, numbers) for atom in eqn.invars]
            for var in eqn.outvars:
                numbers[var] = len(numbers)
        return (
            tuple([token.digest for token in tokens]),
            tuple([var.aval for var in self.invars]),
            tuple(operands),
            tuple([_number(atom, numbers) for atom in self.outvars]),
        )

    def body(self, name: str) -> _jax.AnyJaxpr:
        """The closed jaxpr of the body."""
        return _jax.new_jaxpr(self.invars, self.outvars, self.eqns, name)

    def call(self, template: Any, body: _jax.AnyJaxpr, name: str) -> Any:
        """The equation that calls the body, in the place of the first equation of the run."""
        return _jax.new_equation(
            _jax.without_name_scope(template),
            _jax.jit_p,
            self.operands,
            self.results,
            _jax.jit_params(body, name),
        )


def _number(atom: Any, numbers: Mapping[Any, int]) -> int | str:
    return literal_text(atom) if isinstance(atom, _jax.Literal) else numbers[atom]


def cut(eqns: Sequence[Any], interface: Interface, run: int) -> Cut:
    """Takes one run out of a line of equations.

    Args:
      eqns: the line.
      interface: what the run passes, with the other runs of its class.
      run: which of them.
    """
    start = interface.starts[run]
    body = _Body(list(eqns[start : start + interface.length]))
    operands = [body.eqns[i].invars[j] for (i, j), *_ in interface.operands]
    invars = list(map(body.new_invar, operands, interface.operands))
    results, outvars = [], []
    for (i, j), needed in zip(interface.results, interface.needed[run], strict=True):
        var = body.eqns[i].outvars[j]
        outvars.append(body.new_result(i, j) if isinstance(var, _jax.DropVar) else var)
        results.append(var if needed else _jax.DropVar(var.aval))
    return Cut(body.eqns, invars, outvars, operands, results)


class _Body:
    """Equations of a body under construction."""

    def __init__(self, eqns: list[Any]) -> None:
        self.eqns = eqns
        self._invars: set[Any] = set()

    def new_invar(self, operand: Any, places: Sequence[tuple[int, int]]) -> Any:
        """The operand itself if it is a variable and no invar yet, else a new one."""
        if not isinstance(operand, _jax.Literal) and operand not in self._invars:
            self._invars.add(operand)
            return operand
        var = _jax.Var(operand.aval)
        for i, j in places:
            invars = list(self.eqns[i].invars)
            invars[j] = var
            self.eqns[i] = self.eqns[i].replace(invars=invars)
        return var

    def new_result(self, i: int, j: int) -> Any:
        """A variable for a result that is dropped at this site but needed at another."""
        outvars = list(self.eqns[i].outvars)
        var = outvars[j] = _jax.Var(outvars[j].aval)
        self.eqns[i] = self.eqns[i].replace(outvars=outvars)
        return var

"""Calls with what lies between them: a line of equations -> the same with larger calls.

Layers often feed each other through a few equations of their caller, as in
``x = x + layer(x)``. Where these *glue* equations are the same behind every call, call and glue
together are a body whose calls feed each other directly. ``glued`` puts such calls in their
place, ``Glued.taken_apart`` undoes it for those that no chain took up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _jax
from ..ir.fingerprint import equation_token, fingerprint
from ..structuring.shared_call import shared_call_p, shared_call_params
from .chains import Chain, Line, contracted, dependencies


@dataclasses.dataclass(frozen=True)
class Glued:
    """A line in which calls contain the glue behind them.

    Attributes:
      line: in an order in which it can run.
      unit: of the new calls; it ends as that of the calls in them.
      parts: by the identity of each new call, the equations that it stands for.
    """

    line: Line
    unit: str
    parts: Mapping[int, list[Any]]

    def taken_apart(self, line: Line) -> Line:
        """A line with the new calls in it that are in no chain spelled out."""
        return [part for item in line for part in self.parts.get(id(item), [item])]


def glued(line: Line, unit: str) -> Glued | None:
    """Puts the calls of a body together with the glue behind them; None if there is none."""
    calls = [
        item
        for item in line
        if not isinstance(item, Chain)
        and item.primitive is shared_call_p
        and item.params["unit"] == unit
    ]
    glue = _glue(line, calls)
    if not any(glue):
        return None
    glue[-1] = _like(glue[-2], calls[-2], calls[-1], line)
    larger = [_Larger([call, *behind]) for call, behind in zip(calls, glue, strict=True)]
    digests = [one.digest for one in larger]
    common = max(digests, key=digests.count)
    body = larger[digests.index(common)].body
    name, _, digest_of_calls = unit.rpartition("_")
    glued_unit = f"{name}_and_glue_{digest_of_calls}"
    parts: dict[int, list[Any]] = {}
    for one, digest in zip(larger, digests, strict=True):
        if digest == common and digests.count(common) > 1:
            call = one.call(body, glued_unit)
            parts[id(call)] = one.eqns
            line = contracted(line, one.eqns, call)
    # The new calls are in the line, which keeps their ids from being used again.
    return Glued(line, glued_unit, parts) if parts else None


def _glue(line: Line, calls: Sequence[Any]) -> list[list[Any]]:
    """For each call the equations through which it feeds the next one."""
    latest = dependencies(line, calls)
    maker = {var: item for item in line for var in item.outvars}
    members = set(map(id, calls))
    glue: list[list[Any]] = []
    for i, following in enumerate(calls[1:]):
        found: dict[int, Any] = {}
        waiting = list(_jax.variables(following.invars))
        while waiting:
            item = maker.get(waiting.pop())
            if item is None or id(item) in members or id(item) in found:
                continue
            if max((latest.get(var, -1) for var in item.outvars), default=-1) == i:
                found[id(item)] = item
                waiting += _jax.variables(item.invars)
        glue.append([item for item in line if id(item) in found])
    is_plain = all(
        not isinstance(item, Chain) and not item.effects and _jax.is_movable(item)
        for items in glue
        for item in items
    )
    return [*glue, []] if is_plain else [[]]


def _like(glue: Sequence[Any], call: Any, last: Any, line: Line) -> list[Any]:
    """The equations behind the last call that are like those behind another; [] if some lack."""
    of_result = dict(zip(last.params["results"], last.outvars, strict=True))
    counterpart = {
        var: of_result.get(result)
        for var, result in zip(call.outvars, call.params["results"], strict=True)
    }
    found: list[Any] = []
    for eqn in glue:
        wanted = [counterpart.get(a) if isinstance(a, _jax.Var) else None for a in eqn.invars]
        token = equation_token(eqn).digest
        match = next(
            (
                item
                for item in line
                if not isinstance(item, Chain)
                and item.primitive is eqn.primitive
                and all(item is not other for other in found)
                and any(w is not None for w in wanted)
                and equation_token(item).digest == token
                and all(w is None or a is w for a, w in zip(item.invars, wanted, strict=True))
            ),
            None,
        )
        if match is None:
            return []
        found.append(match)
        counterpart.update(zip(eqn.outvars, match.outvars, strict=True))
    own = {var for item in (last, *found) for var in item.outvars}
    dependent = dependencies(line, [last]).keys() - own
    return [] if any(not dependent.isdisjoint(_jax.variables(e.invars)) for e in found) else found


class _Larger:
    """A call and the glue behind it as a body of its own.

    Every place that reads a value from outside is an operand, and all that is computed a result,
    so that only the equations decide which bodies are equal.
    """

    def __init__(self, eqns: list[Any]) -> None:
        self.eqns = eqns
        self._operands: list[Any] = []
        self._results: list[Any] = []
        self._name = eqns[0].params["name"]
        local: dict[Any, Any] = {}
        invars: list[Any] = []

        def read(atom: Any) -> Any:
            if isinstance(atom, _jax.Literal):
                return atom
            if atom not in local:
                self._operands.append(atom)
                invars.append(_jax.Var(atom.aval))
                return invars[-1]
            return local[atom]

        def written(var: Any, aval: Any) -> Any:
            self._results.append(var)
            new = _jax.Var(aval)
            if not isinstance(var, _jax.DropVar):
                local[var] = new
            return new

        inner = [self._inner_call(eqns[0], read, written)]
        for eqn in eqns[1:]:
            atoms = list(map(read, eqn.invars))
            inner.append(
                eqn.replace(invars=atoms, outvars=[written(v, v.aval) for v in eqn.outvars])
            )
        outvars = [var for eqn in inner for var in eqn.outvars]
        self.body = _jax.new_jaxpr(invars, outvars, inner, str(self._name))
        self.digest = fingerprint(self.body).digest

    def _inner_call(self, call: Any, read: Any, written: Any) -> Any:
        """The call with all operands and results of the shared body."""
        shared, params = call.params["shared"], call.params
        taken = dict(zip(params["results"], call.outvars, strict=True))
        atoms = [read(call.invars[i]) for i in params["operands"]]
        outvars = [
            written(taken.get(i, _jax.DropVar(atom.aval)), atom.aval)
            for i, atom in enumerate(_jax.opened(shared).outvars)
        ]
        return _jax.new_equation(
            call, _jax.jit_p, atoms, outvars, _jax.jit_params(shared, self._name)
        )

    def call(self, body: _jax.AnyJaxpr, unit: str) -> Any:
        """The equation that calls a body equal to this one in the place of the equations."""
        params = _jax.jit_params(body, self._name)
        return _jax.new_equation(
            self.eqns[0],
            shared_call_p,
            self._operands,
            self._results,
            shared_call_params(params, body, unit, None),
        )

"""Stages, steps and slots while they change.

A `Draft` is a program in stages that `recompute` rewrites: code is mutable, slots get new
numbers only at the end, and what nobody reads any more is dropped then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _jax
from ..ir.program import live_equations
from .schedule import Step


@dataclasses.dataclass
class Code:
    """The equations of a stage."""

    invars: list[Any]
    outvars: list[Any]
    eqns: list[Any]


@dataclasses.dataclass
class Run:
    """A step."""

    stage: int
    operands: list[int]
    results: list[int]


class Origin(NamedTuple):
    """Where a value comes from, whatever stages it passed on its way.

    Attributes:
      run: the step that makes it; -1 for operands and constants of the program.
      value: the variable or literal of that step's stage, or the slot.
    """

    run: int
    value: Any


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """Stages and steps of the same program.

    Attributes:
      codes: of the stages, under their former numbers; empty where nothing of one is left.
      steps: without lifetimes and donations.
      avals: types of the slots.
      results: slots of the program's results.
    """

    codes: tuple[Code, ...]
    steps: tuple[Step, ...]
    avals: tuple[Any, ...]
    results: tuple[int, ...]


class Draft:
    """A program in stages.

    Args:
      jaxprs: of the stages, closed, without constants.
      steps: in order, without lifetimes and donations.
      avals: types of the slots.
      n_given: slots of operands and constants, which come first.
      results: slots of the program's results.
    """

    def __init__(
        self,
        jaxprs: Sequence[_jax.AnyJaxpr],
        steps: Sequence[Step],
        avals: Sequence[Any],
        n_given: int,
        results: Sequence[int],
    ) -> None:
        opened = map(_jax.opened, jaxprs)
        self.codes = [Code(list(j.invars), list(j.outvars), list(j.eqns)) for j in opened]
        self.runs = [Run(s.stage, list(s.operands), list(range(*s.results))) for s in steps]
        self.n_given = n_given
        self._avals = list(avals)
        self._results = list(results)
        self._made = {
            slot: (number, at)
            for number, run in enumerate(self.runs)
            for at, slot in enumerate(run.results)
        }
        self._making: dict[int, dict[Any, Any]] = {}

    def code(self, run: int) -> Code:
        """The equations of a step."""
        return self.codes[self.runs[run].stage]

    def maker(self, slot: int) -> tuple[int, int] | None:
        """The step that makes a value and the position of the result; None for given ones."""
        return self._made.get(slot)

    def origin(self, run: int, atom: Any) -> Origin:
        """Where a value that a stage sees in a step comes from."""
        while not isinstance(atom, _jax.Literal):
            position = _position(self.code(run).invars, atom)
            if position is None:
                break
            slot = self.runs[run].operands[position]
            made = self.maker(slot)
            if made is None:
                return Origin(-1, slot)
            run, at = made
            atom = self.code(run).outvars[at]
        return Origin(run, atom)

    def equation(self, origin: Origin) -> Any:
        """The equation that makes a value; None for given ones and literals."""
        if origin.run < 0 or isinstance(origin.value, _jax.Literal):
            return None
        stage = self.runs[origin.run].stage
        if stage not in self._making:
            eqns = self.codes[stage].eqns
            self._making[stage] = {var: eqn for eqn in eqns for var in eqn.outvars}
        return self._making[stage].get(origin.value)

    def slot(self, origin: Origin) -> int | None:
        """Where a value is passed; None while it is not."""
        if origin.run < 0:
            return origin.value
        at = _position(self.code(origin.run).outvars, origin.value)
        return None if at is None else self.runs[origin.run].results[at]

    def passed(self, origin: Origin) -> int:
        """Where a value is passed, from now on if it has not been."""
        slot = self.slot(origin)
        if slot is not None:
            return slot
        code = self.code(origin.run)
        code.outvars.append(origin.value)
        for number, run in enumerate(self.runs):
            if self.codes[run.stage] is code:
                self._made[len(self._avals)] = (number, len(run.results))
                run.results.append(len(self._avals))
                self._avals.append(origin.value.aval)
        return self.runs[origin.run].results[-1]

    def changed(self, stage: int) -> None:
        """To be called after the equations of a stage have changed."""
        self._making.pop(stage, None)

    def reads(self) -> dict[int, list[tuple[int, int]]]:
        """Who reads each slot: steps with positions of operands; the caller is the last step."""
        found: dict[int, list[tuple[int, int]]] = {}
        for number, run in enumerate(self.runs):
            for at, slot in enumerate(run.operands):
                found.setdefault(slot, []).append((number, at))
        for slot in self._results:
            found.setdefault(slot, []).append((len(self.runs), -1))
        return found

    def rewritten(self) -> Rewritten:
        """The program without what nobody reads any more."""
        while self._dropped():
            pass
        runs = [run for run in self.runs if run.results or self.codes[run.stage].eqns]
        slots = [*range(self.n_given), *(slot for run in runs for slot in run.results)]
        number = {slot: i for i, slot in enumerate(slots)}
        steps, first = [], self.n_given
        for run in runs:
            past = first + len(run.results)
            steps.append(Step(run.stage, tuple(number[s] for s in run.operands), (first, past)))
            first = past
        return Rewritten(
            tuple(self.codes),
            tuple(steps),
            tuple(self._avals[slot] for slot in slots),
            tuple(number[slot] for slot in self._results),
        )

    def _dropped(self) -> bool:
        """Drops results, equations and operands that are not needed; whether there were any."""
        read = {slot for run in self.runs for slot in run.operands} | {*self._results}
        found = False
        for stage, code in enumerate(self.codes):
            runs = [run for run in self.runs if run.stage == stage]
            kept = [
                at for at in range(len(code.outvars)) if any(r.results[at] in read for r in runs)
            ]
            found |= len(kept) < len(code.outvars)
            _keep(kept, code.outvars, *(run.results for run in runs))
            code.eqns = live_equations(code.eqns, code.outvars)
            used = {*_jax.variables(code.outvars)}
            used.update(a for eqn in code.eqns for a in _jax.variables(eqn.invars))
            kept = [at for at, var in enumerate(code.invars) if var in used]
            found |= len(kept) < len(code.invars)
            _keep(kept, code.invars, *(run.operands for run in runs))
        return found


def _position(atoms: Sequence[Any], atom: Any) -> int | None:
    """Where a variable is, or this very literal."""
    if isinstance(atom, _jax.Literal):
        return next((at for at, other in enumerate(atoms) if other is atom), None)
    return atoms.index(atom) if atom in atoms else None


def _keep(positions: Sequence[int], *lists: list[Any]) -> None:
    for one in lists:
        one[:] = [one[at] for at in positions]

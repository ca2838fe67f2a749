"""Where a restructured program is cut into parts that are compiled on their own.

A *stage* is code that is compiled once: a body whose calls are kept, or a *stretch*, the
equations between two calls of such bodies. A *step* is one run of a stage. Values between
steps live in numbered *slots*: first the program's operands, then its constants, then the
results of each step. ``cut_into_stages`` says what runs in which order on which slots, and
which slots are no longer needed; it compiles and runs nothing.

Stretches are as few as the calls allow: what nobody waits for ends up in one stretch. Where
that would keep large values alive, an equation that makes one runs as late as it can, and one
that ends one as early. Equations with effects stay where they are among the calls and each
other.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from .. import _jax
from ..ir.fingerprint import fingerprint
from ..ir.program import Program, live_equations
from ..structuring.shared_call import shared_call_p
from .recompute import with_recomputation
from .schedule import (
    Step,
    pairs,
    same_length,
    stretches_of,
    with_donation,
    with_lifetimes,
)

_MIN_STEPS = 2  # fewer runs of a body than this save nothing


@dataclasses.dataclass(frozen=True)
class Stage:
    """Code that is compiled once.

    Attributes:
      name: under which it is compiled.
      jaxpr: closed, without constants.
      is_body: whether it is a body, else it is a stretch.
    """

    name: str
    jaxpr: _jax.AnyJaxpr
    is_body: bool


@dataclasses.dataclass(frozen=True)
class Stages:
    """A program as a list of steps.

    Attributes:
      stages: each compiled once.
      steps: in the order in which they run.
      constants: values of the slots behind the operands'.
      avals: types of all slots.
      used: operands that some step reads.
      results: slots of the program's results.
      given_up: slots of donated operands whose buffers results can use.
      unusable: types of donated operands that match no result.
      spans_devices: whether something in them names more than one device.
    """

    stages: tuple[Stage, ...]
    steps: tuple[Step, ...]
    constants: tuple[Any, ...]
    avals: tuple[Any, ...]
    used: tuple[int, ...]
    results: tuple[int, ...]
    given_up: frozenset[int] = frozenset()
    unusable: tuple[Any, ...] = ()
    spans_devices: bool = False


def can_cross(aval: Any) -> bool:
    """Whether jit passes such a value on as it is, which 64 bits need their mode for."""
    if not _jax.is_array_type(aval):
        return False
    dtype = aval.dtype
    return not isinstance(dtype, np.dtype) or jax.dtypes.canonicalize_dtype(dtype) == dtype


def cut_into_stages(program: Program) -> Stages:
    """Cuts a restructured program, all kept calls of its outermost level becoming steps."""
    return _Cutter(program).stages()


def kept_bodies(eqns: Sequence[Any]) -> set[int]:
    """Ids of the jaxprs whose calls become steps."""
    n_calls = collections.Counter(
        id(eqn.params["shared"])
        for eqn in eqns
        if eqn.primitive is shared_call_p
        and eqn.params["unit"]
        and not _jax.consts(eqn.params["shared"])
        and not eqn.effects
    )
    return {body for body, n in n_calls.items() if n >= _MIN_STEPS}


# --- slots ----------------------------------------------------------------------------------------


class _Cutter:
    """Stages, steps and slots under construction."""

    def __init__(self, program: Program) -> None:
        self._open = _jax.opened(program.jaxpr)
        self._name = program.name
        self._eqns = live_equations(self._open.eqns, self._open.outvars)
        self._kept = kept_bodies(self._eqns)
        self._constants = list(_jax.consts(program.jaxpr))
        self._literals = self._literals_passed()
        self._constants += [_jax.literal_value(atom) for atom in self._literals.values()]
        self._slot: dict[Any, int] = {}
        self._avals: list[Any] = []
        for atom in (*self._open.invars, *self._open.constvars, *self._literals.values()):
            if not isinstance(atom, _jax.Literal):
                self._slot[atom] = len(self._avals)
            self._avals.append(atom.aval)
        self._stages: list[Stage] = []
        self._steps: list[Step] = []
        self._numbers: dict[Any, int] = {}
        donated = program.boundary.donated if program.boundary else ()
        self._donated = [i for i, gives_up in enumerate(donated) if gives_up]

    def stages(self) -> Stages:
        is_call = [self._is_call(eqn) for eqn in self._eqns]
        stretches = stretches_of(self._eqns, is_call)
        calls = [eqn for eqn, call in zip(self._eqns, is_call, strict=True) if call]
        outside = self._read_outside(stretches, calls)
        for stretch, call in zip(stretches, calls, strict=False):
            self._add_stretch(stretch, outside, [])
            self._add_call(call)
        passed = self._passed_through()
        self._add_stretch(stretches[-1], outside, passed)
        results = self._recomputed(self._results(passed))
        given_up, unusable = self._given_up(results)
        steps = with_donation(with_lifetimes(self._steps, results), self._avals, given_up)
        used = sorted(
            {slot for step in steps for slot in step.operands if slot < len(self._open.invars)}
        )
        return Stages(
            tuple(self._stages),
            tuple(steps),
            tuple(self._constants),
            tuple(self._avals),
            tuple(used),
            tuple(results),
            frozenset(given_up),
            unusable,
            _names_devices(stage.jaxpr for stage in self._stages),
        )

    def _recomputed(self, results: Sequence[int]) -> Sequence[int]:
        """Lets stages make again what is lighter to make than to pass; the slots of results."""
        n_given = len(self._open.invars) + len(self._constants)
        jaxprs = [stage.jaxpr for stage in self._stages]
        found = with_recomputation(jaxprs, self._steps, self._avals, n_given, results, can_cross)
        if found is None:
            return results
        self._stages = [
            dataclasses.replace(
                stage, jaxpr=_jax.new_jaxpr(code.invars, code.outvars, code.eqns, stage.name)
            )
            for stage, code in zip(self._stages, found.codes, strict=True)
        ]
        self._steps, self._avals = list(found.steps), list(found.avals)
        return found.results

    def _is_call(self, eqn: Any) -> bool:
        return eqn.primitive is shared_call_p and id(eqn.params["shared"]) in self._kept

    def _literals_passed(self) -> dict[int, Any]:
        """Literals that are operands of calls, by their ids."""
        return {
            id(eqn.invars[i]): eqn.invars[i]
            for eqn in self._eqns
            if self._is_call(eqn)
            for i in eqn.params["operands"]
            if isinstance(eqn.invars[i], _jax.Literal)
        }

    def _read_outside(self, stretches: Sequence[Sequence[Any]], calls: Sequence[Any]) -> set[Any]:
        """Variables that a stretch must give back: read by another step, or results."""
        outside = set(_jax.variables(self._open.outvars))
        for call in calls:
            outside.update(_jax.variables(call.invars))
        for stretch in stretches:
            inside = {var for eqn in stretch for var in eqn.outvars}
            outside.update(
                a for eqn in stretch for a in _jax.variables(eqn.invars) if a not in inside
            )
        return outside

    def _add_call(self, eqn: Any) -> None:
        params = eqn.params
        body = params["shared"]
        operands = [self._read(eqn.invars[i]) for i in params["operands"]]
        stage = self._stage(id(body), Stage(str(params["name"]), body, True))
        first = self._add_step(stage, operands, [v.aval for v in _jax.opened(body).outvars])
        for var, i in zip(eqn.outvars, params["results"], strict=True):
            self._slot[var] = first + i

    def _add_stretch(self, eqns: Sequence[Any], outside: set[Any], passed: Sequence[Any]) -> None:
        inside = {var for eqn in eqns for var in eqn.outvars}
        read = [a for eqn in eqns for a in _jax.variables(eqn.invars)] + list(
            _jax.variables(passed)
        )
        invars = list(dict.fromkeys(a for a in read if a not in inside))
        written = [var for eqn in eqns for var in eqn.outvars if var in outside]
        outvars = [*written, *passed]
        if not eqns and not passed:
            return
        operands = [self._slot[var] for var in invars]
        jaxpr = _jax.new_jaxpr(invars, outvars, eqns, self._name)
        name = f"{self._name}_part{len(self._stages)}"
        stage = self._stage(fingerprint(jaxpr).digest, Stage(name, jaxpr, False))
        first = self._add_step(stage, operands, [atom.aval for atom in outvars])
        self._slot.update((var, first + i) for i, var in enumerate(written))

    def _stage(self, key: Any, stage: Stage) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._stages)
            self._stages.append(stage)
        return self._numbers[key]

    def _add_step(self, stage: int, operands: Sequence[int], avals: Sequence[Any]) -> int:
        first = len(self._avals)
        self._avals += avals
        self._steps.append(Step(stage, tuple(operands), (first, len(self._avals))))
        return first

    def _read(self, atom: Any) -> int:
        if not isinstance(atom, _jax.Literal):
            return self._slot[atom]
        n_named = len(self._open.invars) + len(self._open.constvars)
        return n_named + list(self._literals).index(id(atom))

    # --- results: those no step has written, or that are there twice, pass a stretch -----------

    def _passed_through(self) -> list[Any]:
        named = {*self._open.invars, *self._open.constvars}
        passed, seen = [], set()
        for atom in self._open.outvars:
            if isinstance(atom, _jax.Literal) or atom in named or atom in seen:
                passed.append(atom)
            else:
                seen.add(atom)
        return passed

    def _results(self, passed: Sequence[Any]) -> list[int]:
        copies = iter(range(len(self._avals) - len(passed), len(self._avals)))
        named = {*self._open.invars, *self._open.constvars}
        results: list[int] = []
        for atom in self._open.outvars:
            known = None if isinstance(atom, _jax.Literal) or atom in named else self._slot[atom]
            results.append(next(copies) if known is None or known in results else known)
        return results

    def _given_up(self, results: Sequence[int]) -> tuple[set[int], tuple[Any, ...]]:
        """Donated operands whose buffer a result can use, and the types that `jit` warns of."""
        used = {slot for step in self._steps for slot in step.operands}
        donated = [slot for slot in self._donated if slot in used]
        offered = [self._avals[slot] for slot in donated]
        wanted = [self._avals[slot] for slot in results]
        matched = pairs(offered, wanted, same_length)
        unusable = [aval for i, aval in enumerate(offered) if i not in matched]
        return {donated[i] for i in pairs(offered, wanted)}, tuple(unusable)


# --- devices --------------------------------------------------------------------------------------


def _names_devices(jaxprs: Iterable[_jax.AnyJaxpr]) -> bool:
    """Whether something in these jaxprs names more than one device."""
    seen: set[int] = set()
    return any(_names_devices_in(jaxpr, seen) for jaxpr in jaxprs)


def _names_devices_in(jaxpr: _jax.AnyJaxpr, seen: set[int]) -> bool:
    if id(jaxpr) in seen:
        return False
    seen.add(id(jaxpr))
    return any(
        any(map(_is_mesh, jax.tree.leaves(list(eqn.params.values()))))
        or any(_names_devices_in(sub, seen) for sub in _jax.sub_jaxprs(eqn))
        for eqn in _jax.equations(jaxpr)
    )


def _is_mesh(value: Any) -> bool:
    if isinstance(value, jax.sharding.NamedSharding):
        value = value.mesh  # which may be abstract, so that its devices are not known
    if isinstance(value, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        return value.size > 1
    return isinstance(value, jax.sharding.Sharding) and len(value.device_set) > 1

"""Which values a stage makes again instead of reading them.

The gradient of a layer reads what the layer kept for it, its *residuals*. Within one executable
the compiler makes those that are cheap again wherever they are read; between two it cannot, and
each of them is written by a kernel and kept in memory until then. So a stage that reads results
of another gets the cheap equations behind them as well, and reads what these start from: the
values that are lightest to pass, which are a lightest cut of those equations.

A stage is the same for all its steps, so in each of them the values must come from the same
equations. Mostly one stage makes them for most steps; the first or last layer of a network is
often other code, and there the equations behind the values are compared one by one.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _jax
from ..ir.fingerprint import equation_token, literal_text
from ..structuring.shared_call import shared_call_p
from .draft import Draft, Origin, Rewritten
from .lightest_cut import lightest_cut
from .schedule import Step

_WRITING_BYTES = 1 << 12
"""What a result of a stage costs beside its memory: 1 us of the host, and mostly a kernel."""

_LONGEST_ROW = 1 << 13

_Reads = Mapping[int, Sequence[tuple[int, int]]]

_CALLS = _jax.FUSED_CALLS | {shared_call_p}


def with_recomputation(
    jaxprs: Sequence[_jax.AnyJaxpr],
    steps: Sequence[Step],
    avals: Sequence[Any],
    n_given: int,
    results: Sequence[int],
    can_pass: Callable[[Any], bool],
) -> Rewritten | None:
    """Stages that make values again where that is lighter than to pass them.

    Args:
      jaxprs: of the stages, closed, without constants.
      steps: in order, without lifetimes and donations.
      avals: types of the slots.
      n_given: slots of operands and constants, which come first.
      results: slots of the program's results.
      can_pass: whether values of a type may pass between stages.

    Returns:
      None where nothing changes.
    """
    draft = Draft(jaxprs, steps, avals, n_given, results)
    n_steps = collections.Counter(step.stage for step in steps)
    # The most run first: code that runs once is compared with it, as long as it is as it was.
    changed = [_recompute_in(draft, reader, can_pass) for reader, _ in n_steps.most_common()]
    return draft.rewritten() if any(changed) else None


def is_made_again(eqn: Any) -> bool:
    """Whether an equation is cheap: fused by compilers into what reads its results."""
    if eqn.effects or not _jax.is_movable(eqn):
        return False
    if eqn.primitive in _CALLS:
        return all(map(is_made_again, (e for j in _jax.sub_jaxprs(eqn) for e in _jax.equations(j))))
    return eqn.primitive in _jax.FUSED or _is_short_reduction(eqn)


def _is_short_reduction(eqn: Any) -> bool:
    """Whether an equation reduces rows that one kernel can hold, as for a norm or a softmax."""
    if eqn.primitive not in _jax.REDUCTIONS:
        return False
    shape, axes = eqn.invars[0].aval.shape, sorted(eqn.params["axes"])
    trailing = [*range(len(shape) - len(axes), len(shape))]
    return axes == trailing and math.prod(shape[at] for at in axes) <= _LONGEST_ROW


# --- one stage that reads -------------------------------------------------------------------------


def _recompute_in(draft: Draft, reader: int, can_pass: Callable[[Any], bool]) -> bool:
    """Changes what the steps of one stage read; whether it did."""
    numbers = [i for i, run in enumerate(draft.runs) if run.stage == reader]
    code = draft.codes[reader]
    reads = draft.reads()
    gone: set[int] = set()
    for makers, wanted in _made_together(draft, reader, numbers).items():
        group = _Group(draft, numbers, makers, wanted)
        gone |= group.recompute(can_pass, reads, gone)
    for part in (code.invars, *(draft.runs[i].operands for i in numbers)):
        part[:] = [value for at, value in enumerate(part) if at not in gone]
    draft.changed(reader)
    return bool(gone)


def _made_together(
    draft: Draft, reader: int, numbers: Sequence[int]
) -> dict[tuple[int, ...], dict[int, Any]]:
    """Operands of a stage that the same steps make.

    Returns:
      By the step that makes them for each step of the stage, or -1 where that is another stage
      than for most steps: positions of the operands, and the results of the maker that they are.
    """
    groups: dict[tuple[int, ...], dict[int, Any]] = {}
    for position in range(len(draft.codes[reader].invars)):
        made = [draft.maker(draft.runs[i].operands[position]) for i in numbers]
        places = [(draft.runs[m[0]].stage, m[1]) if m else (reader, -1) for m in made]
        place, _ = collections.Counter(places).most_common(1)[0]
        if place[0] != reader:
            makers = tuple(
                m[0] if m and p == place else -1 for m, p in zip(made, places, strict=True)
            )
            result = draft.codes[place[0]].outvars[place[1]]
            groups.setdefault(makers, {})[position] = result
    return groups


class _Group:
    """Operands that one stage, the *maker*, makes for most steps of another, the *reader*.

    Args:
      draft: the program.
      numbers: steps of the reader.
      makers: for each of them the step of the maker, or -1.
      wanted: positions of the operands, and the maker's results that they are.
    """

    def __init__(
        self,
        draft: Draft,
        numbers: Sequence[int],
        makers: tuple[int, ...],
        wanted: dict[int, Any],
    ) -> None:
        self._draft = draft
        self._numbers = numbers
        self._makers = makers
        self._reader = draft.code(numbers[0])
        self._maker = draft.code(next(i for i in makers if i >= 0))
        self._elsewhere = {
            i: {} for i, maker in zip(numbers, makers, strict=True) if maker < 0
        }  # the origins of the maker's variables, in steps for which others make them
        self._wanted = {at: atom for at, atom in wanted.items() if self._starts(at, atom)}
        inner = _behind(self._maker.eqns, self._targets(), frozenset(), is_made_again)
        different = {id(eqn) for eqn in reversed(inner) if not self._is_same_everywhere(eqn)}
        self._inner = _behind(
            inner, self._targets(), frozenset(), lambda eqn: id(eqn) not in different
        )

    def _targets(self) -> list[Any]:
        return list(dict.fromkeys(_jax.variables(list(self._wanted.values()))))

    # --- the same equations everywhere ------------------------------------------------------------

    def _starts(self, position: int, atom: Any) -> bool:
        """Notes where an operand comes from in all steps; whether it can be compared."""
        for number, origins in self._elsewhere.items():
            var = self._reader.invars[position]
            origin = self._draft.origin(number, var)
            if not self._is_usable(origin) or isinstance(atom, _jax.Literal):
                return False
            if origins.setdefault(atom, origin) != origin:
                return False
        return True

    def _is_usable(self, origin: Origin) -> bool:
        """Whether a value can be passed from where it is made."""
        if origin.run < 0:
            return True
        literal = isinstance(origin.value, _jax.Literal)
        return not literal and self._draft.code(origin.run) is not self._reader

    def _is_same_everywhere(self, eqn: Any) -> bool:
        """Whether its like makes its values in all steps; what reads them is asked about first."""
        found = []
        for origins in self._elsewhere.values():
            operands = self._operands_elsewhere(eqn, origins)
            if operands is None:
                return False
            found.append((origins, operands))
        for origins, operands in found:
            origins.update(operands)
        return True

    def _operands_elsewhere(self, eqn: Any, origins: dict[Any, Origin]) -> dict[Any, Origin] | None:
        """Origins of an equation's operands, given those of results; None if it is another one."""
        draft, results = (
            self._draft,
            [(i, origins[v]) for i, v in enumerate(eqn.outvars) if v in origins],
        )
        if not results:
            return None
        number, other = results[0][1].run, draft.equation(results[0][1])
        if other is None or equation_token(other) != equation_token(eqn):
            return None
        if any(o.run != number or other.outvars[i] is not o.value for i, o in results):
            return None
        operands: dict[Any, Origin] = {}
        for ours, theirs in zip(eqn.invars, other.invars, strict=True):
            origin = draft.origin(number, theirs)
            if isinstance(ours, _jax.Literal):
                theirs = origin.value
                if not isinstance(theirs, _jax.Literal) or literal_text(ours) != literal_text(
                    theirs
                ):
                    return None
            elif not self._is_usable(origin):
                return None
            elif operands.setdefault(ours, origins.get(ours, origin)) != origin:
                return None
        return operands

    # --- the lightest values to pass --------------------------------------------------------------

    def recompute(self, can_pass: Callable[[Any], bool], reads: _Reads, gone: set[int]) -> set[int]:
        """Makes operands again in the reader, and returns their positions.

        Args:
          can_pass: whether values of a type may pass between stages.
          reads: who reads each slot.
          gone: positions of operands that are no longer read.
        """
        staying = {
            tuple(self._draft.runs[i].operands[at] for i in self._numbers): var
            for at, var in enumerate(self._reader.invars)
            if at not in gone and at not in self._wanted
        }
        passed = self._lightest(self._weight(can_pass, reads, staying))
        if passed is None or passed >= set(self._targets()):
            return set()
        self._rewrite(passed, staying)
        return set(self._wanted)

    def _origins(self, var: Any) -> list[Origin]:
        """Where a variable of the maker comes from, for each step of the reader."""
        return [
            self._elsewhere[i][var] if maker < 0 else self._draft.origin(maker, var)
            for i, maker in zip(self._numbers, self._makers, strict=True)
        ]

    def _weight(
        self,
        can_pass: Callable[[Any], bool],
        reads: _Reads,
        staying: dict[tuple[int, ...], Any],
    ) -> Callable[[Any], float]:
        own = set(self._numbers)

        def is_alive(slot: int | None, number: int) -> bool:
            if slot is None or slot < self._draft.n_given:
                return slot is not None
            return any(
                run >= number and not (run in own and at in self._wanted)
                for run, at in reads.get(slot, ())
            )

        def weight(var: Any) -> float:
            column = tuple(map(self._draft.slot, self._origins(var)))
            if column in staying:
                return 0
            if not can_pass(var.aval):
                return float("inf")
            written = 0 if var in self._maker.invars else _WRITING_BYTES
            alive = all(map(is_alive, column, self._numbers))
            return written + (0 if alive else _jax.n_bytes(var.aval))

        return weight

    def _lightest(self, weight: Callable[[Any], float]) -> set[Any] | None:
        """The variables from which the operands are made again; None if there is no way."""
        targets = self._targets()
        used = [a for eqn in self._inner for a in _jax.variables(eqn.invars)]
        nodes = list(dict.fromkeys([*targets, *used]))
        number = {var: i for i, var in enumerate(nodes)}
        made: dict[int, list[int]] = {}
        for eqn in self._inner:
            outvars = [number[var] for var in eqn.outvars if var in number]
            for var in _jax.variables(eqn.invars):
                made.setdefault(number[var], []).extend(outvars)
        inner = {var for eqn in self._inner for var in eqn.outvars}
        cut = lightest_cut(
            [weight(var) for var in nodes],
            made,
            [number[var] for var in nodes if var not in inner],
            [number[var] for var in targets],
        )
        return None if cut is None else {nodes[i] for i in cut}

    def _rewrite(self, passed: set[Any], staying: dict[tuple[int, ...], Any]) -> None:
        reader, atoms = self._reader, {}
        in_order = [*self._maker.invars, *(v for eqn in self._maker.eqns for v in eqn.outvars)]
        for var in [var for var in in_order if var in passed]:
            column = tuple(map(self._draft.passed, self._origins(var)))
            if column not in staying:
                staying[column] = _jax.Var(var.aval)
                reader.invars.append(staying[column])
                for i, slot in zip(self._numbers, column, strict=True):
                    self._draft.runs[i].operands.append(slot)
            atoms[var] = staying[column]
        again = _copied(_behind(self._inner, self._targets(), passed, lambda _: True), atoms)
        replaced = {reader.invars[at]: _read(atom, atoms) for at, atom in self._wanted.items()}
        reader.eqns = again + [_with_operands(eqn, replaced) for eqn in reader.eqns]
        reader.outvars = [_read(atom, replaced) for atom in reader.outvars]


# --- equations ------------------------------------------------------------------------------------


def _behind(
    eqns: Sequence[Any], wanted: Sequence[Any], passed: Any, allowed: Callable[[Any], bool]
) -> list[Any]:
    """The allowed equations that make wanted values, as far back as passed ones."""
    needed = {*wanted}.difference(passed)
    found = []
    for eqn in reversed(eqns):
        if not needed.isdisjoint(eqn.outvars) and allowed(eqn):
            found.append(eqn)
            needed.update(a for a in _jax.variables(eqn.invars) if a not in passed)
    return found[::-1]


def _copied(eqns: Sequence[Any], atoms: dict[Any, Any]) -> list[Any]:
    """The equations with variables of their own, which are entered into ``atoms``."""
    copies = []
    for eqn in eqns:
        invars = [_read(atom, atoms) for atom in eqn.invars]
        outvars = [_jax.Var(var.aval) for var in eqn.outvars]
        for var, new in zip(eqn.outvars, outvars, strict=True):
            atoms.setdefault(var, new)  # some results of an equation may be passed
        copies.append(eqn.replace(invars=invars, outvars=outvars))
    return copies


def _read(atom: Any, atoms: dict[Any, Any]) -> Any:
    return atom if isinstance(atom, _jax.Literal) else atoms.get(atom, atom)


def _with_operands(eqn: Any, atoms: dict[Any, Any]) -> Any:
    invars = [_read(atom, atoms) for atom in eqn.invars]
    same = all(a is b for a, b in zip(invars, eqn.invars, strict=True))
    return eqn if same else eqn.replace(invars=invars)

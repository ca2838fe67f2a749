"""Which runs of a line of equations repeat and are worth a call each.

Repeats are looked for in the line as it stands (`repeats`), and what repeats in another order is
added to them (`alignment`). Where much is left that looks like something else, all is tried once
more with the line in the order in which it is read (`reading`), which stays if that saves more.

An order is any in which the line can be evaluated and its *roots* stand as they stood: equations
with effects, and those that may give other results for equal operands.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..ir.fingerprint import Fingerprint
from ..names import is_outlined
from .alignment import Alike, aligned
from .dataflow import Flow, Interface
from .kinds import MIN_KEPT, Kind, Weights, is_marked
from .reading import n_recurring, n_repeated, reading_order
from .repeats import Preferences, Repeat, take_repeats

MIN_EQUATIONS = 6  # of a run; below, a call saves nothing
_NOISE = 1 / 500  # of a line's equations; a repeat that saves no more may be chance
_LEFT = 8  # a line is searched again if one of so many equations is left and recurs


@dataclasses.dataclass(frozen=True)
class Line:
    """Equations in a row, with their tokens and kinds."""

    eqns: Sequence[Any]
    tokens: Sequence[Fingerprint]
    kinds: Sequence[Kind]

    def __getitem__(self, part: slice) -> Line:
        return Line(self.eqns[part], self.tokens[part], self.kinds[part])

    def in_order(self, order: Sequence[int] | None) -> Line:
        """The line with its equations at other places; itself for None.

        Args:
          order: the place here of each equation there.
        """
        if order is None:
            return self
        return Line(
            [self.eqns[i] for i in order],
            [self.tokens[i] for i in order],
            [self.kinds[i] for i in order],
        )


@dataclasses.dataclass(frozen=True)
class Found:
    """What repeats in a line.

    Attributes:
      interfaces: of the runs.
      order: in which the equations are put first; None where they stay as they are.
    """

    interfaces: list[Interface]
    order: list[int] | None = None

    @property
    def saved(self) -> float:
        """Equations saved, less the cost of the boundaries."""
        return sum((interface.saved for interface in self.interfaces), 0.0)


def found(line: Line, outvars: Sequence[Any]) -> Found:
    """Repeats of a line that can become calls and are worth it.

    Args:
      line: the equations.
      outvars: what is needed behind them.
    """
    search = _Search(line, outvars)
    if not search.may_repeat:
        return Found([])
    best = search.result()
    if order := search.worthwhile_order(best):
        other = _Search(line.in_order(order), outvars).result()
        if other.saved > best.saved:
            return Found(other.interfaces, [order[i] for i in other.order or range(len(order))])
    return best if best.interfaces else Found(search.single_equations())


class _Search:
    """The search of one line in the order in which it stands."""

    def __init__(self, line: Line, outvars: Sequence[Any]) -> None:
        self._line, self._outvars = line, outvars
        self._list = [
            -1 - i
            if not kind.movable or eqn.effects or (kind.is_call and is_marked(eqn))
            else kind.number
            for i, (kind, eqn) in enumerate(zip(line.kinds, line.eqns, strict=True))
        ]
        self._n_repeated = len(self._list) - len(set(self._list))

    @property
    def may_repeat(self) -> bool:
        """Whether any two equations do the same."""
        return self._n_repeated > 0

    @functools.cached_property
    def _flow(self) -> Flow:  # for many lines, nobody asks
        return Flow(self._line.eqns, self._outvars)

    @functools.cached_property
    def _weights(self) -> Weights:
        return Weights(self._line.kinds)

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        return np.asarray(self._list, np.int64)

    def _is_root(self) -> np.ndarray:
        """Equations that are not moved past each other."""
        pure = np.asarray([kind.pure for kind in self._line.kinds], bool)
        return ~pure | (self._numbers < 0)

    def result(self) -> Found:
        """What repeats, and what else does so in another order."""
        interfaces = self._as_it_stands()
        if not interfaces or not self._is_long:
            return Found(interfaces)
        groups = aligned(self._numbers, self._flow.edges, interfaces, self._is_root)
        return self._joined(interfaces, groups) if groups else Found(interfaces)

    def _joined(self, interfaces: Sequence[Interface], groups: Sequence[Alike]) -> Found:
        order = list(range(len(self._list)))
        for group in groups:
            group.put(order)
        flow = Flow(self._line.in_order(order).eqns, self._outvars)
        left, joined = dict(enumerate(interfaces)), list[Interface]()
        for group in groups:
            runs = self._paying(flow.interfaces(group.length, sorted(group.starts)))
            if Found(runs).saved > Found([left[run] for run in group.runs]).saved:
                joined += runs
                for run in group.runs:
                    del left[run]
            else:
                group.put_back(order)
        return Found([*left.values(), *joined], order)

    def _as_it_stands(self) -> list[Interface]:
        interfaces: list[Interface] = []

        def accept(repeat: Repeat) -> list[Repeat]:
            pays = self._paying(self._flow.interfaces(repeat.length, repeat.starts))
            interfaces.extend(pays)
            return [Repeat(interface.length, interface.starts) for interface in pays]

        preferences = Preferences(
            MIN_EQUATIONS,
            len(self._list) * _NOISE,
            self._weights.worth,
            lambda period: self._flow.cut_cost(period),
            self._weights.stretch,
            functools.cache(lambda: self._flow.with_literals(self._list)),
            accept,
        )
        take_repeats(self._numbers, preferences)
        return interfaces

    def _paying(self, interfaces: Iterable[Interface]) -> list[Interface]:
        return [
            interface
            for interface in interfaces
            if interface.saved > 0 and not self._weights.hides_calls(interface)
        ]

    def worthwhile_order(self, found: Found) -> list[int] | None:
        """The order in which the line is read, if it is likely that more repeats in it."""
        if not self._leaves_much(found):
            return None
        order = reading_order(self._flow.edges, self._is_root())
        before, after = (
            n_repeated(numbers, MIN_EQUATIONS) for numbers in (self._numbers, self._numbers[order])
        )
        return order if after > before else None

    def _leaves_much(self, found: Found) -> bool:
        """Whether many equations are in no run and yet recur.

        A line that holds outlined calls was searched before there were any.
        """
        if not (self._is_long and self._is_much(self._n_repeated)) or self._has_outlined_calls():
            return False
        is_left = self._numbers >= 0
        for interface in found.interfaces:
            for start in interface.starts:
                is_left[start : start + interface.length] = False
        return self._is_much(int(is_left.sum())) and self._is_much(
            n_recurring(self._numbers, self._flow.edges, is_left)
        )

    @property
    def _is_long(self) -> bool:
        """Whether a body in the line may be kept, so that more effort may pay."""
        return len(self._list) >= MIN_KEPT

    def _is_much(self, n_equations: int) -> bool:
        return n_equations >= max(MIN_EQUATIONS, len(self._list) / _LEFT)

    def _has_outlined_calls(self) -> bool:
        kinds, eqns = self._line.kinds, self._line.eqns
        calls = [i for i, kind in enumerate(kinds) if kind.is_call]
        return any(is_outlined(eqns[i].params["name"]) for i in calls)

    def single_equations(self) -> list[Interface]:
        """Equations that repeat and hold many others, such as one remat for each layer."""
        starts: dict[int, list[int]] = {}
        for i, (kind, number) in enumerate(zip(self._line.kinds, self._list, strict=True)):
            if number >= 0 and not kind.is_call and kind.is_large:
                starts.setdefault(number, []).append(i)
        return [
            interface
            for same in starts.values()
            if len(same) > 1
            for interface in self._flow.interfaces(1, same)
        ]

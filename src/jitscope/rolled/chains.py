"""Which calls of a body one loop can run: a line of equations -> the same with chains in it.

A *chain* is a row of calls of one body, each of which takes the same results of the call before
and nothing else that depends on an earlier one. ``find_chains`` puts a `Chain` in the place of
its calls, and moves what stood between them before it or after it. Equations with effects keep
their order among each other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _jax
from ..structuring.shared_call import shared_call_p


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """Calls of one body, in the order in which a loop runs them.

    Like an equation it has ``invars``, ``outvars`` and ``effects``, and so can stand in a line.

    Attributes:
      calls: the ``shared_call`` equations.
      links: operand to result of the body: what each call takes from the one before.
    """

    calls: tuple[Any, ...]
    links: Mapping[int, int]
    effects: frozenset[Any] = frozenset()

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def unit(self) -> str:
        return self.calls[0].params["unit"]

    @property
    def body(self) -> _jax.AnyJaxpr:
        return self.calls[0].params["shared"]

    @functools.cached_property
    def invars(self) -> list[Any]:
        """What the calls take from outside, with repetitions."""
        own = set(self.outvars)
        return [a for call in self.calls for a in _jax.variables(call.invars) if a not in own]

    @functools.cached_property
    def outvars(self) -> list[Any]:
        return [var for call in self.calls for var in call.outvars]

    def operands(self, position: int) -> list[Any]:
        """What each call passes for an operand of the body."""
        return [call.invars[call.params["operands"][position]] for call in self.calls]

    def results(self, position: int) -> list[list[Any]]:
        """The variables, for each call, that take a result of the body."""
        return [
            [var for var, of_body in _results(call) if of_body == position] for call in self.calls
        ]


Line = list[Any]
"""Equations and chains in an order in which they can run."""


def find_chains(eqns: Sequence[Any], fewest: Mapping[str, int]) -> tuple[Line, dict[str, str]]:
    """Puts calls together in chains, the longest first.

    Args:
      eqns: of one level of a program.
      fewest: calls of the shortest chain, by the unit of the bodies looked for.

    Returns:
      The line, and why there is no chain of a body, by unit.
    """
    line, why_not = list(eqns), {}
    for unit, n_fewest in fewest.items():
        paths = _paths(line, unit)
        waiting = [path for path in paths if len(path) >= n_fewest]
        reasons = [] if waiting else [_too_short(max(map(len, paths)), n_fewest)]
        found = False
        while waiting:
            path = waiting.pop()
            segment = _longest(line, path)
            if segment.length < n_fewest:
                reasons.append(segment.why_not)
                continue
            start, end = segment.start, segment.start + segment.length
            chain = Chain(tuple(path[start:end]), segment.links)
            line = contracted(line, chain.calls, chain)
            waiting += [rest for rest in (path[:start], path[end:]) if len(rest) >= n_fewest]
            found = True
        if not found:
            why_not[unit] = reasons[0]
    return line, why_not


def _too_short(longest: int, fewest: int) -> str:
    if longest < 2:
        return "its calls do not feed each other"
    return f"its longest chain has {longest} calls, loops pay from {fewest}"


def _results(call: Any) -> Iterator[tuple[Any, int]]:
    """Variables that take a result, and which result of the body it is."""
    for var, position in zip(call.outvars, call.params["results"], strict=True):
        if not isinstance(var, _jax.DropVar):
            yield var, position


def _paths(line: Line, unit: str) -> list[list[Any]]:
    """Calls of a body such that each takes a result of the one before it in its path."""
    paths: list[list[Any]] = []
    maker: dict[Any, Any] = {}  # of a value, by the identity of the call
    path_of: dict[int, list[Any]] = {}
    for call in line:
        if isinstance(call, Chain) or call.primitive is not shared_call_p:
            continue
        if call.params["unit"] != unit:
            continue
        before = [maker[atom] for atom in _jax.variables(call.invars) if atom in maker]
        path = next(
            (path_of[id(b)] for b in reversed(before) if path_of[id(b)][-1] is b),
            None,
        )
        if path is None:
            path = []
            paths.append(path)
        path.append(call)
        path_of[id(call)] = path
        maker.update((var, call) for var, _ in _results(call))
    return paths


# --- how long a chain can be --------------------------------------------------------------------


class _Operand(NamedTuple):
    """Where a call of a path takes an operand of the body from.

    Attributes:
      latest: the last call of the path that it depends on, or -1.
      maker: the call whose result it is, or -1.
      result: which result of the body that is.
    """

    latest: int
    maker: int = -1
    result: int = -1


class _Segment(NamedTuple):
    """A part of a path that can be a chain."""

    start: int
    length: int
    links: Mapping[int, int]
    why_not: str


_EFFECTS = object()
"""Stands, among the values, for the order of effects."""


def dependencies(line: Line, calls: Sequence[Any]) -> dict[Any, int]:
    """The last of some calls that each value depends on, for those that depend on any."""
    place = {id(call): i for i, call in enumerate(calls)}
    latest: dict[Any, int] = {}
    for item in line:
        own = (_EFFECTS,) if item.effects else ()
        i = place.get(id(item))
        if i is None:
            i = max([latest.get(a, -1) for a in (*own, *_jax.variables(item.invars))], default=-1)
        if i >= 0:
            latest.update(dict.fromkeys((*own, *item.outvars), i))
    return latest


def _origins(line: Line, path: Sequence[Any]) -> list[list[_Operand]]:
    """The operands of each call of a path."""
    latest = dependencies(line, path)
    made = {
        var: _Operand(i, i, position)
        for i, call in enumerate(path)
        for var, position in _results(call)
    }
    return [
        [
            _Operand(-1)
            if isinstance(atom, _jax.Literal)
            else made.get(atom, _Operand(latest.get(atom, -1)))
            for atom in (call.invars[p] for p in call.params["operands"])
        ]
        for call in path
    ]


def _longest(line: Line, path: Sequence[Any]) -> _Segment:
    """The longest part of a path that can be a chain, the first of several."""
    if not all(map(_jax.is_movable, path)):
        return _Segment(0, 0, {}, "its calls stand in a context of their own")
    for atom in (*path[0].invars, *path[0].outvars):
        if not _jax.can_stack(atom.aval):
            return _Segment(0, 0, {}, f"values of type {atom.aval} cannot be stacked")
    if _jax.holds(path[0].params["shared"], _jax.sharding_constraint_p):
        # All rows of a stack are sharded alike. XLA gives the gradient of a first layer, whose
        # input has the sharding of an argument, another one than those behind constraints.
        return _Segment(0, 0, {}, "its body constrains shardings")
    origins = _origins(line, path)
    best = _Segment(0, 1, {}, "")
    why_not = ""
    for start in range(len(path) - 1):
        if len(path) - start <= best.length:
            break
        found = _segment(path, origins, start)
        why_not = why_not or found.why_not
        if found.length > best.length:
            best = found
    return best._replace(why_not=why_not)


def _segment(path: Sequence[Any], origins: Sequence[Sequence[_Operand]], start: int) -> _Segment:
    """The longest chain that starts with a call of a path."""
    links = _links(origins[start + 1], start)
    for i in range(start + 1, len(path)):
        if _links(origins[i], i - 1) != links or path[i].ctx != path[start].ctx:
            why_not = "its calls do not all take the same results of the call before"
        elif any(
            operand.latest >= start
            for position, operand in enumerate(origins[i])
            if position not in links
        ):
            why_not = "calls take values that depend on earlier calls in other ways"
        else:
            continue
        return _Segment(start, i - start, links, why_not)
    return _Segment(start, len(path) - start, links, "")


def _links(operands: Sequence[_Operand], maker: int) -> dict[int, int]:
    return {p: operand.result for p, operand in enumerate(operands) if operand.maker == maker}


def contracted(line: Line, parts: Sequence[Any], whole: Any) -> Line:
    """The line with one item in place of several, what depends on it behind it."""
    members = set(map(id, parts))
    positions = [i for i, item in enumerate(line) if id(item) in members]
    first, last = positions[0], positions[-1]
    dependent: set[Any] = set(whole.outvars)
    before, after = line[:first], []
    for item in line[first : last + 1]:
        if id(item) in members:
            continue
        own = (_EFFECTS,) if item.effects else ()
        if dependent.isdisjoint((*own, *_jax.variables(item.invars))):
            before.append(item)
        else:
            after.append(item)
            dependent.update((*own, *item.outvars))
    return [*before, whole, *after, *line[last + 1 :]]

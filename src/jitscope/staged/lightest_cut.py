"""The lightest set of nodes that separates two sides of a graph."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

_SOURCE, _TARGET = -1, -2
_Residual = dict[int, dict[int, float]]


def lightest_cut(
    weights: Sequence[float],
    successors: Mapping[int, Iterable[int]],
    sources: Iterable[int],
    targets: Iterable[int],
) -> list[int] | None:
    """The nodes of least weight without which no path leads from a source to a target.

    The least cut is the greatest flow. A node is an arc from its entry to its exit.

    Args:
      weights: of the nodes, which are numbered from 0.
      successors: of the nodes that have any.
      sources: where paths start; they may be cut themselves.
      targets: where paths end, likewise.

    Returns:
      Of several such sets the one nearest to the targets; None if all are infinitely heavy.
    """
    arcs: _Residual = collections.defaultdict(dict)

    def add(start: int, end: int, capacity: float) -> None:
        arcs[start][end] = capacity
        arcs[end].setdefault(start, 0)

    for node, weight in enumerate(weights):
        add(2 * node, 2 * node + 1, weight)
    for node, following in successors.items():
        for other in following:
            add(2 * node + 1, 2 * other, float("inf"))
    for node in sources:
        add(_SOURCE, 2 * node, float("inf"))
    for node in targets:
        add(2 * node + 1, _TARGET, float("inf"))
    while path := _shortest_path(arcs):
        flow = min(arcs[a][b] for a, b in path)
        if flow == float("inf"):
            return None
        for a, b in path:
            arcs[a][b] -= flow
            arcs[b][a] += flow
    beyond = _reaching_target(arcs)
    return [i for i in range(len(weights)) if 2 * i + 1 in beyond and 2 * i not in beyond]


def _shortest_path(arcs: _Residual) -> list[tuple[int, int]]:
    """The arcs of a path that has capacity left, or nothing."""
    before = {_SOURCE: _SOURCE}
    waiting = collections.deque([_SOURCE])
    while waiting and _TARGET not in before:
        at = waiting.popleft()
        for end, capacity in arcs[at].items():
            if capacity > 0 and end not in before:
                before[end] = at
                waiting.append(end)
    path, end = [], _TARGET
    while end in before and end != _SOURCE:
        path.append((before[end], end))
        end = before[end]
    return path


def _reaching_target(arcs: _Residual) -> set[int]:
    """What has capacity left on some way to the target."""
    found, waiting = {_TARGET}, [_TARGET]
    while waiting:
        end = waiting.pop()
        for start in arcs[end]:
            if start not in found and arcs[start][end] > 0:
                found.add(start)
                waiting.append(start)
    return found

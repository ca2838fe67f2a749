"""When the parts of a staged program run, and how long its values live.

`stretches_of` says which equations run between which calls, `with_lifetimes` after which step
nobody reads a slot any more, `with_donation` which arguments that the caller gives up a step
may write its results into. All are pure functions of equations or steps.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any

from .. import _jax

_LARGE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Step:
    """One run of a stage.

    Attributes:
      stage: its position among the stages.
      operands: slots it reads.
      results: slots it writes, from the first to before the last.
      dropped: slots that nothing reads afterwards.
      donated: positions among the operands whose buffers the stage may write into.
      released: slots of donated arguments that the stage cannot write into but that nothing
        reads afterwards.
    """

    stage: int
    operands: tuple[int, ...]
    results: tuple[int, int]
    dropped: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
    released: tuple[int, ...] = ()


# --- which equations run between which calls --------------------------------------------------


def stretches_of(eqns: Sequence[Any], is_call: Sequence[bool]) -> list[list[Any]]:
    """The equations that are no calls, by the number of calls that run before them.

    An equation may run after as many calls as its operands need and before the first call
    that needs its results. The fewest places that meet all these intervals are found from
    the latest possible one of the equation that has to run first.
    """
    earliest = _earliest(eqns, is_call)
    latest = _latest(eqns, is_call, earliest)
    places: list[int] = []
    free = [i for i, call in enumerate(is_call) if not call]
    for i in sorted(free, key=lambda i: latest[i]):
        first = latest[i] if _growth(eqns[i]) > _LARGE_BYTES else earliest[i]
        if not places or places[-1] < first:
            places.append(latest[i])
    stretches: list[list[Any]] = [[] for _ in range(sum(is_call) + 1)]
    for i, place in _chosen(eqns, free, places, earliest, latest).items():
        stretches[place].append(eqns[i])
    return stretches


def _chosen(
    eqns: Sequence[Any],
    free: Sequence[int],
    places: Sequence[int],
    earliest: Sequence[int],
    latest: Sequence[int],
) -> dict[int, int]:
    """Which of the places each equation runs at.

    One that leaves less alive than it reads runs as early as it can, with what it needs: a
    loss next to the logits, not after the backward pass. All others run late.
    """
    made = {var for eqn in eqns for var in eqn.outvars}
    chosen: dict[int, int] = {}
    before: dict[Any, int] = {}
    for i in reversed(free):
        last = min([latest[i], *(before[v] for v in eqns[i].outvars if v in before)])
        place = places[bisect.bisect(places, last) - 1]
        if earliest[i] and _growth(eqns[i], made) < 0:
            place = places[bisect.bisect_left(places, earliest[i])]
        chosen[i] = place
        for a in _jax.variables(eqns[i].invars):
            before[a] = min(before.get(a, place), place)
    return dict(sorted(chosen.items()))


def _earliest(eqns: Sequence[Any], is_call: Sequence[bool]) -> list[int]:
    after: dict[Any, int] = {}
    n_before, earliest = 0, []
    for eqn, call in zip(eqns, is_call, strict=True):
        pinned = n_before if call or eqn.effects else 0
        place = max([pinned, *(after.get(a, 0) for a in _jax.variables(eqn.invars))])
        earliest.append(place)
        n_before += call
        after.update(dict.fromkeys(eqn.outvars, n_before if call else place))
    return earliest


def _latest(eqns: Sequence[Any], is_call: Sequence[bool], earliest: Sequence[int]) -> list[int]:
    n_before = n_calls = sum(is_call)
    before: dict[Any, int] = {}
    latest = []
    for eqn, call, first in zip(*map(reversed, (eqns, is_call, earliest)), strict=True):
        n_before -= call
        if call or eqn.effects:
            place = n_before
        elif _growth(eqn) < -_LARGE_BYTES:
            place = first
        else:
            place = min([n_calls, *(before[v] for v in eqn.outvars if v in before)])
        latest.append(place)
        for a in _jax.variables(eqn.invars):
            before[a] = min(before.get(a, place), place)
    return latest[::-1]


def _growth(eqn: Any, counted: Container[Any] | None = None) -> int:
    """Bytes that an equation writes less those that it reads, of all variables or of some."""
    read = {a for a in _jax.variables(eqn.invars) if counted is None or a in counted}
    written = sum(_jax.n_bytes(var.aval) for var in eqn.outvars)
    return written - sum(_jax.n_bytes(a.aval) for a in read)


# --- lifetimes and donation --------------------------------------------------------------------


def with_lifetimes(steps: Sequence[Step], results: Sequence[int]) -> list[Step]:
    """Steps that say which slots nobody reads afterwards."""
    kept = set(results)
    changed = []
    for step in reversed(steps):
        ended = dict.fromkeys([*step.operands, *range(*step.results)])
        dropped = tuple(slot for slot in ended if slot not in kept)
        kept.update(dropped)
        changed.append(dataclasses.replace(step, dropped=dropped))
    return changed[::-1]


def live_bytes(steps: Sequence[Step], avals: Sequence[Any], n_given: int) -> list[int]:
    """Bytes of the values alive while each step runs, its results included.

    Args:
      steps: in order.
      avals: types of the slots.
      n_given: slots of operands and constants, which do not count.
    """
    alive, sizes = 0, []
    for step in steps:
        alive += sum(_jax.n_bytes(avals[slot]) for slot in range(*step.results))
        sizes.append(alive)
        alive -= sum(_jax.n_bytes(avals[slot]) for slot in step.dropped if slot >= n_given)
    return sizes


def with_donation(steps: Sequence[Step], avals: Sequence[Any], given_up: set[int]) -> list[Step]:
    """Steps that write into the arguments that they read last.

    A body is compiled once, so it takes only what all its calls can give; what is left over
    is deleted after the step.
    """
    possible: dict[int, set[int]] = {}
    for step in steps:
        found = _usable(step, avals, given_up)
        possible[step.stage] = possible.get(step.stage, found) & found
    changed = []
    for step in steps:
        donated = tuple(sorted(possible[step.stage]))
        taken = {step.operands[i] for i in donated}
        released = tuple(slot for slot in step.dropped if slot in given_up - taken)
        changed.append(dataclasses.replace(step, donated=donated, released=released))
    return changed


def _usable(step: Step, avals: Sequence[Any], given_up: set[int]) -> set[int]:
    n_reads = collections.Counter(step.operands)
    ends = [
        i
        for i, slot in enumerate(step.operands)
        if slot in given_up and slot in step.dropped and n_reads[slot] == 1
    ]
    paired = pairs(
        [avals[step.operands[i]] for i in ends], [avals[slot] for slot in range(*step.results)]
    )
    return {ends[i] for i in paired}


def _same_type(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _same_bytes(a: Any, b: Any) -> bool:
    return _jax.n_bytes(a) == _jax.n_bytes(b)


def same_length(a: Any, b: Any) -> bool:
    """Whether two arrays have as many elements: what `jit` matches donated arguments by."""
    return a.size == b.size


def pairs(
    offered: Sequence[Any],
    wanted: Sequence[Any],
    same_size: Callable[[Any, Any], bool] = _same_bytes,
) -> set[int]:
    """Positions of the offered buffers that find a result: of their type, else of their size."""
    paired: set[int] = set()
    left = list(wanted)
    for same in (_same_type, same_size):
        for i, aval in enumerate(offered):
            match = next((j for j, want in enumerate(left) if same(aval, want)), None)
            if i not in paired and match is not None:
                paired.add(i)
                del left[match]
    return paired

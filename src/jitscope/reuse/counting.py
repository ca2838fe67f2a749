"""Equations of a program by the line they are of, each as often as XLA gets it: jaxpr -> counts.

Counted while a program is traced, so that its report needs no copy of it: tracebacks are few,
and equal for equations of one line.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from .. import _jax
from ..structuring.shared_call import shared_call_p

Counts = collections.Counter[Any]


def by_traceback(jaxpr: _jax.AnyJaxpr, *, once: bool) -> Counts:
    """Equations by their tracebacks, with every call spelled out.

    Args:
      jaxpr: of a program.
      once: whether calls of a kept body are spelled out only once.
    """
    counter = _Counter(once)
    total = collections.Counter(counter.counted(jaxpr))
    done = 0
    while done < len(counter.kept):
        total.update(counter.counted(list(counter.kept.values())[done]))
        done += 1
    return total


class _Counter:
    """Counts the equations of jaxprs, each distinct one once.

    ``kept`` are the bodies of kept calls that were met, by unit and identity.
    """

    def __init__(self, once: bool) -> None:
        self.kept: dict[tuple[str, int], _jax.AnyJaxpr] = {}
        self._once = once
        self._known: dict[int, Counts] = {}

    def counted(self, jaxpr: _jax.AnyJaxpr) -> Counts:
        found = self._known.get(id(jaxpr))
        if found is None:
            found = self._known[id(jaxpr)] = self._counted(jaxpr)
        return found

    def _counted(self, jaxpr: _jax.AnyJaxpr) -> Counts:
        single, nested = [], []
        for eqn in _jax.equations(jaxpr):
            if eqn.primitive in _jax.LEAVES:  # asked for at once: most equations
                single.append(eqn.source_info.traceback)
                continue
            subs = _run_by(eqn)
            if self._once and eqn.primitive is shared_call_p and eqn.params["unit"]:
                self.kept.setdefault((eqn.params["unit"], id(subs[0])), subs[0])
                continue
            if not any(map(_jax.equations, subs)):
                single.append(eqn.source_info.traceback)
            nested += subs
        counts = collections.Counter(single)
        for sub in nested:
            counts.update(self.counted(sub))
        return counts


def bodies_called(jaxpr: _jax.AnyJaxpr) -> list[_jax.AnyJaxpr]:
    """Distinct bodies called in a jaxpr and in everything below it."""
    return list({id(body): body for body in _called(jaxpr, set())}.values())


def _called(jaxpr: _jax.AnyJaxpr, seen: set[int]) -> Iterator[_jax.AnyJaxpr]:
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for eqn in _jax.equations(jaxpr):
        for sub in _run_by(eqn):
            if eqn.primitive in (shared_call_p, _jax.jit_p):
                yield sub
            yield from _called(sub, seen)


def _run_by(eqn: Any) -> Sequence[_jax.AnyJaxpr]:
    """The jaxprs that an equation runs; a call has the call site's beside the shared one."""
    if eqn.primitive is shared_call_p:
        return (eqn.params["shared"],)
    return _jax.sub_jaxprs(eqn)

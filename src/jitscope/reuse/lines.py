"""Equations of a program by the line they are of, each as often as XLA gets it: jaxpr -> counts.

Counted while a program is traced, so that its report needs no copy of it: tracebacks are few,
and equal for equations of one line.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _jax
from ..structuring.shared_call import shared_call_p

Counts = collections.Counter[Any]


class Counted(NamedTuple):
    """What there is in a jaxpr and in everything below it.

    Attributes:
      lines: equations by traceback.
      n_bodies: distinct bodies called.
    """

    lines: Counts
    n_bodies: int


def counted(jaxpr: _jax.AnyJaxpr, *, once: bool) -> Counted:
    """Counts equations with every call spelled out.

    Args:
      jaxpr: of a program.
      once: whether calls of a kept body are spelled out only once.
    """
    walk = _Walk(once)
    walk.visit(jaxpr)
    n_runs = collections.Counter([id(jaxpr)])
    for body in walk.visited_kept():
        n_runs[id(body)] += 1
    lines: Counts = collections.Counter()
    run_once: list[Any] = []  # most are, and are counted together
    for code in reversed(walk.codes):
        n = n_runs[id(code.jaxpr)]
        for sub in code.nested:
            n_runs[id(sub)] += n
        if n == 1:
            run_once += code.tracebacks
        else:
            lines.update({k: n * m for k, m in collections.Counter(code.tracebacks).items()})
    lines.update(run_once)
    return Counted(lines, len(walk.bodies))


class _Code(NamedTuple):
    """A jaxpr with the tracebacks of its single equations, and what the others run."""

    jaxpr: _jax.AnyJaxpr
    tracebacks: list[Any]
    nested: list[_jax.AnyJaxpr]


class _Walk:
    """Looks into each distinct jaxpr once.

    Attributes:
      codes: of the jaxprs, behind those of what they run.
      bodies: what is called, by identity.
    """

    def __init__(self, once: bool) -> None:
        self.codes: list[_Code] = []
        self.bodies: dict[int, _jax.AnyJaxpr] = {}
        self._once = once
        self._kept: dict[tuple[str, int], _jax.AnyJaxpr] = {}  # by unit and identity
        self._seen: set[int] = set()

    def visit(self, jaxpr: _jax.AnyJaxpr) -> None:
        if id(jaxpr) in self._seen:
            return
        self._seen.add(id(jaxpr))
        code = _Code(jaxpr, [], [])
        for eqn in _jax.equations(jaxpr):
            if eqn.primitive in _jax.LEAVES:  # asked for at once: most equations
                code.tracebacks.append(eqn.source_info.traceback)
            else:
                self._add(eqn, code)
        for sub in code.nested:
            self.visit(sub)
        self.codes.append(code)

    def _add(self, eqn: Any, code: _Code) -> None:
        subs = _run_by(eqn)
        if eqn.primitive in (shared_call_p, _jax.jit_p):
            self.bodies.update((id(sub), sub) for sub in subs)
        if self._once and eqn.primitive is shared_call_p and eqn.params["unit"]:
            self._kept.setdefault((eqn.params["unit"], id(subs[0])), subs[0])
            return
        if not any(map(_jax.equations, subs)):
            code.tracebacks.append(eqn.source_info.traceback)
        code.nested.extend(subs)

    def visited_kept(self) -> Sequence[_jax.AnyJaxpr]:
        """The bodies of kept calls, each for every unit that it is compiled in, now visited."""
        n_visited = 0
        while n_visited < len(self._kept):  # more may be called in these
            n_visited = len(self._kept)
            for body in list(self._kept.values()):
                self.visit(body)
        return list(self._kept.values())


def _run_by(eqn: Any) -> Sequence[_jax.AnyJaxpr]:
    """The jaxprs that an equation runs; a call has the call site's beside the shared one."""
    if eqn.primitive is shared_call_p:
        return (eqn.params["shared"],)
    return _jax.sub_jaxprs(eqn)

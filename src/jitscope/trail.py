"""A trail of the calls of shared subroutines, each traced anew: calls -> what they traced to.

While a trail is being kept in a thread, no subroutine uses an earlier trace. Calls of one
signature that trace to different bodies, or to another than an earlier program left, depend on
something beside their arguments.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _jax
from .ir.fingerprint import fingerprint
from .names import SubroutineName


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """One call.

    Attributes:
      source: line of the call.
      digest: of the fingerprint of what it traced to.
      jaxpr: what it traced to.
    """

    source: str
    digest: str
    jaxpr: _jax.AnyJaxpr


class Trail:
    """Calls of shared subroutines in order, by subroutine and signature.

    Attributes:
      calls: what they traced to.
      held: what they would have been given, where an earlier program left a trace.
      plain: subroutines with calls that ran as the plain function, and why the first one did.
    """

    def __init__(self) -> None:
        self.calls: dict[tuple[SubroutineName, Hashable], list[TracedCall]] = {}
        self.held: dict[tuple[SubroutineName, Hashable], TracedCall] = {}
        self.plain: dict[SubroutineName, str] = {}

    def note(self, name: SubroutineName, signature: Hashable, traced: Any, held: Any) -> None:
        """Adds a call made at the user's current line.

        Args:
          name: of the subroutine.
          signature: of the call.
          traced: what it traced to.
          held: the trace that an earlier program left for it, or None.
        """
        key = (name, (name.source, signature))
        self.calls.setdefault(key, []).append(_traced_call(traced))
        if held is not None:
            self.held.setdefault(key, _traced_call(held))


def _traced_call(traced: Any) -> TracedCall:
    jaxpr = traced.jaxpr
    return TracedCall(_jax.current_source_line(), fingerprint(jaxpr).digest, jaxpr)


_current: contextvars.ContextVar[Trail | None] = contextvars.ContextVar(
    "jitscope_trail", default=None
)

current_trail = _current.get
"""The trail of this thread, or None."""


@contextmanager
def keeping_trail() -> Iterator[Trail]:
    """Keeps a trail while a with-block runs."""
    trail = Trail()
    token = _current.set(trail)
    try:
        yield trail
    finally:
        _current.reset(token)

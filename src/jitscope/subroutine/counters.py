"""Counters of shared subroutines: how often each was called, traced and reused, and why.

Counting happens in `Counters`, one per source function, so that a closure made anew for
every call adds to the same numbers. Users read `SubroutineStats`, a frozen record of them.
Nothing is counted for a call outside any trace, except that such a call may be a trace.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Hashable, Mapping
from typing import Any

from ..phases import Compilations, compilations_of
from ..settings import is_counting
from ..words import compiled_alone, count, traced_in
from .reasons import FIRST, Details, type_text, why_traced

MAX_SIGNATURES = 512
_COMPARED = 8  # earlier signatures that a new one is compared with
_MAX_SHOWN = 12
"""Rows of signatures that are printed."""


@dataclasses.dataclass(frozen=True)
class SignatureStats:
    """One signature of a subroutine.

    Attributes:
      avals: type of every traced leaf, by the path of the argument.
      static: value of every static leaf and captured value, by path, as text.
      n_calls: calls under a trace.
      n_traces: how often the body was traced for it.
      reasons: why each of those traces was needed, first to last.
      objects: class of each value in ``static`` that is equal to none but itself, by path.
    """

    avals: Mapping[str, str]
    static: Mapping[str, str]
    n_calls: int
    n_traces: int
    reasons: tuple[str, ...]
    objects: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{k}: {v}" for k, v in self.avals.items()]
        parts += [f"{k}={v}" for k, v in self.static.items()]
        if len(parts) > 8:
            parts = [*parts[:7], f"... ({len(parts) - 7} more)"]
        head = f"  {count(self.n_calls, 'call')}, {count(self.n_traces, 'trace')}"
        reasons = [f"      traced: {reason}" for reason in dict.fromkeys(self.reasons)]
        return "\n".join([f"{head}: ({', '.join(parts)})", *reasons])


@dataclasses.dataclass(frozen=True)
class SubroutineStats:
    """What a shared subroutine was used for so far in this process.

    Functions with the same code are counted together, so a closure that is made and decorated
    anew for every call has one record.

    Attributes:
      name: of the subroutine.
      n_calls: calls under a trace.
      n_traces: how often the body was traced; calls outside any trace included.
      n_reused: calls under a trace that needed no trace of the body.
      n_functions: how many functions with this code were decorated.
      plain_calls: reason to number of calls that ran as the plain function.
      signatures: one record each, in order of first use; the oldest are dropped past 512.
      own: compilations of it on its own, for calls outside any trace, unless another
        subroutine or program has its name.
      trace_s: seconds that its traces took, with what it calls.
      was_asked_about: it was called to answer a question, as by ``explain`` and ``audit``.
      has_failed: a call of it raised an error.
    """

    name: str
    n_calls: int
    n_traces: int
    n_reused: int
    n_functions: int
    plain_calls: Mapping[str, int]
    signatures: tuple[SignatureStats, ...]
    own: Compilations = dataclasses.field(default_factory=Compilations)
    trace_s: float = 0.0
    was_asked_about: bool = dataclasses.field(default=False, compare=False)
    has_failed: bool = dataclasses.field(default=False, compare=False)

    @property
    def retrace_reasons(self) -> tuple[str, ...]:
        """Why the body was traced again, for every trace after the first."""
        reasons = [reason for s in self.signatures for reason in s.reasons]
        return tuple(reason for reason in reasons if reason != FIRST)

    @property
    def _groups(self) -> list[list[SignatureStats]]:
        """Signatures that differ at most in static values, in order of first use."""
        groups: dict[Any, list[SignatureStats]] = {}
        for one in self.signatures:
            kinds = tuple(reason.partition(":")[0] for reason in one.reasons)
            key = (*one.avals.items(), *one.static, one.n_calls, one.n_traces, kinds)
            groups.setdefault(key, []).append(one)
        return list(groups.values())

    def __str__(self) -> str:
        head = (
            f"{self.name}: {count(self.n_calls, 'call')} while tracing, "
            f"{count(self.n_traces, 'trace')}, {self.n_reused:,} reused, "
            f"{count(len(self.signatures), 'signature')}"
        )
        if self.n_functions > 1:
            head += f"; one function, decorated {self.n_functions:,} times"
        lines = [head, *traced_in(self.trace_s)]
        if self.own.n_compiled:
            lines.append(f"  {compiled_alone(self.own.n_compiled, self.own.seconds)}")
        if not self.n_calls and not self.n_traces:
            lines.append(f"  {not_called(self)}")
        lines += [f"  {count(n, 'plain call')}: {why}" for why, n in self.plain_calls.items()]
        alike = [str(group[0]) if len(group) == 1 else _together(group) for group in self._groups]
        lines += alike[:_MAX_SHOWN]
        if len(alike) > _MAX_SHOWN:
            lines.append(f"  and {count(len(alike) - _MAX_SHOWN, 'row')} more")
        return "\n".join(lines)


def not_called(stats: SubroutineStats) -> str:
    """What to say of a subroutine without a call."""
    if stats.has_failed:
        return "never called with success: its calls raised errors"
    if stats.was_asked_about:
        return "called to answer questions only, as by explain and audit"
    return "never called: is the undecorated function called instead?"


def _together(group: list[SignatureStats]) -> str:
    """Signatures of the same types as one, with the first and last of its static values."""
    first, last = group[0], group[-1]
    static = {
        path: text if text == last.static[path] else f"{text} ... {last.static[path]}"
        for path, text in first.static.items()
    }
    shown = str(dataclasses.replace(first, static=static))
    if static == first.static:
        return f"  {count(len(group), 'signature')} alike, each:\n{shown}"
    return f"  {count(len(group), 'signature')} that differ only in static values, each:\n{shown}"


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a trace is kept for, in a form that can be compared and shown.

    Attributes:
      tree: of the bound and wrapped arguments; static values are part of it.
      types: abstract value of every traced leaf.
      captures: what the function captured, by name.
    """

    tree: Any
    types: tuple[Any, ...]
    captures: tuple[tuple[str, Hashable], ...]

    def __post_init__(self) -> None:
        # Hashed twice per call, at about 1 us for the type of each leaf.
        object.__setattr__(self, "_hash", hash((self.tree, self.types, self.captures)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]


@dataclasses.dataclass
class _Row:
    details: Details
    n_calls: int = 0
    n_traces: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)
    objects: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Counters:
    """Thread-safe counts for all functions with one code.

    The lock is reentrant, since a user's ``==`` may run under it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.always_retraced = ""  # the reason, once it is known that traces are not reused
        self._lock = threading.RLock()
        self._rows: collections.OrderedDict[Signature, _Row] = collections.OrderedDict()
        self._plain: collections.Counter[str] = collections.Counter()
        self._trace_s = 0.0
        self._was_asked_about = self._has_failed = False
        self._n_functions = self._n_calls = self._n_traces = self._n_reused = 0
        self._own = compilations_of(name)

    def decorated(self) -> None:
        """Counts one more function with this code."""
        with self._lock:
            self._n_functions += 1

    def called(self, signature: Signature, *, traced: bool) -> None:
        """Counts one call under a trace."""
        if not is_counting():
            self.asked_about()
            return
        with self._lock:
            self._n_calls += 1
            self._n_reused += not traced
            row = self._rows.get(signature)
            if row is not None:
                row.n_calls += 1

    def asked_about(self) -> None:
        """Notes a call that counts nowhere."""
        self._was_asked_about = True

    def failed(self) -> None:
        """Notes a call that raised an error."""
        self._has_failed = True

    def plain(self, reason: str) -> None:
        """Counts one call that ran as the plain function."""
        if not is_counting():
            return
        with self._lock:
            self._plain[reason] += 1

    def traced(
        self, signature: Signature, details: Details, again: str = "", seconds: float = 0.0
    ) -> None:
        """Counts one trace of the body, and finds out why there was one.

        Args:
          signature: of the trace.
          details: of the signature.
          again: why a trace of the same signature is not used, where that is known.
          seconds: that it took.
        """
        details = dataclasses.replace(details, tree=signature.tree)
        with self._lock:
            row = self._rows.get(signature)
            reason = (again or self.always_retraced) if row is not None else ""
            if not reason:
                earlier = [one.details for one in self._rows.values() if one.n_traces]
                same = row.details if row and row.n_traces else None
                reason = why_traced(details, earlier[-_COMPARED:], same)
            if row is None:
                row = self._rows[signature] = _Row(details, objects=details.objects)
                if len(self._rows) > MAX_SIGNATURES:
                    self._rows.popitem(last=False)
            if is_counting():
                self._n_traces += 1
                self._trace_s += seconds
                row.n_traces += 1
                row.reasons.append(reason)

    def record(self, name: str, *, with_uncounted: bool = False) -> SubroutineStats:
        """The counts as they are now.

        Args:
          name: of the subroutine.
          with_uncounted: with the signatures that were only traced to answer a question.
        """
        with self._lock:
            rows = tuple(
                SignatureStats(
                    avals={k: type_text(v) for k, v in row.details.avals.items()},
                    static={
                        k: text
                        for d in (row.details.static, row.details.captures)
                        for k, (_, text) in d.items()
                    },
                    n_calls=row.n_calls,
                    n_traces=row.n_traces,
                    reasons=tuple(row.reasons),
                    objects=row.objects,
                )
                for row in self._rows.values()
                if row.n_calls or row.n_traces or with_uncounted
            )
            return SubroutineStats(
                name,
                self._n_calls,
                self._n_traces,
                self._n_reused,
                self._n_functions,
                dict(self._plain),
                rows,
                dataclasses.replace(self._own),
                self._trace_s,
                self._was_asked_about,
                self._has_failed,
            )

"""What a policy decided: the structure of each body's calls, and why.

Records only. Made by `policy`, or by a policy of the user's own; read by whatever carries a plan
out or reports it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any

from .checks import check_decisions, check_value


class Structure(enum.Enum):
    """How the calls of a body appear in the compiled program."""

    INLINE = "inline"
    NESTED = "nested"
    SHARED = "shared"
    ROLLED = "rolled"
    STAGED = "staged"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def named(cls, value: Any, where: str) -> Structure:
        """The structure that a user named, in lower or upper case.

        Args:
          value: a name, or the structure itself.
          where: what the value was given to, for the message.

        Raises:
          ValueError: there is no such structure.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls(value.lower())
        except (AttributeError, ValueError):
            raise ValueError(
                f"{where} got the structure {value!r}; allowed are "
                f"{', '.join(repr(structure.value) for structure in cls)}, in lower or upper case."
            ) from None


@dataclasses.dataclass(frozen=True)
class Decision:
    """The structure of one body, and why.

    Attributes:
      structure: of its calls.
      reason: in words.
      otherwise: structure of calls that were to be ROLLED and cannot be.

    A structure may be given by its name, too.

    Raises:
      ValueError: there is no such structure.
      TypeError: the reason is no text.
    """

    structure: Structure
    reason: str
    otherwise: Structure = Structure.NESTED

    def __post_init__(self) -> None:
        for name in ("structure", "otherwise"):
            found = Structure.named(getattr(self, name), f"Decision({name}=...)")
            object.__setattr__(self, name, found)
        if not isinstance(self.reason, str):
            raise TypeError(
                f"Decision({self.structure}, ...) needs the reason in words, got {self.reason!r}. "
                "Reports show it."
            )


@dataclasses.dataclass(frozen=True)
class LoopLimits:
    """When chains of calls that are to be ROLLED become loops.

    Attributes:
      min_trip_count: fewest calls of a chain.
      min_saved_per_copy: equations that a loop has to save for each value that is copied into or
        out of a stack for it.
      max_stacked_bytes: what all loops together may copy in one run; also the memory that
        they take beside the calls they replace.

    Raises:
      ValueError: one of them is no positive whole number.
    """

    min_trip_count: int = 2
    min_saved_per_copy: int = 1
    max_stacked_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(f"LoopLimits({field.name}=...)", getattr(self, field.name))


_UNPLANNED = Decision(Structure.NESTED, "the plan does not name it")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Fingerprint to decision.

    Attributes:
      decisions: by the digest of the body's fingerprint. A body without an entry keeps its
        nested calls.
      loops: limits of the calls that are to be ROLLED.

    Raises:
      TypeError: the decisions are no mapping to `Decision`.
    """

    decisions: Mapping[str, Decision]
    loops: LoopLimits = LoopLimits()

    def __post_init__(self) -> None:
        check_decisions(self.decisions, Decision)

    def __getitem__(self, digest: str) -> Decision:
        return self.decisions.get(digest, _UNPLANNED)

    def __iter__(self) -> Iterator[str]:
        return iter(self.decisions)

    def __len__(self) -> int:
        return len(self.decisions)

    def replacing(self, old: Structure, new: Structure, why: str = "") -> Plan:
        """The plan with one structure in place of another, and why in the reasons."""
        decisions = dict(self.decisions)
        for digest, decision in decisions.items():
            if decision.structure is old:
                reason = f"{decision.reason}; {why}" if why else decision.reason
                decisions[digest] = dataclasses.replace(decision, structure=new, reason=reason)
        return dataclasses.replace(self, decisions=decisions)

    def __str__(self) -> str:
        return "\n".join(
            f"{digest[:12]}  {d.structure}: {d.reason}" for digest, d in self.decisions.items()
        )

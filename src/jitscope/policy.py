"""Which structure each body gets: Census -> Plan.

A policy decides and does nothing. Its decisions depend on the census and on the settings
below, never on timing in this process, so that every host of a program decides alike.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from .census import Body, Census


class Structure(enum.Enum):
    """How the calls of a body appear in the compiled program."""

    INLINE = "inline"
    NESTED = "nested"
    SHARED = "shared"

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Decision:
    """The structure of one body, and why."""

    structure: Structure
    reason: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """Fingerprint to decision.

    Attributes:
      decisions: by the digest of the body's fingerprint. A body without an entry keeps its
        nested calls.
    """

    decisions: Mapping[str, Decision]

    def __getitem__(self, digest: str) -> Decision:
        return self.decisions.get(digest, _UNPLANNED)

    def __iter__(self) -> Iterator[str]:
        return iter(self.decisions)

    def __len__(self) -> int:
        return len(self.decisions)

    def __str__(self) -> str:
        return "\n".join(f"{digest[:12]}  {d.structure}: {d.reason}"
                         for digest, d in self.decisions.items())


_UNPLANNED = Decision(Structure.NESTED, "the plan does not name it")

PolicyLike: TypeAlias = Callable[[Census], Plan]


@dataclasses.dataclass(frozen=True)
class Policy:
    """The default policy, with its thresholds.

    What a kept call saves is counted in equations: ``(uses - 1) * equations``. It costs a
    compilation unit of its own, and fusion across the call.

    Attributes:
      min_uses: fewest uses for which calls are kept.
      min_equations: smallest body whose calls are kept. Tiny bodies run up to 3 times slower
        (0.2 -> 0.6 ms for a stack of small layers).
      min_saved_light: equations to be saved by a body without matrix product, convolution,
        loop or library call. XLA:CPU, element-wise chains of 12, 48, 96 equations: cold
        0.73x, 0.78x, 1.4x with 4 uses and 1.5x, 3.2x, 5.4x with 16.
      min_saved: equations to be saved by all other bodies of the program together. XLA:CPU,
        transformer blocks: gradient of 4, 6, 8 layers 0.9x, 1.4x, 2.3x; forward only, where
        XLA compiles like kernels once anyway, 8, 16, 24 layers 0.88x, 0.96x, 1.2x.
      max_copies: most copies of a body that calls within calls may make; XLA:CPU clones along
        every chain of calls (a recursive fib(16) of kept calls makes 2,583).
    """

    min_uses: int = 4
    min_equations: int = 12
    min_saved_light: int = 180
    min_saved: int = 1100
    max_copies: int = 512

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(
                    f"Policy({field.name}=...) must be a positive whole number, got {value!r}.")

    def __call__(self, census: Census) -> Plan:
        candidates = [body for body in census.bodies if not self._unfit(body)]
        saved = sum(_saved(body) for body in candidates if body.n_heavy)
        return Plan({body.fingerprint.digest: self._decide(body, saved)
                     for body in census.bodies})

    def _decide(self, body: Body, saved_by_heavy: int) -> Decision:
        """A call that outlining made and that is not worth keeping is put back in line."""
        decision = self._decide_call(body, saved_by_heavy)
        if body.outlined and decision.structure is Structure.NESTED:
            return dataclasses.replace(decision, structure=Structure.INLINE)
        return decision

    def _decide_call(self, body: Body, saved_by_heavy: int) -> Decision:
        unfit = self._unfit(body)
        if unfit:
            return unfit
        saved = saved_by_heavy if body.n_heavy else _saved(body)
        needed = self.min_saved if body.n_heavy else self.min_saved_light
        if saved < needed:
            return Decision(Structure.NESTED,
                            f"kept calls would save {saved} equations, they pay from {needed}")
        return Decision(Structure.SHARED,
                        f"{body.n_uses} uses, saves {_saved(body)} of "
                        f"{body.n_uses * body.n_equations} equations")

    def _unfit(self, body: Body) -> Decision | None:
        """The decision for a body that no amount of reuse makes worth a kept call."""
        if body.obstacle:
            return Decision(Structure.NESTED, body.obstacle)
        if body.forced is not None:
            return Decision(Structure(body.forced), "asked for by its decorator")
        if body.n_uses == 1:
            return Decision(Structure.INLINE, "called once")
        for what, value, limit in (("uses", body.n_uses, self.min_uses),
                                   ("equations", body.n_equations, self.min_equations)):
            if value < limit:
                return Decision(Structure.NESTED,
                                f"{value} {what}, a kept call pays from {limit}")
        if body.n_paths > self.max_copies:
            return Decision(
                Structure.NESTED,
                f"calls within calls would make {body.n_paths} copies, at most {self.max_copies}")
        return None


def _saved(body: Body) -> int:
    return (body.n_uses - 1) * body.n_equations

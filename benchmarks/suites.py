"""Which programs, in which settings, a suite measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.programs import PROGRAMS, frameworks
from benchmarks.programs.program import Program
from benchmarks.record import EntryKey, entry_key


@dataclass(frozen=True)
class Entry:
    """A program with all of its settings."""

    program: Program
    settings: Mapping[str, int]

    @property
    def key(self) -> EntryKey:
        """What identifies the entry in a file of results."""
        return entry_key(self.program.name, self.settings)

    @property
    def label(self) -> str:
        """The program's name, with the settings in which it differs from its full size."""
        return label(self.program.name, self.settings)


def label(program: str, settings: Mapping[str, int]) -> str:
    """Names a program with its settings, shortly."""
    if settings == PROGRAMS[program].tiny:
        return f"{program} tiny"
    full = PROGRAMS[program].full
    # Depth is what most tables are about, so it is shown even where it is the usual one.
    shown = [
        f"{name}={value}"
        for name, value in settings.items()
        if name == "layers" or value != full.get(name)
    ]
    return " ".join([program, *shown])


def _full(program: str, **changed: int) -> Entry:
    return Entry(PROGRAMS[program], dict(PROGRAMS[program].full) | changed)


SUITES: dict[str, list[Entry]] = {
    "tiny": [Entry(program, program.tiny) for program in PROGRAMS.values() if not program.packages],
    "cpu": [
        _full("seed2022"),
        _full("nothing_shared"),
        *(_full("transformer", layers=layers) for layers in (2, 12, 24, 48)),
    ],
    # The table of the README: minutes instead of an hour.
    "readme": [
        _full("seed2022"),
        _full("nothing_shared"),
        *(_full("transformer", layers=layers) for layers in (12, 24)),
    ],
    "frameworks": [_full(program.name) for program in frameworks.PROGRAMS],
}

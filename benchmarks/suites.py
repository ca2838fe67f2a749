"""Which programs, in which settings, a suite measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.programs import PROGRAMS, frameworks
from benchmarks.programs.program import Program, Settings
from benchmarks.record import EntryKey, entry_key


@dataclass(frozen=True)
class Entry:
    """A program with all of its settings.

    Attributes:
        program: The program.
        settings: Its settings, all of them.
        most_rounds: Contender to the number of rounds after which it has been measured enough.
    """

    program: Program
    settings: Mapping[str, int]
    most_rounds: Mapping[str, int] = field(default_factory=dict)

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


def _full(
    program: str, changed: Settings | None = None, most_rounds: Mapping[str, int] | None = None
) -> Entry:
    settings = {**PROGRAMS[program].full, **(changed or {})}
    return Entry(PROGRAMS[program], settings, most_rounds or {})


# Flat, an LSTM of 64 steps takes XLA most of a minute and 48 layers take several, which once is
# enough; 96 layers take half an hour.
_NESTED_ONCE = {"nested_jit": 1, "xla_late": 1}
_FLAT_ONCE = {"jit": 1, **_NESTED_ONCE}
_FLAT_NEVER = {name: 0 for name in _FLAT_ONCE}
_SLOW_FLAT = ("lstm", "predator_prey")
_NARROW = {"width": 64, "feed_forward": 256}
# With fewer tokens, so that a step does not take most of a second.
_WIDE = {"width": 512, "heads": 8, "feed_forward": 2048, "batch": 2, "sequence": 32}
_OTHERS = [
    _full(program.name, most_rounds=_NESTED_ONCE if program.name in _SLOW_FLAT else None)
    for program in PROGRAMS.values()
    if program.name != "transformer" and not program.packages
]
_FRAMEWORKS = [_full(program.name) for program in frameworks.PROGRAMS]

SUITES: dict[str, list[Entry]] = {
    "tiny": [Entry(program, program.tiny) for program in PROGRAMS.values() if not program.packages],
    # Programs of packages that are not installed are left out. Sized for less
    # than 90 minutes on two cores that nothing else uses.
    "cpu": [
        *_OTHERS,
        *(_full("transformer", {"layers": layers}) for layers in (2, 6, 12, 24)),
        _full("transformer", {"layers": 48}, _FLAT_ONCE),
        _full("transformer", {"layers": 96}, _FLAT_NEVER),
        _full("transformer", _NARROW),
        _full("transformer", _WIDE),
        *_FRAMEWORKS,
    ],
    # The table of the README: minutes instead of an hour.
    "readme": [
        _full("seed2022"),
        _full("nothing_shared"),
        *(_full("transformer", {"layers": layers}) for layers in (12, 24)),
    ],
    "frameworks": _FRAMEWORKS,
    # Also what `gpu-target` compiles: programs whose layers are many and heavy, and one that fuses.
    "gpu": [
        *(_full("transformer", {"layers": layers}) for layers in (12, 36)),
        _full("transformer", _WIDE),
        *map(_full, ("resnet50", "unet", "lstm", "mixture_of_experts", "small_bodies")),
    ],
}

"""One measurement as a record, and the file of JSON lines it is kept in."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

EntryKey = tuple[str, tuple[tuple[str, int], ...]]


class Measured(Protocol):
    """Whatever says which machine it was measured on."""

    @property
    def machine(self) -> Mapping[str, Any]:
        """What must be equal for two of them to be compared."""
        ...


@dataclass(frozen=True)
class Record:
    """What one process measured. Raw numbers only; what follows from them are properties.

    Attributes:
        program: The program's name.
        contender: The contender's name.
        settings: The program's settings.
        round: Which of the interleaved repetitions this one is.
        trace_s: Seconds from the call of `.trace` to its return.
        lower_s: Seconds to lower the traced program to StableHLO.
        compile_s: Seconds XLA took.
        first_call_s: Seconds of the first call after that, until its result was ready.
        run_s: Seconds a call, until its result was ready, one number a sample.
        calls_per_sample: How many calls, one after another, each number in `run_s` averages.
        dispatch_s: Seconds until a call returned, ready or not; one number a sample.
        cold_cpu_s: Processor seconds of the cold start, all threads together.
        run_cpu_s: Processor seconds a call, one number a sample.
        n_instructions: Instructions in the optimised HLO.
        temp_bytes: Temporary memory in the executable's memory plan.
        rss_before_bytes: The process's peak resident memory before tracing.
        rss_compiled_bytes: The same after compiling.
        digest: The result, reduced by `programs.digest`.
        machine: What must be equal for two records to be compared.
        versions: Versions of Python, JAX, jitscope and the packages that programs use.
        commit: The checkout's commit, with `+` behind it if files differ from it.
        date: The UTC time at the end of the measurement, ISO 8601.
        compile_cpu_s: Processor seconds XLA took; 0 in records older than this field.
        structure: What `outermost_jit` made of the program: `equations` before,
            `compiled_equations` after, and `kept_calls`. Empty for other contenders.
        kernels: What one run launches, as `jitscope.hlo.Kernels` counts it; empty on CPU.
    """

    program: str
    contender: str
    settings: Mapping[str, int]
    round: int
    trace_s: float
    lower_s: float
    compile_s: float
    first_call_s: float
    run_s: list[float]
    calls_per_sample: int
    dispatch_s: list[float]
    cold_cpu_s: float
    run_cpu_s: list[float]
    n_instructions: int
    temp_bytes: int
    rss_before_bytes: int
    rss_compiled_bytes: int
    digest: list[float]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    commit: str
    date: str
    compile_cpu_s: float = 0.0
    structure: Mapping[str, int] = dataclasses.field(default_factory=dict)
    kernels: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def cold_s(self) -> float:
        """The cold start: trace, lower and compile."""
        return self.trace_s + self.lower_s + self.compile_s

    @property
    def median_run_s(self) -> float:
        """Seconds of a typical call."""
        return statistics.median(self.run_s)

    @property
    def median_run_cpu_s(self) -> float:
        """Processor seconds of a typical call."""
        return statistics.median(self.run_cpu_s)

    @property
    def entry(self) -> EntryKey:
        """The program with its settings, as a key."""
        return entry_key(self.program, self.settings)

    def to_json(self) -> str:
        """Returns the record as one line, with its cold start for readers without this class."""
        return json.dumps(dataclasses.asdict(self) | {"cold_s": self.cold_s})

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Reads what `to_json` wrote."""
        fields = json.loads(line)
        fields.pop("cold_s")
        return cls(**fields)


class IncomparableError(ValueError):
    """Records of different machines were to be compared."""


def require_comparable(
    records: Sequence[Measured], machine: Mapping[str, Any] | None = None
) -> None:
    """Raises unless all records were made on one machine.

    Args:
        records: What is to be compared.
        machine: The machine that they must be of; by default, that of the first record.

    Raises:
        IncomparableError: If they were not; the message says in what the machines differ.
    """
    if machine is None:
        machine = records[0].machine if records else {}
    for record in records:
        differing = sorted(
            name
            for name in machine.keys() | record.machine.keys()
            if machine.get(name) != record.machine.get(name)
        )
        if differing:
            found = ", ".join(
                f"{name} {machine.get(name)!r} and {record.machine.get(name)!r}"
                for name in differing
            )
            raise IncomparableError(
                f"measurements of different machines cannot be compared: found {found}. "
                "Measure every contender on one machine, each machine into a file of its own."
            )


def entry_key(program: str, settings: Mapping[str, int]) -> EntryKey:
    """A program with its settings, as a key."""
    return program, tuple(sorted(settings.items()))


def read(paths: Iterable[Path]) -> list[Record]:
    """Reads all records of some files of JSON lines."""
    return [
        Record.from_json(line)
        for path in paths
        for line in path.read_text().splitlines()
        if line.strip()
    ]

"""What a compiled program launches, read from the text of its optimised HLO.

Pure functions of text. A *kernel* is what one instruction of the entry computation launches on
a GPU; on CPU it is a function or a call of a library.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What one run of a program launches; a loop's body counts once.

    Attributes:
      gemms: matrix products by a library or by generated code for tensor cores.
      dots: matrix products that are an instruction of their own (a library call on CPU).
      loop_dots: matrix products computed by a plain loop over the elements of the result.
      fusions: other fused kernels.
      others: everything else that runs: copies, sorts, calls into libraries.
    """

    gemms: int = 0
    dots: int = 0
    loop_dots: int = 0
    fusions: int = 0
    others: int = 0

    @property
    def n_kernels(self) -> int:
        return sum(dataclasses.astuple(self))

    @property
    def products(self) -> tuple[int, int, int]:
        return self.gemms, self.dots, self.loop_dots

    def __add__(self, other: Kernels) -> Kernels:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Kernels(*(a + b for a, b in pairs))

    def __mul__(self, times: int) -> Kernels:
        return Kernels(*(n * times for n in dataclasses.astuple(self)))


_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (\(.*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?[\]})] ([a-z][\w\-]*)\(")
_CALLED = re.compile(r"\b(?:to_apply|calls|body|called_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_KEPT = re.compile(r" call\([^\n]*to_apply=[^\n]*compilation_unit=\"(?P<unit>[^\"]*)\"")
_GEMM = re.compile(r'"kind":"[^"]*(?:gemm|cublas|cudnn)|custom_call_target="[^"]*(?:gemm|matmul)')
_NOT_RUN = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "iota",
        "opt-barrier",
        "partition-id",
        "replica-id",
        "async-done",
    }
)
_CALLS = frozenset({"call", "while", "conditional", "async-start"})

Computations = Mapping[str, Sequence[tuple[str, str]]]


def computations_of(hlo: str) -> Computations:
    """Name of a computation to (operation, line) of its instructions; the entry under ''."""
    computations: dict[str, list[tuple[str, str]]] = {}
    lines: list[tuple[str, str]] = []
    for line in hlo.splitlines():
        if head := _HEAD.match(line):
            lines = computations.setdefault("" if head[1] else head[2], [])
        elif found := _INSTRUCTION.match(line):
            lines.append((found[1], line))
    return computations


def kept_units(hlo: str) -> list[str]:
    """Names of the shared bodies that are still called, one for each call."""
    return [found["unit"] for found in _KEPT.finditer(hlo)]


def look_into(hlo: str) -> Kernels:
    """Counts what one run of a program launches.

    Args:
      hlo: the optimised program as text, of `jax.stages.Compiled.as_text()`.
    """
    computations = computations_of(hlo)
    memo: dict[str, Kernels] = {}

    def count(name: str) -> Kernels:
        if name not in memo:
            memo[name] = sum(map(kernels, computations.get(name, ())), Kernels())
        return memo[name]

    def kernels(instruction: tuple[str, str]) -> Kernels:
        operation, line = instruction
        if operation in _CALLS:
            return sum(map(count, _called(line)), Kernels())
        return Kernels() if operation in _NOT_RUN else _kernel(operation, line, computations)

    return count("")


def _called(line: str) -> list[str]:
    branches = ",".join(_BRANCHES.findall(line))
    return _CALLED.findall(line) + re.findall(r"[\w.\-]+", branches)


def _kernel(operation: str, line: str, computations: Computations) -> Kernels:
    if _GEMM.search(line):
        return Kernels(gemms=1)
    if operation == "dot":
        return Kernels(dots=1)
    if operation != "fusion":
        return Kernels(others=1)
    if not any(op == "dot" for name in _called(line) for op, _ in computations.get(name, ())):
        return Kernels(fusions=1)
    return Kernels(gemms=1) if "kind=kCustom" in line else Kernels(loop_dots=1)


def n_equal_calls(hlo: str) -> int:
    """The most calls that are left of computations with equal content."""
    computations = computations_of(hlo)
    calls = Counter(
        _content(name, computations)
        for _, operation, line in _instructions(hlo)
        if operation == "call"
        for name in _called(line)
    )
    return max(calls.values(), default=0)


def _content(name: str, computations: Computations) -> tuple[Any, ...]:
    """What a computation consists of, whatever its names and the order of its instructions."""
    return tuple(
        sorted(
            (
                operation,
                line.partition(" = ")[2].partition("(%")[0],
                *(_content(called, computations) for called in _called(line)),
            )
            for operation, line in computations.get(name, ())
        )
    )


def _instructions(hlo: str) -> Iterator[tuple[str, str, str]]:
    for name, instructions in computations_of(hlo).items():
        for operation, line in instructions:
            yield name, operation, line

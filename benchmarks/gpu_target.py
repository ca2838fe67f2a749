"""Compiles a program for a named GPU on a machine that has none, and says what came out.

XLA:GPU needs a description of the device, not the device. The CUDA plugin of JAX embeds one for
every GPU that it knows; it is read from the installed plugin. The compile times, kernels and memory
plans are those of the real compiler, except that nothing can be tuned by trying it out.

    python -m benchmarks.gpu_target transformer outermost_staged --target h200 --set layers=12

prints one JSON line. `look_into` and `judge_probe` are pure functions of optimised HLO.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import jitscope
from benchmarks import environment
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.programs import PROGRAMS

TARGETS = {
    "a100": "NVIDIA A100-SXM4-80GB",
    "b200": "NVIDIA B200",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
}
# Not among those that are also run: there, a program that is traced is not yet cut into stages.
_CONTENDERS = CONTENDERS | {
    "outermost_staged": Contender(
        "outermost_staged", functools.partial(jitscope.outermost_jit, staged=True)
    )
}
_PACKAGES = (
    "jax-cuda13-pjrt",
    "jax-cuda13-plugin",
    "nvidia-cuda-nvcc",
    "nvidia-nvvm",
    "nvidia-cuda-crt",
    "nvidia-nvjitlink",
    "nvidia-cuda-nvrtc",
)


class PluginMissingError(ImportError):
    """The CUDA plugin is not installed; the message says what to install."""


# --- targets --------------------------------------------------------------------------------------


def _plugin_library() -> Path:
    try:
        import jax_plugins.xla_cuda13 as plugin  # pyright: ignore[reportMissingImports]
    except ImportError:
        packages = [f"{p}=={jax.__version__}" if p.startswith("jax-") else p for p in _PACKAGES]
        raise PluginMissingError(
            "Compiling for a GPU needs JAX's CUDA plugin and NVIDIA's compiler (about 1 GB, no "
            f"GPU): pip install --no-deps {' '.join(packages)}"
        ) from None
    return next(Path(plugin.__path__[0]).glob("*.so"))


def find_target_text(library: bytes, description: str) -> str:
    """The GpuTargetConfigProto, as text, whose device description starts with `description`.

    Args:
        library: The plugin's shared library, in which each text is a C string.
        description: For example "NVIDIA H200". The exact name is preferred to a longer one.

    Raises:
        ValueError: There is none; the message lists what there is.
    """
    pattern = rb'device_description_str: "([^"]*)"'
    known = {found[1].decode(): found.start() for found in re.finditer(pattern, library)}
    matches = sorted((name for name in known if name.startswith(description)), key=len)
    if not matches:
        raise ValueError(
            f"the plugin knows no {description!r}; it knows {', '.join(sorted(known))}"
        )
    at = known[matches[0]]
    return library[library.rfind(b"\0", 0, at) + 1 : library.find(b"\0", at)].decode()


def device(target: str) -> Any:
    """A device of the named target, to lower for.

    Args:
        target: One of `TARGETS`.

    Raises:
        PluginMissingError: The CUDA plugin is not installed.
    """
    from jax.experimental import topologies

    text = find_target_text(_plugin_library().read_bytes(), TARGETS[target])
    topology = topologies.get_topology_desc(
        "", platform="cuda", target_config=text, topology="1x1x1"
    )
    return topology.devices[0]


def abstract(tree: Any, device: Any) -> Any:
    """The types of the arrays of a tree, as if they lay on the device."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


# --- what is in optimised HLO ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What one run of a program launches; a loop's body counts once.

    Attributes:
        gemms: Matrix products by a library or by generated code for tensor cores.
        dots: Matrix products that are an instruction of their own (a library call on CPU).
        loop_dots: Matrix products computed by a plain loop over the elements of the result.
        fusions: Other fused kernels.
        others: Everything else that runs: copies, sorts, calls into libraries.
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


def _computations(hlo: str) -> Computations:
    """Name of a computation to (operation, line) of its instructions; the entry under ''."""
    computations: dict[str, list[tuple[str, str]]] = {}
    lines: list[tuple[str, str]] = []
    for line in hlo.splitlines():
        if head := _HEAD.match(line):
            lines = computations.setdefault("" if head[1] else head[2], [])
        elif found := _INSTRUCTION.match(line):
            lines.append((found[1], line))
    return computations


def look_into(hlo: str) -> Kernels:
    """Counts what one run of a program launches.

    Args:
        hlo: The optimised program as text, of `jax.stages.Compiled.as_text()`.
    """
    computations = _computations(hlo)
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


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a platform gains from calls that are kept.

    Attributes:
        calls_stay: Two calls of equal computations are left.
        same_kernels: The body compiles to the kinds of kernels that it has when inlined.
        reason: In words.
    """

    calls_stay: bool
    same_kernels: bool
    reason: str

    @property
    def gains(self) -> bool:
        return self.calls_stay and self.same_kernels


_MOST_KERNELS = 1.5  # kept calls fuse less at their boundary; the trap makes 4.7 times as many


def judge_probe(kept: str, inlined: str) -> Verdict:
    """Judges a platform by two calls of a body with a matrix product.

    The text does not say whether a computation was compiled once: XLA:CPU stitches one that was
    back in as a copy for each call, XLA:GPU copies first and compiles each. What it shows is
    whether the calls are still there, and whether the passes that make good kernels reached them.

    Args:
        kept: Optimised HLO of the program with its calls marked to be kept.
        inlined: The same without the marks.
    """
    computations = _computations(kept)
    calls = Counter(
        _content(name, computations)
        for _, operation, line in _instructions(kept)
        if operation == "call"
        for name in _called(line)
    )
    calls_stay = bool(calls) and max(calls.values()) >= 2
    ours, theirs = look_into(kept), look_into(inlined)
    same_products = ours.products == theirs.products
    same_kernels = same_products and ours.n_kernels <= _MOST_KERNELS * theirs.n_kernels
    reasons = [] if calls_stay else ["no two calls of one body are left"]
    if not same_products:
        reasons.append(
            f"matrix products (gemm, dot, loop) {ours.products} against {theirs.products} inlined"
        )
    elif not same_kernels:
        reasons.append(f"{ours.n_kernels} kernels against {theirs.n_kernels} inlined")
    return Verdict(calls_stay, same_kernels, "; ".join(reasons) or "calls stay, kernels alike")


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
    for name, instructions in _computations(hlo).items():
        for operation, line in instructions:
            yield name, operation, line


# --- measuring ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A cold start, and what it made.

    Attributes:
        trace_s: Seconds to trace and lower.
        compile_s: Seconds in the compiler.
        cpu_s: Processor seconds of both, of this process and of the compilers it started.
        n_executables: Programs compiled.
        kernels: What one run launches.
        temp_bytes: The largest temporary memory of an executable.
        peak_bytes: Results and temporary values at the worst moment, arguments left out.
    """

    trace_s: float
    compile_s: float
    cpu_s: float
    n_executables: int
    kernels: Kernels
    temp_bytes: int
    peak_bytes: int


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def compile_abstract(lower: Callable[[], Any]) -> Compilation:
    """Traces, lowers and compiles.

    Args:
        lower: Returns a `jax.stages.Lowered`, or what `lower` of a staged function returns.
    """
    start_s, start_cpu_s = time.perf_counter(), _cpu_s()
    lowered = lower()
    lowered_s = time.perf_counter()
    compiled = lowered.compile()
    compiled_s, cpu_s = time.perf_counter(), _cpu_s()
    if isinstance(compiled, tuple):
        parts, n_runs, live_bytes = compiled, lowered.n_runs, lowered.live_bytes
    else:
        output_bytes = compiled.memory_analysis().output_size_in_bytes
        parts, n_runs, live_bytes = (compiled,), (1,), (output_bytes,)
    temp_bytes = [part.memory_analysis().temp_size_in_bytes for part in parts]
    kernels = [look_into(part.as_text()) * n for part, n in zip(parts, n_runs, strict=True)]
    return Compilation(
        trace_s=lowered_s - start_s,
        compile_s=compiled_s - lowered_s,
        cpu_s=cpu_s - start_cpu_s,
        n_executables=len(parts),
        kernels=sum(kernels, Kernels()),
        temp_bytes=max(temp_bytes),
        peak_bytes=max(map(sum, zip(temp_bytes, live_bytes, strict=True))),
    )


def compile_for(target: str, fun: Any, *args: Any) -> Compilation:
    """Compiles a function for a GPU that need not be there.

    Args:
        target: One of `TARGETS`.
        fun: A `jax.jit` or `jitscope.outermost_jit` function.
        *args: Arrays, or their types; only the types matter.

    Raises:
        PluginMissingError: The CUDA plugin is not installed.
    """
    types = abstract(args, device(target))
    return compile_abstract(lambda: fun.lower(*types))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_target")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("contender", choices=_CONTENDERS)
    parser.add_argument("--target", choices=TARGETS, default="h200")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    options = parser.parse_args(arguments)
    given = {name: int(value) for name, _, value in (text.partition("=") for text in options.set)}
    program = PROGRAMS[options.program]
    settings = dict(program.full) | given
    environment.prepare_process()
    try:
        compilation = compile_for(options.target, *_case(options, settings))
    except PluginMissingError as error:
        parser.exit(2, f"{error}\n")
    print(
        json.dumps(
            {
                "program": program.name,
                "contender": options.contender,
                "target": options.target,
                "settings": settings,
                **dataclasses.asdict(compilation),
                "machine": environment.machine(),
                "versions": environment.versions(),
                "commit": environment.commit(),
            }
        )
    )


def _case(options: argparse.Namespace, settings: Mapping[str, int]) -> tuple[Any, ...]:
    case = _CONTENDERS[options.contender].case(PROGRAMS[options.program], settings)
    return case.fun, *case.args


if __name__ == "__main__":
    main()

"""The distinct stages of a program, lowered and compiled.

A *place* is where the arguments of a call say that it runs. What is compiled is a stage
together with the operands it may write into: a stage that runs many times is one executable.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..phases import Phases
from .schedule import Step, live_bytes
from .stages import Stage, Stages

ONE_GPU_OPTIONS = {"xla_gpu_enable_latency_hiding_scheduler": False}
"""For a stage on one GPU: the scheduler that hides transfers behind computation has none to hide
there, and takes 0.05 to 0.2 s of each compilation."""

Key = tuple[int, tuple[int, ...]]
"""A stage's number and the positions of its donated operands."""


class Place(NamedTuple):
    """Where the arguments say that a program runs.

    Attributes:
      sharding: that of values without a say; None for the default device.
      n_devices: how many there are.
    """

    sharding: Any
    n_devices: int


def place_of(committed: Sequence[Any]) -> Place | None:
    """The place for these shardings of committed arguments; None if they name no single one.

    Nor is there one for arguments in another memory than the default, since what stages hand on
    lies there.
    """
    if not committed:
        return Place(None, 1)
    first = committed[0]
    if not all(map(_jax.is_default_memory, committed)):
        return None
    if any(s.device_set != first.device_set for s in committed):
        return None
    if all(isinstance(s, jax.sharding.SingleDeviceSharding) for s in committed):
        return Place(first, 1)
    mesh = next((s.mesh for s in committed if isinstance(s, jax.sharding.NamedSharding)), None)
    if mesh is None:
        return None
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return Place(replicated, len(first.device_set))


def asked_sharding(value: Any) -> Any:
    """Of an array that is committed somewhere, or of a type that names a place; else None."""
    if isinstance(value, jax.ShapeDtypeStruct) or getattr(value, "committed", False):
        return value.sharding
    return None


class Executables:
    """What has to be compiled for a program.

    Args:
      stages: of the program.
      compiler_options: for every stage.
      phases: filled in as stages are lowered and compiled.
    """

    def __init__(self, stages: Stages, compiler_options: Any, phases: Phases) -> None:
        self._stages = stages
        self._compiler_options = compiler_options
        self._phases = phases

    def jitted(self, sharding: Any) -> dict[Key, Any]:
        """One ``jax.jit`` function for each, compiled when first called.

        Args:
          sharding: asked for where no operand says on which devices a stage runs.
        """
        return {key: self._jitted(key, step, sharding) for key, step in self._distinct().items()}

    def compiled(self, sharding: Any) -> dict[Key, Any]:
        """All of them for one device.

        Args:
          sharding: of that device, or None where no argument is committed to one.
        """
        return self._compiled(self._lowered(sharding))

    def for_lowering(self, sharding: Any) -> StagedLowered:
        """All of them lowered for one device, for whoever wants to look at them."""
        lowered = dict(self._lowered(sharding))
        steps = {key: [i for i, step in self._numbered() if key_of(step) == key] for key in lowered}
        return StagedLowered(
            lowered.values(),
            self._live_bytes(steps.values()),
            lambda: self._compiled(iter(lowered.items())).values(),
        )

    def for_lowering_on_several(self, sharding: Any, asked: Sequence[Any]) -> StagedLowered:
        """Likewise for several devices, one for each set of shardings that a stage runs with.

        The shardings of values between stages are the compiler's choice, so each stage is compiled
        before those that read its results are lowered.

        Args:
          sharding: of values without a say.
          asked: shardings of the operands that have a say, else None.
        """
        shardings = [sharding if s is None else s for s in asked]
        shardings += [sharding] * len(self._stages.constants)
        lowered: dict[Any, Any] = {}
        compiled: dict[Any, Any] = {}
        steps: dict[Any, list[int]] = {}
        for number, step in self._numbered():
            given = [shardings[slot] for slot in step.operands]
            key = key_of(step), tuple(given)
            if key not in lowered:
                lowered[key] = self._lower(step, given, sharding)
                start = time.perf_counter()
                compiled[key] = self._compile(key[0], lowered[key])
                self._phases.add(compile_s=time.perf_counter() - start)
            steps.setdefault(key, []).append(number)
            shardings += jax.tree.leaves(compiled[key].output_shardings)
        return StagedLowered(
            lowered.values(), self._live_bytes(steps.values()), lambda: compiled.values()
        )

    def _numbered(self) -> Iterator[tuple[int, Step]]:
        return enumerate(self._stages.steps)

    def _live_bytes(self, steps: Iterable[Sequence[int]]) -> list[list[int]]:
        """Of each of these sets of steps, the bytes that are alive while each one runs."""
        first = self._stages.steps[0].results[0]
        sizes = live_bytes(self._stages.steps, self._stages.avals, first)
        return [[sizes[number] for number in numbers] for numbers in steps]

    def _distinct(self) -> dict[Key, Step]:
        """What has to be compiled, with the first step that runs it; the largest first."""
        found: dict[Key, Step] = {}
        for step in self._stages.steps:
            found.setdefault(key_of(step), step)
        return dict(sorted(found.items(), key=lambda item: -self._size(item[1])))

    def _size(self, step: Step) -> int:
        return len(_jax.equations(self._stages.stages[step.stage].jaxpr))

    def _jitted(self, key: Key, step: Step, sharding: Any) -> Any:
        stage = self._stages.stages[key[0]]

        def run(*args: Any) -> list[Any]:
            return _jax.emit(stage.jaxpr, args, stage.name)

        run.__name__ = run.__qualname__ = stage.name
        options = {} if sharding is None or step.operands else {"out_shardings": sharding}
        quick = {} if _transfers(stage.jaxpr) else quick_options(sharding)
        # A donated operand that the stage does not read must still be given up.
        return _jax.jit(
            run,
            donate_argnums=key[1],
            keep_unused=bool(key[1]),
            compiler_options={**quick, **(self._compiler_options or {})} or None,
            **options,
        )

    def _lowered(self, sharding: Any) -> Iterator[tuple[Key, Any]]:
        for key, step in self._distinct().items():
            yield key, self._lower(step, [sharding] * len(step.operands), sharding)

    def _lower(self, step: Step, given: Sequence[Any], sharding: Any) -> Any:
        """A step lowered for operands of these shardings."""
        types = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=asked)
            for aval, asked in zip(
                (self._stages.avals[slot] for slot in step.operands), given, strict=True
            )
        ]
        start = time.perf_counter()
        with _named(self._stages.stages[step.stage]):
            lowered = self._jitted(key_of(step), step, sharding).lower(*types)
        self._phases.add(lower_s=time.perf_counter() - start)
        return lowered

    def _compiled(self, lowered: Iterator[tuple[Key, Any]]) -> dict[Key, Any]:
        """Compiles in parallel, each as soon as it is lowered."""
        # Not at the top: the module cannot be imported once the interpreter shuts down, when a
        # script under `python -m jitscope run` may still import JAX in a thread.
        from concurrent.futures import ThreadPoolExecutor

        start, lower_s = time.perf_counter(), self._phases.seconds.lower_s
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            waiting = {key: pool.submit(self._compile, key, one) for key, one in lowered}
            compiled = {key: one.result() for key, one in waiting.items()}
        lowering_s = self._phases.seconds.lower_s - lower_s
        self._phases.add(compile_s=time.perf_counter() - start - lowering_s)
        return compiled

    def _compile(self, key: Key, lowered: Any) -> Any:
        with _named(self._stages.stages[key[0]]):
            return lowered.compile()


class StagedLowered:
    """The stages of a program, lowered.

    Attributes:
      stages: one ``jax.stages.Lowered`` for each executable.
      n_runs: how often one call of the program runs it.
      live_bytes: the most bytes of values, but for arguments, that are alive while it runs, its
        own temporary memory left out.
    """

    def __init__(
        self,
        stages: Iterable[Any],
        live_bytes: Sequence[Sequence[int]],
        compile_all: Callable[[], Iterable[Any]],
    ) -> None:
        self.stages = tuple(stages)
        self.n_runs = tuple(map(len, live_bytes))
        self.live_bytes = tuple(map(max, live_bytes))
        self._compile_all = compile_all

    def as_text(self) -> str:
        """The text of all stages."""
        return "\n".join(stage.as_text() for stage in self.stages)

    def compile(self) -> StagedCompiled:
        """One ``jax.stages.Compiled`` for each stage, compiled in parallel."""
        return StagedCompiled(self._compile_all())


class StagedCompiled(tuple[Any, ...]):
    """The compiled stages of a program, to be looked at: what runs them is the function."""

    __slots__ = ()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"this is what a staged program was compiled to, {len(self)} stages, which cannot be "
            "called as one. Call the function of outermost_jit(staged=True) itself; or, to call "
            "what .lower(...).compile() returns, leave staged=True out."
        )


def key_of(step: Step) -> Key:
    """What a step runs."""
    return step.stage, step.donated


@contextlib.contextmanager
def _named(stage: Stage) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"jitscope: while compiling the stage {stage.name} of a staged program")
        raise


def quick_options(sharding: Any) -> dict[str, Any]:
    """Options of the compiler that cost a stage nothing, for values of this sharding.

    Args:
      sharding: None for the default device.
    """
    if sharding is None:
        device = jax.config.jax_default_device
        platform = jax.default_backend() if device is None else getattr(device, "platform", device)
    else:
        devices = sharding.device_set
        platform = next(iter(devices)).platform if len(devices) == 1 else ""
    return ONE_GPU_OPTIONS if platform in ("gpu", "cuda") else {}


def _transfers(jaxpr: _jax.AnyJaxpr) -> bool:
    """Whether values may move between memories."""
    return any(
        eqn.primitive is _jax.device_put_p or any(map(_transfers, _jax.sub_jaxprs(eqn)))
        for eqn in _jax.equations(jaxpr)
    )

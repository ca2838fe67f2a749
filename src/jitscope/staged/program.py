"""One signature of a staged function: its steps, ready to run wherever its arguments lie.

What a call costs beside its stages (400 arrays in, 100 steps): about 0.1 ms for the lookup in
`jit`, as much to see where the arguments lie, and for each step the call of its executable and
1 us. Where they lie as in the call before, the steps do not look at them again.
"""

from __future__ import annotations

import collections
import operator
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..ir.program import Program
from ..phases import Phases
from .executables import (
    Executables,
    Key,
    Place,
    StagedLowered,
    asked_sharding,
    key_of,
    place_of,
)
from .schedule import Step
from .stages import Stages

UNSTAGED = object()
"""Returned in place of a result for arguments that the whole program has to be compiled for."""


class _Run(NamedTuple):
    """A step, ready to run: what is called, on which slots, and what becomes of them."""

    call: Callable[[Sequence[Any]], Any]
    read: Callable[[list[Any]], Sequence[Any]]
    results: slice
    dropped: tuple[int, ...]
    released: tuple[int, ...]


class _Runs(NamedTuple):
    """The steps of a program in one place, and its constants there.

    `unchecked` are the same for arguments that lie there already, or empty.
    """

    steps: tuple[_Run, ...]
    unchecked: tuple[_Run, ...]
    device: Any
    constants: list[Any]
    sharding: Any


class _Latest(NamedTuple):
    """What the last call found for arguments that lie so, and this default device."""

    placements: list[tuple[Any, ...]]
    default: Any
    runs: _Runs
    unchecked: bool


class StagedProgram:
    """One signature of a staged function.

    Args:
      program: restructured, captured with the options that the boundary of a program is made of.
      stages: what it was cut into.
      arguments: the arguments as tracers, static ones as they are.
      compiler_options: for every stage.
      phases: filled in as stages are lowered and compiled.
    """

    def __init__(
        self,
        program: Program,
        stages: Stages,
        arguments: tuple[tuple, dict],
        compiler_options: Any,
        phases: Phases,
    ) -> None:
        boundary = program.boundary
        assert boundary is not None
        self._stages = stages
        self._out_tree = program.out_tree
        self._boundary = boundary
        self._executables = Executables(stages, compiler_options, phases)
        self._dynamic = _dynamic(*arguments)
        self._moves_in = any(s is not None for s in boundary.in_shardings)
        self._moves_out = any(s is not None for s in boundary.out_shardings)
        self._read_used = _reader(stages.used)
        self._read_results = _reader(stages.results)
        self._runs: dict[Any, _Runs] = {}
        self._latest: _Latest | None = None
        self._lock = threading.Lock()

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        leaves = given = jax.tree.leaves(self._dynamic(args, kwargs))
        if self._stages.given_up and self._is_given_twice(leaves):
            return UNSTAGED  # which raises the error of `jax.jit`
        if self._moves_in:
            leaves = [
                x if sharding is None else jax.device_put(x, sharding)
                for x, sharding in zip(leaves, self._boundary.in_shardings, strict=True)
            ]
        found = self._found_for(self._read_used(leaves))
        if found is None:
            return UNSTAGED
        runs = found.runs
        if runs.sharding is not None:
            leaves = [
                x if getattr(x, "committed", False) else jax.device_put(x, runs.sharding)
                for x in leaves
            ]
        steps = runs.unchecked if found.unchecked else runs.steps
        results = self._run(steps, runs.constants, leaves)
        if leaves is not given:
            self._release(given, leaves)
        if self._moves_out:
            results = [
                x if sharding is None else _jax.placed(x, sharding)
                for x, sharding in zip(results, self._boundary.out_shardings, strict=True)
            ]
        return jax.tree.unflatten(self._out_tree, results)

    def _run(
        self, steps: Sequence[_Run], constants: Sequence[Any], leaves: Sequence[Any]
    ) -> Sequence[Any]:
        n_slots = len(self._stages.avals)
        slots = [*leaves, *constants]
        slots += [None] * (n_slots - len(slots))
        number = 0
        try:
            for call, read, results, dropped, released in steps:
                slots[results] = call(read(slots))
                for slot in released:
                    _delete(slots[slot])
                for slot in dropped:
                    slots[slot] = None
                number += 1
        except Exception as error:
            self._name_step(error, number)
            raise
        return self._read_results(slots)

    def _name_step(self, error: Exception, number: int) -> None:
        step = self._stages.steps[number]
        error.add_note(
            f"jitscope: in step {number + 1} of {len(self._stages.steps)} of a staged "
            f"program, {self._stages.stages[step.stage].name}"
        )

    def _is_given_twice(self, leaves: Sequence[Any]) -> bool:
        """Whether an array is donated and also another argument."""
        if len({*map(id, leaves)}) == len(leaves):
            return False
        times = collections.Counter(map(id, leaves))
        return any(times[id(leaves[slot])] > 1 for slot in self._stages.given_up)

    def _release(self, given: Sequence[Any], moved: Sequence[Any]) -> None:
        """Deletes donated arguments that were copied to where the program runs."""
        for slot in self._stages.given_up:
            if given[slot] is not moved[slot]:
                _delete(given[slot])

    # --- places -----------------------------------------------------------------------------------

    def _found_for(self, used: Sequence[Any]) -> _Latest | None:
        placements, default = _jax.placements(used), jax.config.jax_default_device
        latest = self._latest
        if latest and latest.default is default and latest.placements == placements:
            return latest
        _jax.check_operands(used)
        if not all(map(_jax.has_default_layout, used)):
            return None
        committed = [sharding for is_committed, sharding, *_ in placements if is_committed]
        place = self._place(committed)
        if place is None:
            return None
        key = place, None if committed else default
        with self._lock:
            if key not in self._runs:
                self._runs[key] = self._made(place)
            runs = self._runs[key]
        unchecked = bool(runs.unchecked) and all(_jax.lies_on(runs.device, x) for x in used)
        self._latest = _Latest(placements, default, runs, unchecked)
        return self._latest

    def _place(self, committed: Sequence[Any]) -> Place | None:
        """Where it runs in stages for these shardings of committed arguments; None as one."""
        place = place_of(committed)
        if place is None or (place.n_devices == 1 and self._spans_devices()):
            return None
        if place.sharding is None and any(
            getattr(value, "committed", False) for value in self._stages.constants
        ):
            return None
        return place

    def _spans_devices(self) -> bool:
        asked = (*self._boundary.in_shardings, *self._boundary.out_shardings)
        return (
            self._stages.spans_devices
            or jax.sharding.get_abstract_mesh().size > 1
            or any(s is not None and len(s.device_set) > 1 for s in asked)
        )

    def _made(self, place: Place) -> _Runs:
        # On several devices `jit` leaves donation to XLA, unless told where all results lie.
        if place.n_devices == 1 or None not in self._boundary.out_shardings:
            self._warn_of_unusable_donations()
        with jax.transfer_guard("allow"):  # as `jit` moves what it compiles in
            constants = [jax.device_put(value, place.sharding) for value in self._stages.constants]
        if place.n_devices > 1:
            jitted = self._executables.jitted(place.sharding)
            return _Runs(self._steps(jitted), (), None, constants, place.sharding)
        compiled = self._executables.compiled(place.sharding)
        unchecked = {key: _jax.unchecked_call(one) for key, one in compiled.items()}
        return _Runs(
            self._steps({key: _jax.direct_call(one) for key, one in compiled.items()}),
            self._unchecked_steps(unchecked),
            next(iter(compiled.values())).runtime_executable().local_devices()[0],
            constants,
            None,
        )

    def _steps(self, executables: Mapping[Key, Callable[..., Any]]) -> tuple[_Run, ...]:
        calls = {key: _of_sequence(one) for key, one in executables.items()}
        return tuple(_run(step, calls[key_of(step)], step.operands) for step in self._stages.steps)

    def _unchecked_steps(self, calls: Mapping[Key, _jax.UncheckedCall | None]) -> tuple[_Run, ...]:
        runs = []
        for step in self._stages.steps:
            call = calls[key_of(step)]
            if call is None:
                return ()
            runs.append(_run(step, call.run, [step.operands[i] for i in call.read]))
        return tuple(runs)

    def _warn_of_unusable_donations(self) -> None:
        if self._stages.unusable:
            types = ", ".join(aval.str_short() for aval in self._stages.unusable)
            warnings.warn(
                f"Some donated buffers were not usable: {types}.\nSee an explanation at "
                "https://docs.jax.dev/en/latest/faq.html#buffer-donation.",
                stacklevel=_jax.stacklevel_of_user(),
            )

    def lower(self, args: tuple, kwargs: dict) -> StagedLowered | None:
        """All stages, lowered; None where the program has to be one for these arguments."""
        place, asked = self._asked(args, kwargs)
        if place is None:
            return None
        if place.n_devices > 1:
            return self._executables.for_lowering_on_several(place.sharding, asked)
        return self._executables.for_lowering(place.sharding)

    def runs_in_stages(self, args: tuple, kwargs: dict) -> bool:
        """Whether a call does, with arguments or their types."""
        return self._asked(args, kwargs)[0] is not None

    def _asked(self, args: tuple, kwargs: dict) -> tuple[Place | None, list[Any]]:
        """Where arguments or their types say that it runs in stages, and the sharding of each."""
        leaves = jax.tree.leaves(self._dynamic(args, kwargs))
        if not all(map(_jax.has_default_layout, self._read_used(leaves))):
            return None, []
        asked = [
            own if given is None else given
            for own, given in zip(
                map(asked_sharding, leaves), self._boundary.in_shardings, strict=True
            )
        ]
        return self._place([s for s in self._read_used(asked) if s is not None]), asked


# --- helpers --------------------------------------------------------------------------------------


def _run(step: Step, call: Callable[[Sequence[Any]], Any], operands: Sequence[int]) -> _Run:
    return _Run(call, _reader(operands), slice(*step.results), step.dropped, step.released)


def _of_sequence(call: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
    return lambda operands: call(*operands)


def _delete(value: Any) -> None:
    if isinstance(value, jax.Array):
        value.delete()


def _reader(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """What picks these slots; always a sequence."""
    if len(slots) > 1:
        return operator.itemgetter(*slots)
    if not slots:
        return lambda values: ()
    only = slots[0]
    return lambda values: (values[only],)


def _dynamic(args: tuple, kwargs: dict) -> Callable[[tuple, dict], Any]:
    """What drops the static arguments, given arguments of which the others are tracers."""

    def is_static(value: Any) -> bool:
        return any(not isinstance(leaf, _jax.Tracer) for leaf in jax.tree.leaves(value))

    kept = [i for i, value in enumerate(args) if not is_static(value)]
    names = [name for name, value in kwargs.items() if not is_static(value)]
    if len(kept) == len(args) and len(names) == len(kwargs):
        return lambda args, kwargs: (args, kwargs)
    return lambda args, kwargs: ([args[i] for i in kept], {name: kwargs[name] for name in names})

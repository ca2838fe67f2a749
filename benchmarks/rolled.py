"""Measures a program with its layers rolled into loops against a hand-written scan.

    python -m benchmarks.rolled --set layers=12
    python -m benchmarks.rolled --cold --program mlp --set layers=40

The hand-written scan takes its parameters stacked and gives its gradients stacked; a rolled program
takes and gives them one by one, so what it may cost beside the scan is the stacking, which
is measured on its own. All contenders run in one process, in turns one after another. Times are
processor seconds of the whole process, so that others on the machine disturb little. Prints one
JSON line.

With ``--cold`` only the first call of each contender is measured: as it is, with kept calls, and
rolled under the thresholds of the default policy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jitscope
from benchmarks import environment
from benchmarks.programs import PROGRAMS, transformer

_Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Turns:
    """Processor seconds a call, one number a turn, of each contender."""

    jit_s: list[float]
    rolled_s: list[float]
    scan_s: list[float]
    stacking_s: list[float]

    @property
    def medians_s(self) -> dict[str, float]:
        """Processor seconds of a typical call."""
        return {name: statistics.median(turns) for name, turns in dataclasses.asdict(self).items()}

    @property
    def ratio(self) -> float:
        """How many times as long as the scan and the stacking together the rolled program takes."""
        medians = self.medians_s
        return medians["rolled_s"] / (medians["scan_s"] + medians["stacking_s"])


def _stack_and_unstack(layers: Sequence[Any]) -> list[Any]:
    """Puts the parameters of layers into stacks, and takes as many gradients out of others."""
    stacks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    gradients = jax.lax.optimization_barrier(stacks)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], gradients) for i in range(len(layers))]


def _calls(settings: Mapping[str, int]) -> dict[str, _Call]:
    plain = transformer.make(lambda layer: layer, **settings)
    scan = transformer.make_scan(**settings)
    policy = jitscope.Policy(rolled=True, min_saved=1, min_saved_growing=1)
    rolled = jitscope.outermost_jit(plain.fun, policy=policy)
    jitted, scanned, stacking = map(jax.jit, (plain.fun, scan.fun, _stack_and_unstack))
    calls: dict[str, _Call] = {
        "jit_s": lambda: jitted(*plain.args),
        "rolled_s": lambda: rolled(*plain.args),
        "scan_s": lambda: scanned(*scan.args),
        "stacking_s": lambda: stacking(plain.args[0]["layers"]),
    }
    for call in calls.values():
        jax.block_until_ready(call())
    if "ROLLED" not in str(rolled.reuse().plan):
        raise RuntimeError(f"nothing was rolled:\n{rolled.reuse().plan}")
    return calls


def measure(settings: Mapping[str, int], turns: int = 21) -> Turns:
    """Measures the transformer's train step.

    Args:
        settings: Of the program.
        turns: How many samples of each contender.
    """
    calls = _calls(settings)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            start = time.process_time()
            jax.block_until_ready(call())
            found[name].append(time.process_time() - start)
    return Turns(**found)


def measure_cold(program: str, settings: Mapping[str, int]) -> dict[str, Any]:
    """Processor seconds of the first call of each contender, and what was rolled.

    Args:
        program: Name of the program.
        settings: Of the program.
    """
    case = PROGRAMS[program].make(lambda layer: layer, **settings)
    jax.block_until_ready(jax.jit(lambda x: x @ x + 1)(jnp.ones((8, 8))))  # starts XLA
    rolled = jitscope.outermost_jit(case.fun, policy=jitscope.Policy(rolled=True))
    contenders = {
        "jit": jax.jit(case.fun),
        "shared": jitscope.outermost_jit(case.fun),
        "rolled": rolled,
    }
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        jax.clear_caches()
        start = time.process_time()
        jax.block_until_ready(contender(*case.args))
        found[f"{name}_cold_s"] = time.process_time() - start
    return {**found, "n_rolled": str(rolled.reuse().plan).count("ROLLED")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rolled")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--cold", action="store_true", help="measure first calls only")
    parser.add_argument("--program", choices=PROGRAMS, default="transformer", help="with --cold")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    options = parser.parse_args(arguments)
    if options.program != "transformer" and not options.cold:
        parser.error("--program is for --cold: only the transformer is measured while it runs")
    given = {name: int(value) for name, _, value in (text.partition("=") for text in options.set)}
    settings = dict(PROGRAMS[options.program].full) | given
    environment.prepare_process()
    if options.cold:
        found = measure_cold(options.program, settings)
    else:
        turns = measure(settings, options.turns)
        found = {"turns": options.turns, **turns.medians_s, "ratio": turns.ratio}
    print(
        json.dumps(
            {
                "program": options.program,
                "settings": settings,
                **found,
                "machine": environment.machine(),
                "versions": environment.versions(),
                "commit": environment.commit(),
            }
        )
    )


if __name__ == "__main__":
    main()

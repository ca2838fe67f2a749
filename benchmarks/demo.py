"""The demo: one model, trained with `jax.jit` and with jitscope, compared.

    python -m benchmarks.demo            24 layers, two to six minutes on two cores
    python -m benchmarks.demo --quick    6 layers, 10 to 30 seconds

The model is a character-level transformer. It reads real text, the Python standard library's own
source files, and learns to predict the next character. Both trainings start from equal parameters
and see equal batches, each in a process of its own, so that neither profits from the other's work.
The exit status is 1 if their losses differ by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jitscope
from benchmarks import environment
from benchmarks.programs import transformer

WIDTH, HEADS, FEED_FORWARD, BATCH, SEQUENCE = 256, 4, 1024, 4, 64
N_CHARACTERS = 1_000_000
LEARNING_RATE = 3e-4
# Adam divides small gradients by their own size, so rounding grows from step to step.
LOSS_TOLERANCE = 1e-4

Params = dict[str, Any]
Result = dict[str, Any]


def make_train_step(with_jitscope: bool) -> Any:
    """Returns the compiled train step; the two that there are differ in the two decorators only."""
    layer = transformer.layer
    if with_jitscope:
        layer = jitscope.shared_subroutine(layer)

    def train_step(params: Params, adam: Params, tokens: jax.Array) -> tuple[Any, Params, Params]:
        loss, gradients = jax.value_and_grad(transformer.loss)(params, tokens, layer)
        params, adam = adam_update(params, adam, gradients)
        return loss, params, adam

    return jitscope.outermost_jit(train_step) if with_jitscope else jax.jit(train_step)


def adam_init(params: Params) -> Params:
    """Returns Adam's state before the first step."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"step": jnp.zeros(()), "mean": zeros, "square": zeros}


def adam_update(params: Params, adam: Params, gradients: Params) -> tuple[Params, Params]:
    """One step of Adam with its usual constants; returns new parameters and state."""
    step = adam["step"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam["mean"], gradients)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, adam["square"], gradients)
    rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, {"step": step, "mean": mean, "square": square}


def read_text() -> str:
    """Returns about a million characters of the standard library's source files."""
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="ignore")
        if len(text) >= N_CHARACTERS:
            return text[:N_CHARACTERS]
    if len(text) > 100 * SEQUENCE:
        return text
    raise SystemExit("this Python comes without its library's source files, which the demo reads")


def encode(text: str) -> tuple[np.ndarray, int]:
    """Returns the text as numbers, and how many different characters it has."""
    characters, numbers = np.unique(np.array(list(text)), return_inverse=True)
    return numbers.astype(np.int32), len(characters)


def train(with_jitscope: bool, *, layers: int, steps: int) -> Result:
    """Compiles the train step and takes some steps.

    Returns:
        Seconds to trace, lower and compile; seconds and loss of each step; and, with jitscope, the
        table of what it reused.
    """
    numbers, vocabulary = encode(read_text())
    params = transformer.init_params(
        layers=layers,
        width=WIDTH,
        heads=HEADS,
        feed_forward=FEED_FORWARD,
        vocabulary=vocabulary,
        sequence=SEQUENCE,
    )
    adam = adam_init(params)
    starts = np.random.default_rng(0).integers(len(numbers) - SEQUENCE, size=(steps, BATCH))
    batches = [jnp.asarray(numbers[s[:, None] + np.arange(SEQUENCE + 1)]) for s in starts]
    train_step = make_train_step(with_jitscope)

    clock = [time.perf_counter()]
    traced = train_step.trace(params, adam, batches[0])
    clock.append(time.perf_counter())
    lowered = traced.lower()
    clock.append(time.perf_counter())
    lowered.compile()
    clock.append(time.perf_counter())

    losses, step_s = [], []
    for batch in batches:
        start = time.perf_counter()
        loss, params, adam = jax.block_until_ready(train_step(params, adam, batch))
        step_s.append(time.perf_counter() - start)
        losses.append(float(loss))
    return {
        **dict(zip(("trace_s", "lower_s", "compile_s"), np.diff(clock).tolist(), strict=True)),
        "cold_s": clock[-1] - clock[0],
        # The first call also loads the executable, which is no part of a steady step.
        "step_s": step_s[1:],
        "losses": losses,
        "n_parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "vocabulary": vocabulary,
        "reuse": str(train_step.reuse()) if with_jitscope else "",
    }


def train_in_new_process(with_jitscope: bool, *, layers: int, steps: int) -> Result:
    """As `train`, in a process of its own, showing the seconds that pass."""
    name = "jitscope" if with_jitscope else "jax.jit"
    sizes = ["--layers", str(layers), "--steps", str(steps)]
    command = [sys.executable, "-m", "benchmarks.demo", "--only", name, *sizes]
    start = time.perf_counter()
    # On a terminal the line is rewritten; in a log, that would be one long line at the very end.
    interval_s, end = (1, "\r") if sys.stdout.isatty() else (10, "\n")
    print(f"compiling and training with {name} ...", end=end, flush=True)
    process = subprocess.Popen(command, cwd=environment.ROOT, stdout=subprocess.PIPE, text=True)
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=interval_s)
                break
            except subprocess.TimeoutExpired:
                elapsed_s = time.perf_counter() - start
                print(f"compiling and training with {name} ... {elapsed_s:.0f} s", end=end)
                sys.stdout.flush()
    finally:
        process.kill()
    if process.returncode:
        raise SystemExit(f"training with {name} failed; its message is above")
    result = json.loads(output)
    print(f"compiling and training with {name}: cold start {result['cold_s']:.1f} s      ")
    return result


def largest_difference(plain: Result, ours: Result) -> float:
    """The largest relative difference between two trainings' losses; NaN if a loss is NaN."""
    expected = np.array(plain["losses"])
    return float(np.max(np.abs(np.array(ours["losses"]) - expected) / expected))


def report(plain: Result, ours: Result) -> str:
    """Returns the comparison as text."""
    lines = ["", f"{'':20}{'jax.jit':>22}{'jitscope':>22}"]
    for phase in ("trace", "lower", "compile"):
        seconds = [f"{result[f'{phase}_s']:.2f} s" for result in (plain, ours)]
        lines.append(f"  {phase:18}{seconds[0]:>22}{seconds[1]:>22}")
    lines.append(
        f"{'cold start':20}{plain['cold_s']:20.2f} s{ours['cold_s']:20.2f} s"
        f"   {plain['cold_s'] / ours['cold_s']:.1f}x sooner"
    )
    medians = [statistics.median(result["step_s"]) for result in (plain, ours)]
    spreads = [
        f"{middle * 1e3:.0f} ms ({min(times) * 1e3:.0f}-{max(times) * 1e3:.0f})"
        for middle, times in zip(medians, (plain["step_s"], ours["step_s"]), strict=True)
    ]
    lines.append(
        f"{'step: median (range)':20}{spreads[0]:>22}{spreads[1]:>22}"
        f"   {medians[0] / medians[1]:.2f}x as fast"
    )
    lines.append("")
    for step, losses in enumerate(zip(plain["losses"], ours["losses"], strict=True), 1):
        lines.append(f"loss, step {step:<9}{losses[0]:22.5f}{losses[1]:22.5f}")
    return "\n".join(lines)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo",
        description="Trains one model with jax.jit and with jitscope, and compares the two.",
    )
    parser.add_argument("--quick", action="store_true", help="6 layers and 5 steps")
    parser.add_argument("--layers", type=int, help="default: 24")
    parser.add_argument("--steps", type=int, help="default: 10")
    # How the demo calls itself for one of the two trainings.
    parser.add_argument("--only", choices=("jax.jit", "jitscope"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.layers = options.layers or (6 if options.quick else 24)
    options.steps = max(2, options.steps or (5 if options.quick else 10))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parse(arguments)
    sizes = {"layers": options.layers, "steps": options.steps}
    if options.only:
        environment.prepare_process()
        print(json.dumps(train(options.only == "jitscope", **sizes)))
        return 0

    print(
        f"A {options.layers}-layer character-level transformer, trained on the Python standard\n"
        f"library's source files. JAX {jax.__version__}, {os.cpu_count()} cores, "
        f"{jax.default_backend()}.\n"
    )
    plain = train_in_new_process(False, **sizes)
    ours = train_in_new_process(True, **sizes)
    print(f"{ours['n_parameters']:,} parameters, {ours['vocabulary']} different characters")
    print(report(plain, ours))
    difference = largest_difference(plain, ours)
    agree = difference <= LOSS_TOLERANCE
    print(
        f"\nThe losses {'agree' if agree else 'DO NOT AGREE'}: they differ by at most "
        f"{difference:.1e} of their size (allowed: {LOSS_TOLERANCE:.0e}).\n"
    )
    print(f"What jitscope found and did, print(train_step.reuse()):\n\n{ours['reuse']}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())

"""What the tests share: comparing results, reading structure, running code in a fresh process.

The only place in the catalogue's tests that knows the attributes of a reuse record and what a kept
call looks like in optimised HLO.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import PROGRAMS, Program, plain

import jitscope
from jitscope.structuring.callgraph import CallGraph

TESTS = Path(__file__).parent

# Structures of one program agree to rounding only: fusion reassociates.
TOLERANCE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float16": 2e-2,
    "bfloat16": 5e-2,
}


# --- results --------------------------------------------------------------------------------------


def assert_same(actual: Any, expected: Any, *, tolerance_factor: float = 1.0) -> None:
    """Fail unless both trees agree in structure, types and values.

    Args:
        actual: What the structured program returned.
        expected: What plain `jax.jit` returned.
        tolerance_factor: Multiplies the tolerance of the element type.
    """
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    expected_leaves = jax.tree_util.tree_leaves_with_path(expected)
    for got, (path, want) in zip(jax.tree.leaves(actual), expected_leaves, strict=True):
        where = f"output{jax.tree_util.keystr(path)}"
        assert type(got) is type(want), where
        if not hasattr(want, "dtype"):
            assert got == want, where
            continue
        assert got.dtype == want.dtype, where
        assert got.shape == want.shape, where
        assert getattr(got, "weak_type", None) == getattr(want, "weak_type", None), where
        if got.dtype == jax.dtypes.float0:
            continue
        if jax.dtypes.issubdtype(got.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(got) == jax.random.key_impl(want), where
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        tolerance = TOLERANCE.get(str(got.dtype))
        if tolerance is None:
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want), err_msg=where)
            continue
        wide = np.complex128 if np.iscomplexobj(got) else np.float64
        got, want = np.asarray(got).astype(wide), np.asarray(want).astype(wide)
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        atol = tolerance * tolerance_factor * scale
        np.testing.assert_allclose(got, want, rtol=0, atol=atol, err_msg=where)


def fresh(tree: Any) -> Any:
    """A copy of every array of a tree, so that donating it leaves the original alone."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, tree)


def build_plain(program: Program) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return program.build(plain)


def build_annotated(program: Program) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return program.build(jitscope.shared_subroutine)


@functools.cache
def plain_result(name: str) -> Any:
    """What plain `jax.jit` returns for a program of the catalogue; compiled once per process."""
    with jax.enable_x64(PROGRAMS[name].x64):
        fun, args = build_plain(PROGRAMS[name])
        return jax.jit(fun)(*args)


@functools.cache
def plain_gradient(name: str) -> Any:
    """What plain `jax.jit` returns for the `gradient` of a program of the catalogue."""
    with jax.enable_x64(PROGRAMS[name].x64):
        fun, args = build_plain(PROGRAMS[name])
        return jax.jit(gradient(fun))(*args)


def gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the `scalar` of a function's result, by its first argument."""
    return lambda *args: jax.grad(lambda *args: scalar(fun(*args)), allow_int=True)(*args)


# --- structure ------------------------------------------------------------------------------------


EAGER_LIMITS = {
    "min_uses": 2,
    "min_equations": 1,
    "min_equations_per_product": 1,
    "min_equations_per_value": 1,
    "min_saved_light": 1,
    "min_saved": 1,
    "min_saved_growing": 1,
    "min_uses_steady": 2,
    "max_side_by_side": 1_000_000,
}
"""Limits of a `Policy` with which whatever repeats is worth it."""


def cases(programs: Iterable[Program]) -> list[Any]:
    """Programs that stand for others, and the rest marked slow."""
    return [
        pytest.param(p, marks=[] if p.core else [pytest.mark.slow], id=str(p)) for p in programs
    ]


def scalar(result: Any) -> Any:
    """The sum of the squares of all real numbers of a result, to differentiate."""
    leaves = [
        leaf
        for leaf in map(jnp.asarray, jax.tree.leaves(result))
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return sum(jnp.sum(leaf * leaf) for leaf in leaves)


def share_all_policy() -> Callable[[jitscope.Census], jitscope.Plan]:
    """The policy that shares every body with two uses or more, however little that saves."""

    def decide(body: jitscope.Body) -> jitscope.Decision:
        if body.obstacle:
            return jitscope.Decision(jitscope.Structure.NESTED, body.obstacle)
        if body.n_uses == 1 or not body.n_equations:
            return jitscope.Decision(jitscope.Structure.INLINE, "called once, or empty")
        return jitscope.Decision(jitscope.Structure.SHARED, "everything is shared")

    return lambda census: jitscope.Plan(
        {body.fingerprint.digest: decide(body) for body in census.bodies}
    )


def body_uses(fun: Any) -> dict[str, tuple[int, ...]]:
    """Name of a body to the uses of each distinct body of that name, most used first."""
    uses: dict[str, list[int]] = {}
    for body in fun.reuse().census.bodies:
        uses.setdefault(body.name, []).append(body.n_uses)
    return {name: tuple(sorted(counts, reverse=True)) for name, counts in uses.items()}


def decisions(fun: Any) -> dict[str, list[tuple[str, str]]]:
    """Name of a body to the (structure, reason) of each distinct body of that name."""
    record = fun.reuse()
    found: dict[str, list[tuple[str, str]]] = {}
    for body in record.census.bodies:
        decision = record.plan[body.fingerprint.digest]
        found.setdefault(body.name, []).append((decision.structure.name, decision.reason))
    return found


def tagged_calls(stablehlo: str) -> int:
    """The calls of a lowered program that ask XLA not to inline them."""
    return len(re.findall(r"\bcall @[^\n]*inlineable = \"false\"", stablehlo))


def kept_calls(optimised_hlo: str) -> dict[str, int]:
    """Compilation unit to the calls of it that are still calls in the compiled program."""
    kept = re.compile(r" call\([^\n]*to_apply=[^\n]*compilation_unit=\"(?P<unit>[^\"]*)\"")
    return dict(Counter(found["unit"] for found in kept.finditer(optimised_hlo)))


def compiled_kernels(lowered: jax.stages.Lowered, directory: Path) -> int:
    """The kernels that XLA:CPU compiles to machine code for a program, in an empty directory.

    (What `as_text` shows of a compiled program holds a copy for each call, also of what is compiled
    once.)
    """
    lowered.compile(compiler_options={"xla_dump_to": str(directory)})
    return len(list(directory.glob("*.obj-file.*")))


def shared_units(fun: Any, *, dead: Sequence[str] = ()) -> dict[str, int]:
    """Compilation unit of every shared body to the calls of it that are to be kept.

    Kept calls do not nest: a call within a shared body is a plain one.

    Args:
        fun: An outermost function that has traced a program.
        dead: Names of bodies to leave out.
    """
    record = fun.reuse()
    shared = {
        body.fingerprint.digest: body.name
        for body in record.census.bodies
        if record.plan[body.fingerprint.digest].structure is jitscope.Structure.SHARED
    }
    uses = CallGraph(record.census).uses_outside(shared)
    return {
        f"{name}_{digest[:12]}": uses[digest]
        for digest, name in shared.items()
        if uses[digest] and name not in dead
    }


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def collectives(optimised_hlo: str) -> dict[str, int]:
    """Kind of collective and result type to its executions in a program without loops.

    A collective in a called computation counts once per call.
    """
    instruction = re.compile(
        r"= (?P<type>\S+|\([^)]*\)) (?P<kind>" + "|".join(COLLECTIVES) + r")(?:-start)?\("
    )
    computations = _computations(optimised_hlo)

    def count(name: str) -> dict[str, int]:
        total: dict[str, int] = {}
        for line in computations[name]:
            if found := instruction.search(line):
                shape = re.sub(r"\{[^}]*\}", "", found["type"])
                key = f"{found['kind']} {shape}"
                total[key] = total.get(key, 0) + 1
            elif called := re.search(r"\bcall\(.*to_apply=%?([\w.\-]+)", line):
                for key, n in count(called[1]).items():
                    total[key] = total.get(key, 0) + n
        return total

    return dict(sorted(count("ENTRY").items()))


def _computations(hlo: str) -> dict[str, list[str]]:
    """Computation name to its lines; the entry under "ENTRY"."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in hlo.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) (\(.*)?\{", line):
            lines = computations.setdefault("ENTRY" if head[1] else head[2], [])
        else:
            lines.append(line)
    return computations


# --- processes ------------------------------------------------------------------------------------


def python_environment(
    extra: Mapping[str, str] | None = None, *, n_devices: int = 1
) -> dict[str, str]:
    """This process's environment, able to import the library and the tests, on CPU devices."""
    source = Path(jitscope.__file__).parent.parent
    path = os.pathsep.join([str(source), str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    # The last of a repeated flag counts.
    environment["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={n_devices}"
    return environment | dict(extra or {})


def run_python(
    arguments: Sequence[str], extra: Mapping[str, str] | None = None, *, n_devices: int = 1
) -> str:
    """Run the interpreter in a fresh process and return what it printed.

    Raises:
        AssertionError: The process failed; the message holds what it wrote to stderr.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        env=python_environment(extra, n_devices=n_devices),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def recorded_hlo(name):
    """Optimised HLO of two calls of a body with a matrix product; see ``test_hlo.py``."""
    return (TESTS / "hlo" / f"{name}.txt").read_text()


def hlo_program(*instructions, computations=""):
    """A program of these instructions."""
    lines = "\n".join(f"  {line}" for line in instructions)
    return f"HloModule m\n{computations}\nENTRY %main (x: f32[8,8]) -> f32[8,8] {{\n{lines}\n}}\n"

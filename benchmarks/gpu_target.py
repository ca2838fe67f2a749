"""Compiles a program of the suite for a named GPU on a machine that has none.

    python -m benchmarks.gpu_target transformer outermost_staged --target h200 --set layers=12

prints one JSON line: seconds, what one run launches, and memory. See `jitscope.gpu_target`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import jitscope
from benchmarks import environment
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.programs import PROGRAMS
from jitscope.gpu_target import TARGETS, PluginMissingError, compile_for

# Not among those that are also run: there, a program that is traced is not yet cut into stages, and
# `benchmarks.rolled` measures loops.
_CONTENDERS = CONTENDERS | {
    "outermost_rolled": Contender(
        "outermost_rolled",
        functools.partial(jitscope.outermost_jit, policy=jitscope.Policy(rolled=True)),
    ),
    "outermost_staged": Contender(
        "outermost_staged", functools.partial(jitscope.outermost_jit, staged=True)
    ),
}


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
    # Nothing is run, and without a GPU JAX would leave the plugin out that compiles for one.
    jax.config.update("jax_platforms", "cpu")
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

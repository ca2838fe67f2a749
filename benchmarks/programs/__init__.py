"""The programs that are measured, and the check that two contenders computed the same.

Each module here describes one `Program`, except for `frameworks` (several) and `layers` (what
others are made of). A program's repeated body goes through a function `share` that the contender
chooses, so one source serves every contender; only a hand-written scan is separate code.
"""

from __future__ import annotations

from benchmarks.programs import (
    adamw,
    frameworks,
    hmc_leapfrog,
    lstm,
    message_passing,
    mixture_of_experts,
    mlp,
    nothing_shared,
    predator_prey,
    resnet50,
    runge_kutta,
    seed2022,
    small_bodies,
    transformer,
    transformer_dropout,
    unet,
)
from benchmarks.programs.program import Case, Program, agrees, digest

__all__ = ["PROGRAMS", "Case", "Program", "agrees", "digest"]

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        transformer.PROGRAM,
        transformer_dropout.PROGRAM,
        seed2022.PROGRAM,
        nothing_shared.PROGRAM,
        resnet50.PROGRAM,
        unet.PROGRAM,
        mixture_of_experts.PROGRAM,
        message_passing.PROGRAM,
        lstm.PROGRAM,
        runge_kutta.PROGRAM,
        predator_prey.PROGRAM,
        mlp.PROGRAM,
        adamw.PROGRAM,
        hmc_leapfrog.PROGRAM,
        small_bodies.PROGRAM,
        *frameworks.PROGRAMS,
    )
}

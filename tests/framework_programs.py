"""The programs that no one here wrote, at a size for tests, with what repeats in each.

The programs themselves are those of `benchmarks.programs.frameworks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import pytest

from benchmarks.programs import PROGRAMS
from benchmarks.programs.program import Case


@dataclasses.dataclass(frozen=True)
class FrameworkProgram:
    """A program of another library.

    Attributes:
        name: In `benchmarks.programs.PROGRAMS`.
        repeats: Name of what repeats to the fewest uses of its most used body.
        kept: Those of them whose calls the default policy keeps, at this size.
        tolerance_factor: Multiplies the tolerance of the element type.
        settings: Where they differ from the tiny size.
    """

    name: str
    repeats: Mapping[str, int]
    kept: frozenset[str] = frozenset()
    tolerance_factor: float = 1.0
    settings: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @cached_property
    def case(self) -> Case:
        """The function with its arguments; skips the test where a package is missing."""
        program = PROGRAMS[self.name]
        for package in program.packages:
            pytest.importorskip(package)
        return program.make(lambda fun: fun, **(dict(program.tiny) | dict(self.settings)))

    @cached_property
    def expected(self) -> Any:
        """What plain `jax.jit` gives."""
        return jax.jit(self.case.fun)(*self.case.args)


# AdamW's functions over like-shaped leaves; the names are Optax's.
_ADAMW = {"tree_update_moment": 12, "tree_update_moment_per_elem_norm": 12, "update_fn": 12}
_DEEP = {"layers": 12}

FRAMEWORK_PROGRAMS = {
    program.name: program
    for program in (
        FrameworkProgram(
            "flax_linen",
            {"Block": 12, "Block_gradient": 12} | _ADAMW,
            settings=_DEEP,
        ),
        FrameworkProgram(
            "flax_dropout",
            {"Block": 12, "Block_gradient": 12} | _ADAMW,
            kept=frozenset({"_bernoulli"}),
            settings=_DEEP,
        ),
        FrameworkProgram(
            "flax_nnx",
            {"Block": 12, "Block_gradient": 12} | _ADAMW,
            settings=_DEEP,
        ),
        FrameworkProgram("equinox_mlp", {"MLP": 8, "MLP_gradient": 8}),
        # The first attention's queries come from the argument: eleven layers repeat whole.
        FrameworkProgram(
            "equinox_transformer",
            {"Block": 11, "Block_gradient": 11},
            kept=frozenset({"Block", "Block_gradient"}),
            settings=_DEEP,
        ),
        FrameworkProgram("diffrax_unrolled", {"step": 5, "filter_custom_vjp_gradient": 6}),
        # Blocks of equal shape come in groups of 3, 4, 6 and 3, the first of each its own.
        FrameworkProgram("haiku_resnet50", {"BlockV1": 5, "BlockV1_gradient": 5}),
        FrameworkProgram("mjx_step", {"rotate": 4, "quat_to_mat": 4, "normalize_with_norm": 4}),
        FrameworkProgram(
            "numpyro_potential",
            {
                "model": 12,
                "compute_log_probs": 12,
                "model_gradient": 12,
                "compute_log_probs_gradient": 12,
            },
        ),
    )
}

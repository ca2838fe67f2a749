"""What a program is, and when two results of it agree."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Fun = Callable[..., Any]
Share = Callable[[Fun], Fun]
Settings = Mapping[str, int]

N_DIGEST_GROUPS = 16


@dataclass(frozen=True)
class Case:
    """A function to compile as the outermost one, and the arguments to call it with.

    `finish` brings the result into the layout that every contender's result is compared in; it is
    not measured.
    """

    fun: Fun
    args: tuple[Any, ...]
    finish: Callable[[Any], Any] = lambda result: result


def layers_setting(settings: Settings) -> int:
    """The depth of most programs: their setting `layers`, or 1."""
    return settings.get("layers", 1)


@dataclass(frozen=True)
class Program:
    """A computation in several sizes.

    Attributes:
        name: What the command line calls it.
        full: The settings it is measured with where nothing else is asked for.
        tiny: Settings that compile within a second or two under every contender.
        make: Builds the case; called with `share` and the settings as keywords.
        make_scan: The same with a hand-written `lax.scan`, or None where it cannot be written so.
        tolerance: The relative difference allowed between two contenders' results.
        depth: How many equal layers, steps or calls follow one another, given the settings.
        has_marks: Whether `make` puts `share` on something.
        packages: What it needs beside JAX, by the names they are imported by.
    """

    name: str
    full: Settings
    tiny: Settings
    make: Callable[..., Case]
    make_scan: Callable[..., Case] | None = None
    tolerance: float = 1e-3
    depth: Callable[[Settings], int] = layers_setting
    has_marks: bool = True
    packages: tuple[str, ...] = ()

    @property
    def works_here(self) -> bool:
        """Whether the packages that it needs are installed."""
        return all(importlib.util.find_spec(package) is not None for package in self.packages)


def digest(result: Any) -> list[float]:
    """Reduces a result to a few numbers that change when any of its elements does.

    The first leaf (by custom the loss) is a group of its own, the other leaves are split into
    consecutive groups. Each group gives its element count, its root mean square and the sum of its
    elements under fixed random signs.
    """
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(result)]
    size = max(1, math.ceil((len(leaves) - 1) / (N_DIGEST_GROUPS - 1)))
    groups = [leaves[:1]] + [leaves[i : i + size] for i in range(1, len(leaves), size)]
    signs = np.random.default_rng(0)
    numbers: list[float] = []
    for group in groups:
        values = np.concatenate(group)
        rms = math.sqrt(float(np.mean(values**2))) if values.size else 0.0
        signed_sum = float(values @ signs.choice([-1.0, 1.0], values.size))
        numbers += [float(values.size), rms, signed_sum]
    return numbers


def agrees(ours: Sequence[float], reference: Sequence[float], tolerance: float) -> bool:
    """Tells whether two digests belong to results that differ by rounding only.

    Structures change fusion, so results differ by rounding; independent rounding errors of relative
    size `tolerance` move a signed sum of n elements by about `tolerance * rms * sqrt(n)`.
    """
    if len(ours) != len(reference) or not np.all(np.isfinite([*ours, *reference])):
        return False
    pairs = zip(np.reshape(ours, (-1, 3)), np.reshape(reference, (-1, 3)), strict=True)
    return all(
        n == n_reference
        and abs(rms - rms_reference) <= tolerance * rms_reference
        and abs(total - total_reference) <= tolerance * rms_reference * math.sqrt(n)
        for (n, rms, total), (n_reference, rms_reference, total_reference) in pairs
    )

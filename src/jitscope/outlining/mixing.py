"""Integers as good as random, the same in every process, whose sums tell multisets apart."""

from __future__ import annotations

import numpy as np


def hashed(values: np.ndarray) -> np.ndarray:
    """An integer for each of the values, equal where these are (the finaliser of SplitMix64)."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))

"""Integers as good as random, the same in every process, whose sums tell multisets apart."""

from __future__ import annotations

import numpy as np


def hashed(values: np.ndarray) -> np.ndarray:
    """An integer for each of the values, in all of whose bits all bits of the value count."""
    mixed = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(32)
    return mixed

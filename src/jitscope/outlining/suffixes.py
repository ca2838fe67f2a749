"""Sorted suffixes of a sequence of integers, and which of its substrings are equal.

Ranks of the substrings of lengths 1, 2, 4, ... come from sorting pairs of ranks (prefix
doubling): n log n work in numpy, about 1 us per integer. Two substrings of any length are
equal where two ranks each are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class SuffixIndex:
    """Sorted suffixes of a sequence, from ranks of substrings of lengths 1, 2, 4, ...

    Attributes:
      n: length of the sequence.
      tokens: the sequence, its integers numbered by first appearance.
      order: starts of the suffixes in sorted order.
      common: length of the common prefix of each sorted suffix and the one before it.
    """

    def __init__(self, tokens: Sequence[int] | np.ndarray) -> None:
        _, first, inverse = np.unique(
            np.asarray(tokens, np.int64), return_index=True, return_inverse=True
        )
        ranks = np.argsort(np.argsort(first))[inverse]
        self.n = n = len(ranks)
        self.tokens = ranks.astype(np.int64)
        self._ranks = [self.tokens]
        self.order = np.argsort(ranks, kind="stable")
        width = 1
        while width < n and self._ranks[-1].max() + 1 < n:
            ranks, self.order = _doubled(self._ranks[-1], width)
            self._ranks.append(ranks)
            width *= 2
        self.common = self._common_prefixes()

    def _common_prefixes(self) -> np.ndarray:
        found = np.zeros(self.n, np.int64)
        left, right = self.order[:-1], self.order[1:]
        for level in reversed(range(len(self._ranks))):
            ranks = np.append(self._ranks[level], -1)
            a = np.minimum(left + found[1:], self.n)
            b = np.minimum(right + found[1:], self.n)
            same = (ranks[a] == ranks[b]) & (a < self.n) & (b < self.n)
            found[1:] += same * (1 << level)
        return found

    def classes(self, length: int) -> np.ndarray:
        """A number per start, equal where the substrings of this length are equal."""
        n_starts = self.n - length + 1
        level = length.bit_length() - 1
        if level >= len(self._ranks):
            return np.arange(n_starts)
        ranks = self._ranks[level]
        pairs = ranks[:n_starts] * self.n + ranks[length - (1 << level) :][:n_starts]
        return np.unique(pairs, return_inverse=True)[1]


def _doubled(ranks: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of substrings twice as long, and the starts sorted by them."""
    n = len(ranks)
    key = ranks * (n + 1)
    key[: n - width] += ranks[width:] + 1
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    new = np.zeros(n, np.int64)
    new[order[1:]] = np.cumsum(sorted_key[1:] != sorted_key[:-1])
    return new, order

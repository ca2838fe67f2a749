"""The order in which a line of equations is read, whatever order it stands in.

The tracer writes down equations that do not depend on each other in the order in which Python came
to them, which may be another one at each occurrence of a repeat. In *reading order* each stands
directly before what reads it. `n_recurring` and `n_repeated` tell, before anything is searched for
repeats, whether more of them are likely to be found in another order.
"""

from __future__ import annotations

import numpy as np

from .dataflow import Edges
from .mixing import hashed

_BITS_A_STEP = 3  # longer lines are compared for more steps: more in them is alike by chance
_NEAR = 64  # what is first read later than so many equations on stands where it stood
_LOWEST = np.uint64(1)


def n_recurring(numbers: np.ndarray, edges: Edges, is_left: np.ndarray) -> int:
    """How many of the equations that are left do what others in the line do, for the like.

    Args:
      numbers: one per equation, equal where the equations do the same.
      edges: between the equations.
      is_left: which equations are left.
    """
    own = labels = hashed(numbers)
    for _ in range(len(numbers).bit_length() // _BITS_A_STEP):
        readers = np.zeros_like(own)
        np.add.at(readers, edges.definer, hashed(labels[edges.user] + edges.ends))
        labels = own + readers
    marked = np.sort((labels & ~_LOWEST) | is_left)
    same = np.append(marked[1:] ^ marked[:-1] <= _LOWEST, False)
    same[1:] |= same[:-1].copy()
    return int((marked[same] & _LOWEST).sum())


def n_repeated(numbers: np.ndarray, length: int) -> int:
    """How many stretches of a length are equal to others."""
    hashes = own = hashed(numbers)
    for i in range(1, length):
        hashes = hashed(hashes[:-1]) + own[i:]
    in_order = np.sort(hashes)
    equal = np.append(in_order[1:] == in_order[:-1], False)
    equal[1:] |= equal[:-1].copy()
    return int(equal.sum())


def reading_order(edges: Edges, is_root: np.ndarray) -> list[int]:
    """The places of the equations, each directly before what reads it.

    Of the operands of an equation the deepest comes first, so that a layer does not start before
    the layers that it reads are complete. Roots, and what is read late or never, keep their order.
    """
    n = len(is_root)
    first_read = np.full(n, 2 * n + _NEAR)
    np.minimum.at(first_read, edges.definer, edges.user)
    late = first_read - np.arange(n) > _NEAR
    read: list[list[int]] = [[] for _ in range(n)]
    for user, definer in zip(edges.user.tolist(), edges.definer.tolist(), strict=True):
        read[user].append(definer)
    depth: list[int] = []
    for i in range(n):
        depth.append(1 + max([depth[j] for j in read[i]], default=0))
        read[i].sort(key=depth.__getitem__)  # the last one is looked at first
    order: list[int] = []
    done = [False] * n
    for root in np.flatnonzero(late | is_root).tolist():
        stack = [root]
        while stack:
            i = stack[-1]
            while read[i] and done[read[i][-1]]:
                read[i].pop()
            if read[i]:
                stack.append(read[i][-1])
                continue
            stack.pop()
            done[i] = True
            order.append(i)
    return order

"""Which arguments a function writes to while it is traced.

JAX hands a traced function containers of its own, so what it writes to a dict, a list or an
object that is a pytree never reaches the caller's, be it traced once or at every call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from .static import is_leaf


class Contents:
    """What arguments hold, to be compared with what they hold later.

    Args:
      labelled: every argument with its name.
    """

    def __init__(self, labelled: Iterable[tuple[str, Any]]) -> None:
        containers = ((label, value) for label, value in labelled if not is_leaf(value))
        self._before = [(label, value, jax.tree.flatten(value)) for label, value in containers]
        # A pytree may make its leaves anew whenever it is asked for them.
        self._before = [known for known in self._before if _holds(known[1], *known[2])]

    def written_to(self) -> list[str]:
        """Names of the arguments that hold something else now."""
        return [
            label
            for label, value, (leaves, tree) in self._before
            if not _holds(value, leaves, tree)
        ]


def _holds(value: Any, leaves: list[Any], tree: Any) -> bool:
    now, tree_now = jax.tree.flatten(value)
    return (
        len(now) == len(leaves)
        and all(a is b for a, b in zip(now, leaves, strict=True))
        and tree_now == tree
    )

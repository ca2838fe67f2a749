"""Values that JAX cannot carry, as pytree nodes without children; and which those are.

A string, a callable, an enum or any hashable object among the arguments becomes a `Static`, a
result that is no array a `StaticResult`: JAX then sees arrays only, and keys its cache by the
values in the tree.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from .keys import ByIdentity, Keys


class Static:
    """A value that is part of the signature instead of being traced.

    A value that is compared by identity, or by code as functions are, is held weakly: the
    caller has it, and JAX's caches shall not keep it alive.
    """

    __slots__ = ("_hash", "_value", "key")

    def __init__(self, value: Any, *, key: Hashable = None) -> None:
        self.key = Keys().of(value) if key is None else key
        self._hash = hash(self.key)
        self._value: Callable[[], Any] = lambda: value
        if isinstance(self.key, ByIdentity) or callable(value):
            try:
                self._value = weakref.ref(value)
            except TypeError:
                pass

    @property
    def value(self) -> Any:
        """The wrapped value."""
        return self._value()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __repr__(self) -> str:
        return shown(self.value)


class StaticResult:
    """A result that JAX cannot carry, handed out as the very object that was returned."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def value(self) -> Any:
        """The object; a NumPy array as a copy, since every caller may write to its own."""
        return self._value.copy() if isinstance(self._value, np.ndarray) else self._value


for _node in (Static, StaticResult):
    jax.tree_util.register_pytree_node(_node, lambda node: ((), node), lambda node, _: node)


def unwrapped(tree: Any) -> Any:
    """`tree` with the values of its static nodes in their place."""

    def is_static(node: Any) -> bool:
        return isinstance(node, (Static, StaticResult))

    if not any(map(is_static, jax.tree.leaves(tree, is_leaf=is_static))):
        return tree
    return jax.tree.map(lambda x: x.value if is_static(x) else x, tree, is_leaf=is_static)


# --- what JAX can trace -----------------------------------------------------------------

array_types: set[type] = set()
"""Types of concrete ``jax.Array`` seen so far; looked up on every dispatch."""

_traceable: dict[type, bool] = dict.fromkeys((bool, int, float, complex), True) | {str: False}


def is_traceable(leaf: Any) -> bool:
    """Whether ``jax.jit`` takes this leaf as an operand."""
    kind = type(leaf)
    known = _traceable.get(kind)
    if known is not None:
        return known
    if isinstance(leaf, jax.core.Tracer):
        return True
    if isinstance(leaf, jax.Array):
        array_types.add(kind)
        return True
    found = not hasattr(kind, "__jax_array__") and _has_jax_type(leaf)
    if kind is not np.ndarray:  # whose dtype decides
        _traceable[kind] = found
    return found


def _has_jax_type(leaf: Any) -> bool:
    try:
        jax.typeof(leaf)
    except OverflowError:
        return True
    except Exception:  # noqa: BLE001 - JAX's message for "no" differs between releases
        return False
    return True


def is_leaf(value: Any) -> bool:
    """Whether JAX's pytrees hold `value` to be a leaf."""
    return jax.tree_util.all_leaves([value])


_LINES = re.compile(r"\s*\n\s*")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


_WIDTH = 60


def shown(value: Any) -> str:
    """A short text for a value, the same for every instance of a function or class."""
    named = getattr(value, "__qualname__", None) if callable(value) else None
    text = _LINES.sub(" ", _ADDRESS.sub("", named or repr(value)))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."

"""Arguments of a call: bound by the function's signature, split into traced and static.

*Binding* brings positional, keyword and default spellings of one call to one form. Leaves
that JAX cannot trace are wrapped in `Static`, so that the tree of a bound and wrapped call
and the types of its leaves are the call's signature, which is just what ``jax.jit`` keys its
cache by.

Nothing here calls the user's function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..words import count
from .keys import Keys
from .static import Static, array_types, is_leaf, is_traceable

_P = inspect.Parameter


class Binder:
    """Binds the arguments of one function and marks what of them is static.

    Attributes:
      n_plain: number of arguments with which a call that passes them all by position is in
        its bound form already; -1 if there is none.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        name: str = "",
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
    ) -> None:
        self._name = name
        self._signature = _signature_of(fun)
        parameters = list(self._signature.parameters.values()) if self._signature else []
        self._positional = [
            p.name for p in parameters if p.kind in (_P.POSITIONAL_ONLY, _P.POSITIONAL_OR_KEYWORD)
        ]
        self._varargs = next((p.name for p in parameters if p.kind is _P.VAR_POSITIONAL), None)
        self._varkw = next((p.name for p in parameters if p.kind is _P.VAR_KEYWORD), None)
        self._defaults = {
            p.name: p.default
            for p in parameters
            if p.default is not _P.empty and p.default is not None
        }
        self._static_names = set(_as_tuple(static_argnames))
        self._static_nums: set[int] = set()
        self._resolve_static(_as_tuple(static_argnums), {p.name for p in parameters}, fun)
        plain = len(parameters) == len(self._positional) and self._signature is not None
        has_static = self._static_names or self._static_nums
        self.n_plain = len(self._positional) if plain and not has_static else -1

    def _resolve_static(self, nums: Sequence[int], names: set[str], fun: Any) -> None:
        """Makes names of numbers where they name a parameter, and checks both."""
        for num in nums:
            place = num + len(self._positional) if num < 0 and not self._varargs else num
            if 0 <= place < len(self._positional):
                self._static_names.add(self._positional[place])
            elif place >= 0 and (self._varargs or self._signature is None):
                self._static_nums.add(place)
            else:
                takes = count(len(self._positional), "positional argument")
                raise ValueError(
                    f"shared_subroutine(static_argnums=...) of {self._name!r}: there is no "
                    f"argument number {num}; the function takes {takes}: "
                    f"{', '.join(self._positional) or 'none'}."
                )
        unknown = self._static_names - names
        if unknown and not self._varkw and self._signature is not None:
            raise ValueError(
                f"shared_subroutine(static_argnames=...) of {self._name!r}: there is no "
                f"argument {', '.join(sorted(unknown))}; the arguments are "
                f"{', '.join(sorted(names)) or 'none'}."
            )
        if unknown and self._varargs:
            # A wrapper that takes *args, **kwargs: the names are those of what it wraps.
            inner = _signature_of(fun, follow_wrapped=True)
            order = list(inner.parameters) if inner else []
            self._static_nums |= {order.index(n) for n in unknown if n in order}

    def bind(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """The one form of a call: positional arguments, and keyword-only ones by name.

        Arguments that were declared static, and those that are equal to their default, are
        wrapped in `Static`. None if the arguments do not fit the signature.

        Raises:
          TypeError: an argument that was declared static is not hashable.
        """
        if self._signature is None:
            return self._marked(args, kwargs)
        if not kwargs and len(args) == self.n_plain and not self._defaults:
            return args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        for name, default in self._defaults.items():
            if _is_default(bound.arguments[name], default):
                bound.arguments[name] = _default_as_static(bound.arguments[name])
        return self._marked(bound.args, bound.kwargs)

    def _marked(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if not self._static_names and not self._static_nums:
            return args, kwargs
        names = self._positional
        args = tuple(
            self._declared(value, self.label(i))
            if i in self._static_nums or (i < len(names) and names[i] in self._static_names)
            else value
            for i, value in enumerate(args)
        )
        return args, {
            name: self._declared(value, name) if name in self._static_names else value
            for name, value in kwargs.items()
        }

    def _declared(self, value: Any, label: str) -> Static:
        if isinstance(value, Static):
            return value
        _check_static(value, label, self._name, "declared static")
        return Static(value)

    def without_defaults(self) -> inspect.Signature | None:
        """The signature of bound arguments, which holds no value of the user's."""
        if self._signature is None:
            return None
        return inspect.Signature([_P(p.name, p.kind) for p in self._signature.parameters.values()])

    def label(self, place: int) -> str:
        """How to name the argument at a place of the bound form."""
        if place < len(self._positional):
            return self._positional[place]
        return f"{self._varargs or 'args'}[{place - len(self._positional)}]"

    def labelled(self, args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Every bound argument with its name."""
        for place, value in enumerate(args):
            yield self.label(place), value
        yield from kwargs.items()

    def wrap(
        self, args: tuple, kwargs: dict[str, Any], keys: Keys, *, is_method: bool = False
    ) -> tuple[tuple, dict[str, Any]]:
        """Wraps every leaf that JAX cannot trace.

        Args:
          args: positional arguments, bound.
          kwargs: keyword-only arguments, bound.
          keys: makes the keys of static leaves, and collects tracers that they captured.
          is_method: the first argument is the instance, which need not be hashable.

        Raises:
          TypeError: a static leaf is not hashable.
        """
        if is_method and args and is_leaf(args[0]) and not is_traceable(args[0]):
            args = (Static(args[0], key=keys.of_argument(args[0])), *args[1:])
        args = tuple(self._wrap(value, i, keys) for i, value in enumerate(args))
        return args, {name: self._wrap(value, name, keys) for name, value in kwargs.items()}

    def _wrap(self, argument: Any, place: int | str, keys: Keys) -> Any:
        if type(argument) in array_types:
            return argument
        leaves, tree = jax.tree.flatten(argument)
        if all(map(is_traceable, leaves)):
            return argument
        label = place if isinstance(place, str) else self.label(place)
        wrapped = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            if hasattr(type(leaf), "__jax_array__") and not isinstance(leaf, jax.Array):
                leaf = leaf.__jax_array__()  # which JAX itself no longer does for operands
            elif not is_traceable(leaf):
                _check_static(
                    leaf,
                    label + jax.tree_util.keystr(path),
                    self._name,
                    "not an array, so it is static",
                )
                leaf = Static(leaf, key=keys.of_argument(leaf))
            wrapped.append(leaf)
        return jax.tree.unflatten(tree, wrapped)


def _check_static(value: Any, label: str, name: str, why: str) -> None:
    try:
        hash(value)
    except Exception:  # noqa: BLE001 - whatever a user's __hash__ raises
        kind = type(value).__name__
        article = "an" if kind[0].lower() in "aeiou" else "a"
        raise TypeError(
            f"Argument {label} ({article} {kind}) of shared subroutine {name!r} is {why}, but it "
            "is not hashable, so a trace cannot be kept for its value. Allowed are arrays, "
            "pytrees of arrays, and hashable values. Pass a tuple for a list, a frozenset for a "
            "set, a class with __eq__ and __hash__ (such as a frozen dataclass) for other "
            f"settings, or register the class as a pytree if it holds arrays.{_hint(value)}"
        ) from None


def _hint(value: Any) -> str:
    if any(kind.__module__.startswith("flax.linen") for kind in type(value).__mro__):
        return (
            " Methods of Flax Linen modules cannot be marked: outermost_jit finds their layers "
            "by itself."
        )
    return ""


def _is_default(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if type(value) is not type(default) or isinstance(default, (jax.Array, np.ndarray)):
        return False
    keys = Keys()
    return keys.of(value) == keys.of(default) and not keys.tracers


def _default_as_static(value: Any) -> Any:
    """A default as ``jax.jit`` leaves it, Python values as they are, but its arrays traced.

    ``def body(x, w=w): ...`` in a loop thus has one trace for all its ``w``.
    """
    leaves = jax.tree.leaves(value)
    if not any(isinstance(leaf, jax.Array) for leaf in leaves):
        return Static(value)
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else Static(x), value)


def _signature_of(fun: Any, *, follow_wrapped: bool = False) -> inspect.Signature | None:
    """The signature under which `fun` can be called, or None if Python does not know it.

    That of a wrapped function says little about how its wrapper may be called.
    """
    try:
        return inspect.signature(fun, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError):
        return None


def _as_tuple(value: Any) -> tuple:
    if value is None:
        return ()
    return (value,) if isinstance(value, (int, str)) else tuple(value)

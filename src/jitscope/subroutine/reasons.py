"""Why a body was traced again: details of a signature, compared with earlier ones -> text.

The reason names what changed down to the value, in the words of the user's own call: the
path of an argument, the name of a captured value, a setting of JAX.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .. import _jax
from .keys import ByIdentity, ByState, parts_of, text_of

FIRST = "first use"


@dataclasses.dataclass(frozen=True)
class Details:
    """The paths that belong to a `Signature`, worked out only where it is new."""

    avals: Mapping[str, Any]
    static: Mapping[str, tuple[Hashable, str]]
    captures: Mapping[str, tuple[Hashable, str]]
    context: Mapping[str, Any]
    tree: Any = None

    @property
    def objects(self) -> dict[str, str]:
        """Paths of values that are equal to none but themselves, with their classes."""
        keys = {path: key for d in (self.static, self.captures) for path, (key, _) in d.items()}
        return {path: kind for path, key in keys.items() if (kind := _class_of_object(key))}


def _class_of_object(key: Hashable) -> str:
    """The class of a value that is compared by identity; empty for arrays and other values.

    What has a name of its own, such as ``jnp.sin``, is told by that.
    """
    if not isinstance(key, ByIdentity) or isinstance(
        key.value, (jax.Array, np.ndarray, types.ModuleType, type, type(None))
    ):
        return ""
    if callable(key.value) and hasattr(key.value, "__name__"):
        return ""
    return type(key.value).__name__


def advice_on_objects(kind: str) -> str:
    """What to do about objects of a class that JAX cannot look into."""
    return (
        f"register {kind} as a pytree, or make it an equinox Module, so that what it holds is an "
        "argument; or pass its arrays as arguments; or, where it holds none, define its == and hash"
    )


def why_traced(new: Details, earlier: Sequence[Details], same: Details | None) -> str:
    """Why earlier traces did not do: the differences from the closest of them."""
    if same is not None:
        changed = differences_of_context(same.context, new.context)
        what = ", ".join(changed) or "caches were cleared, or a setting that is not shown here"
        return f"context changed, not the signature: {what}"
    if not earlier:
        return FIRST
    return "; ".join(min((differences(old, new) for old in reversed(earlier)), key=len))


def differences(old: Details, new: Details) -> list[str]:
    """What of a signature differs from an earlier one, one text each."""
    found = _changed("static value", *_innermost(old.static, new.static))
    found += _changed("captured value", *_innermost(old.captures, new.captures))
    found += _presence(old, new)
    for path in old.avals.keys() & new.avals.keys():
        found += _type_change(path, old.avals[path], new.avals[path])
    found = found or list(dict.fromkeys(_static_fields(old.tree, new.tree)))
    return found or [f"containers of the arguments: {_tree_change(str(old.tree), str(new.tree))}"]


def _presence(old: Details, new: Details) -> list[str]:
    """Leaves that are arrays, static or not there at all in one of the two only."""
    before, after = ({**details.static, **details.avals} for details in (old, new))
    found = [
        f"argument {path}: {_leaf(new, path)} against {_leaf(old, path)}"
        for path in sorted(
            (old.avals.keys() & new.static.keys()) | (old.static.keys() & new.avals.keys())
        )
    ]
    gone, come = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    if gone and come:
        return [*found, f"tree structure: {', '.join([*gone, *come][:4])} in one of the two only"]
    found += [f"argument {path}: {_leaf(new, path)} against None or nothing" for path in come[:4]]
    return found + [
        f"argument {path}: None or nothing against {_leaf(old, path)}" for path in gone[:4]
    ]


def _leaf(details: Details, path: str) -> str:
    if path in details.avals:
        return f"array {type_text(details.avals[path])}"
    return f"static value {details.static[path][1]}"


def _static_fields(old: Any, new: Any) -> Iterator[str]:
    """What differs in the data that nodes of the user's classes carry beside their children."""
    old_node, new_node = old.node_data(), new.node_data()
    if old_node is None or new_node is None or old_node[0] is not new_node[0]:
        return
    kind, before, after = old_node[0], old_node[1], new_node[1]
    if not issubclass(kind, (dict, list, tuple)) and _differ(before, after):
        for name, a, b in _fields(kind, before, after):
            yield f"static {name} of {kind.__name__}: {_short(b)} against {_short(a)}"
    for children in zip(old.children(), new.children(), strict=False):
        yield from _static_fields(*children)


def _fields(kind: type, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """The fields of a dataclass that differ, by name; all of its static data where that fails."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        static = [field.name for field in fields if field.metadata.get("static")]
        for names in (static, [field.name for field in fields]):  # JAX keeps those, Equinox all
            if len(names) == len(old):
                values = zip(names, old, new, strict=True)
                return [(f"field {name}", a, b) for name, a, b in values if _differ(a, b)]
    return [("data", old, new)]


def _differ(a: Any, b: Any) -> bool:
    try:
        return bool(a != b)
    except Exception:  # noqa: BLE001 - whatever a user's == raises
        return a is not b


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_Values = Mapping[str, tuple[Hashable, str]]
"""Path to the key of a value and the text that shows it."""


def _innermost(old: _Values, new: _Values) -> tuple[_Values, _Values]:
    """Functions that differ only in captures, objects in attributes, replaced by what differs."""
    before, after = dict(old), dict(new)
    for path in old.keys() & new.keys():
        a, b = old[path][0], new[path][0]
        mine, others = parts_of(a), parts_of(b)
        if isinstance(a, ByState) and isinstance(b, ByState):
            if a.value is not b.value:
                continue
            mine, others = {**_unset(others), **mine}, {**_unset(mine), **others}
        if a == b or mine.keys() != others.keys():
            continue
        differing = [name for name in mine if mine[name] != others[name]]
        if differing:
            inner = _innermost(
                *(
                    {f"{path}.{name}": (parts[name], text_of(parts[name])) for name in differing}
                    for parts in (mine, others)
                )
            )
            for values, parts in zip((before, after), inner, strict=True):
                del values[path]
                values.update(parts)
    return before, after


def _unset(attributes: Mapping[str, Hashable]) -> dict[str, Hashable]:
    return dict.fromkeys(attributes, "not set")


def _tree_change(old: str, new: str) -> str:
    """Both texts around the first place where they differ."""
    at = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    start = max(at - 12, 0)
    return f"{new[start : at + 24]!r} against {old[start : at + 24]!r}"


def _changed(what: str, old: _Values, new: _Values) -> list[str]:
    texts = []
    for path in sorted(old.keys() & new.keys()):
        (old_key, old_text), (new_key, new_text) = old[path], new[path]
        kind = _class_of_object(new_key)
        if old_key != new_key and kind and isinstance(old_key, ByIdentity):
            texts.append(
                f"{what} {path}: another {kind} object, equal to none but itself (to share one "
                f"trace, {advice_on_objects(kind)})"
            )
        elif old_key != new_key:
            against = (
                f"{new_text} against {old_text}"
                if new_text != old_text
                else f"another object ({new_text}) that is not equal"
            )
            texts.append(f"{what} {path}: {against}")
    return texts


def _type_change(path: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    texts = [
        f"{name} of argument {path}: {_text(getattr(new, name))} against "
        f"{_text(getattr(old, name))}"
        for name in ("shape", "dtype", "weak_type")
        if getattr(old, name, None) != getattr(new, name, None)
        and hasattr(old, name)
        and hasattr(new, name)
    ]
    shardings = [getattr(aval, "sharding", None) for aval in (new, old)]
    if not texts and shardings[0] != shardings[1]:  # which follows the shape where that differs
        texts = [f"sharding of argument {path}: {shardings[0]} against {shardings[1]}"]
    return texts or [f"type of argument {path}: {new} against {old}"]


def differences_of_context(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Settings of JAX that differ, one text each."""
    return [f"{name}: {new[name]} against {old[name]}" for name in new if old[name] != new[name]]


def context() -> dict[str, Any]:
    """Settings of JAX that are no part of a signature but for which it traces anew."""
    config = jax.config
    return {
        "mesh": jax.sharding.get_abstract_mesh(),
        "named axes": _jax.bound_axes(),
        "x64": config.jax_enable_x64,
        "default_matmul_precision": config.jax_default_matmul_precision,
        "numpy_dtype_promotion": config.jax_numpy_dtype_promotion,
        "numpy_rank_promotion": config.jax_numpy_rank_promotion,
        "default_prng_impl": config.jax_default_prng_impl,
        "debug_nans": config.jax_debug_nans,
    }


def _text(value: Any) -> str:
    return str(value)


def type_text(aval: Any) -> str:
    """Shape and dtype as jaxprs show them, and whether the type is weak."""
    text = aval.str_short(short_dtypes=True) if hasattr(aval, "str_short") else str(aval)
    return text + (" (weak type)" if getattr(aval, "weak_type", False) else "")

"""What differs between two bodies: pairs of jaxprs -> differences, causes only.

Two bodies are compared where a user would compare them: the types of their operands, then the
values that Python wrote into their equations, then the equations. Where a difference has
consequences (another shape changes every equation), only the cause is told.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from .. import _jax
from ..ir.fingerprint import equation_token, literal_text

_DIRECTORY = re.compile(r"^.*[/\\]")
_MAX_OTHER_SHARE = 0.1
"""Equations that may be there in one body only, for the two to count as similar."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
      kind: what sort of thing: ``"shape"``, ``"value"`` and so on.
      text: what it is in the one body against what it is in the other.
    """

    kind: str
    text: str


Known: TypeAlias = dict[tuple[int, int], list[Difference]]
"""Pairs of jaxprs by identity: where bodies call bodies, one pair is met on many paths."""


def compare(new: _jax.AnyJaxpr, old: _jax.AnyJaxpr, known: Known) -> list[Difference]:
    """What differs, causes only and each once; empty where the two are not similar."""
    pair = id(new), id(old)
    if pair not in known:
        known[pair] = list(dict.fromkeys(_all_differences(new, old, known)))
    return known[pair]


def _all_differences(new: _jax.AnyJaxpr, old: _jax.AnyJaxpr, known: Known) -> list[Difference]:
    a, b = _jax.opened(new), _jax.opened(old)
    same_code = [eqn.primitive for eqn in a.eqns] == [eqn.primitive for eqn in b.eqns]
    found = _operand_differences(a, b)
    if found:
        return found if same_code or _mostly_the_same(a, b) else []
    if same_code:
        found = [
            difference
            for x, y in zip(a.eqns, b.eqns, strict=True)
            for difference in _equation_differences(x, y, known)
        ]
        found = found or _constants(new, old)
        return found or [Difference("results", "the values that are passed on or returned")]
    return _code_differences(a, b) if _mostly_the_same(a, b) else []


def _operand_differences(a: Any, b: Any) -> list[Difference]:
    if len(a.invars) != len(b.invars):
        return _unused_operands(a, b)
    found = []
    for i, (x, y) in enumerate(zip(a.invars, b.invars, strict=True)):
        name = f"operand {i}"
        for kind, attribute in (
            ("shape", "shape"),
            ("dtype", "dtype"),
            ("weak type", "weak_type"),
            ("sharding", "sharding"),
        ):
            new, old = getattr(x.aval, attribute, None), getattr(y.aval, attribute, None)
            if new != old and not (kind == "sharding" and found):
                found.append(Difference(kind, f"{kind} of {name}: {new} against {old}"))
    return found


def _unused_operands(a: Any, b: Any) -> list[Difference]:
    unused = [len(jaxpr.invars) - len(_used(jaxpr)) for jaxpr in (a, b)]
    used = [[str(v.aval) for v in jaxpr.invars if v in _used(jaxpr)] for jaxpr in (a, b)]
    if used[0] == used[1]:
        return [
            Difference("unused", f"arguments that are not used: {unused[0]} against {unused[1]}")
        ]
    return []


def _used(jaxpr: Any) -> set[Any]:
    read = [atom for eqn in jaxpr.eqns for atom in eqn.invars]
    return set(_jax.variables([*read, *jaxpr.outvars])) & set(jaxpr.invars)


def _equation_differences(new: Any, old: Any, known: Known) -> list[Difference]:
    line = _DIRECTORY.sub("", _jax.source_line(new))
    at = f"({new.primitive.name} at {line})" if line else f"({new.primitive.name})"
    found = []
    for x, y in zip(new.invars, old.invars, strict=False):
        if (
            isinstance(x, _jax.Literal)
            and isinstance(y, _jax.Literal)
            and (literal_text(x) != literal_text(y))
        ):
            found.append(Difference("value", f"{_short(x.val)} against {_short(y.val)} {at}"))
    if found or equation_token(new).digest == equation_token(old).digest:
        return found
    return _parameter_differences(new.params, old.params, at, known)


def _parameter_differences(
    new: Mapping[str, Any], old: Mapping[str, Any], at: str, known: Known
) -> list[Difference]:
    found = []
    for name in sorted(new.keys() & old.keys()):
        x, y = new[name], old[name]
        if _jax.is_jaxpr(x) and _jax.is_jaxpr(y):
            found += compare(x, y, known)
        elif not _jax.is_jaxpr(x) and repr(x) != repr(y) and " at 0x" not in repr(x):
            found.append(Difference("parameter", f"{name}: {_short(x)} against {_short(y)} {at}"))
    return found


def _constants(new: _jax.AnyJaxpr, old: _jax.AnyJaxpr) -> list[Difference]:
    pairs = zip(_jax.consts(new), _jax.consts(old), strict=False)
    return [
        Difference("captured", f"captured array {i}: other values")
        for i, (x, y) in enumerate(pairs)
        if x is not y
    ]


def _mostly_the_same(a: Any, b: Any) -> bool:
    more, fewer = _extra(a, b), _extra(b, a)
    n_largest = max(len(a.eqns), len(b.eqns), 1)
    return more.total() + fewer.total() <= max(2, _MAX_OTHER_SHARE * n_largest)


def _code_differences(a: Any, b: Any) -> list[Difference]:
    texts = [
        f"{sign} {', '.join(f'{n} {name}' for name, n in extra.items())}"
        for sign, extra in (("more:", _extra(a, b)), ("fewer:", _extra(b, a)))
        if extra
    ]
    return [
        Difference(
            "equations",
            f"{len(a.eqns)} equations against {len(b.eqns)}; "
            + "; ".join(texts or ["in another order"]),
        )
    ]


def _extra(a: Any, b: Any) -> collections.Counter[str]:
    mine, others = (
        collections.Counter(eqn.primitive.name for eqn in jaxpr.eqns) for jaxpr in (a, b)
    )
    return mine - others


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, (np.ndarray, np.generic)) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."

"""Why two similar bodies are not one: pairs of jaxprs -> what differs and what to change.

Two bodies of one name are compared where a user would compare them: the types of their
operands, then the values that Python wrote into their equations, then the equations. Where
a difference has consequences (another shape changes every equation), only the cause is told.

A gradient makes variants of one function: the first layer's input needs none, the last one's
result is used otherwise. Those are told apart from what a user wrote.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .. import _jax
from ..ir.fingerprint import equation_token, literal_text
from ..subroutine.counters import SubroutineStats
from ..subroutine.reasons import advice_on_objects
from .reuse_report import NearMiss

_MAX_FAMILY = 24
"""Bodies of one name that are compared; each with all before it, about 0.1 ms a pair."""
_MAX_TEXTS = 4
_DIRECTORY = re.compile(r"^.*[/\\]")
_MAX_OTHER_SHARE = 0.1
"""Equations that may be there in one body only, for the two to count as similar."""

Subroutines = Mapping[str, SubroutineStats]
"""Where a subroutine is defined to its counts, which know its static values by name."""

_CLOSE_FIRST = (
    "value",
    "captured",
    "results",
    "weak type",
    "dtype",
    "unused",
    "parameter",
    "equations",
    "sharding",
    "shape",
    "gradient",
)
"""Which of two bodies with equally many differences is the closer one."""

_CHANGES = {
    "shape": "pad or reshape to one shape before the call",
    "dtype": "cast to one dtype before the call",
    "weak type": "pass an array of a fixed dtype, jnp.asarray(value, dtype), at every call",
    "sharding": "give the operand one sharding before the call",
    "value": "pass the value as an array argument, so that it is no part of the traced code",
    "parameter": "give both calls the same setting; a static argument of Python ends up there",
    "unused": "leave the unused argument out, or pass it in every call",
    "captured": "pass the captured array as an argument",
    "equations": "make both calls run the same code: look for a Python `if` on a static value, "
    "or for a gradient that one call needs and the other does not",
    "results": "return the same values from both",
    "gradient": "not by a change of the code: they are one function, of which a gradient needs "
    "more at some calls, such as those of the first and the last layer",
}
_MADE_BY_GRADIENTS = {"equations", "results", "unused"}
_MADE_BY_OBJECTS = {"value", "parameter", "captured", "equations"}


@dataclasses.dataclass(frozen=True)
class _Difference:
    kind: str
    text: str


_Known: TypeAlias = dict[tuple[int, int], list[_Difference]]
"""Pairs of jaxprs by identity: where bodies call bodies, one pair is met on many paths."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A body that may be a near miss of another.

    Attributes:
      digest: of the body.
      name: of its function.
      source: line of its first call.
      definition: ``file:line`` where the subroutine is defined, if it is one.
      jaxpr: the body.
      first_call: number of its first call among the calls of its name.
      is_backward: it is of the backward pass of a gradient.
      is_differentiated: a gradient is taken through it.
    """

    digest: str
    name: str
    source: str
    definition: str
    jaxpr: _jax.AnyJaxpr
    first_call: int = 0
    is_backward: bool = False
    is_differentiated: bool = False

    @functools.cached_property
    def lines(self) -> frozenset[str]:
        """The user's lines that its equations come from."""
        return frozenset(_lines(self.jaxpr))


def near_misses(
    bodies: Sequence[Candidate], subroutines: Subroutines
) -> dict[str, tuple[NearMiss, ...]]:
    """For each body, the earlier body of its name that it is closest to, if it is close.

    Args:
      bodies: bodies of a program, in the order of their first calls.
      subroutines: name the values that differ, where they are static there.

    Returns:
      By digest; bodies that are close to no other are left out.
    """
    known: _Known = {}
    families: dict[tuple[str, bool], list[Candidate]] = {}
    for body in bodies:
        families.setdefault((body.name, body.is_backward), []).append(body)
    found = {}
    for family in families.values():
        for i, body in enumerate(family[:_MAX_FAMILY]):
            close = [
                (differences, other)
                for other in family[:i]
                if (differences := _differences_of(body, other, known))
            ]
            if close:
                differences, other = min(
                    reversed(close),
                    key=lambda pair: (
                        pair[0][0].kind == "gradient",
                        len(pair[0]),
                        _CLOSE_FIRST.index(pair[0][0].kind),
                    ),
                )
                found[body.digest] = (_near_miss(differences, other, subroutines),)
    return found


def _differences_of(body: Candidate, other: Candidate, known: _Known) -> list[_Difference]:
    """What differs; as one difference of kind "gradient" where a gradient alone is to blame."""
    found = _differences(body.jaxpr, other.jaxpr, known)
    if not found or not {difference.kind for difference in found} <= _MADE_BY_GRADIENTS:
        return found
    is_derived = body.is_differentiated or other.is_differentiated
    # Of one function, so of the same lines. A backward pass has lines for what is asked of it;
    # where the function itself differs, its forward pass does too, and tells.
    if body.is_backward or (is_derived and body.lines == other.lines):
        return [_Difference("gradient", "; ".join(difference.text for difference in found))]
    return found


def _lines(jaxpr: _jax.AnyJaxpr) -> Iterator[str]:
    waiting, seen = [jaxpr], {id(jaxpr)}
    while waiting:
        for eqn in _jax.equations(waiting.pop()):
            yield from _jax.user_stack(eqn)[-1:]
            for sub in _jax.sub_jaxprs(eqn):
                if id(sub) not in seen:
                    seen.add(id(sub))
                    waiting.append(sub)


def differences(new: _jax.AnyJaxpr, old: _jax.AnyJaxpr) -> list[str]:
    """What differs between two bodies, causes only; empty where they are not similar."""
    texts = dict.fromkeys(difference.text for difference in _differences(new, old, {}))
    return list(texts)[:_MAX_TEXTS]


def _near_miss(
    differences: list[_Difference], other: Candidate, subroutines: Subroutines
) -> NearMiss:
    stats = subroutines.get(other.definition)
    signatures = stats.signatures if stats else ()
    texts = [_named(difference, [s.static for s in signatures]) for difference in differences]
    shown = list(dict.fromkeys(texts))
    if len(shown) > _MAX_TEXTS:
        shown[_MAX_TEXTS - 1 :] = [f"and {len(shown) - _MAX_TEXTS + 1} more"]
    kinds = dict.fromkeys(difference.kind for difference in differences)
    change = "; ".join(_CHANGES[kind] for kind in kinds)
    objects = sorted({kind for signature in signatures for kind in signature.objects.values()})
    if objects and _MADE_BY_OBJECTS & kinds.keys():
        change = f"{advice_on_objects(' and '.join(objects))}; or {change}"
    return NearMiss(
        other.digest,
        other.name,
        other.source,
        tuple(shown),
        change,
        tuple(kinds),
        other.first_call,
    )


def _differences(new: _jax.AnyJaxpr, old: _jax.AnyJaxpr, known: _Known) -> list[_Difference]:
    """What differs, causes only and each once; empty where the two are not similar."""
    pair = id(new), id(old)
    if pair not in known:
        known[pair] = list(dict.fromkeys(_all_differences(new, old, known)))
    return known[pair]


def _all_differences(new: _jax.AnyJaxpr, old: _jax.AnyJaxpr, known: _Known) -> list[_Difference]:
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
        return found or [_Difference("results", "the values that are passed on or returned")]
    return _code_differences(a, b) if _mostly_the_same(a, b) else []


def _operand_differences(a: Any, b: Any) -> list[_Difference]:
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
                found.append(_Difference(kind, f"{kind} of {name}: {new} against {old}"))
    return found


def _unused_operands(a: Any, b: Any) -> list[_Difference]:
    unused = [len(jaxpr.invars) - len(_used(jaxpr)) for jaxpr in (a, b)]
    used = [[str(v.aval) for v in jaxpr.invars if v in _used(jaxpr)] for jaxpr in (a, b)]
    if used[0] == used[1]:
        return [
            _Difference("unused", f"arguments that are not used: {unused[0]} against {unused[1]}")
        ]
    return []


def _used(jaxpr: Any) -> set[Any]:
    inner = {
        atom for eqn in jaxpr.eqns for atom in eqn.invars if not isinstance(atom, _jax.Literal)
    }
    return (inner | {v for v in jaxpr.outvars if not isinstance(v, _jax.Literal)}) & set(
        jaxpr.invars
    )


def _equation_differences(new: Any, old: Any, known: _Known) -> list[_Difference]:
    at = f"({new.primitive.name} at {_DIRECTORY.sub('', _jax.source_line(new))})"
    found = []
    for x, y in zip(new.invars, old.invars, strict=False):
        if (
            isinstance(x, _jax.Literal)
            and isinstance(y, _jax.Literal)
            and (literal_text(x) != literal_text(y))
        ):
            found.append(_Difference("value", f"{_short(x.val)} against {_short(y.val)} {at}"))
    if found or equation_token(new).digest == equation_token(old).digest:
        return found
    return _parameter_differences(new.params, old.params, at, known)


def _parameter_differences(
    new: Mapping[str, Any], old: Mapping[str, Any], at: str, known: _Known
) -> list[_Difference]:
    found = []
    for name in sorted(new.keys() & old.keys()):
        x, y = new[name], old[name]
        if _jax.is_jaxpr(x) and _jax.is_jaxpr(y):
            found += _differences(x, y, known)
        elif not _jax.is_jaxpr(x) and repr(x) != repr(y) and " at 0x" not in repr(x):
            found.append(_Difference("parameter", f"{name}: {_short(x)} against {_short(y)} {at}"))
    return found


def _constants(new: _jax.AnyJaxpr, old: _jax.AnyJaxpr) -> list[_Difference]:
    pairs = zip(_jax.consts(new), _jax.consts(old), strict=False)
    return [
        _Difference("captured", f"captured array {i}: other values")
        for i, (x, y) in enumerate(pairs)
        if x is not y
    ]


def _mostly_the_same(a: Any, b: Any) -> bool:
    more, fewer = _extra(a, b), _extra(b, a)
    n_largest = max(len(a.eqns), len(b.eqns), 1)
    return more.total() + fewer.total() <= max(2, _MAX_OTHER_SHARE * n_largest)


def _code_differences(a: Any, b: Any) -> list[_Difference]:
    texts = [
        f"{sign} {', '.join(f'{n} {name}' for name, n in extra.items())}"
        for sign, extra in (("more:", _extra(a, b)), ("fewer:", _extra(b, a)))
        if extra
    ]
    return [
        _Difference(
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


def _named(difference: _Difference, signatures: Sequence[Mapping[str, str]]) -> str:
    """Puts the name of a static argument before a value, where exactly one has both values."""
    if difference.kind != "value":
        return difference.text
    new, _, rest = difference.text.partition(" against ")
    old = rest.partition(" (")[0]
    values: dict[str, set[str]] = {}
    for signature in signatures:
        for name, text in signature.items():
            values.setdefault(name, set()).add(_number(text))
    names = [name for name, texts in values.items() if {_number(new), _number(old)} <= texts]
    return f"{names[0]}: {difference.text}" if len(names) == 1 else difference.text


def _number(text: str) -> str:
    try:
        return repr(float(text))
    except ValueError:
        return text


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, (np.ndarray, np.generic)) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."

"""Why two similar bodies are not one: bodies of a program -> what differs and what to change.

Each body is compared with the earlier ones of its name, and the closest of them is told.

A gradient makes variants of one function: the first layer's input needs none, the last one's
result is used otherwise. Those are told apart from what a user wrote; what else differs in a
backward pass has its cause in the forward pass, and is told there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from .. import _jax
from ..subroutine.counters import SubroutineStats
from ..subroutine.reasons import advice_on_objects
from .body_report import NearMiss
from .differences import Difference, Known, compare

_MAX_FAMILY = 24
"""Bodies of one name that are compared; each with all before it, about 0.1 ms a pair."""
_MAX_TEXTS = 4

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
    known: Known = {}
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


def _differences_of(body: Candidate, other: Candidate, known: Known) -> list[Difference]:
    """What differs; as one difference of kind "gradient" where a gradient alone is to blame."""
    found = compare(body.jaxpr, other.jaxpr, known)
    kinds = {difference.kind for difference in found}
    if not found or not kinds <= _MADE_BY_GRADIENTS:
        # A backward pass has operands and equations that no user wrote; numbers are the user's.
        # Of the others the forward pass tells.
        return [] if body.is_backward and kinds not in ({"value"}, {"shape"}) else found
    is_derived = body.is_differentiated or other.is_differentiated
    # Of one function, so of the same lines. A backward pass has lines for what is asked of it;
    # where the function itself differs, its forward pass does too, and tells.
    if body.is_backward or (is_derived and body.lines == other.lines):
        return [Difference("gradient", "; ".join(difference.text for difference in found))]
    return found


def _lines(jaxpr: _jax.AnyJaxpr) -> Iterator[str]:
    waiting, seen = [jaxpr], {id(jaxpr)}
    while waiting:
        for eqn in _jax.equations(waiting.pop()):
            yield from _jax.user_stack(eqn.source_info.traceback)[-1:]
            for sub in _jax.sub_jaxprs(eqn):
                if id(sub) not in seen:
                    seen.add(id(sub))
                    waiting.append(sub)


def _near_miss(
    differences: list[Difference], other: Candidate, subroutines: Subroutines
) -> NearMiss:
    stats = subroutines.get(other.definition)
    signatures = stats.signatures if stats else ()
    texts = [_named(difference, [s.static for s in signatures]) for difference in differences]
    shown = list(dict.fromkeys(texts))
    if len(shown) > _MAX_TEXTS:
        shown[_MAX_TEXTS - 1 :] = [f"and {len(shown) - _MAX_TEXTS + 1} more"]
    kinds = dict.fromkeys(difference.kind for difference in differences)
    change = "; ".join(dict.fromkeys(_CHANGES[kind] for kind in kinds))
    cause = _given_otherwise(stats)
    if cause and _MADE_BY_GRADIENTS & kinds.keys():
        change = f"give every call the same kind of argument ({cause})"
        if "static value" in cause:
            change += "; a number that is the default of its parameter is static, others are not"
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


def _given_otherwise(stats: SubroutineStats | None) -> str:
    """Which argument was an array in one call, and static or nothing in another."""
    reasons = stats.retrace_reasons if stats else ()
    parts = (part for reason in reasons for part in reason.split("; "))
    return next((part for part in parts if part.startswith("argument ")), "")


def _named(difference: Difference, signatures: Sequence[Mapping[str, str]]) -> str:
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

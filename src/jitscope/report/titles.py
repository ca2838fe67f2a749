"""What bodies are called in a report: BodyReport -> str, and none like another."""

from __future__ import annotations

from collections.abc import Sequence

from ..reuse.body_report import BodyReport
from .layout import cut


def title(body: BodyReport, name: str = "", more: str = "") -> str:
    """The name of a body, and which pass of a gradient it is of."""
    parts = [part for part in ("gradient" if body.is_backward else "", more) if part]
    return cut(name or body.name, 32) + (f" ({', '.join(parts)})" if parts else "")


def titles(bodies: Sequence[BodyReport]) -> list[str]:
    """The names of bodies, with what tells those of one name apart."""
    alike: dict[str, list[BodyReport]] = {}
    for body in bodies:
        alike.setdefault(title(body), []).append(body)
    return [title(body, more=_distinction(body, alike[title(body)])) for body in bodies]


def _distinction(body: BodyReport, alike: Sequence[BodyReport]) -> str:
    """The first operand whose type differs among bodies of one name, or the number of a call."""
    if len(alike) > 1 and len({len(other.operands) for other in alike}) == 1:
        for types in zip(*(other.operands for other in alike), strict=True):
            if len(set(types)) > 1:
                return types[alike.index(body)]
    if all(other.first_call == body.first_call for other in alike):
        return ""
    return f"{'from ' if body.n_uses > 1 else ''}call {body.first_call}"

"""What a user may change in a program, and what nobody can: ProgramReport -> lines."""

from __future__ import annotations

from ..reuse.body_report import BodyReport, NearMiss
from ..reuse.reuse_report import ProgramReport
from ..words import count, place, printable
from .layout import wrapped
from .titles import title

_SMALLEST = 12
"""Equations of a body that advice is given on."""
_FEWEST_USES = 4
"""Uses from which a kept call may pay."""
_MAX_ADVICE = 4


def advice(program: ProgramReport, width: int) -> list[str]:
    """What the user may change, the most worthwhile first, and what nobody can."""
    bodies = sorted(program.bodies, key=lambda body: -body.n_uses * body.n_equations)
    bodies = [body for body in bodies if body.n_equations >= _SMALLEST]
    retraced = [body for body in bodies if body.is_retraced]
    told = {(body.name, body.why_retraced) for body in retraced if not body.is_backward}
    lines = [
        _retraced(body)
        for body in retraced  # the gradient is traced as often as the function is
        if not (body.is_backward and (body.name, body.why_retraced) in told)
    ]
    misses = [(body, miss) for body in bodies for miss in body.near_misses]
    forward = {body.name for body, miss in misses if not body.is_backward}
    misses = [
        (body, miss)
        for body, miss in misses  # the gradient differs as the function does
        if miss.is_of_gradient or not (body.is_backward and body.name in forward)
    ]
    shown: set[tuple[str, ...]] = set()
    for body, miss in misses:
        # A difference within a body is one of the body around it, too.
        if not (miss.is_shape_only or miss.is_of_gradient or miss.differences in shown):
            shown.add(miss.differences)
            lines.append(_missed(body, miss))
    lines += [
        _with_effects(body)
        for body in bodies
        if _has_effects(body) and body.n_uses >= _FEWEST_USES and not body.is_backward
    ]
    lines += _too_small(program)
    if len(lines) > _MAX_ADVICE:
        lines[_MAX_ADVICE:] = [f"! and {len(lines) - _MAX_ADVICE} more such; the HTML page has all"]
    n_shapes = sum(miss.is_shape_only for _, miss in misses)
    if n_shapes:
        lines.append(
            f"{count(n_shapes, 'body differs', 'bodies differ')} from another of the same "
            "name in shapes only, and cannot share code with it"
        )
    n_gradients = sum(miss.is_of_gradient for _, miss in misses)
    if n_gradients:
        lines.append(
            f"{count(n_gradients, 'body differs', 'bodies differ')} from another of the same "
            "name only in what a gradient needs of it, as the first and the last layer do; there "
            "is nothing to change"
        )
    return ["", *(wrapped(line, width) for line in lines)] if lines else []


def _too_small(program: ProgramReport) -> list[str]:
    """What to do where a user decorated parts of what repeats, none of which pays by itself."""
    names = dict.fromkeys(
        printable(body.name)
        for body in program.bodies
        if body.is_decorated
        and body.n_uses >= _FEWEST_USES
        and body.structure == "NESTED"
        and not _has_effects(body)
    )
    if program.shared or len(names) < 2:
        return []
    return [
        f"! {', '.join(names)}: none of them pays as a kept call by itself. Decorate the function "
        "around them that repeats, such as a whole layer, as well: a larger body saves more."
    ]


def _has_effects(body: BodyReport) -> bool:
    """Whether side effects are why its calls cannot be kept."""
    return body.structure == "NESTED" and body.reason.startswith("it has side effects")


def _with_effects(body: BodyReport) -> str:
    return (
        f"! {printable(title(body))}: its {body.n_uses} calls cannot be kept, since it has side "
        "effects. What prints or calls back (jax.debug.print, io_callback) is best taken out while "
        "it is not needed; or decorate the parts of the function that do neither."
    )


def _retraced(body: BodyReport) -> str:
    start = (
        f"! {printable(title(body))} was traced {body.n_traces} times for {body.n_uses} calls, "
        "with one result: "
    )
    if body.why_retraced:
        return f"{start}{printable(body.why_retraced)}{_cure(body.why_retraced)}."
    return (
        f"{start}a new function object or static value each time? Decorate it with "
        "jitscope.shared_subroutine."
    )


def _cure(reason: str) -> str:
    """What to do about a reason that does not say so itself."""
    if reason.endswith(")") or "; " in reason:
        return ""
    cures = {
        "static value": "pass it as an array, or leave it out where it is not used",
        "captured value": "make it an argument",
    }
    found = [cure for start, cure in cures.items() if reason.startswith(start)]
    return f" (to share one trace, {found[0]})" if found else ""


def _missed(body: BodyReport, miss: NearMiss) -> str:
    here, there = place(body.source), place(miss.source)
    if here == there and body.first_call != miss.first_call:
        here, there = f"call {body.first_call} at {here}", f"call {miss.first_call} there"
    return printable(
        f"! {title(body)} ({here}) is almost {title(body, miss.name)} ({there}): "
        f"{'; '.join(miss.differences)}. To share: {miss.change}."
    )

"""What is easily overlooked in a program: Evidence -> notes, one sentence each.

Captured arrays are copied into the compiled program, where XLA may compute with them for
minutes, and JAX says so from 2 GB on only. A donation does nothing in a nested ``jit``, and
nobody says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from .. import _jax
from ..subroutine.reasons import type_text
from ..words import place, printable, size
from .evidence import Evidence

_MIN_CAPTURED_BYTES = 1_000_000
"""Captured arrays that are worth a note, together."""


def notes(evidence: Evidence) -> tuple[str, ...]:
    """What a user may want to change, without a full stop at the end."""
    return (*_captured_arrays(evidence), *_donations(evidence))


def _captured_arrays(evidence: Evidence) -> Iterator[str]:
    program = _jax.opened(evidence.program)
    sizes = {var: _jax.n_bytes(var.aval) for var in program.invars[: evidence.n_constants]}
    if sum(sizes.values()) < _MIN_CAPTURED_BYTES:
        return
    largest = max(sizes, key=sizes.__getitem__)
    users = (eqn for eqn in program.eqns if any(atom is largest for atom in eqn.invars))
    source = next((_jax.source_line(eqn) for eqn in users), "")
    yield (
        f"it captured {size(sum(sizes.values()))} of arrays, which become part of the compiled "
        f"program; the largest, {type_text(largest.aval)}, is used at {place(source)}. Pass them "
        "as arguments"
    )


def _donations(evidence: Evidence) -> Iterator[str]:
    for digest, eqns in evidence.eqns_of_bodies.items():
        donating = [eqn for eqn in eqns if any(eqn.params.get("donated_invars", ()))]
        if donating:
            yield (
                f"{printable(evidence.name(digest))} ({place(_jax.source_line(donating[0]))}) "
                "donates arguments, which does nothing within another jit. Donate them where the "
                "program begins, outermost_jit(donate_argnums=...)"
            )

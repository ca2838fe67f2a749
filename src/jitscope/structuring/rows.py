"""How the calls of one body in its callers stand to one another: what waits, and what lies between.

A *row* is made of calls each of which waits for the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import _jax

IsCall = Callable[[Any], bool]
"""Whether an equation calls the body."""


class Caller(NamedTuple):
    """The part of a jaxpr that calls the body.

    Attributes:
      jaxpr: with the calls in it or in what it holds.
      n_calls: how many there are.
      first: index of the first equation that is a call or holds one.
      last: of the last one.
    """

    jaxpr: _jax.AnyJaxpr
    n_calls: int
    first: int
    last: int

    @property
    def eqns(self) -> Sequence[Any]:
        """Equations from the first call to the last: a program may have many other bodies."""
        return _jax.equations(self.jaxpr)[self.first : self.last + 1]


def n_successive(callers: Iterable[Caller], is_call: IsCall) -> int:
    """The most calls that wait for one another in a caller, added up over all callers."""
    return sum(
        _longest_row(caller.eqns, is_call) if caller.n_calls > 1 else 1 for caller in callers
    )


def from_call_to_call(callers: Iterable[Caller], is_call: IsCall) -> Iterator[Sequence[Any]]:
    """Equations of a caller from each call to the next one, both included."""
    for caller in callers:
        if caller.n_calls > 1:
            eqns = caller.eqns
            calls = [i for i, eqn in enumerate(eqns) if is_call(eqn)]
            for first, last in itertools.pairwise(calls):
                yield eqns[first : last + 1]


def links_between(eqns: Sequence[Any]) -> set[tuple[int, int]]:
    """What a call gets from the one before, as it is or through element-wise equations.

    Args:
      eqns: of one caller, from a call to the next one of the same body.

    Returns:
      Positions of results of the first and of the operands of the second that are made of them.
    """
    one, *others, other = eqns
    made_of: dict[Any, set[int]] = {var: {i} for i, var in enumerate(one.outvars)}
    for eqn in others:
        if _is_element_wise(eqn):
            results = {i for x in _jax.variables(eqn.invars) for i in made_of.get(x, ())}
            made_of.update(dict.fromkeys(eqn.outvars, results))
    return {
        (result, operand)
        for operand, x in enumerate(other.invars)
        if isinstance(x, _jax.Var)
        for result in made_of.get(x, ())
    }


def _is_element_wise(eqn: Any) -> bool:
    if eqn.primitive in _jax.FUSED_CALLS:
        inner = (e for sub in _jax.sub_jaxprs(eqn) for e in _jax.equations(sub))
        return all(map(_is_element_wise, inner))
    return eqn.primitive in _jax.FUSED


def _longest_row(eqns: Sequence[Any], is_call: IsCall) -> int:
    """The most calls that wait for one another, in equations and what they hold."""
    before: dict[Any, int] = {}
    longest = 0
    for eqn in eqns:
        length = max((before.get(x, 0) for x in eqn.invars if isinstance(x, _jax.Var)), default=0)
        if is_call(eqn):
            length += 1
        elif eqn.primitive in _jax.SUBPROGRAMS and eqn.primitive is not _jax.jit_p:
            inner = map(_jax.equations, _jax.sub_jaxprs(eqn))
            length += max((_longest_row(sub, is_call) for sub in inner), default=0)
        if length:
            longest = max(longest, length)
            before.update(dict.fromkeys(eqn.outvars, length))
    return longest

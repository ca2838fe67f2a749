"""A traced program: capture it, walk it, give it back.

A ``Program`` is what one signature of an outermost function traces to. It is a value: each
stage of the pipeline takes one and returns another, and ``Program.emit`` stages the last one
into the trace that ``jax.jit`` has under way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .. import _jax


@dataclasses.dataclass(frozen=True)
class Program:
    """One signature of an outermost function.

    Attributes:
      name: of the user's function.
      jaxpr: closed; its constants may be tracers of an enclosing trace.
      out_tree: tree of the result.
      boundary: what the options it was captured with ask for.
    """

    name: str
    jaxpr: _jax.AnyJaxpr
    out_tree: Any
    boundary: _jax.Boundary | None = None

    @property
    def n_equations(self) -> int:
        """Equations at all levels, each nested jaxpr counted where it is used."""
        return count_equations(self.jaxpr, {})

    def emit(self, args: Sequence[Any]) -> Any:
        """Stages the program into the current trace.

        Args:
          args: one value per operand, in order.

        Returns:
          The result, in the user's tree.
        """
        return jax.tree.unflatten(self.out_tree, _jax.emit(self.jaxpr, args, self.name))


def capture(
    fun: Callable[..., Any], args: tuple, kwargs: dict, options: Mapping[str, Any]
) -> Program:
    """Traces ``fun`` for these arguments as ``jax.jit`` would.

    Args:
      fun: the user's function. Errors it raises while traced are its own and pass through.
      args: positional arguments, arrays or tracers.
      kwargs: keyword arguments, likewise.
      options: ``static_argnums`` and ``static_argnames``, and of the other options of
        ``jax.jit`` those that ``Program.boundary`` should tell about.

    Returns:
      The program, nothing restructured yet.
    """

    # A fresh function object: JAX remembers traces per object, and this one must not
    # outlive `clear_cache()` of the outermost function or the tracers it closes over.
    @_jax.wraps(fun)
    def fresh(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    traced = _jax.trace(fresh, args, kwargs, options)
    return Program(_jax.function_name(fun), traced.jaxpr, traced.out_tree, traced.boundary)


def live_equations(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations whose results or effects somebody waits for.

    Args:
      eqns: in the order in which they run.
      outvars: what is needed behind them.
    """
    needed, live = set(_jax.variables(outvars)), []
    for eqn in reversed(eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            live.append(eqn)
            needed.update(_jax.variables(eqn.invars))
    return live[::-1]


def count_equations(jaxpr: _jax.AnyJaxpr, memo: dict[int, int]) -> int:
    """Equations of a jaxpr with everything nested in it spelled out."""
    found = memo.get(id(jaxpr))
    if found is None:
        eqns = _jax.equations(jaxpr)
        found = len(eqns)
        for eqn in eqns:
            if eqn.primitive in _jax.LEAVES:  # asked for at once: most equations
                continue
            if nested := _jax.sub_jaxprs(eqn):
                found += (sum([count_equations(sub, memo) for sub in nested]) or 1) - 1
        memo[id(jaxpr)] = found
    return found

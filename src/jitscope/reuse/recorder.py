"""Recording: what was traced, shared and compiled while a block of code ran, or so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from ..seconds import Seconds
from ..subroutine.counters import SubroutineStats
from . import records
from .retraces import counts_so_far, subroutine_reports
from .reuse_report import ReuseReport


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """What happens while a block of `recording` runs."""

    _register: records.Register
    _before: dict[Hashable, SubroutineStats]

    def report(self, *, details: bool = True) -> ReuseReport:
        """What happened so far, as plain data; may be asked for in the block or after it.

        Args:
          details: with call sites, jaxprs and equations by source line.
        """
        report = sum(
            (reuse.report(details=details) for reuse in list(self._register.programs)),
            ReuseReport(),
        )
        subroutines = tuple(subroutine_reports(self._before).values())
        known = sum((subroutine.seconds for subroutine in subroutines), report.seconds)
        return report + ReuseReport(
            (),
            subroutines,
            tuple(
                f"{failure.program}: {failure.reason}" for failure in list(self._register.failures)
            ),
            Seconds(
                lower_s=max(0.0, self._register.lower_s - known.lower_s),
                compile_s=max(0.0, self._register.compile_s - known.compile_s),
            ),
        )

    def __str__(self) -> str:
        return str(self.report(details=False))

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()


@contextmanager
def recording() -> Iterator[Recording]:
    """Records what every thread traces and compiles while a with-block runs.

    That is programs of `outermost_jit`, shared subroutines, those compiled on their own
    included, and, as one sum, the seconds of everything else that JAX lowers and compiles
    (`install` makes programs of functions of plain ``jax.jit``). What `explain` and its kin do
    in the block is left out.

    Off, it costs one look-up per trace; on, a trace keeps its program, and the counting is
    done when the report is asked for. Blocks may be nested and overlap.

    Examples:
      >>> import jax.numpy as jnp, jitscope
      >>> with jitscope.recording() as record:
      ...     y = jitscope.outermost_jit(lambda x: jnp.sin(x) + 1)(1.0)
      >>> [program.n_equations for program in record.report().programs]
      [2]
    """
    before = counts_so_far()
    with records.registering() as register:
        yield Recording(register, before)


def stats(*, details: bool = False) -> ReuseReport:
    """What this process did so far.

    Args:
      details: with call sites, jaxprs and equations by source line.

    Returns:
      The latest program of every outermost function that is alive, and every shared
      subroutine with its counts. See `recording` for all programs of a stretch of code.

    Examples:
      >>> import jax, jax.numpy as jnp, jitscope
      >>> @jitscope.shared_subroutine
      ... def halve(x):
      ...     return x / 2
      >>> y = jax.jit(lambda x: halve(halve(x)))(1.0)
      >>> [s.n_calls for s in jitscope.stats().subroutines if s.name == "halve"]
      [2]
    """
    programs = sum((reuse.report(details=details) for reuse in records.latest()), ReuseReport())
    return programs + ReuseReport((), tuple(subroutine_reports().values()))

"""``outermost_jit(staged=True)``: the structured program is cut into stages where it can be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _jax
from ..ir.program import Program
from ..phases import Phases, claim_phases
from ..settings import strict
from ..staged.jit import StagedJit
from ..staged.plan import obstacle, with_stages, without_stages
from ..staged.program import StagedProgram
from ..staged.stages import Stages, cut_into_stages
from .interpreter import unhindered
from .jit import OutermostJit, jitted, warn_of_fallback
from .pipeline import Structured

_AS_ONE = (
    "this is the program as one executable, which jax_debug_nans, and some options and places of "
    "arguments ask for"
)


class StagedOutermostJit(OutermostJit):
    """As `OutermostJit`, run as a list of executables wherever that is possible."""

    _is_staged = True

    def _compiled(self, fun: Callable[..., Any]) -> tuple[Any, Any]:
        as_one = self._through(functools.partial(self._pipeline, as_one=True), fun)
        as_one, traced, plain = jitted((as_one, self._structured(fun), fun), self._options)
        return StagedJit(fun, as_one, traced, self._in_stages, self._options), plain

    def _in_stages(self, args: tuple, kwargs: dict) -> StagedProgram | None:
        """The stages of one signature; None where it has to be compiled as one."""
        return unhindered(lambda: self._staged_program(args, kwargs))

    def _staged_program(self, args: tuple, kwargs: dict) -> StagedProgram | None:
        phases = claim_phases(_jax.function_name(self._fun))
        program = self._captured(args, kwargs, self._given(*StagedJit.BOUNDARY))
        with phases.structuring():
            made = self._made(program)
            if made is None:
                return None
            stages, _ = self._cut(made)
            if stages is None:
                return None
            self._note(made, with_stages(made.plan, made.program), phases)
            options = self._options.get("compiler_options")
            return StagedProgram(made.program, stages, (args, kwargs), options, phases)

    def _cut(self, made: Structured) -> tuple[Stages | None, str]:
        """The stages of a program, or None and why it cannot be cut."""
        why_not = obstacle(made.program)
        if not why_not:
            try:
                return cut_into_stages(made.program), ""
            except Exception as error:
                if strict():
                    raise
                warn_of_fallback(self, error)
                why_not = f"jitscope could not cut it: {type(error).__name__}: {error}"
        return None, why_not

    def _pipeline(self, program: Program, phases: Phases, as_one: bool = False) -> Program:
        """The program structured, and its plan noted.

        Args:
          program: as captured.
          phases: of the program.
          as_one: whether it will run as one executable though it asks for stages; else the plan
            is that of a call.
        """
        made = self._made(program)
        if made is None:
            return program
        stages, why_not = self._cut(made)
        if stages is not None and not as_one:
            plan = with_stages(made.plan, made.program)
        else:
            plan = without_stages(made.plan, why_not or _AS_ONE)
        self._note(made, plan, phases)
        return made.program

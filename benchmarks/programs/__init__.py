"""The programs that are measured, and the check that two contenders computed the same.

Each module here describes one `Program`, except for `frameworks`. Its repeated body goes through a
function `share` that the contender chooses, so one source serves every contender; only a
hand-written scan is separate code.
"""

from __future__ import annotations

from benchmarks.programs import frameworks, nothing_shared, seed2022, transformer
from benchmarks.programs.program import Case, Program, agrees, digest

__all__ = ["PROGRAMS", "Case", "Program", "agrees", "digest"]

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        *(transformer.PROGRAM, seed2022.PROGRAM, nothing_shared.PROGRAM),
        *frameworks.PROGRAMS,
    )
}

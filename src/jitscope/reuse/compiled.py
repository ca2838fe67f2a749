"""The record of what the compiler made of a program, here or for another device.

Data alone, as everything in a `ReuseReport`.
"""

from __future__ import annotations

import dataclasses

from ..seconds import Seconds


@dataclasses.dataclass(frozen=True)
class KeptBody:
    """A body that is still called in a compiled program.

    Attributes:
      unit: its name there, which ends in the first twelve digits of its digest.
      n_calls: calls of it.
    """

    unit: str
    n_calls: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler made of a program, read from the compiled program.

    Attributes:
      seconds: of trace, lowering and compilation.
      n_functions: functions in the lowered program, the main one included.
      n_instructions: instructions in the optimised program; a body that was compiled once has
        its copy at every call there, put in place after compilation.
      n_computations: computations that hold them.
      n_kept_calls: calls of shared bodies that are still calls.
      n_kept_bodies: distinct bodies that they call.
      n_fusions: fused kernels.
      n_copies: copies of arrays.
      argument_bytes: size of the operands.
      result_bytes: size of the results.
      temporary_bytes: memory needed besides.
      code_bytes: size of the machine code; 0 where the platform does not tell.
      kept: the bodies behind the kept calls.
    """

    seconds: Seconds
    n_functions: int
    n_instructions: int
    n_computations: int
    n_kept_calls: int
    n_kept_bodies: int
    n_fusions: int
    n_copies: int
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    code_bytes: int
    kept: tuple[KeptBody, ...] = ()


@dataclasses.dataclass(frozen=True)
class ForTarget:
    """What the compiler made of a program for a device that need not be there.

    Attributes:
      target: name of the device, such as ``"h200"``.
      seconds: of trace, lowering and compilation.
      n_executables: programs compiled: one, or all stages.
      n_products: kernels of one run that are matrix products.
      n_loop_products: those among them that are plain loops.
      n_fusions: other fused kernels.
      n_others: everything else that one run launches.
      temporary_bytes: the largest temporary memory of an executable.
      peak_bytes: results and temporary values at the worst moment, arguments left out.
    """

    target: str
    seconds: Seconds
    n_executables: int
    n_products: int
    n_loop_products: int
    n_fusions: int
    n_others: int
    temporary_bytes: int
    peak_bytes: int

"""The JAX at hand: its version, what it can do, whether it compiles now, how it runs."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src import core as _core, dispatch as _dispatch
from jax._src.array import ArrayImpl as _ArrayImpl
from jax._src.interpreters import pxla as _pxla
from jaxlib import version as _jaxlib_version

VERSION: str = jax.__version__
"""For records. What a version can do is asked of JAX itself, by a flag named for it."""

JAXLIB: tuple[int, ...] = tuple(map(int, re.findall(r"\d+", _jaxlib_version.__version__)[:3]))
"""Of the compiler for CPU, compared with the one that a measurement was made with."""

# True when `jax.jit(inline=...)` takes the `jax.Inline` enumeration (JAX >= 0.11).
# Delete when 0.10 is no longer supported.
HAS_INLINE_ENUM = hasattr(jax, "Inline")


# True where to ask for the layout of a deleted array is an error, and no crash.
# Delete when no jaxlib before 0.11.2 is supported.
_HAS_LAYOUTS_OF_DELETED = JAXLIB >= (0, 11, 2)

_COMPILER = os.path.join("jax", "_src", "compiler.py")


def direct_call(compiled: Any) -> Callable[..., Any]:
    """What a ``jax.stages.Compiled`` calls in the end, without the Python around it (1 us).

    Args:
      compiled: returned as it is where it is something else, or where its calls need Python.
    """
    if not isinstance(compiled, jax.stages.Compiled):
        return compiled
    return compiled._executable.create_cpp_call(compiled._params) or compiled


class UncheckedCall(NamedTuple):
    """How to run a program on operands that nobody looks at.

    Attributes:
      read: positions of the operands that it reads.
      run: takes these, in one sequence, and returns the results.
    """

    read: Sequence[int]
    run: Callable[[Sequence[Any]], list[Any]]


def unchecked_call(compiled: jax.stages.Compiled) -> UncheckedCall | None:
    """As `direct_call`, in three quarters of the time, for it takes operands as they are.

    XLA does not look at them either, and reads those of another layout as they lie. So each has to
    be an array in the default layout where the program was compiled for it, and this is not for
    when `checks_results`.

    Args:
      compiled: for one device.

    Returns:
      None where calls have effects, or where JAX does more than to run the program: where values
      are keys, or lie in another memory.
    """
    executable: Any = compiled._executable
    run = executable.unsafe_call
    if (
        not _HAS_LAYOUTS_OF_DELETED
        or not isinstance(run, _pxla.ExecuteReplicated)
        or not all(map(_is_plain, (*executable.in_avals, *executable.out_avals)))
        or not all(map(_is_on_one_device, jax.tree.leaves(compiled.output_shardings)))
        or run.ordered_effects
        or run.has_unordered_effects
        or run.has_host_callbacks
        or run.mut is not None
        or run.pgle_profiler is not None
        or compiled._params.const_args
    ):
        return None
    execute = run.xla_executable.execute_sharded
    handlers = run.out_handler.handlers
    return UncheckedCall(
        sorted(run.kept_var_idx),
        lambda operands: execute(operands).consume_with_handlers(handlers),
    )


def _is_plain(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and not (
        dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.extended)
    )


def is_default_memory(sharding: Any) -> bool:
    """Whether values lie in the memory of its devices where they lie unless asked otherwise."""
    kind = sharding.memory_kind
    # Devices that are only compiled for name no memories.
    return kind is None or kind == next(iter(sharding.device_set)).default_memory().kind


def _is_on_one_device(sharding: Any) -> bool:
    """And in its default memory."""
    return len(sharding.device_set) == 1 and is_default_memory(sharding)


def lies_on(device: Any, value: Any) -> bool:
    """Whether it is an array that lies on this device alone, as results do."""
    return (
        isinstance(value, _ArrayImpl)
        and not value.is_deleted()
        and isinstance(value.sharding, jax.sharding.SingleDeviceSharding)
        and value.sharding.device_set == {device}
        and is_default_memory(value.sharding)
    )


def checks_results() -> bool:
    """Whether JAX looks at every result, for NaNs or infinities."""
    return _dispatch.needs_check_special()


_PLACEMENT = operator.attrgetter("_committed", "_sharding", "_pjrt_layout")


def placements(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Where each value lies, to compare: whether it must stay, its sharding and its layout.

    Only an array that is not deleted has the last, which cannot be compared with None. At 0.2 us
    a value, since each call asks for hundreds.
    """
    if _HAS_LAYOUTS_OF_DELETED:
        try:
            return [*map(_PLACEMENT, values)]
        except (AttributeError, RuntimeError):  # of NumPy, a key, deleted
            pass
    return [*map(_placement, values)]


def _placement(value: Any) -> tuple[Any, ...]:
    if isinstance(value, _ArrayImpl) and not value.is_deleted():
        return _PLACEMENT(value)
    committed = bool(getattr(value, "committed", False))
    return committed, value.sharding if committed else None


def check_operands(values: Iterable[Any]) -> None:
    """Raises what JAX would when it runs a program on them, before anything has run.

    Raises:
      RuntimeError: one was deleted.
      TypeError: one is the type of an array in place of an array.
    """
    for value in values:
        if isinstance(value, _ArrayImpl):
            value._check_if_deleted()
        elif isinstance(value, jax.ShapeDtypeStruct):
            raise TypeError(
                f"Argument of shape {_core.ShapedArray(value.shape, value.dtype).str_short()} of "
                f"type {type(value)} is not a valid JAX type."
            )


def has_default_layout(value: Any) -> bool:
    """Whether it lies as results do that nobody asked a layout of; also what is no array does.

    Args:
      value: or the type of one, which may ask for a layout.
    """
    if isinstance(value, jax.ShapeDtypeStruct):
        if value.format is None or value.format.layout is None:
            return True
        aval = _core.ShapedArray(value.shape, value.dtype)
    elif isinstance(value, _ArrayImpl) and not value.is_deleted():
        aval = value.aval
    else:
        return True
    return _pxla.is_default_layout(value.format.layout, value.sharding, aval)


def placed(value: Any, sharding: Any) -> Any:
    """A value of nobody else's where a sharding says, and of the type of such a result of jit.

    ``jax.device_put`` gives back what is there already, whose type may name no mesh.
    """
    moved = jax.device_put(value, sharding)
    if not isinstance(moved, _ArrayImpl):
        return moved
    aval = _core.update_aval_with_sharding(moved.aval, sharding)
    if aval == moved.aval:
        return moved
    return _ArrayImpl(aval, sharding, moved._arrays, committed=True, _skip_checks=True)


def is_compiling(thread: int) -> bool:
    """Whether a thread of this process is in XLA's compiler now."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILER):
            return True
        frame = frame.f_back
    return False

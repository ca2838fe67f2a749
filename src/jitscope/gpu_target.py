"""Compiling for a named GPU on a machine that has none.

XLA:GPU needs a description of the device, not the device. The CUDA plugin of JAX embeds one for
every GPU that it knows; it is read from the installed plugin. The compile times, kernels and memory
plans are those of the real compiler, except that nothing can be tuned by trying it out.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from . import _jax
from .hlo import Kernels, look_into

TARGETS = {
    "a100": "NVIDIA A100-SXM4-80GB",
    "b200": "NVIDIA B200",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
}
_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-nvjitlink", "nvidia-cuda-nvrtc")


class PluginMissingError(ImportError):
    """The CUDA plugin is not installed; the message says what to install."""


# --- targets --------------------------------------------------------------------------------------


def _plugin_library() -> Path:
    try:
        import jax_plugins.xla_cuda13 as plugin  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise PluginMissingError(
            "Compiling for a GPU that is not there needs JAX's CUDA plugin and NVIDIA's compilers, "
            "on Linux, about 1 GB. The extra gpu-target of jitscope names them: pip install "
            f"jax-cuda13-plugin=={_jax.VERSION} {' '.join(_PACKAGES)}"
        ) from None
    return next(Path(plugin.__path__[0]).glob("*.so"))


def _library_text(description: str) -> str:
    return find_target_text(_plugin_library().read_bytes(), description)


def find_target_text(library: bytes, description: str) -> str:
    """The GpuTargetConfigProto, as text, whose device description starts with `description`.

    Args:
      library: the plugin's shared library, in which each text is a C string.
      description: for example "NVIDIA H200". The exact name is preferred to a longer one.

    Raises:
      ValueError: there is none; the message lists what there is.
    """
    pattern = rb'device_description_str: "([^"]*)"'
    known = {found[1].decode(): found.start() for found in re.finditer(pattern, library)}
    matches = sorted((name for name in known if name.startswith(description)), key=len)
    if not matches:
        raise ValueError(
            f"the plugin knows no {description!r}; it knows {', '.join(sorted(known))}"
        )
    at = known[matches[0]]
    return library[library.rfind(b"\0", 0, at) + 1 : library.find(b"\0", at)].decode()


def device(target: str) -> Any:
    """A device of the named target, to lower for.

    Args:
      target: one of `TARGETS`.

    Raises:
      PluginMissingError: the CUDA plugin is not installed.
      RuntimeError: JAX left the plugin out; the message says how to have it.
      ValueError: there is no such target.
    """
    from jax.experimental import topologies

    if target not in TARGETS:
        raise ValueError(f"there is no target {target!r}; there are {', '.join(TARGETS)}.")
    text = _library_text(TARGETS[target])
    try:
        topology = topologies.get_topology_desc(
            "", platform="cuda", target_config=text, topology="1x1x1"
        )
    except NotImplementedError:
        raise RuntimeError(
            f"cannot compile for {target!r}: JAX's CUDA plugin is installed, but JAX has left it "
            "out, as it does where it finds no driver or no library that a GPU needs to run. Start "
            "Python with JAX_PLATFORMS=cpu in the environment, which asks for none of them."
        ) from None
    return topology.devices[0]


def is_array(value: Any) -> bool:
    """Whether a value is an array, or the type of one."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def abstract(tree: Any, device: Any) -> Any:
    """The types of the arrays of a tree, as if they lay on the device; all else as it is."""
    sharding = jax.sharding.SingleDeviceSharding(device)

    def on_device(leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        weak = getattr(leaf, "weak_type", False)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak, sharding=sharding)

    return jax.tree.map(on_device, tree)


# --- measuring ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A cold start, and what it made.

    Attributes:
      trace_s: seconds to trace and lower.
      compile_s: seconds in the compiler.
      cpu_s: processor seconds of both, of this process and of the compilers it started.
      n_executables: programs compiled.
      kernels: what one run launches.
      temp_bytes: the largest temporary memory of an executable.
      peak_bytes: results and temporary values at the worst moment, arguments left out.
    """

    trace_s: float
    compile_s: float
    cpu_s: float
    n_executables: int
    kernels: Kernels
    temp_bytes: int
    peak_bytes: int


def _cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def compile_abstract(lower: Callable[[], Any]) -> Compilation:
    """Traces, lowers and compiles.

    Args:
      lower: returns a `jax.stages.Lowered`, or what `lower` of a staged function returns.
    """
    start_s, start_cpu_s = time.perf_counter(), _cpu_s()
    lowered = lower()
    lowered_s = time.perf_counter()
    compiled = lowered.compile()
    compiled_s, cpu_s = time.perf_counter(), _cpu_s()
    if isinstance(compiled, tuple):
        parts, n_runs, live_bytes = compiled, lowered.n_runs, lowered.live_bytes
    else:
        output_bytes = compiled.memory_analysis().output_size_in_bytes
        parts, n_runs, live_bytes = (compiled,), (1,), (output_bytes,)
    temp_bytes = [part.memory_analysis().temp_size_in_bytes for part in parts]
    kernels = [look_into(part.as_text()) * n for part, n in zip(parts, n_runs, strict=True)]
    return Compilation(
        trace_s=lowered_s - start_s,
        compile_s=compiled_s - lowered_s,
        cpu_s=cpu_s - start_cpu_s,
        n_executables=len(parts),
        kernels=sum(kernels, Kernels()),
        temp_bytes=max(temp_bytes),
        peak_bytes=max(map(sum, zip(temp_bytes, live_bytes, strict=True))),
    )


def compile_for(target: str, fun: Any, *args: Any, **kwargs: Any) -> Compilation:
    """Compiles a function for a GPU that need not be there.

    Args:
      target: one of `TARGETS`.
      fun: a ``jax.jit`` or `jitscope.outermost_jit` function.
      *args: its arguments; of arrays only the types matter.
      **kwargs: its keyword arguments, likewise.

    Raises:
      PluginMissingError: the CUDA plugin is not installed.
      RuntimeError: JAX left the plugin out; the message says how to have it.
      ValueError: there is no such target, or no array among the arguments, whose type says what
        to compile for.
    """
    if not any(map(is_array, jax.tree.leaves((args, kwargs)))):
        raise ValueError(
            f"cannot compile {fun!r} for {target!r}: none of its arguments is an array or a "
            "jax.ShapeDtypeStruct. Pass one that it computes with."
        )
    args, kwargs = abstract((args, kwargs), device(target))
    return compile_abstract(lambda: fun.lower(*args, **kwargs))

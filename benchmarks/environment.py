"""The process that measures and where it runs: machine, versions, commit, memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).parent.parent


def prepare_process() -> None:
    """Makes sure that this process measures what it says it does."""
    # A compilation taken from a cache is not a cold start.
    jax.config.update("jax_enable_compilation_cache", False)
    # A program that jitscope gave up on would be measured as if it had been structured.
    warnings.filterwarnings("error", message="jitscope could not structure")


def machine() -> dict[str, Any]:
    """What makes times comparable: the processor, how much of it we may use, and the device."""
    device = jax.devices()[0]
    return {
        "system": platform.system(),
        "processor": _processor(),
        "n_cores": os.cpu_count(),
        "platform": device.platform,
        "device": device.device_kind,
        "n_devices": jax.device_count(),
    }


def _processor() -> str:
    # platform.processor() is empty on most Linux systems.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


_PACKAGES = (
    *("jax", "jaxlib", "numpy", "jitscope"),
    *("flax", "optax", "equinox", "diffrax", "dm-haiku", "mujoco-mjx", "numpyro"),
)


def versions() -> dict[str, str]:
    """Versions of everything installed that shapes the compiled programs."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def commit() -> str:
    """The checkout's short commit, with `+` behind it if tracked files differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def where() -> dict[str, Any]:
    """What a line of JSON says about where it was measured."""
    return {"machine": machine(), "versions": versions(), "commit": commit()}


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def peak_rss_bytes() -> int:
    """The most resident memory this process has had."""
    # Linux lets getrusage's figure pass from parent to child, so a child of a large process would
    # report its parent's peak; VmHWM starts anew.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

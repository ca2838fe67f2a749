"""jitscope decides how a JAX program is structured before XLA compiles it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import report as report, testing as testing
    from .audited import AuditFinding as AuditFinding, AuditReport as AuditReport
    from .auditing import audit as audit
    from .explanation import compare as compare, explain as explain
    from .outermost.decorator import outermost_jit as outermost_jit
    from .reuse.recorder import recording as recording, stats as stats
    from .reuse.reuse import Reuse as Reuse
    from .reuse.reuse_report import ReuseReport as ReuseReport
    from .running.installation import (
        install as install,
        installed as installed,
        uninstall as uninstall,
    )
    from .settings import disabled as disabled
    from .structuring.census import Body as Body, Census as Census
    from .structuring.plan import (
        Decision as Decision,
        LoopLimits as LoopLimits,
        Plan as Plan,
        Structure as Structure,
    )
    from .structuring.policy import Policy as Policy
    from .subroutine.counters import SubroutineStats as SubroutineStats
    from .subroutine.decorator import shared_subroutine as shared_subroutine

__version__ = "0.1.0"

# Imported when first used: `python -m jitscope run` must not import JAX before the script
# has set it up through the environment.
_HOMES = {
    "AuditFinding": "audited",
    "AuditReport": "audited",
    "Body": "structuring.census",
    "Census": "structuring.census",
    "Decision": "structuring.plan",
    "LoopLimits": "structuring.plan",
    "Plan": "structuring.plan",
    "Policy": "structuring.policy",
    "Reuse": "reuse.reuse",
    "ReuseReport": "reuse.reuse_report",
    "Structure": "structuring.plan",
    "SubroutineStats": "subroutine.counters",
    "audit": "auditing",
    "compare": "explanation",
    "disabled": "settings",
    "explain": "explanation",
    "install": "running.installation",
    "installed": "running.installation",
    "outermost_jit": "outermost.decorator",
    "recording": "reuse.recorder",
    "shared_subroutine": "subroutine.decorator",
    "stats": "reuse.recorder",
    "uninstall": "running.installation",
}
_MODULES = ("report", "testing")
__all__ = [*_HOMES, *_MODULES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    value.__module__ = __name__  # where users find it: in messages, docs and pickles
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

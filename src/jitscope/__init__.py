"""jitscope decides how a JAX program is structured before XLA compiles it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import report as report
    from . import testing as testing
    from .auditing import AuditReport as AuditReport
    from .auditing import audit as audit
    from .census import Body as Body
    from .census import Census as Census
    from .explanation import compare as compare
    from .explanation import explain as explain
    from .installation import install as install
    from .installation import installed as installed
    from .installation import uninstall as uninstall
    from .outermost import outermost_jit as outermost_jit
    from .policy import Decision as Decision
    from .policy import Plan as Plan
    from .policy import Policy as Policy
    from .policy import Structure as Structure
    from .recorder import recording as recording
    from .recorder import stats as stats
    from .reuse import Reuse as Reuse
    from .reuse_report import ReuseReport as ReuseReport
    from .settings import disabled as disabled
    from .subroutine import shared_subroutine as shared_subroutine

__version__ = "0.1.0"

# Imported when first used: `python -m jitscope run` must not import JAX before the script
# has set it up through the environment.
_HOMES = {
    "AuditReport": "auditing",
    "Body": "census",
    "Census": "census",
    "Decision": "policy",
    "Plan": "policy",
    "Policy": "policy",
    "Reuse": "reuse",
    "ReuseReport": "reuse_report",
    "Structure": "policy",
    "audit": "auditing",
    "compare": "explanation",
    "disabled": "settings",
    "explain": "explanation",
    "install": "installation",
    "installed": "installation",
    "outermost_jit": "outermost",
    "recording": "recorder",
    "shared_subroutine": "subroutine",
    "stats": "recorder",
    "uninstall": "installation",
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
    return sorted({*globals(), *_HOMES, *_MODULES})

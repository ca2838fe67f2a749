"""Renderers of reuse reports: pure functions of a record, and files that hold one.

`save` and `load` are the only functions here that touch files.
"""

from .files import load as load, save as save
from .json import ReportFormatError as ReportFormatError

__all__ = ["ReportFormatError", "load", "save"]


def __dir__() -> list[str]:
    return sorted(__all__)

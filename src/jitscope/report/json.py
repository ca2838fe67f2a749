"""A reuse report as JSON text and back: ReuseReport <-> str.

The text is an object with ``format``, the number of the format, and ``report``, the record
field by field. Formats so far:

1. The first.

A reader accepts its own and all earlier numbers. A field is added with a default, so that
files without it can still be read; anything else takes a new number and an entry here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from typing import Any

from ..reuse import reuse_report
from ..reuse.reuse_report import ReuseReport

FORMAT = 1
KIND = "jitscope report"


class ReportFormatError(ValueError):
    """A text is no report that this version of jitscope can read; the message says why."""


def dumps(report: ReuseReport) -> str:
    """The report as JSON, its keys in the order of the record's fields."""
    content = {"kind": KIND, "format": FORMAT, "report": dataclasses.asdict(report)}
    return json.dumps(content, allow_nan=False, indent=1) + "\n"


def loads(text: str) -> ReuseReport:
    """Reads a report.

    Raises:
      ReportFormatError: it is not JSON, no report, of a later format, or damaged.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportFormatError(
            f"it is not JSON: {error}. Was it written by `python -m jitscope run --json FILE`?"
        ) from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ReportFormatError(
            'it has no "kind": "jitscope report", so it is JSON of something else.'
        )
    number = content.get("format")
    if type(number) is not int or number < 1:
        raise ReportFormatError(
            f"its format number is {number!r}, expected one from 1 to {FORMAT}."
        )
    if number > FORMAT:
        raise ReportFormatError(
            f"it has format {number}, and this jitscope reads formats up to "
            f"{FORMAT}. Use the jitscope that wrote it, or a later one."
        )
    return _decoded(content.get("report"), ReuseReport, "report")


def _decoded(value: Any, kind: Any, path: str) -> Any:
    """A value of a type that records are made of, checked at every level."""
    if dataclasses.is_dataclass(kind):
        return _record(value, kind, path)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        return tuple(_decoded(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value))
    if origin is types.UnionType:
        rest = next(argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else _decoded(value, rest, path)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise _wrong(
            path,
            {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[kind],
            value,
        )
    return value


def _record(value: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(path, "an object", value)
    # Exported records give `jitscope` as their module, where the types of their fields are not.
    hints = typing.get_type_hints(kind, localns=dict(vars(reuse_report)))
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(value.keys() - fields.keys())
    if unknown:
        raise ReportFormatError(
            f"{path} has unknown field(s) {', '.join(map(repr, unknown))}. "
            "Was it written by a later jitscope?"
        )
    missing = [
        name
        for name, field in fields.items()
        if name not in value and field.default is dataclasses.MISSING
    ]
    if missing:
        raise ReportFormatError(f"{path} lacks {', '.join(missing)}.")
    return kind(
        **{name: _decoded(item, hints[name], f"{path}.{name}") for name, item in value.items()}
    )


def _wrong(path: str, expected: str, value: Any) -> ReportFormatError:
    found = repr(value)
    return ReportFormatError(
        f"{path} should be {expected}, got {found if len(found) < 60 else found[:57] + '...'}."
    )

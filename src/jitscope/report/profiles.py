"""Equation counts in the formats of profile viewers: ReuseReport -> bytes.

Both hold one profile per program for "before" (every call spelled out) and "after" (what the
compiler sees). Speedscope's is JSON (https://www.speedscope.app/file-format-schema.json); pprof's
is a gzipped protocol buffer (``profile.proto`` of github.com/google/pprof), of which the
few messages needed are written here.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable

from ..reuse.reuse_report import ProgramReport, ReuseReport
from .files import replace_file

_FRAME = re.compile(r"^(?P<file>.*):(?P<line>\d+) \((?P<name>.*)\)$", re.DOTALL)


def save(report: ReuseReport, path: str | os.PathLike[str], *, kind: str) -> None:
    """Writes a profile; a file that was there is replaced whole or left as it was.

    Args:
      report: a record with details.
      path: of the file.
      kind: ``"speedscope"`` or ``"pprof"``.

    Raises:
      ValueError: there is no such kind.
      OSError: the file cannot be written.
    """
    if kind not in ("speedscope", "pprof"):
        raise ValueError(f"save(kind={kind!r}): allowed are 'speedscope' and 'pprof'.")
    replace_file(path, speedscope(report) if kind == "speedscope" else pprof(report))


def speedscope(report: ReuseReport) -> str:
    """The counts as a speedscope file."""
    frames: dict[str, int] = {}
    profiles = [
        _speedscope_profile(program, field, frames)
        for program in report.programs
        for field in ("n_before", "n_after")
    ]
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "jitscope",
            "shared": {"frames": [_speedscope_frame(frame) for frame in frames]},
            "profiles": profiles,
        }
    )


def _speedscope_profile(program: ProgramReport, field: str, frames: dict[str, int]) -> dict:
    lines = [line for line in program.lines if getattr(line, field)]
    weights = [getattr(line, field) for line in lines]
    return {
        "type": "sampled",
        "name": f"{program.name}: equations {field.removeprefix('n_')}",
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [
            [frames.setdefault(frame, len(frames)) for frame in line.stack or ("?",)]
            for line in lines
        ],
        "weights": weights,
    }


def _speedscope_frame(frame: str) -> dict:
    found = _FRAME.match(frame)
    if not found:
        return {"name": frame}
    return {"name": found["name"], "file": found["file"], "line": int(found["line"])}


# --- pprof ----------------------------------------------------------------------------------


def pprof(report: ReuseReport) -> bytes:
    """The counts as a gzipped pprof profile with two values, before and after."""
    strings: dict[str, int] = {"": 0}
    places: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    types = [
        _message((1, text(f"equations_{when}")), (2, text("count"))) for when in ("before", "after")
    ]
    samples = [
        _message(
            # Leaf first; the program is the outermost frame.
            (
                1,
                _packed(
                    places.setdefault(frame, len(places) + 1)
                    for frame in reversed((program.name, *line.stack))
                ),
            ),
            (2, _packed((line.n_before, line.n_after))),
        )
        for program in report.programs
        for line in program.lines
    ]
    tables = []
    for frame, number in places.items():
        found = _FRAME.match(frame)
        name, file, line = (
            (found["name"], found["file"], int(found["line"])) if found else (frame, "", 0)
        )
        tables.append((4, _message((1, number), (4, _message((1, number), (2, line))))))
        tables.append((5, _message((1, number), (2, text(name)), (4, text(file)))))
    profile = _message(
        *((1, one) for one in types),
        *((2, one) for one in samples),
        *tables,
        *((6, value.encode(errors="replace")) for value in strings),
    )
    return gzip.compress(profile, mtime=0)


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protocol buffer message: numbers as varints, bytes with their length."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(_varint(number << 3) + _varint(value))
        else:
            parts.append(_varint(number << 3 | 2) + _varint(len(value)) + value)
    return b"".join(parts)


def _packed(values: Iterable[int]) -> bytes:
    return b"".join(map(_varint, values))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])

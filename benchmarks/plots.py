"""Plots of what was measured: records -> SVG files.

Needs matplotlib (extra `bench`), which is imported only where something is drawn.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contenders import BASELINE, CONTENDERS
from benchmarks.programs import PROGRAMS
from benchmarks.ratios import Clock, Measure, grouped, ratio, typical
from benchmarks.record import Record
from benchmarks.suites import label

_PHASES = ("trace", "lower", "compile")
_PHASE_COLOURS = ("#4c78a8", "#f2b701", "#b3b3b3")
_FEWEST_DEPTHS = 3  # to fit a slope to
_FORMAT = "svg"


class PlotsUnavailableError(ImportError):
    """Matplotlib is missing; the message says how to install it."""


class Line(NamedTuple):
    """Cold starts of one contender against depth, and the exponent of the fitted power law."""

    depths: list[int]
    cold_s: list[float]
    slope: float


def _figure_class() -> Any:
    try:
        # Not pyplot, which keeps every figure and wants to know about screens.
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise PlotsUnavailableError(
            "Plots need matplotlib, which is not installed. Install it with "
            "`pip install 'jitscope[bench]'`, or leave out --plots."
        ) from None
    return Figure


def draw(records: Sequence[Record], directory: Path, clock: Clock) -> list[Path]:
    """Draws what the records allow: cold start against depth, speed-ups, the split of the time.

    Args:
        records: Measurements of one machine and one set of versions.
        directory: Where the files go; made if it is not there.
        clock: Whether time is wall time or processor time. The split of the time is wall time.

    Returns:
        The files that were written.

    Raises:
        PlotsUnavailableError: Matplotlib is not installed.
    """
    figure_class = _figure_class()
    directory.mkdir(parents=True, exist_ok=True)
    figures = {"speed-up": _speed_up_figure(figure_class, records, clock)}
    figures["split"] = _split_figure(figure_class, records)
    for program, lines in depth_lines(records, clock).items():
        figures[f"depth-{program}"] = _depth_figure(figure_class, program, lines, clock)
    written = []
    for name, figure in figures.items():
        if figure is not None:
            written.append(directory / f"{name}.{_FORMAT}")
            figure.savefig(written[-1], format=_FORMAT, bbox_inches="tight")
    return written


# --- cold start against depth ---------------------------------------------------------------------


def depth_lines(records: Sequence[Record], clock: Clock) -> dict[str, dict[str, Line]]:
    """Program to contender to its line, for programs measured at full width and several depths."""
    points: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for (program, settings), contenders in grouped(records).items():
        other = dict(settings)
        layers = other.pop("layers", None)
        usual = {name: value for name, value in PROGRAMS[program].full.items() if name != "layers"}
        if layers is not None and other == usual:
            for name, ours in contenders.items():
                points[program][name][layers] = typical(ours, clock.cold)
    return {
        program: lines
        for program, contenders in points.items()
        if (lines := {n: _line(p) for n, p in contenders.items() if len(p) >= _FEWEST_DEPTHS})
    }


def _line(points: Mapping[int, float]) -> Line:
    depths = sorted(points)
    cold_s = [points[depth] for depth in depths]
    slope, _ = np.polyfit(np.log(depths), np.log(cold_s), 1)
    return Line(depths, cold_s, float(slope))


def _depth_figure(figure_class: Any, program: str, lines: Mapping[str, Line], clock: Clock) -> Any:
    figure = figure_class(figsize=(6.4, 4.4))
    axes = figure.subplots()
    for name, line in lines.items():
        axes.loglog(
            line.depths,
            line.cold_s,
            marker="o",
            color=_colour(name),
            label=f"{name}: depth^{line.slope:.2f}",
        )
    depths = sorted(set(itertools.chain.from_iterable(line.depths for line in lines.values())))
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.minorticks_off()
    axes.set_xlabel("layers")
    axes.set_ylabel(f"cold start, {clock.name} seconds")
    axes.set_title(f"{program}: cold start against depth")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


# --- speed-ups ------------------------------------------------------------------------------------


def _speed_up_figure(figure_class: Any, records: Sequence[Record], clock: Clock) -> Any:
    groups = {e: c for e, c in grouped(records).items() if BASELINE in c and len(c) > 1}
    names = [n for n in CONTENDERS if n != BASELINE and any(n in c for c in groups.values())]
    if not groups:
        return None
    entries = [label(program, dict(settings)) for program, settings in groups]
    height = 0.8 + len(entries) * (0.3 + 0.12 * len(names))
    figure = figure_class(figsize=(10, height))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, what, measure in zip(
        panels, ("cold start", "run"), (clock.cold, clock.run), strict=True
    ):
        _bars(axes, list(groups.values()), names, measure)
        axes.set_title(what)
        axes.set_xlabel(f"{BASELINE} / contender, {clock.name} time")
    panels[0].set_yticks(range(len(entries)), entries)
    panels[0].invert_yaxis()
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _bars(axes: Any, groups: Sequence[Any], names: Sequence[str], measure: Measure) -> None:
    thickness = 0.8 / len(names)
    for i, name in enumerate(names):
        ratios = [ratio(c.get(name, ()), c[BASELINE], measure) for c in groups]
        # From 1, so that a bar to the right is a gain and one to the left a loss.
        widths = [0.0 if math.isnan(value) else 1 / value - 1 for value in ratios]
        places = [row - 0.4 + (i + 0.5) * thickness for row in range(len(groups))]
        axes.barh(places, widths, thickness, left=1, color=_colour(name), label=name)
    axes.set_xscale("log")
    axes.margins(y=0.02)
    axes.axvline(1, color="black", linewidth=0.8)
    low, high = axes.get_xlim()
    # The usual labels of a logarithmic axis run into each other where it is shorter than a decade.
    ticks = [t for e in range(-3, 4) for t in (10.0**e, 2 * 10.0**e, 5 * 10.0**e)]
    axes.set_xticks([t for t in ticks if low <= t <= high])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.grid(axis="x", alpha=0.3)


# --- where the time goes --------------------------------------------------------------------------


def _split_figure(figure_class: Any, records: Sequence[Record]) -> Any:
    order = list(CONTENDERS)
    rows = [
        (f"{label(program, dict(settings))}, {name}", contenders[name])
        for (program, settings), contenders in grouped(records).items()
        for name in sorted(contenders, key=order.index)
    ]
    if not rows:
        return None
    figure = figure_class(figsize=(8, 0.8 + 0.24 * len(rows)))
    axes = figure.subplots()
    seconds = np.array(
        [
            [typical(ours, lambda r, p=phase: getattr(r, f"{p}_s")) for phase in _PHASES]
            for _, ours in rows
        ]
    )
    shares = seconds / seconds.sum(1, keepdims=True)
    for i, (phase, colour) in enumerate(zip(_PHASES, _PHASE_COLOURS, strict=True)):
        left = shares[:, :i].sum(1)
        axes.barh(range(len(rows)), shares[:, i], left=left, color=colour, label=phase)
    ticks = [f"{name} ({typical(ours, lambda r: r.cold_s):.3g} s)" for name, ours in rows]
    axes.set_yticks(range(len(rows)), ticks)
    axes.invert_yaxis()
    axes.margins(x=0, y=0.01)
    axes.set_xlabel("share of the cold start (wall time)")
    axes.set_title("Where the cold start goes")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _colour(contender: str) -> str:
    return f"C{list(CONTENDERS).index(contender)}"

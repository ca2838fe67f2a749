"""Writes the tables of the docs from the lines that they come from.

    python -m benchmarks.tables

fills in what stands between `<!-- table: KIND FILE -->` and `<!-- end of table -->` on every page,
from `benchmarks/results/FILE`. A test holds pages and lines together.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import environment, fit, goals, regret
from benchmarks.contenders import BASELINE
from benchmarks.dispatch import Dispatch
from benchmarks.ratios import CPU, WALL, Clock
from benchmarks.record import Record
from benchmarks.suites import label
from benchmarks.turns import Turns, by_label
from jitscope.words import size

PAGES = sorted((environment.ROOT / "docs").glob("*.md"))
RESULTS = environment.ROOT / "benchmarks" / "results"

Line = Mapping[str, Any]

_TABLE = re.compile(
    r"(?P<head><!-- table: (?P<kind>\S+) (?P<file>\S+) -->\n).*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)
_NAMES = {
    "jit": "`jax.jit`",
    "nested_jit": "nested",
    "xla_late": "kept by hand",
    "scan": "`lax.scan`",
    "outermost_annotated": "jitscope, marked",
    "outermost_plain": "jitscope",
    "outermost_staged": "jitscope, staged",
    "outermost_rolled": "jitscope, rolled",
}


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _grouped(lines: Iterable[Line]) -> dict[str, dict[str, list[Line]]]:
    groups: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        groups[label(line["program"], line["settings"])][line["contender"]].append(line)
    return groups


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 0.1 else f"{value * 1e3:.3g} ms"


def _ratio(ours: Sequence[Line], baseline: Sequence[Line], measure: Callable[[Line], float]) -> str:
    by_round = {line["round"]: measure(line) for line in baseline}
    ratios = [by_round[ln["round"]] / measure(ln) for ln in ours if ln["round"] in by_round]
    if ours is baseline or not ratios:
        return "1" if ours is baseline else "-"
    return _with_spread(ratios)


def _with_spread(ratios: Sequence[float], unit: str = "x") -> str:
    spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}{unit}{spread}"


def _cold_cpu_s(line: Line) -> float:
    return line["cold_cpu_s"]


def _run_cpu_s(line: Line) -> float:
    return statistics.median(line["run_cpu_s"])


_SHORT_RUN_S = 1e-3
"""Runs of one program differ by more than half below it, by nothing but noise."""


def processor_seconds(lines: Sequence[Line]) -> str:
    """Processor seconds of cold start and run; ratios within a round, larger is faster.

    Short runs of programs that XLA made the same of are not compared.
    """
    rows = []
    for program, contenders in _grouped(lines).items():
        for name in (known for known in _NAMES if known in contenders):
            ours = contenders[name]
            cells = [program.replace("=", " = "), _NAMES[name]]
            for measure in (_cold_cpu_s, _run_cpu_s):
                cells.append(_seconds(statistics.median(map(measure, ours))))
                cells.append(_ratio(ours, contenders[BASELINE], measure))
            same = ours[-1]["n_instructions"] == contenders[BASELINE][-1]["n_instructions"]
            if same and name != BASELINE and _run_cpu_s(ours[-1]) < _SHORT_RUN_S:
                cells[-1] = "same program"
            rows.append([*cells, f"{ours[-1]['n_instructions']:,}"])
    return _table(
        ("program", "", "cold", "cold ratio", "run", "run ratio", "instructions"),
        rows,
    )


def suite(lines: Sequence[Line]) -> str:
    """Cold start and run time by program and contender; ratios are of processor seconds."""
    rows = []
    for program, contenders in _grouped(lines).items():
        baseline = contenders[BASELINE]
        for name in (known for known in _NAMES if known in contenders):
            ours = contenders[name]
            rows.append(
                [
                    program.replace("=", " = "),
                    _NAMES[name],
                    *(
                        _seconds(statistics.median(map(measure, ours)))
                        for measure in (
                            lambda line: line["trace_s"] + line["lower_s"],
                            lambda line: line["compile_s"],
                            lambda line: statistics.median(line["run_s"]),
                        )
                    ),
                    _ratio(ours, baseline, _cold_cpu_s),
                    _ratio(ours, baseline, _run_cpu_s),
                    f"{ours[-1]['n_instructions']:,}",
                ]
            )
    return _table(
        ("program", "", "trace, lower", "XLA", "run", "cold ratio", "run ratio", "instructions"),
        rows,
    )


def speed_ups(lines: Sequence[Line]) -> str:
    """Cold start against `jax.jit` by program and contender; ratios of wall time."""
    names = [name for name in _NAMES if any(line["contender"] == name for line in lines)]
    rows = []
    for program, contenders in _grouped(lines).items():
        baseline = contenders.get(BASELINE, [])
        rows.append(
            [
                program.replace("=", " = "),
                _seconds(statistics.median(map(_cold_s, baseline))) if baseline else "-",
                *(
                    _ratio(contenders.get(name, []), baseline, _cold_s)
                    for name in names
                    if name != BASELINE
                ),
            ]
        )
    others = [_NAMES[name] for name in names if name != BASELINE]
    return _table(("cold start", _NAMES[BASELINE], *others), rows)


def _cold_s(line: Line) -> float:
    return line["cold_s"]


def _of_records(lines: Sequence[Line], text: Callable[..., str]) -> str:
    """What another module says of the records, by the clock on the wall."""
    return text([Record.from_json(json.dumps(line)) for line in lines], WALL) + "\n"


def _goal_list(records: Sequence[Record], clock: Any) -> str:
    return "\n".join(f"- {goal}" for goal in goals.goals(records, clock))


def runs(lines: Sequence[Line]) -> str:
    """Run time by program and contender, measured by turns; ratios of wall and CPU time."""
    measured = by_label(Turns(**line) for line in lines)
    names = [n for n in _NAMES if n != BASELINE and any(n in line["run_s"] for line in lines)]
    rows = []
    for entry, processes in measured.items():
        run_s = statistics.median(s for turns in processes for s in turns.run_s[BASELINE])
        cells = [entry.replace("=", " = "), _seconds(run_s)]
        for name in names:
            cells += [_speed(processes, name, clock) for clock in (WALL, CPU)]
        rows.append(cells)
    columns = [f"{_NAMES[name]}{clock}" for name in names for clock in ("", ", CPU")]
    return _table(("run", _NAMES[BASELINE], *columns), rows)


def _speed(processes: Sequence[Turns], contender: str, clock: Clock) -> str:
    """The median of the processes' ratios, with their spread; larger is faster."""
    ratios = [1 / turns.ratio(contender, clock) for turns in processes if contender in turns.run_s]
    return _with_spread(ratios) if ratios else "-"


def run_goals(lines: Sequence[Line]) -> str:
    """The goals about run times."""
    return "".join(f"- {goal}\n" for goal in goals.run_goals([Turns(**ln) for ln in lines], WALL))


def sizes(lines: Sequence[Line], measure: str) -> str:
    """A ratio of nested to flat by equations of the body and number of its calls."""
    found = {
        (line["n_equations"], line["n_calls"]): line[measure]
        for line in lines
        if line["measurement"] == "size"
    }
    calls = sorted({n_calls for _, n_calls in found})
    return _table(
        ("equations", *(f"{n} call{'s' * (n > 1)}" for n in calls)),
        (
            [str(length), *(f"{found[length, n_calls]:.2f}" for n_calls in calls)]
            for length in sorted({length for length, _ in found})
        ),
    )


def vmaps(lines: Sequence[Line]) -> str:
    """What a call costs with `vmap` and `jit` in either order."""
    return _table(
        ("", "a call", "Python ran `f`", "instructions within `jit`"),
        (
            [
                f"`{line['kind']}`",
                f"{line['call_us']:.0f} us",
                "once" if line["python_runs"] == 1 else "at every call",
                str(line["n_instructions"]),
            ]
            for line in lines
            if line["measurement"] == "vmap"
        ),
    )


def gpu(lines: Sequence[Line]) -> str:
    """Compile time, kernels and memory by program and contender."""
    rows = []
    for line in lines:
        products, others, memory = _launched([line])
        rows.append(
            [
                label(line["program"], line["settings"]).replace("=", " = "),
                _NAMES[line["contender"]],
                _seconds(line["cpu_s"]),
                products,
                f"{line['kernels']['loop_dots']:,}",
                others,
                memory,
            ]
        )
    return _table(
        ("program", "", "cold", "matrix products", "in plain loops", "other kernels", "memory"),
        rows,
    )


def for_target(lines: Sequence[Line], contender: str) -> str:
    """Compile time, kernels and memory for a GPU by depth: `jax.jit`, and another way."""
    rows = []
    for layers in sorted({line["settings"]["layers"] for line in lines}):
        of_depth = [line for line in lines if line["settings"]["layers"] == layers]
        plain, ours = (
            [line for line in of_depth if line["contender"] == name]
            for name in (BASELINE, contender)
        )
        plain_s = {line["round"]: _target_s(line) for line in plain}
        shares = [
            _target_s(line) / plain_s[line["round"]] for line in ours if line["round"] in plain_s
        ]
        rows.append(
            [
                str(layers),
                _median_s(plain_s.values()),
                _median_s(map(_target_s, ours)),
                _with_spread(shares, unit="") if shares else "-",
                *map(", ".join, zip(_launched(plain), _launched(ours), strict=True)),
            ]
        )
    how = _NAMES[contender].removeprefix("jitscope, ")
    columns = ("layers", _NAMES[BASELINE], how, "ratio", "matrix products", "other kernels")
    return _table((*columns, "memory beside arguments"), rows)


def _median_s(seconds: Iterable[float]) -> str:
    found = list(seconds)
    return _seconds(statistics.median(found)) if found else "-"


def _target_s(line: Line) -> float:
    return line["trace_s"] + line["compile_s"]


def _launched(lines: Sequence[Line]) -> tuple[str, str, str]:
    """Matrix products, other kernels and memory; all lines of one program have the same."""
    if not lines:
        return "-", "-", "-"
    kernels = lines[-1]["kernels"]
    others = kernels["fusions"] + kernels["others"]
    return f"{kernels['gemms']:,}", f"{others:,}", size(lines[-1]["peak_bytes"])


def dispatch(lines: Sequence[Line]) -> str:
    """What a call of a compiled function costs, and how much of it jitscope adds."""
    rows = []
    for line in lines:
        one = Dispatch(*(line[field.name] for field in dataclasses.fields(Dispatch)))
        low, _, high = statistics.quantiles(one.call_us, n=4)
        digits = ",.0f" if high >= 1000 else ".3g"
        spread = f"{one.median_us:{digits}} us ({low:{digits}}-{high:{digits}})"
        name = _NAMES.get(one.contender, f"`{one.contender}`")
        rows.append([one.case, name, spread, f"{one.extra_us:+.3g} us"])
    return _table(("arguments", "", "a call", "against `jax.jit`"), rows)


KINDS: dict[str, Callable[[Sequence[Line]], str]] = {
    "suite": suite,
    "processor-seconds": processor_seconds,
    "trace-and-lower": functools.partial(sizes, measure="front_ratio"),
    "xla": functools.partial(sizes, measure="xla_ratio"),
    "vmap": vmaps,
    "gpu": gpu,
    "speed-ups": speed_ups,
    "runs": runs,
    "run-goals": run_goals,
    "dispatch": dispatch,
    "target-staged": functools.partial(for_target, contender="outermost_staged"),
    "target-rolled": functools.partial(for_target, contender="outermost_rolled"),
    "goals": functools.partial(_of_records, text=_goal_list),
    "regret": functools.partial(_of_records, text=regret.table),
    "fit": functools.partial(_of_records, text=fit.table),
}


def filled(page: str) -> str:
    """The page with its tables made anew."""

    def table(found: re.Match[str]) -> str:
        text = (RESULTS / found["file"]).read_text(encoding="utf-8")
        made = KINDS[found["kind"]]([json.loads(line) for line in text.splitlines()])
        return f"{found['head']}\n{made}\n{found['end']}"

    return _TABLE.sub(table, page)


def main() -> None:
    """Rewrites the pages."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if filled(page) != page:
            path.write_text(filled(page), encoding="utf-8")
            print(path.relative_to(environment.ROOT))


if __name__ == "__main__":
    main()

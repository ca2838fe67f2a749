"""What is made of measurements: goals, regret, plots, the fitted cost model. No times of this run."""

import dataclasses
import functools
import math
import sys
from xml.etree import ElementTree

import pytest

from benchmarks import compare, environment, fit, goals, plots, regret, tables, turns
from benchmarks.programs import PROGRAMS
from benchmarks.ratios import CPU, WALL, ratio
from benchmarks.record import Record
from benchmarks.suites import label


@functools.cache
def here():
    return environment.where() | {"date": "2026-01-01T00:00:00+00:00"}


def record(contender, cold_s, run_s, program="transformer", round_number=0, **settings):
    """A record of `program` at full size, with the settings changed that are given."""
    return Record(
        program=program,
        contender=contender,
        settings=dict(PROGRAMS[program].full) | settings,
        round=round_number,
        trace_s=0.1 * cold_s,
        lower_s=0.2 * cold_s,
        compile_s=0.7 * cold_s,
        first_call_s=run_s,
        run_s=[run_s],
        calls_per_sample=1,
        dispatch_s=[0.0],
        cold_cpu_s=2 * cold_s,
        run_cpu_s=[run_s],
        n_instructions=1,
        temp_bytes=0,
        rss_before_bytes=0,
        rss_compiled_bytes=0,
        digest=[1.0, 1.0, 1.0],
        **here(),
    )


def test_ratio_is_taken_within_rounds():
    baseline = [record("jit", 4, 1), record("jit", 40, 1, round_number=1)]
    ours = [record("scan", 1, 1), record("scan", 20, 1, round_number=1)]
    assert ratio(ours, baseline, WALL.cold) == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert math.isnan(ratio(ours[:1], baseline[1:], WALL.cold))


# --- goals ----------------------------------------------------------------------------------------


def by_name(records, clock=WALL):
    return {goal.name: goal for goal in goals.goals(records, clock)}


def test_cold_goal_is_the_geometric_mean_over_deep_programs():
    records = [
        *(record("jit", 16, 1), record("outermost_plain", 4, 1), record("scan", 1, 1)),
        *(record("jit", 16, 1, layers=24), record("outermost_plain", 1, 1, layers=24)),
        # Neither deep enough nor a stack of equal layers.
        *(record("jit", 9, 1, layers=6), record("outermost_plain", 9, 1, layers=6)),
        *(record(name, 1, 1, program="nothing_shared") for name in ("jit", "outermost_plain")),
    ]
    goal = by_name(records)["cold speed-up of deep programs, nothing marked"]
    assert goal.value == pytest.approx(8)
    assert goal.is_met
    assert goal.where == (
        "with the fastest contender of each, by hand or not, 16x; "
        "transformer layers=12 4x, transformer layers=24 16x"
    )


def test_worst_programs_are_named():
    records = [
        *(record("jit", 10, 1), record("nested_jit", 5, 1), record("outermost_plain", 8, 1.2)),
        *(record("jit", 10, 1, layers=6), record("outermost_plain", 10.2, 1.01, layers=6)),
    ]
    found = by_name(records)
    cold = found["longest cold start, nothing marked"]
    assert (cold.value, cold.where, cold.is_met) == (1.02, "transformer layers=6 1.02x", True)
    nested = found["cold start against the better of flat and nested by hand, nothing marked"]
    assert (nested.value, nested.is_met) == (1.6, False)
    assert nested.where == "transformer layers=12 1.6x"
    assert "MISSED" in str(nested)


def test_depth_goal_compares_what_xla_takes():
    records = [record("outermost_plain", 2, 1), record("outermost_plain", 3.5, 1, layers=96)]
    name = "cold start of 96 layers against 12, nothing marked"
    assert by_name(records)[name].value == pytest.approx(1.75)
    assert not by_name(records)[name].is_met
    assert name not in by_name(records[:1])


def test_tiny_sizes_meet_and_miss_no_goal():
    tiny = PROGRAMS["lstm"].tiny
    records = [record(name, 1, 1, "lstm", **tiny) for name in ("jit", "outermost_plain")]
    assert goals.goals(records, WALL) == []
    assert "none is about" in goals.summary(records, WALL)


def test_no_goal_is_claimed_without_the_contender():
    assert goals.goals([record("jit", 1, 1), record("scan", 1, 1)], WALL) == []


def test_processor_time_can_be_the_judge():
    ours = dataclasses.replace(record("outermost_plain", 1, 1), cold_cpu_s=40.0)
    records = [record("jit", 10, 1), ours]
    assert by_name(records)["longest cold start, nothing marked"].value == pytest.approx(0.1)
    assert by_name(records, CPU)["longest cold start, nothing marked"].value == pytest.approx(2)


def measured(program="transformer", settings=None, round_number=0, **run_s):
    """Run times of a program, by turns; a processor takes twice as long as the clock says."""
    return turns.Turns(
        program=program,
        settings=dict(PROGRAMS[program].full) | (settings or {}),
        round=round_number,
        calls_per_turn=1,
        run_s=run_s,
        run_cpu_s={name: [2 * value for value in values] for name, values in run_s.items()},
        **here(),
    )


def test_run_goals_take_ratios_within_a_turn():
    # The machine is ten times as slow in the second turn; the ratio must not show it.
    found = {
        goal.name: goal
        for goal in goals.run_goals(
            [
                measured(jit=[1, 10, 1], outermost_plain=[1.2, 12, 1.2]),
                measured("lstm", jit=[1, 1, 1], outermost_plain=[0.3, 9, 0.3]),
                measured("mlp", PROGRAMS["mlp"].tiny, jit=[1], outermost_plain=[50]),
            ],
            WALL,
        )
    }
    longest, mean = found["longest run, nothing marked"], found["run time, nothing marked"]
    assert longest.value == pytest.approx(1.2)
    assert (longest.where, longest.is_met) == ("transformer layers=12 1.2x", False)
    assert mean.value == pytest.approx(0.6)
    assert mean.is_met
    assert "longest run, marked" not in found


def test_table_of_runs_shows_what_was_measured_by_turns():
    times = [[0.5, 5.0, 0.5], [1.0, 1.0, 1.0], [0.8, 8.0, 0.8]]
    lines = [
        dataclasses.asdict(measured(round_number=i, jit=[1.0, 10.0, 1.0], outermost_plain=ours))
        for i, ours in enumerate(times)
    ]
    row = tables.runs(lines).splitlines()[-1]
    assert row.startswith("| transformer layers = 12 | 1 s | 1.25x (1.00-2.00) | 1.25x")


# --- regret ---------------------------------------------------------------------------------------


def test_regret_is_against_the_best_contender_of_each_measure():
    records = [
        *(record("jit", 10, 1.0), record("xla_late", 4, 2.0), record("outermost_plain", 5, 1.05)),
        *(record("jit", 1, 1, layers=6), record("outermost_annotated", 0.5, 0.5, layers=6)),
    ]
    wrong, right = regret.regrets(records, WALL)
    assert (wrong.best_cold, wrong.best_run) == ("xla_late", "jit")
    assert (wrong.cold, wrong.run) == (pytest.approx(0.25), pytest.approx(0.05))
    assert wrong.is_wrong
    assert right.contender == "outermost_annotated"
    assert (right.cold, right.run, right.is_wrong) == (0, 0, False)
    row = next(line for line in regret.table(records, WALL).splitlines() if "xla_late" in line)
    assert "| 25% ! | xla_late | 5% | jit |" in row


# --- plots ----------------------------------------------------------------------------------------


def deepening(exponents):
    return [
        record(name, 0.1 * layers**exponent, 1, layers=layers)
        for name, exponent in exponents.items()
        for layers in (6, 12, 24)
    ]


def test_slope_against_depth_is_fitted():
    lines = plots.depth_lines(deepening({"jit": 1.5, "outermost_plain": 0.0}), WALL)
    slopes = {name: line.slope for name, line in lines["transformer"].items()}
    assert slopes["jit"] == pytest.approx(1.5)
    assert slopes["outermost_plain"] == pytest.approx(0, abs=1e-9)


def test_other_widths_are_no_points_of_the_depth_plot():
    records = [*deepening({"jit": 1.5}), record("jit", 99, 1, layers=48, width=64)]
    assert plots.depth_lines(records, WALL)["transformer"]["jit"].depths == [6, 12, 24]


def test_plots_are_files_that_parse(tmp_path):
    pytest.importorskip("matplotlib", exc_type=ImportError)
    records = deepening({"jit": 1.5, "nested_jit": 1.4, "outermost_plain": 0.0})
    records.append(record("jit", 1, 1, program="lstm"))  # a program with one contender only
    written = plots.draw(records, tmp_path / "plots", WALL)
    assert sorted(path.name for path in written) == [
        *("depth-transformer.svg", "speed-up.svg", "split.svg"),
    ]
    for path in written:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert path.stat().st_size > 10_000


def test_compare_says_what_plots_need(tmp_path, capsys, monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    results = tmp_path / "results.jsonl"
    results.write_text(record("jit", 1, 1).to_json())
    assert compare.main([str(results)]) == 0
    assert compare.main([str(results), "--plots", str(tmp_path / "plots")]) == 2
    assert "jitscope[bench]" in capsys.readouterr().err


def test_compare_prints_goals_and_regret(tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    records = [record("jit", 10, 1), record("outermost_plain", 1, 1)]
    results.write_text("\n".join(one.to_json() for one in records))
    assert compare.main([str(results), "--regret", "--cpu"]) == 0
    printed = capsys.readouterr().out
    assert "Goals, by CPU seconds" in printed
    assert "cold speed-up of deep programs, nothing marked: 10x" in printed
    assert "| transformer layers=12 | outermost_plain | 0% |" in printed


# --- the cost model -------------------------------------------------------------------------------


def modelled(layers, *, a=1e-4, p=1.5, call_s=0.002, run_us=30):
    """Two records of a program that costs what the law says, 100 equations a layer."""
    flat = record("jit", 1, 0.1, layers=layers)
    n_equations, n_compiled, n_calls = 100 * layers, 100, 2 * layers
    kept = record("outermost_plain", 1, 0.1 + n_calls * run_us * 1e-6, layers=layers)
    return [
        dataclasses.replace(flat, compile_cpu_s=a * n_equations**p),
        dataclasses.replace(
            kept,
            compile_cpu_s=a * n_compiled**p + n_calls * call_s,
            structure={
                "equations": n_equations,
                "compiled_equations": n_compiled,
                "kept_calls": n_calls,
            },
        ),
    ]


def test_fit_recovers_the_costs_that_records_were_made_with():
    records = [one for layers in (2, 6, 12, 48) for one in modelled(layers)]
    law, boundaries = fit.fit(records)
    assert (law.a, law.p, law.error) == (
        pytest.approx(1e-4),
        pytest.approx(1.5),
        pytest.approx(1),
    )
    assert len(boundaries) == 4
    assert [one.compile_s for one in boundaries] == pytest.approx([0.002] * 4)
    assert [one.run_s for one in boundaries] == pytest.approx([30e-6] * 4)
    text = fit.table(records)
    assert "equations^1.50" in text
    assert here()["versions"]["jax"] in text
    assert label("transformer", records[0].settings) in text


def test_fit_says_when_there_is_too_little(tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join(one.to_json() for one in modelled(12)))
    assert fit.main([str(results)]) == 2
    assert "three sizes" in capsys.readouterr().err

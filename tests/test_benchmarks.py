"""The benchmarks measure what they say they do. Nothing here asserts a time."""

import dataclasses
import functools
import importlib.util
import json
import math
import re

import jax
import numpy as np
import pytest

import jitscope
from benchmarks import (
    __main__ as suite_runner,
    compare,
    demo,
    dispatch,
    environment,
    outlining,
    rolled,
    turns,
)
from benchmarks.contenders import BASELINE, CONTENDERS
from benchmarks.measure import measure
from benchmarks.programs import PROGRAMS, agrees, digest
from benchmarks.record import IncomparableError, Record, read
from benchmarks.suites import SUITES, Entry, label

# `test_frameworks` covers the programs that need other packages.
OWN_PROGRAMS = [program for program in PROGRAMS.values() if not program.packages]
QUICK = {"seed2022", "nothing_shared", "small_bodies", "mlp"}
each_program = pytest.mark.parametrize("program", OWN_PROGRAMS, ids=lambda program: program.name)


@functools.cache
def tiny_record(program: str, contender: str) -> Record:
    settings = PROGRAMS[program].tiny
    return measure(PROGRAMS[program], CONTENDERS[contender], settings, run_repeats=2)


def assert_all_agree(program, contenders):
    reference = tiny_record(program.name, BASELINE)
    assert contenders
    for contender in contenders:
        ours = tiny_record(program.name, contender.name)
        assert agrees(ours.digest, reference.digest, program.tolerance), contender.name
        assert ours.n_instructions > 0
        assert len(ours.run_s) == 2


def split_contenders(program):
    covering = [one for one in CONTENDERS.values() if one.runs and one.covers(program)]
    ours = [one for one in covering if one.outermost is not jax.jit]
    return ours, [one for one in covering if one not in ours and one.name != BASELINE]


# Ten seconds of a processor at most, which on a machine that others use can be minutes.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(p, marks=[] if p.name in QUICK else [pytest.mark.slow], id=p.name)
        for p in OWN_PROGRAMS
    ],
)
def test_jitscope_computes_what_the_baseline_computes(program):
    ours, _ = split_contenders(program)
    assert_all_agree(program, ours)
    structure = tiny_record(program.name, "outermost_plain").structure
    assert structure["equations"] >= structure["compiled_equations"] > 0


# What people do without jitscope rarely rots, but takes longest to compile.
@pytest.mark.slow
@pytest.mark.timeout(300)
@each_program
def test_other_contenders_compute_what_the_baseline_computes(program):
    _, others = split_contenders(program)
    assert_all_agree(program, others)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_sizes_of_a_program_have_the_same_settings(program):
    assert program.full.keys() == program.tiny.keys()
    assert program.depth(program.full) >= program.depth(program.tiny) >= 1


def test_digest_notices_one_changed_element():
    result = {"loss": np.float32(2.0), "gradients": [np.ones((30, 30), np.float32)] * 40}
    changed = jax.tree.map(np.array, result)
    changed["gradients"][17][3, 4] = 2.0
    assert agrees(digest(result), digest(jax.tree.map(np.array, result)), 1e-3)
    assert not agrees(digest(changed), digest(result), 1e-3)


def test_digest_notices_exchanged_elements():
    values = np.arange(100.0)
    assert not agrees(digest([0.0, np.roll(values, 1)]), digest([0.0, values]), 1e-3)


def test_nan_never_agrees():
    assert not agrees(digest([np.nan]), digest([np.nan]), 1e-3)


def test_record_survives_its_json_line():
    record = tiny_record("seed2022", BASELINE)
    assert Record.from_json(record.to_json()) == record
    assert json.loads(record.to_json())["cold_s"] == record.cold_s


def test_table_compares_contenders_round_by_round():
    record = dataclasses.replace(
        tiny_record("seed2022", BASELINE), trace_s=0.0, lower_s=0.0, compile_s=8.0
    )
    # The machine is half as fast in round 1; the ratio must not show it.
    baseline = [record, dataclasses.replace(record, round=1, compile_s=16.0)]
    ours = [dataclasses.replace(r, contender="scan", compile_s=r.compile_s / 4) for r in baseline]
    row = next(line for line in compare.table(baseline + ours).splitlines() if "scan" in line)
    assert "| 4x (4-4)" in row


def test_different_machines_are_refused():
    record = tiny_record("seed2022", BASELINE)
    other = dataclasses.replace(record, machine=record.machine | {"n_cores": 4096})
    with pytest.raises(IncomparableError, match="n_cores .*4096"):
        compare.report([record, other])


def test_wrong_result_is_reported():
    record = tiny_record("seed2022", BASELINE)
    wrong = dataclasses.replace(record, contender="scan", digest=[1.0, 2.0, 3.0])
    later = dataclasses.replace(wrong, contender="nested_jit", digest=record.digest)
    assert compare.mismatches([wrong, later]) == ["seed2022 tiny: nested_jit disagrees with scan"]
    assert compare.mismatches([record, record]) == []
    assert compare.mismatches([record, wrong]) == ["seed2022 tiny: scan disagrees with jit"]


def test_missing_file_is_an_error_of_usage(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        compare.main([str(tmp_path / "nothing.jsonl")])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "nothing.jsonl" in error and "python -m benchmarks --suite" in error


def test_contenders_alternate_within_a_round():
    contenders = [CONTENDERS["jit"], CONTENDERS["nested_jit"]]
    entries = SUITES["tiny"][:2]
    tasks = list(suite_runner.tasks(entries, contenders, 2))
    assert [(task.entry, task.contender.name) for task in tasks] == [
        *((entries[0], "jit"), (entries[0], "nested_jit")),
        *((entries[1], "jit"), (entries[1], "nested_jit")),
        *((entries[0], "nested_jit"), (entries[0], "jit")),
        *((entries[1], "nested_jit"), (entries[1], "jit")),
    ]


def test_contender_stops_after_the_rounds_that_an_entry_allows_it():
    contenders = [CONTENDERS[name] for name in ("jit", "nested_jit", "outermost_plain")]
    program = PROGRAMS["seed2022"]
    entry = Entry(program, program.tiny, most_rounds={"jit": 1, "nested_jit": 0})
    made = [
        (task.contender.name, task.round) for task in suite_runner.tasks([entry], contenders, 2)
    ]
    assert sorted(made) == [("jit", 0), ("outermost_plain", 0), ("outermost_plain", 1)]


def test_every_program_is_in_the_cpu_suite():
    assert {entry.program.name for entry in SUITES["cpu"]} == PROGRAMS.keys()
    for entry in SUITES["cpu"]:
        assert entry.most_rounds.keys() <= CONTENDERS.keys()


def test_gpu_suite_says_what_it_needs(capsys):
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    assert suite_runner.main(["--suite", "gpu"]) == 2
    message = capsys.readouterr().err
    assert "needs a GPU" in message
    assert "JAX found cpu" in message
    assert "gpu-target:h200" in message


def test_compilations_for_a_target_are_kept_with_their_round(tmp_path):
    entry, contender = SUITES["gpu"][0], CONTENDERS["outermost_staged"]
    first, second = suite_runner.tasks([entry], [contender], 2, target="h200")
    line = {
        "program": entry.program.name,
        "contender": contender.name,
        "target": "h200",
        "settings": dict(entry.settings),
        "trace_s": 1.0,
        "compile_s": 2.0,
        "kernels": {"gemms": 3, "fusions": 4},
        "versions": environment.versions(),
    }
    kept, in_words = first.finish(json.dumps(line))
    assert in_words == "cold 3.00 s, 7 kernels"
    out = tmp_path / "results.jsonl"
    assert suite_runner.finished_targets(out, "h200") == set()
    out.write_text(kept + "\n")
    assert suite_runner.finished_targets(out, "h200") == {first.key} != {second.key}
    assert suite_runner.finished_targets(out, "a100") == set()


@pytest.mark.slow
def test_target_suite_stops_at_once_without_the_compiler(tmp_path, capsys):
    plugins = importlib.util.find_spec("jax_plugins")
    if plugins and importlib.util.find_spec("jax_plugins.xla_cuda13"):
        pytest.skip("the compiler for GPUs is installed")
    out = tmp_path / "results.jsonl"
    options = ["--programs", "small_bodies", "lstm", "--contenders", "jit", "--out", str(out)]
    assert suite_runner.main(["--suite", "gpu-target:h200", *options]) == 1
    printed = capsys.readouterr().out
    assert "pip install" in printed
    assert printed.count("FAILED") == 1


def test_finished_measurements_are_not_made_again():
    record = tiny_record("seed2022", BASELINE)
    done = suite_runner.finished([record])
    entry = next(e for e in SUITES["tiny"] if e.program.name == "seed2022")
    first, second = suite_runner.tasks([entry], [CONTENDERS[BASELINE]], 2)
    assert first.key in done
    assert second.key not in done
    other_jax = dataclasses.replace(record, versions=record.versions | {"jax": "0.0"})
    assert suite_runner.finished([other_jax]) == set()


def test_label_shows_depth_and_what_is_unusual():
    full = PROGRAMS["transformer"].full
    assert label("transformer", dict(full)) == "transformer layers=12"
    assert label("transformer", dict(full) | {"width": 64}) == "transformer layers=12 width=64"


@pytest.mark.slow
def test_suite_measures_in_processes_and_resumes(tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    command = ["--programs", "seed2022", "--contenders", "jit", "scan", "--repeats", "1"]
    for _ in range(2):
        assert suite_runner.main([*command, "--out", str(out)]) == 0
    assert [record.contender for record in read([out])] == ["jit", "scan"]
    assert compare.main([str(out)]) == 0
    assert "cold speed-up" in capsys.readouterr().out


def test_run_times_are_measured_by_turns_in_one_process():
    names = ["jit", "outermost_plain"]
    found = turns.measure("seed2022", PROGRAMS["seed2022"].tiny, names, n_turns=3)
    for seconds in (found.run_s, found.run_cpu_s):
        assert list(seconds) == names
        assert all(len(values) == 3 and min(values) > 0 for values in seconds.values())
    assert found.calls_per_turn > 1
    assert found.label == "seed2022 tiny"


def test_run_times_of_another_result_are_refused(monkeypatch):
    wrong = dataclasses.replace(CONTENDERS["scan"], outermost=lambda fun: jax.jit(doubled(fun)))
    monkeypatch.setitem(CONTENDERS, "scan", wrong)
    with pytest.raises(ValueError, match="seed2022 tiny: scan disagrees with jit"):
        turns.measure("seed2022", PROGRAMS["seed2022"].tiny, ["jit", "scan"], n_turns=1)


def doubled(fun):
    return lambda *args: jax.tree.map(lambda leaf: 2 * leaf, fun(*args))


@pytest.mark.slow
def test_turns_are_a_process_a_program_and_resume(tmp_path, capsys):
    out = tmp_path / "turns.jsonl"
    command = ["--programs", "seed2022", "--contenders", "scan", "--turns", "3", "--rounds", "2"]
    command += ["--out", str(out)]
    assert turns.main(command) == 0
    assert "seed2022 tiny, round 1" in capsys.readouterr().out
    assert turns.main(command) == 0
    assert capsys.readouterr().out == ""
    assert [list(found.run_s) for found in turns.read(out)] == [["jit", "scan"], ["scan", "jit"]]


def test_dispatch_covers_every_contender():
    found = dispatch.measure(turns=2, leaves=3, layers=6, n_calls=2)
    contenders = {"jit", "jit_again", "outermost_jit", "shared_subroutine", "staged"}
    assert {one.contender for one in found} == contenders
    assert all(math.isfinite(one.ratio) for one in found)
    assert "tree of 3 leaves" in dispatch.table(found)


def test_layers_of_the_dispatch_run_in_stages_that_have_nothing_to_do():
    step, arguments = dispatch.cases(leaves=3, layers=12)["12 layers"]
    lowered = jitscope.outermost_jit(step, staged=True).lower(*arguments)
    assert lowered.n_runs == (12, 12)
    computed = re.compile(r" (dot|multiply|add)\(")
    assert not any(computed.search(stage.as_text()) for stage in lowered.compile())


@pytest.mark.parametrize("program", outlining.PROGRAMS)
def test_outlining_is_measured_on_a_program_of_the_size_asked_for(program):
    found = outlining.measure(program, 300, turns=1)
    assert 200 <= found.n_equations <= 450
    assert found.outlining_s == found.outlined_s[0] - found.structured_s[0]
    assert found.us_per_equation == pytest.approx(found.outlining_s / found.n_equations * 1e6)
    assert str(found.n_equations) in outlining.table([found])


def test_outlining_finds_repeats_in_one_of_its_two_programs_only():
    kept = {}
    for name, make in outlining.PROGRAMS.items():
        fun, args = make(1000)
        outermost = jitscope.outermost_jit(fun)
        outermost.trace(*args)
        kept[name] = max((body.n_uses for body in outermost.reuse().census.bodies), default=0)
    assert kept["repetitive"] > 10 > kept["irregular"]


@pytest.mark.slow
def test_rolled_program_is_measured_against_a_scan_and_the_stacking():
    found = rolled.measure(dict(PROGRAMS["transformer"].tiny), turns=2)
    assert set(found.medians_s) == {"jit_s", "rolled_s", "scan_s", "stacking_s"}
    assert math.isfinite(found.ratio)


@pytest.mark.slow
def test_cold_starts_of_a_rolled_program_are_measured_where_something_was_rolled():
    settings = {"layers": 8, "width": 16, "heads": 2, "vocabulary": 16}
    settings = dict(PROGRAMS["transformer"].tiny) | {
        name: n for name, n in settings.items() if name in PROGRAMS["transformer"].tiny
    }
    found = rolled.measure_cold("transformer", settings)
    assert set(found) == {"jit_cold_s", "shared_cold_s", "rolled_cold_s", "n_rolled"}
    assert found["n_rolled"] > 0


def test_demo_trains_alike_with_and_without_jitscope():
    plain, ours = (demo.train(with_jitscope, layers=1, steps=2) for with_jitscope in (False, True))
    assert demo.largest_difference(plain, ours) <= demo.LOSS_TOLERANCE
    assert "cold start" in demo.report(plain, ours)
    assert ours["reuse"]


@pytest.mark.slow
def test_demo_runs_as_a_command(capsys):
    assert demo.main(["--layers", "2", "--steps", "2"]) == 0
    assert "losses agree" in capsys.readouterr().out


def test_machine_and_versions_are_known():
    assert environment.machine()["processor"]
    assert environment.versions()["jax"] == jax.__version__
    assert environment.peak_rss_bytes() > 1e6

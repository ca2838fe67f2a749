"""`python -m jitscope report`, `diff` and `run --json`."""

import dataclasses
import gzip
import json
import os
import subprocess
import sys

import pytest
from helpers import python_environment
from report_samples import body, everything, hostile, program

import jitscope.report
from jitscope.report import diff, profiles
from jitscope.reuse.reuse_report import ReuseReport
from jitscope.running.cli import main
from jitscope.seconds import Seconds


def saved(tmp_path, name, report):
    path = tmp_path / name
    jitscope.report.save(report, path)
    return str(path)


def of(*programs):
    return ReuseReport(programs)


def test_report_shows_the_text(tmp_path, capsys):
    assert main(["report", saved(tmp_path, "run.json", everything())]) == 0
    assert "model: 185 equations; 6 calls -> 1 shared body" in capsys.readouterr().out


def test_report_writes_pages_and_profiles(tmp_path, capsys):
    path = saved(tmp_path, "run.json", everything())
    names = {"--html": "run.html", "--speedscope": "run.speedscope.json", "--pprof": "run.pb.gz"}
    assert (
        main(
            [
                "report",
                path,
                *(
                    part
                    for option, name in names.items()
                    for part in (option, str(tmp_path / name))
                ),
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == ""
    assert sorted(os.listdir(tmp_path)) == sorted(["run.json", *names.values()])


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "run.json'. `python -m jitscope run --json "),
        ("{", "not JSON"),
        ('{"kind": "jitscope report", "format": 99}', "99"),
    ],
)
def test_file_that_is_no_report_is_an_error_of_usage(tmp_path, capsys, content, message):
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    for command in (["report", str(path)], ["diff", str(path), str(path)]):
        with pytest.raises(SystemExit) as stopped:
            main(command)
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error


@pytest.mark.parametrize("command", ["report", "compare"])
def test_command_that_does_not_compare_reports_names_the_one_that_does(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "a.json", "b.json"])
    assert ended.value.code == 2
    assert "Did you mean: python -m jitscope diff a.json b.json" in capsys.readouterr().err


def test_page_that_cannot_be_written_is_said_so(tmp_path, capsys):
    path = saved(tmp_path, "run.json", everything())
    assert main(["report", path, "--html", str(tmp_path / "no" / "run.html")]) == 2
    assert "could not write" in capsys.readouterr().err


def test_reader_that_has_seen_enough_is_no_error(tmp_path):
    many = ReuseReport(
        tuple(program(body(f"b{i}" * 30), name=f"p{i}") for i in range(3)),
        failures=("x" * 100_000,),
    )
    path = saved(tmp_path, "run.json", many)
    done = subprocess.run(
        f"'{sys.executable}' -m jitscope report '{path}' | head -n 1",
        shell=True,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("\n") == 1 and done.stderr == ""


# --- diff -----------------------------------------------------------------------------------------


def grown(**changes):
    return of(dataclasses.replace(program(body()), **changes))


@pytest.mark.parametrize(
    "changes, budgets, status, shown",
    [
        ({}, ["compiled=0"], 0, "no count changed"),
        ({"n_compiled": 60}, [], 0, "model  compiled  30 -> 60  +100.0 %"),
        ({"n_compiled": 60}, ["compiled=99"], 1, "over its budget of +99 %"),
        ({"n_compiled": 60}, ["compiled=100%"], 0, "+100.0 %"),
        ({"n_compiled": 60}, ["equations=0"], 0, "+100.0 %"),
        ({"n_compiled": 20}, ["compiled=0"], 0, "-33.3 %"),
        ({"n_compiled": 29}, ["compiled=-10"], 1, "over its budget of -10 %"),
        ({"seconds": Seconds(5.0)}, [], 0, "no count changed"),
        ({"seconds": Seconds(50.0)}, [], 0, "+1150.0 %"),
        ({"seconds": Seconds(5.0)}, ["seconds=10"], 1, "over its budget"),
        ({"name": "other"}, ["compiled=0", "equations=0"], 0, "new"),
        ({"bodies": (body(), body("head", 1, 1))}, ["bodies=0"], 1, "bodies  1 -> 2"),
    ],
)
def test_budget_decides_the_exit_status(tmp_path, capsys, changes, budgets, status, shown):
    before = saved(tmp_path, "before.json", of(program(body())))
    after = saved(tmp_path, "after.json", grown(**changes))
    options = [part for budget in budgets for part in ("--budget", budget)]
    assert main(["diff", before, after, *options]) == status
    assert shown in capsys.readouterr().out


def test_difference_to_a_program_that_was_only_looked_at_is_told_as_a_prediction():
    done = of(program(body()), program(body(), name="other"))
    looked_at = of(program(body(), is_applied=False), program(body(), name="other"))
    plain = diff.render(diff.difference(looked_at, looked_at), {})
    assert plain == diff.render(diff.difference(done, done), {}) == "no count changed"
    for before, after, which in ((looked_at, done, "earlier"), (done, looked_at, "later")):
        shown = diff.render(diff.difference(before, after), {})
        first, second = shown.split("\n")
        assert first == "no count changed, but one of the two is a prediction"
        assert second.startswith(f"model: only looked at in the {which} report, and structured in ")
        assert "a prediction, of 30 equations; jax.jit compiles all 180" in second
    more = grown(n_compiled=60, is_applied=False)
    lines = diff.render(diff.difference(done, more), {}).split("\n")
    assert lines[0].startswith("model  compiled") and "30 -> 60" in lines[0]
    assert lines[-1].startswith("model: only looked at in the later report")


def test_more_traces_of_a_subroutine_exceed_a_budget():
    before = everything()
    (layer,) = before.subroutines
    after = dataclasses.replace(before, subroutines=(dataclasses.replace(layer, n_traces=4),))
    found = diff.difference(before, after)
    assert [c.count for c in found.exceeding({"traces": 0})] == ["traces"]
    assert not found.exceeding({"traces": 50})


def test_programs_of_one_name_are_matched_in_order():
    before = of(program(body()), program(body("b", 2, 3)))
    after = of(program(body()), program(body("b", 2, 4)), program())
    changed = [
        (c.before, c.after)
        for c in diff.difference(before, after).changes
        if c.count == "equations"
    ]
    assert changed == [(180, 180), (6, 8), (None, 1)]


def test_program_that_is_gone_is_shown():
    assert "gone" in diff.render(diff.difference(everything(), ReuseReport()), {})


@pytest.mark.parametrize("budget", ["x=3", "compiled", "compiled=much", "=", ""])
def test_budget_that_makes_no_sense_is_refused(tmp_path, capsys, budget):
    path = saved(tmp_path, "run.json", everything())
    with pytest.raises(SystemExit) as stopped:
        main(["diff", path, path, "--budget", budget])
    assert stopped.value.code == 2
    assert "compiled" in capsys.readouterr().err


# --- run --json -----------------------------------------------------------------------------------


def jitscope_process(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "jitscope", *arguments],
        cwd=tmp_path,
        text=True,
        env=python_environment({"JITSCOPE_STRICT": "1"}),
        capture_output=True,
        timeout=100,
        check=False,
    )


SCRIPT = """
import jax, jax.numpy as jnp
@jax.jit
def layer(x):
    return jnp.sin(x) * jnp.cos(x) + jnp.tanh(x)
@jax.jit
def model(x):
    for _ in range(50):
        x = layer(x)
    return x
model(jnp.ones(3))
"""


def test_run_writes_a_record_that_report_and_diff_read(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in ("a.json", "b.json"):
        done = jitscope_process(tmp_path, "run", "--json", name, "script.py")
        assert done.returncode == 0, done.stderr
        assert "model: 250 equations" in done.stderr
    record = jitscope.report.load(tmp_path / "a.json")
    model = next(one for one in record.programs if one.name == "model")
    assert (model.n_equations, model.bodies[0].n_uses) == (250, 50)
    assert any("script.py:5" in line.stack[-1] for line in model.lines)
    shown = jitscope_process(tmp_path, "report", "a.json")
    assert "model: 250 equations" in shown.stdout
    same = jitscope_process(tmp_path, "diff", "a.json", "b.json", "--budget", "compiled=0")
    assert (same.returncode, same.stderr) == (0, "")


@pytest.mark.parametrize("suffix, start", [(".html", "<!DOCTYPE html>"), (".json", '{\n "kind"')])
def test_run_writes_its_report_in_the_format_of_the_file(tmp_path, suffix, start):
    (tmp_path / "script.py").write_text("import jax; jax.jit(lambda x: x + 1)(1.0)")
    done = jitscope_process(tmp_path, "run", "--report", f"out{suffix}", "script.py")
    path = tmp_path / f"out{suffix}"
    assert (done.returncode, done.stderr) == (0, f"jitscope: the report is in {path}\n")
    assert path.read_text().startswith(start)


def test_run_without_jax_writes_an_empty_record(tmp_path):
    (tmp_path / "script.py").write_text("print('hello')")
    done = jitscope_process(tmp_path, "run", "--json", "a.json", "script.py")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert jitscope.report.load(tmp_path / "a.json") == ReuseReport()


def test_record_that_cannot_be_written_leaves_the_script_alone(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "script.py").write_text("import os; os.rmdir('deep')")
    done = jitscope_process(tmp_path, "run", "--json", "deep/a.json", "script.py")
    assert done.returncode == 0
    assert "could not write its record" in done.stderr


# --- profiles -------------------------------------------------------------------------------------


def test_speedscope_profiles_are_well_formed():
    content = json.loads(profiles.speedscope(everything()))
    frames = content["shared"]["frames"]
    assert frames[1] == {"name": "layer", "file": "model.py", "line": 12}
    before, after = content["profiles"]
    assert (before["name"], after["name"]) == ("model: equations before", "model: equations after")
    for profile, total in ((before, 180), (after, 30)):
        assert profile["endValue"] == sum(profile["weights"]) == total
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(i < len(frames) for sample in profile["samples"] for i in sample)


def fields(message):
    """Numbers and values of a protocol buffer message."""
    at, found = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        value = varint()
        if key & 7 == 2:
            at, value = at + value, message[at : at + value]
        else:
            assert key & 7 == 0
        found.append((key >> 3, value))
    return found


def packed(data):
    return [value for _, value in fields(b"".join(b"\x08" + part for part in split(data)))]


def split(data):
    start = 0
    for i, byte in enumerate(data):
        if byte < 0x80:
            yield data[start : i + 1]
            start = i + 1


@pytest.mark.parametrize("make", [everything, hostile])
def test_pprof_profile_has_a_sample_for_each_stack(make):
    report = make()
    profile = fields(gzip.decompress(profiles.pprof(report)))
    strings = [value.decode() for number, value in profile if number == 6]
    assert strings[0] == ""
    types = [dict(fields(value)) for number, value in profile if number == 1]
    assert [strings[kind[1]] for kind in types] == ["equations_before", "equations_after"]
    functions = {
        f[1]: strings[f[2]]
        for number, value in profile
        if number == 5
        for f in [dict(fields(value))]
    }
    lines = [line for one in report.programs for line in one.lines]
    samples = [dict(fields(value)) for number, value in profile if number == 2]
    assert [packed(sample[2]) for sample in samples] == [[a.n_before, a.n_after] for a in lines]
    for sample, line in zip(samples, lines, strict=True):
        stack = [functions[i] for i in packed(sample[1])]
        assert len(stack) == 1 + len(line.stack)
        assert stack[-1] == report.programs[0].name


def test_equal_reports_make_equal_profiles(tmp_path):
    for kind in ("pprof", "speedscope"):
        paths = [tmp_path / f"{kind}{i}" for i in range(2)]
        for path in paths:
            profiles.save(everything(), path, kind=kind)
        assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(ValueError, match="allowed are"):
        profiles.save(everything(), tmp_path / "x", kind="perf")

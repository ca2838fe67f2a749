import dataclasses
import errno
import json as standard_json
import os
import subprocess
import sys

import pytest
from report_samples import everything, hostile, layers, traced_report

import jitscope.report
from jitscope.report import json
from jitscope.report.files import check_writable, replace_file
from jitscope.reuse.reuse_report import ReuseReport


@pytest.mark.parametrize("make", [everything, hostile, traced_report, ReuseReport])
def test_report_survives_the_round_trip(make):
    report = make()
    assert json.loads(json.dumps(report)) == report


def test_text_starts_with_kind_and_format():
    content = standard_json.loads(json.dumps(everything()))
    assert list(content) == ["kind", "format", "report"]
    assert (content["kind"], content["format"]) == ("jitscope report", 1)


def test_fields_added_since_may_be_missing():
    content = standard_json.loads(json.dumps(everything()))
    for name in ("is_backward", "n_traces", "sites", "near_misses", "jaxpr"):
        del content["report"]["programs"][0]["bodies"][1][name]
    assert json.loads(standard_json.dumps(content)).programs[0].bodies[1].n_traces == 1


def broken(change):
    content = standard_json.loads(json.dumps(everything()))
    change(content)
    return standard_json.dumps(content)


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "something else"),
        ("{}", "something else"),
        ('{"kind": 3}', "something else"),
        (
            broken(lambda c: c.update(format=2)),
            "it has format 2, and this jitscope reads formats up",
        ),
        (broken(lambda c: c.update(format=True)), "format number is True"),
        (broken(lambda c: c.update(format="1")), "format number is '1'"),
        (broken(lambda c: c.pop("report")), "report should be an object, got None"),
        (broken(lambda c: c["report"].update(extra=1)), "report has unknown field(s) 'extra'"),
        (
            broken(lambda c: c["report"].update(programs={})),
            "report.programs should be a list, got {}",
        ),
        (broken(lambda c: c["report"]["programs"][0].pop("name")), "report.programs[0] lacks name"),
        (
            broken(lambda c: c["report"]["programs"][0].update(n_equations=1.5)),
            "report.programs[0].n_equations should be a whole number, got 1.5",
        ),
        (
            broken(lambda c: c["report"]["programs"][0].update(n_equations=True)),
            "n_equations should be a whole number, got True",
        ),
        (
            broken(lambda c: c["report"]["programs"][0]["bodies"][0].update(outlined=0)),
            "report.programs[0].bodies[0].outlined should be true or false, got 0",
        ),
        (
            broken(lambda c: c["report"]["programs"][0]["seconds"].update(trace_s="1")),
            "seconds.trace_s should be a number, got '1'",
        ),
        (
            broken(lambda c: c["report"].update(failures=[None])),
            "report.failures[0] should be a text, got None",
        ),
    ],
    ids=lambda value: value[:30],
)
def test_damaged_text_says_what_is_wrong_and_where(content, message):
    with pytest.raises(json.ReportFormatError) as error:
        json.loads(content)
    assert message in str(error.value)


def test_infinite_seconds_are_refused():
    with pytest.raises(json.ReportFormatError, match="seconds"):
        json.loads(json.dumps(everything()).replace('"trace_s": 1.5', '"trace_s": Infinity'))


@pytest.mark.parametrize("suffix", [".json", ".html", ".txt", ".HTML"])
def test_saving_picks_the_format_by_suffix(tmp_path, suffix):
    path = tmp_path / f"run{suffix}"
    jitscope.report.save(everything(), path)
    start = {".json": '{\n "kind"', ".html": "<!DOCTYPE", ".txt": "model: "}[suffix.lower()]
    assert path.read_text().startswith(start)
    assert os.listdir(tmp_path) == [path.name]


def test_live_record_can_be_saved_and_loaded(tmp_path):
    model, args = layers()
    model.trace(*args)
    jitscope.report.save(model.reuse(), tmp_path / "run.json")
    assert jitscope.report.load(tmp_path / "run.json").n_equations == 18


def test_unknown_suffix_names_those_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"must end in one of \.json, \.html, \.txt"):
        jitscope.report.save(everything(), tmp_path / "run.pdf")


def test_loading_names_the_file(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"\xff\xfe broken")
    with pytest.raises(json.ReportFormatError, match=r"cannot read .*run\.json.*not JSON"):
        jitscope.report.load(path)


@pytest.mark.parametrize("path", [None, True, 1])
def test_loading_takes_a_path(path):
    with pytest.raises(TypeError, match=f"load\\(\\) needs a path, got {path}"):
        jitscope.report.load(path)


def test_loading_what_is_not_there_says_how_to_make_one(tmp_path):
    path = str(tmp_path / "missing.json")
    with pytest.raises(FileNotFoundError, match=r"run --json FILE .*save\(train_step") as raised:
        jitscope.report.load(path)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, path)
    assert path in str(raised.value)


@pytest.mark.parametrize("name", ["no/run.html", f"{'r' * 250}.html", "/proc/run.html"])
def test_error_of_saving_names_the_path_that_was_given(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for save in (jitscope.report.save, lambda report, path: check_writable(path)):
        with pytest.raises(OSError) as raised:
            save(everything(), name)
        assert raised.value.filename == name
        assert "unfinished" not in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_checking_that_a_file_can_be_written_changes_nothing(tmp_path):
    path = tmp_path / "run.json"
    check_writable(path)
    assert os.listdir(tmp_path) == []
    path.write_text("old")
    check_writable(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]
    check_writable(os.devnull)
    with pytest.raises(PermissionError):
        check_writable(tmp_path)


def test_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "half" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    # In a process of its own: the limit on the size of files cannot be raised again.
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "from jitscope.report.files import replace_file; "
        "replace_file(sys.argv[1], 'x' * 100_000)"
    )
    source = os.path.dirname(os.path.dirname(jitscope.__file__))
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        check=False,
    )
    assert "OSError" in done.stderr or "File too large" in done.stderr
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    os.symlink(tmp_path / "real.txt", tmp_path / "link.txt")
    replace_file(tmp_path / "link.txt", "new")
    assert os.path.islink(tmp_path / "link.txt")
    assert (tmp_path / "real.txt").read_text() == "new"


def test_reports_add_up_and_are_frozen():
    one = everything()
    both = one + traced_report()
    assert len(both.programs) == 2
    assert both.n_equations == one.n_equations + 18
    assert both.seconds.trace_s == one.seconds.trace_s + both.programs[1].seconds.trace_s
    assert sum([one, one], ReuseReport()).failures == one.failures * 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.programs = ()
    with pytest.raises(TypeError):
        one + 1


def test_exported_records_can_be_read_back():
    # Reading the exported name changes the module that the class says it is from.
    exported = jitscope.ReuseReport
    assert json.loads(json.dumps(everything())) == everything()
    assert exported is ReuseReport
    assert exported.__module__ == "jitscope"

"""`python -m jitscope run`: the script must not notice, and the report must tell.

A case of `BEHAVIOURS` is a program whose exit status and output are to be the same under `python`
and under `python -m jitscope run`. Most do without JAX and take a blink.
"""

from __future__ import annotations

import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import python_environment

DEEP = """
    import sys
    import jax, jax.numpy as jnp

    def layer(x, w):
        for _ in range(3):
            h = jnp.tanh(x @ w)
            x = x + jnp.sin(h) * jnp.cos(h) + jnp.exp(-h * h)
        return x

    @jax.jit
    def model(x, ws):
        one = jax.jit(layer)
        for w in ws:
            x = one(x, w)
        return x.sum()

    x, ws = jnp.ones((4, 8)), [jnp.eye(8) * 0.01] * 48
    value = float(model(x, ws))
"""


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def run(
    directory: Path, *arguments: str, stdin: str = "", strict: bool = False
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        input=stdin,
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
        env=python_environment({"JITSCOPE_STRICT": "1" if strict else "0"}),
    )


def jitscope_run(
    directory: Path, *arguments: str, stdin: str = "", options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    return run(directory, "-m", "jitscope", "run", *options, *arguments, stdin=stdin)


def without_lines_of_jitscope(stderr: str) -> str:
    return re.sub(r"jitscope: (--report stands after|the report is in) .*\n", "", stderr)


# --- the script does not notice -------------------------------------------------------------------

BEHAVIOURS = {
    "what_it_is": """
        import sys
        print(__name__, __file__, __spec__, __package__, __cached__, type(__loader__), __doc__)
        print(sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals())
        print(sorted(globals()))
        """,
    "annotations_are_not_postponed": """
        class Point:
            x: int
        y: int = 1
        print(Point.__annotations__, __annotations__)
        """,
    "nothing_of_jitscope_runs_without_jax": """
        import sys
        print("jax" in sys.modules, "numpy" in sys.modules)
        """,
    "stdin": """
        import sys
        print(sys.stdin.read()[::-1], end="", file=sys.stderr)
        """,
    "exit_status": "import sys; sys.exit(7)",
    "exit_message": "import sys; sys.exit('no data')",
    "exit_none": "raise SystemExit",
    "exception": """
        def f(x):
            return 1 / x
        try:
            f(0)
        except ZeroDivisionError as error:
            raise KeyError("outer") from error
        """,
    "exception_group_and_notes": """
        error = ExceptionGroup("several", [ValueError(1), TypeError(2)])
        error.add_note("a note")
        raise error
        """,
    "syntax_error": "x = (\n",
    "import_error": "import no_such_module",
    "recursion_error": """
        import sys
        def f(): f()
        try:
            f()
        except RecursionError:
            print("caught")
        """,
    "keyboard_interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "keyboard_interrupt_raised": "raise KeyboardInterrupt",
    "keyboard_interrupt_after_a_jit": """
        import atexit, os, signal, jax
        atexit.register(print, "at exit")
        jax.jit(lambda x: x + 1)(1.0)
        os.kill(os.getpid(), signal.SIGINT)
        """,
    "sigterm": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "sigterm_handled": """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        os.kill(os.getpid(), signal.SIGTERM)
        """,
    "signal_handlers": """
        import signal
        print([signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])
        """,
    "abrupt_end": "import os; print('flushed', flush=True); os._exit(9)",
    "own_excepthook": """
        import sys, traceback
        def hook(kind, error, tb):
            print("hooked", kind, len(traceback.extract_tb(tb)))
        sys.excepthook = hook
        raise ValueError("x")
        """,
    "pickling_after_the_end": """
        import atexit, pickle, threading, time
        class Point:
            pass
        def later():
            time.sleep(0.2)
            print("thread", type(pickle.loads(pickle.dumps(Point()))).__name__)
        threading.Thread(target=later).start()
        atexit.register(lambda: print("atexit", type(pickle.loads(pickle.dumps(Point())))))
        """,
    "spawned_processes": """
        import multiprocessing, os, sys
        class Point:
            def __init__(self, x): self.x = x
        def double(p):
            return Point(2 * p.x)
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print([p.x for p in pool.map(double, [Point(1), Point(2)])])
        else:
            print(__name__, os.path.basename(__file__), flush=True)
        """,
    "forked_process": """
        import os, sys
        if os.fork() == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """,
    "closed_streams": """
        import sys
        sys.stderr.close()
        """,
    "change_of_directory": """
        import inspect, os
        def f(): pass
        os.chdir("/")
        print(inspect.getsource(f), __file__)
        """,
    "modules_beside_it": """
        import helper_beside
        print(helper_beside.__file__)
        """,
}


@pytest.mark.parametrize("source", BEHAVIOURS.values(), ids=list(BEHAVIOURS))
def test_script_behaves_as_under_python(tmp_path, source):
    write(tmp_path, {"dir/script.py": source, "dir/helper_beside.py": ""})
    arguments = ["dir/script.py", "--report", "-m", "--", "-x", "--observe"]
    plain = run(tmp_path, *arguments, stdin="abc\n")
    under = jitscope_run(tmp_path, *arguments, stdin="abc\n", options=["--report", "report.txt"])
    own = without_lines_of_jitscope(under.stderr)
    assert (under.returncode, under.stdout, own) == (plain.returncode, plain.stdout, plain.stderr)
    assert not (tmp_path / "dir" / "__pycache__" / "script.cpython-312.pyc").exists()


def test_script_is_executed_at_all(tmp_path):
    # What the comparisons above rest on.
    write(tmp_path, {"script.py": "print('ran'); raise SystemExit(3)"})
    assert (run(tmp_path, "script.py").returncode, jitscope_run(tmp_path, "script.py").stdout) == (
        3,
        "ran\n",
    )


MODULES = {
    "module": ["package.module", "-m", "x"],
    "package": ["package", "--report"],
    "top_level_module": ["alone"],
}


@pytest.mark.parametrize("arguments", MODULES.values(), ids=list(MODULES))
def test_module_behaves_as_under_python(tmp_path, arguments):
    source = """
        import pickle, sys
        class Point: pass
        print(__name__, __file__, __spec__.name, __package__, sys.argv, sys.path[0], __cached__)
        print(pickle.loads(pickle.dumps(Point())).__class__)
        sys.exit(4)
        """
    write(
        tmp_path,
        {
            "package/__init__.py": "import sys; print(sys.argv)",
            "package/module.py": source,
            "package/__main__.py": source,
            "alone.py": source,
        },
    )
    plain = run(tmp_path, "-m", *arguments)
    under = jitscope_run(tmp_path, "-m", *arguments)
    assert (under.returncode, under.stdout) == (plain.returncode, plain.stdout)
    assert plain.returncode == 4


@pytest.mark.parametrize("kind", ["directory", "zip", "compiled", "link"])
def test_other_kinds_of_scripts_run_as_under_python(tmp_path, kind):
    write(
        tmp_path,
        {
            "app/__main__.py": "import sys, other; print(__file__, sys.argv, sys.path[0], "
            "__spec__ and __spec__.name, __package__)",
            "app/other.py": "",
        },
    )
    target = {"zip": "app.zip", "compiled": "app/x.pyc", "link": "link.py"}.get(kind, "app")
    if kind == "zip":
        shutil.make_archive(str(tmp_path / "app"), "zip", tmp_path / "app")
    elif kind == "compiled":
        py_compile.compile(str(tmp_path / "app/__main__.py"), str(tmp_path / target))
    elif kind == "link":
        (tmp_path / target).symlink_to(tmp_path / "app/__main__.py")
    plain = run(tmp_path, target, "-v")
    under = jitscope_run(tmp_path, target, "-v")
    assert (under.returncode, under.stdout) == (plain.returncode, plain.stdout)
    assert plain.returncode == 0, plain.stderr


def test_safe_path_puts_no_directory_in_front(tmp_path):
    write(tmp_path, {"script.py": "import sys; print(sys.path)"})
    plain = run(tmp_path, "-P", "script.py")
    assert run(tmp_path, "-P", "-m", "jitscope", "run", "script.py").stdout == plain.stdout


def test_script_sets_up_jax_through_the_environment(tmp_path):
    write(
        tmp_path,
        {
            "script.py": """
        import os
        os.environ["JAX_ENABLE_X64"] = "1"
        import jax.numpy as jnp
        print(jnp.ones(1).dtype, jnp.ones(1).device.platform)
        """
        },
    )
    assert jitscope_run(tmp_path, "script.py").stdout == "float64 cpu\n"


def test_traceback_through_a_jitted_function_is_the_scripts_own(tmp_path):
    write(
        tmp_path,
        {
            "script.py": """
        import jax

        @jax.jit
        def inner(x):
            raise ValueError("in the middle")

        @jax.jit
        def outer(x):
            return inner(x)

        outer(1.0)
        """
        },
    )
    plain = run(tmp_path, "script.py")
    under = jitscope_run(tmp_path, "script.py", options=["--report", "report.txt"])
    assert "in the middle" in plain.stderr
    own = without_lines_of_jitscope(under.stderr)
    assert (under.returncode, own) == (plain.returncode, plain.stderr)


# A test run in the background of a shell ignores interrupts, and so would its children.
INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def test_signal_from_outside_ends_the_script(tmp_path):
    write(tmp_path, {"script.py": "import time; print('up', flush=True); time.sleep(60)"})
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTIBLE, "-m", "jitscope", "run", "script.py"],
            cwd=tmp_path,
            text=True,
            env=python_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        assert process.returncode == -number
        assert ("did not import JAX" in error) == (number == signal.SIGINT)


# --- the report -----------------------------------------------------------------------------------


def test_report_tells_what_was_compiled_and_what_repeated(tmp_path):
    write(tmp_path, {"script.py": DEEP})
    done = run(tmp_path, "-m", "jitscope", "run", "script.py", strict=True)
    assert (done.returncode, done.stdout) == (0, "")
    headline, totals, seconds = done.stderr.splitlines()[:3]
    assert headline == "jitscope: structured"
    assert totals.startswith("1 program, ")
    assert totals.endswith("; 48 calls -> 1 shared body")
    for phase in ("trace", "jitscope's part", "lower", "compile"):
        assert f"{phase} " in seconds
    assert "\nmodel: " in done.stderr
    assert "\nlayer  " in done.stderr


def test_observing_compiles_as_jax_jit_does_and_estimates(tmp_path):
    write(
        tmp_path,
        {
            "script.py": DEEP
            + """
    text = model.lower(x, ws).compile().as_text()
    print(value, text)
    """
        },
    )
    plain = run(tmp_path, "script.py")
    done = run(tmp_path, "-m", "jitscope", "run", "--observe", "script.py", strict=True)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert done.stderr.startswith("jitscope: observed, nothing was changed\n")
    assert done.stderr.count("48 calls would become 1 shared body\n") == 2
    assert "XLA would compile" in done.stderr and "XLA compiles" not in done.stderr
    assert "only looked at, not applied. SHARED: " in done.stderr
    estimate = re.search(r"\nestimate: (.*)\n.*no forecast of seconds", done.stderr)
    assert estimate is not None
    kept = "48 calls would be kept (layer); XLA would compile "
    assert estimate[1].startswith(kept) and "%" not in estimate[1]


def test_observed_run_that_would_keep_no_calls_raises_no_hope(tmp_path):
    write(tmp_path, {"script.py": DEEP.replace("* 48", "* 2")})
    done = run(tmp_path, "-m", "jitscope", "run", "--observe", "script.py", strict=True)
    assert "\nestimate: no calls would be kept; XLA would compile " in done.stderr
    assert "forecast" not in done.stderr


def test_observed_run_tells_apart_what_the_script_structures_itself(tmp_path):
    by_itself = DEEP.replace("@jax.jit", "@jitscope.outermost_jit")
    write(tmp_path, {"script.py": "    import jitscope\n" + by_itself})
    done = run(tmp_path, "-m", "jitscope", "run", "--observe", "script.py", strict=True)
    assert done.returncode == 0
    assert "would" not in done.stderr and "estimate" not in done.stderr
    own = "48 calls -> 1 shared body, structured by the script's own outermost_jit\n"
    assert done.stderr.count(own) == 1


def test_report_of_a_run_without_jitscope_says_so(tmp_path):
    write(tmp_path, {"script.py": DEEP})
    done = subprocess.run(
        [sys.executable, "-m", "jitscope", "run", "script.py"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
        env=python_environment({"JITSCOPE_DISABLE": "1"}),
    )
    assert done.returncode == 0
    assert done.stderr.startswith("jitscope: disabled by JITSCOPE_DISABLE, nothing was changed or ")
    assert "structured" not in done.stderr and "program" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--observe",)], ids=["structured", "observed"])
@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", r"jitscope: nothing was compiled"),
        (
            "jax.numpy.ones(3)",
            r"jitscope: no jax.jit function was compiled; .* anything else \d+\.\d\d s",
        ),
    ],
    ids=["nothing", "single operations"],
)
def test_script_that_fails_before_any_program_gets_one_line(tmp_path, options, source, told):
    write(tmp_path, {"script.py": f"import jax\n{source}\nraise RuntimeError('no data')\n"})
    plain = run(tmp_path, "script.py")
    done = jitscope_run(tmp_path, "script.py", options=options)
    assert done.returncode == plain.returncode == 1
    *traceback, line = done.stderr.splitlines()
    assert traceback == plain.stderr.splitlines()
    assert traceback[-1] == "RuntimeError: no data"
    assert re.fullmatch(told, line)


def test_slowest_program_comes_first(tmp_path):
    write(
        tmp_path,
        {
            "script.py": DEEP
            + """
    jax.jit(lambda x: x + 1)(1.0)
    """
        },
    )
    report = jitscope_run(tmp_path, "script.py").stderr
    assert 0 < report.index("\nmodel: ") < report.index("\n<lambda>: ")
    assert "nothing repeats" in report


def test_report_comes_after_everything_the_script_does(tmp_path):
    write(
        tmp_path,
        {
            "script.py": """
        import atexit, sys, threading, time
        def late():
            time.sleep(0.2)
            import jax
            jax.jit(lambda x: x + 1)(1.0)
        threading.Thread(target=late).start()
        atexit.register(lambda: print("atexit", file=sys.stderr))
        1 / 0
        """
        },
    )
    error = jitscope_run(tmp_path, "script.py").stderr
    assert error.index("ZeroDivisionError") < error.index("atexit") < error.index("1 program, ")


def test_report_file_is_replaced_whole(tmp_path):
    write(tmp_path, {"script.py": "import os; os.chdir('/')", "report.txt": "old, and longer " * 9})
    done = jitscope_run(tmp_path, "script.py", options=["--report", "report.txt"])
    assert done.stderr == f"jitscope: the report is in {os.path.realpath(tmp_path)}/report.txt\n"
    assert (tmp_path / "report.txt").read_text() == "jitscope: the script did not import JAX\n"
    assert sorted(os.listdir(tmp_path)) == ["report.txt", "script.py"]


def test_report_that_cannot_be_written_is_shown_and_leaves_the_old_one(tmp_path):
    write(
        tmp_path,
        {
            "reports/report.txt": "old",
            "script.py": """
        import os, sys
        os.rename("reports", "elsewhere")
        sys.exit(6)
        """,
        },
    )
    done = jitscope_run(tmp_path, "script.py", options=["--report", "reports/report.txt"])
    assert done.returncode == 6
    assert "could not write its report to" in done.stderr
    assert "did not import JAX" in done.stderr
    assert (tmp_path / "elsewhere/report.txt").read_text() == "old"


def test_report_to_a_device_is_written_not_replaced(tmp_path):
    write(tmp_path, {"script.py": ""})
    done = jitscope_run(tmp_path, "script.py", options=["--report", os.devnull])
    assert (done.returncode, done.stderr) == (0, "")
    assert not os.path.isfile(os.devnull)


def test_jax_that_cannot_be_used_leaves_the_script_running(tmp_path):
    # A module of that name that is not JAX stands for a version jitscope cannot work with.
    write(tmp_path, {"script.py": "import jax; print(jax.answer)", "jax.py": "answer = 42"})
    done = jitscope_run(tmp_path, "script.py")
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert "could not be installed and the script runs without it" in done.stderr


# --- what the command line says -------------------------------------------------------------------

MISTAKES = {
    "missing_script": (["nothing.py"], "no file 'nothing.py' in "),
    "directory_without_main": (["empty"], "is a directory or archive without a __main__.py"),
    "unknown_module": (["-m", "no_such.module"], "no module named 'no_such.module' on sys.path"),
    "module_with_suffix": (["-m", "gone.py"], "Did you mean -m gone, or gone.py without -m?"),
    "package_without_main": (["-m", "package"], "'package' is a package without a __main__ module"),
    "relative_module": (["-m", ".module"], "no module named '.module'"),
    "built_in_module": (["-m", "sys"], "has no Python code that could be run"),
    "no_script": ([], "the following arguments are required: script\n"),
    "unknown_option": (["--faster", "script.py"], "unrecognized arguments: --faster"),
    "report_in_no_directory": (["--report", "gone/r.txt", "script.py"], "which is no directory"),
    "report_is_a_directory": (["--report", "empty", "script.py"], "'empty' is a directory"),
    "report_where_no_file_can_be": (
        ["--report", f"{'r' * 250}.html", "script.py"],
        "rrr.html' cannot be written here",
    ),
    "record_where_no_file_can_be": (["--json", "/proc/r.json", "script.py"], "'/proc/r.json' "),
    "report_of_unknown_kind": (["--report", "r.xyz", "script.py"], "'r.xyz' must end in one of"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_mistake_is_explained_before_anything_runs(tmp_path, arguments, message):
    write(tmp_path, {"script.py": "print('ran')", "package/__init__.py": "", "empty/x.txt": ""})
    done = jitscope_run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "usage: python -m jitscope run" in done.stderr


def test_report_of_a_script_that_is_not_run_stays(tmp_path):
    write(tmp_path, {"report.html": "old"})
    done = jitscope_run(tmp_path, "gone.py", options=["--report", "report.html"])
    assert done.returncode == 2
    assert (tmp_path / "report.html").read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_report_without_permission_is_explained_before_anything_runs(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    write(tmp_path, {"script.py": "print('ran')", "locked/x.txt": ""})
    (tmp_path / "locked").chmod(0o500)
    done = jitscope_run(tmp_path, "script.py", options=["--report", "locked/r.txt"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("arguments", [["script.py"], ["--observe", "script.py", "3"]])
def test_script_without_a_command_is_told_the_command(tmp_path, arguments):
    write(tmp_path, {"script.py": "print('ran')"})
    done = run(tmp_path, "-m", "jitscope", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Did you mean: python -m jitscope run {' '.join(arguments)}\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "notes"),
    [
        (["--observe"], "--observe stands after the script and is given to it"),
        (["x", "--report=r.html"], "--report=r.html stands after"),
        (["--", "--report", "r.html"], ""),
        (["--reporter"], ""),
    ],
)
def test_option_after_the_script_is_the_scripts_and_noted(tmp_path, arguments, notes):
    write(tmp_path, {"script.py": "import sys; print(sys.argv[1:])"})
    done = jitscope_run(tmp_path, "script.py", *arguments)
    assert (done.returncode, done.stdout) == (0, f"{arguments}\n")
    assert notes in done.stderr
    assert ("stands after" in done.stderr) == bool(notes)


def test_module_whose_import_fails_shows_its_own_error(tmp_path):
    write(tmp_path, {"package/__init__.py": "import no_such_dependency", "package/m.py": ""})
    done = jitscope_run(tmp_path, "-m", "package.m")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'no_such_dependency'" in done.stderr
    assert "jitscope/running/script.py" not in done.stderr


def test_help_and_version_are_printed(tmp_path):
    assert "usage: python -m jitscope" in run(tmp_path, "-m", "jitscope").stdout
    assert run(tmp_path, "-m", "jitscope", "--version").stdout.startswith("jitscope ")
    assert "--observe" in jitscope_run(tmp_path, "--help").stdout


def test_importing_jitscope_does_not_import_jax(tmp_path):
    source = "import jitscope, sys; print('jax' in sys.modules, 'install' in dir(jitscope))"
    assert run(tmp_path, "-c", source).stdout == "False True\n"

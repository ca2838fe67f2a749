"""Every Python block of README and docs runs, and prints what the page says it prints.

The blocks of a page run in order, in one namespace, in a process of the page's own. A ``text``
block that follows a Python block is its output: compared word by word, ``...`` stands for anything,
and below ``<!-- numbers vary -->`` every number for every other.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_VARY = "<!-- numbers vary -->"
_BETWEEN = re.compile(r"\s*([^\n`]*prints[^\n`]*)?\s*(<!-- numbers vary -->)?\s*")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(page):
    """File name, code, expected output (or None) and whether numbers vary, of each block."""
    text = page.read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    for block, following in zip(blocks, [*blocks, None][1:], strict=True):
        if block["info"].split(" ")[0] != "python":
            continue
        title = re.search(r'title="([^"]*)"', block["info"])
        output, between = None, ""
        if following is not None and following["info"] == "text":
            between = text[block.end() : following.start()]
            if _BETWEEN.fullmatch(between):
                output = following["text"]
        yield title[1] if title else page.name, block["text"], output, _VARY in between


def words(text, vary):
    return " ".join(re.sub(r"[\d,.]*\d", "#", text).split()) if vary else text


def run_examples():
    """Runs the examples in docstrings of public names, which docs/api.md shows; counts failures."""
    import jitscope

    modules = ((jitscope.report, ("save", "load")), (jitscope.testing, jitscope.testing.__all__))
    runner, n_examples = doctest.DocTestRunner(optionflags=_FLAGS), 0
    for module, name in (
        *((module, name) for module, names in modules for name in names),
        *((jitscope, name) for name in jitscope.__all__),
    ):
        obj = getattr(module, name)
        docstring = getattr(obj, "__doc__", None)
        if callable(obj) and docstring:
            test = doctest.DocTestParser().get_doctest(docstring, {}, obj.__name__, None, None)
            n_examples += len(test.examples)
            runner.run(test)
    print(f"{n_examples} examples")
    return runner.failures + (n_examples < 20)


def run(page):
    """Runs the blocks of a page in this process; prints what is not as the page says."""
    import contextlib
    import io

    namespace, checker, n_wrong = {"__name__": "__main__"}, doctest.OutputChecker(), 0
    for number, (name, code, expected, vary) in enumerate(examples(page), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), namespace)
        got = printed.getvalue()
        if expected is None or checker.check_output(
            words(expected, vary), words(got, vary), _FLAGS
        ):
            continue
        n_wrong += 1
        print(
            f"{page.name}, Python block {number}\n--- the page says\n{expected}--- it prints\n{got}"
        )
    return n_wrong


def in_own_process(*arguments):
    environment = os.environ | {"COLUMNS": "120", "JITSCOPE_STRICT": "1"}
    environment.pop("JITSCOPE_DISABLE", None)
    process = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=55,
    )
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.name,
            # On the other JAX versions, those that show everything in short stand for the rest.
            marks=[] if page.name in ("README.md", "quickstart.md") else [pytest.mark.slow],
        )
        for page in PAGES
    ],
)
def test_python_of_page_runs_and_prints_what_it_shows(page):
    if not list(examples(page)):
        pytest.skip("no Python on this page")
    in_own_process(str(page))


def test_examples_of_public_names_print_what_they_show():
    in_own_process()


def test_output_block_belongs_to_the_block_before_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        'a\n```python title="a.py"\nx = 1\n```\n\n```python\nprint(x)\n```\n\nprints\n\n'
        "```text\n1\n```\nb\n```text\nnothing\n```\n"
    )
    assert list(examples(page)) == [
        ("a.py", "x = 1\n", None, False),
        ("page.md", "print(x)\n", "1\n", False),
    ]
    assert run(page) == 0


def test_output_that_differs_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('a 1')\n```\n\n```text\na 2\n```\n")
    assert run(page) == 1
    page.write_text(page.read_text().replace("\n```text", "\n<!-- numbers vary -->\n```text"))
    assert run(page) == 0


def test_names_of_the_module_on_pages_exist():
    import jitscope

    for page in PAGES:
        for name in re.findall(r"jitscope\.(\w+)\(", page.read_text(encoding="utf-8")):
            assert name in jitscope.__all__, f"{page.name}: {name}"


def test_every_public_name_has_its_documentation():
    import jitscope

    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: jitscope\.(\w+)", page, re.MULTILINE))
    assert set(jitscope.__all__) - {"__version__"} <= shown


def test_dir_shows_public_names_only():
    import jitscope

    for module in (jitscope, jitscope.report, jitscope.testing):
        # What is asked for first leaves subpackages behind, which are not to show.
        assert all(hasattr(module, name) for name in module.__all__)
        assert set(dir(module)) == set(module.__all__), module.__name__


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert f" {page.name}\n" in navigation, page.name


if __name__ == "__main__":
    n_wrong = run(Path(sys.argv[1])) if len(sys.argv) > 1 else run_examples()
    sys.exit(n_wrong != 0)

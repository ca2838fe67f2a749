"""The sample of docs/reading-a-report.md is what its program prints."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "reading-a-report.md"


def words(text):
    """The text without its numbers, which differ between versions of JAX, and columns."""
    return " ".join(re.sub(r"[\d,.]*\d", "#", text).split())


def test_sample_is_what_the_program_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    page = PAGE.read_text(encoding="utf-8")
    sample = re.search(r"```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", page, re.DOTALL)
    code, shown = sample.groups()
    exec(compile(code, PAGE.name, "exec"), {"__name__": "sample"})
    assert words(capsys.readouterr().out) == words(shown)


def test_page_mentions_every_way_to_a_report():
    import jitscope

    page = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"jitscope\.(\w+)\(", page):
        assert name in jitscope.__all__, name

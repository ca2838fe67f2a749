"""The README's program runs and shows what the README says."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_first_program_shares_its_layer(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert re.search(r"^layer .* SHARED\b", printed, re.MULTILINE), printed

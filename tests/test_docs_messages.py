"""Every message that jitscope raises, warns of or prints has an entry in docs/messages.md.

Messages are found in the source: what is raised, warned of, added to an exception as a note, or
printed. The first words of each that are not filled in must be on the page.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "jitscope"
PAGE = ROOT / "docs" / "messages.md"

_CALLS = {"warn", "add_note", "print", "_say", "fail"}
_NOT_SHOWN = {"CannotShare"}  # control flow: caught where it is raised
_FILLED_IN = "\0"


def literal(node):
    """The text of a string expression, with a mark where something is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return literal(node.left) + literal(node.right)
    return _FILLED_IN


def speaking_calls(tree):
    """Calls whose first argument is a message: constructors of exceptions, and `_CALLS`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _CALLS or (name.endswith("Error") and name not in _NOT_SHOWN):
                yield node


def key(text):
    """The first words of a message that are always the same, shortened; empty if it has none."""
    for part in text.replace("\n", _FILLED_IN).split(_FILLED_IN):
        part = part.strip(" :;,.'\"()")
        if len(part) >= 10:
            return part[:50].rpartition(" ")[0] if len(part) > 50 else part
    return ""


def messages():
    for path in sorted(SOURCE.rglob("*.py")):
        for call in speaking_calls(ast.parse(path.read_text(encoding="utf-8"))):
            found = key(literal(call.args[0])) if call.args else ""
            if found:
                yield f"{path.relative_to(SOURCE)}:{call.lineno}", found


def words_of(page):
    return re.sub(r"[\s`]+", " ", page.read_text(encoding="utf-8"))


def test_every_message_has_an_entry():
    page = words_of(PAGE)
    missing = [
        f"{where}: {text}" for where, text in messages() if text.replace("`", " ") not in page
    ]
    assert not missing, "\n".join(["not in docs/messages.md:", *missing])


def test_every_reason_of_the_policy_is_explained():
    reasons = [
        key(literal(call.args[1]))
        for module in ("plan", "policy")
        for call in ast.walk(
            ast.parse((SOURCE / "structuring" / f"{module}.py").read_text(encoding="utf-8"))
        )
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Decision"
    ]
    assert {"uses, saves", "called once", "the plan does not name it"} <= set(reasons)
    page = words_of(ROOT / "docs" / "choosing-structures.md")
    assert not [reason for reason in reasons if reason not in page]


def test_messages_are_found_in_the_source():
    found = [text for _, text in messages()]
    assert len(found) > 40
    assert "jitscope could not structure" in found  # a warning
    assert any(text.startswith("jitscope: in step") for text in found)  # a note
    assert any(text.startswith("has traced no program yet") for text in found)  # an error


def test_every_variable_of_the_environment_is_described():
    read = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'"(JITSCOPE_[A-Z]+)"', path.read_text(encoding="utf-8"))
    }
    assert {"JITSCOPE_STRICT", "JITSCOPE_DISABLE", "JITSCOPE_PROGRESS"} <= read
    assert all(name in words_of(PAGE) for name in read)

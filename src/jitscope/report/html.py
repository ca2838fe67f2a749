"""A reuse report as one HTML page that needs nothing else: ReuseReport -> str.

The page is a fixed document (`page.html`, `page.css`, `page.js`) with the report in it as
JSON. Its script puts every text of the report into the page as text, never as markup, and
the page's own policy forbids it to load anything.
"""

from __future__ import annotations

import functools
import html
import importlib.resources

from ..reuse.reuse_report import ReuseReport
from . import json, text

_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
"""Characters by which a text inside a script element could end it, as JSON escapes."""


def render(report: ReuseReport) -> str:
    """The whole page."""
    data = json.dumps(report)
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    plain = html.escape(text.render(report, width=100).encode(errors="replace").decode())
    parts = {"style": _part("page.css"), "script": _part("page.js"), "plain": plain, "data": data}
    page = _part("page.html")
    # One pass over the fixed document: what is put in is not searched for places again.
    pieces = page.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def notebook(report: ReuseReport) -> str:
    """The page in a frame of its own, for the output of a notebook cell."""
    return (
        '<iframe sandbox="allow-scripts" style="width: 100%; height: 640px; border: 0" '
        f'srcdoc="{html.escape(render(report))}"></iframe>'
    )


@functools.cache
def _part(name: str) -> str:
    return importlib.resources.files("jitscope.report").joinpath(name).read_text(encoding="utf-8")

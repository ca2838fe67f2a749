import json as standard_json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from report_samples import HOSTILE, body, everything, hostile, layers, program, traced_report

from jitscope.report import html, json
from jitscope.reuse.reuse_report import ReuseReport


class Elements(HTMLParser):
    """Collects tags with their attributes, and the text of scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.mark.parametrize("make", [everything, hostile, traced_report, ReuseReport])
def test_page_holds_the_report(make):
    report = make()
    data, _ = Elements(html.render(report)).scripts
    assert json.loads(data) == report


def test_page_loads_nothing():
    page = html.render(everything())
    for tag, attributes in Elements(page).tags:
        assert tag not in ("img", "iframe", "object", "embed", "base"), tag
        assert "src" not in attributes
        if tag == "link":
            assert attributes == {"rel": "icon", "href": "data:,"}
    assert not re.findall(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in page


def test_hostile_texts_stay_texts():
    plain = [tag for tag, _ in Elements(html.render(everything())).tags]
    assert [tag for tag, _ in Elements(html.render(hostile())).tags] == plain
    data = html.render(hostile()).partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(data)


def test_reader_without_scripts_gets_the_text():
    page = html.render(everything())
    noscript = page.partition("<noscript>")[2].partition("</noscript>")[0]
    assert "6 calls -&gt; 1 shared body" in noscript


def test_page_is_a_pure_function_of_the_report():
    assert html.render(everything()) == html.render(everything())


def test_notebook_shows_the_page_in_a_sandboxed_frame():
    model, args = layers()
    model.trace(*args)
    for record in (model.reuse(), model.reuse().report()):
        ((tag, attributes),) = Elements(record._repr_html_()).tags
        assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
        assert attributes["srcdoc"].startswith("<!DOCTYPE html>")


def test_notebook_frame_cannot_be_broken_out_of():
    ((tag, _),) = Elements(html.notebook(hostile())).tags
    assert tag == "iframe"


# --- in a browser ---------------------------------------------------------------------------------

DRIVER = """
<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
addEventListener("DOMContentLoaded", () => setTimeout(() => {
  const rows = () => [...document.querySelectorAll("tr.body")];
  const names = () => rows().map((row) => row.cells[0].textContent);
  const result = {title: document.title};
  const step = (name, act) => {
    try { result[name] = act(); } catch (error) { errors.push(name + ": " + error); }
  };
  const sorted = (column) => {
    document.querySelector(`button[data-column="${column}"]`).click();
    return [names(), document.querySelector(`button[data-column="${column}"]`)
      .parentElement.getAttribute("aria-sort")];
  };
  step("initial", names);
  step("by_name", () => sorted("name"));
  step("by_name_again", () => sorted("name"));
  step("by_uses", () => sorted("uses"));
  step("opened", () => {
    rows()[0].click();
    return [rows()[0].getAttribute("aria-expanded"),
            document.querySelector("tr.detail").textContent];
  });
  step("closed", () => {
    rows()[0].click();
    return document.querySelectorAll("tr.detail").length;
  });
  step("by_key", () => {
    rows().at(-1).dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
    return rows().at(-1).getAttribute("aria-expanded");
  });
  step("filtered", () => {
    const filter = document.getElementById("filter");
    filter.value = "HEAD";
    filter.dispatchEvent(new Event("input"));
    return [names(), document.getElementById("shown").textContent];
  });
  step("frames", () => [...document.querySelectorAll(".frame")].map((f) => f.textContent));
  step("zoomed", () => {
    document.querySelectorAll(".flame .frame")[1]?.click();
    return document.querySelector(".flame .frame")?.textContent;
  });
  const background = () => getComputedStyle(document.body).backgroundColor;
  step("themes", () => {
    const before = background();
    document.getElementById("theme").click();
    return [before, background()];
  });
  step("wide", () => document.documentElement.scrollWidth <= innerWidth);
  result.errors = errors;
  const out = document.createElement("output");
  out.id = "result";
  out.textContent = encodeURIComponent(JSON.stringify(result));
  document.body.append(out);
}, 0));
</script>
"""


def browse(tmp_path, report, *flags):
    """What the driver saw, and what the browser wrote to its console."""
    path = tmp_path / "page.html"
    path.write_text(html.render(report).replace("</head>", DRIVER + "</head>", 1), "utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1200,900",
            "--virtual-time-budget=5000",
            *flags,
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
    )
    found = re.search(r'<output id="result">([^<]*)</output>', done.stdout)
    assert found, done.stderr[-3000:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return standard_json.loads(unquote(found[1])), console


@needs_chromium
def test_page_works_in_a_browser(tmp_path):
    report = everything() + ReuseReport((program(name="quick"),))
    seen, console = browse(tmp_path, report)
    assert (seen["errors"], console) == ([], [])
    layer, head = "layer, model.py:12", "head, model.py:12"
    assert seen["initial"] == [layer, head]
    assert seen["by_name"] == [[head, layer], "ascending"]
    assert seen["by_name_again"] == [[layer, head], "descending"]
    assert seen["by_uses"] == [[layer, head], "descending"]
    expanded, detail = seen["opened"]
    assert expanded == "true"
    for part in (
        "6 × models/model.py:12 (net), in net/layer",
        "n: 3.0 against 4.0",
        "To share: pass it.",
        "{ lambda ;",
        "because of a test",
        "In the compiled program 6 calls are kept, which spares 150 equations.",
        "Traced 4 times",
    ):
        assert part in detail
    assert (seen["closed"], seen["by_key"]) == (0, "true")
    assert seen["filtered"] == [[head], "1 of 2 bodies"]
    assert seen["frames"] == [
        f"{frame}  {n}"
        for n in (180, 30)
        for frame in ("all equations", "model.py:3 (net)", "model.py:12 (layer)")
    ]
    assert seen["zoomed"].startswith("model.py:3 (net)  (click: back)")
    assert sorted(seen["themes"]) == ["rgb(20, 23, 26)", "rgb(255, 255, 255)"]
    assert seen["wide"]


@needs_chromium
def test_hostile_report_does_nothing_in_a_browser(tmp_path):
    seen, console = browse(tmp_path, hostile())
    assert (seen["errors"], console) == ([], [])
    assert seen["title"] == "jitscope report"
    assert seen["opened"][1].count(HOSTILE) >= 5


@needs_chromium
def test_dark_page_for_those_who_asked_for_dark(tmp_path):
    seen, _ = browse(
        tmp_path, ReuseReport((program(body()),)), "--blink-settings=preferredColorScheme=0"
    )
    assert seen["themes"] == ["rgb(20, 23, 26)", "rgb(255, 255, 255)"]


@needs_chromium
def test_empty_report_is_a_page(tmp_path):
    seen, console = browse(tmp_path, ReuseReport())
    assert console == []
    assert seen["title"] == "jitscope report"

"""The page: structure without a browser, and what a real one makes of it."""

import csv
import html
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from amcast.cli.data.pipeline import measure_folder
from amcast.cli.main import run
from amcast.figures import style
from amcast.figures.charts import Axis, ChartFrame, Curve, draw_curves, draw_heat_map, format_compact
from amcast.figures.html_page import scope_styles
from amcast.lab.sweep_cell import normalise_plan, run_cell
from amcast.pipeline.sweep import job as sweep
from amcast.pipeline.sweep.grid import expand_cells, parse_grid
from tests.external.programs import need_program

PLAN = {
    "protocol": "primcast",
    "topology": {"groups": 2, "replicas": 1, "clients": 2},
    "workload": {"messages": 12},
    "grid": {"protocol": ["skeen", "primcast"], "seed": "0..1", "workload": {"outstanding": [1, 3]}},
}


def fail_some_cells(plan: dict[str, Any], folder: str | None, packets: bool) -> dict[str, Any]:
    if plan["protocol"] == "primcast" and plan["seed"] == 1:
        return {"status": "violated", "message": "P5 is violated: <b>process 3</b> delivered 17 & then 29"}
    return run_cell(plan, folder, packets)


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small sweep, run without Spark, measured and reported."""
    out = tmp_path_factory.mktemp("reports") / "small"
    settings = sweep.SweepSettings(out)
    cells = expand_cells(parse_grid(PLAN), normalise_plan)
    sweep.prepare_sweep(settings, PLAN, cells, parse_grid(PLAN).paths)
    sweep.run_bundle(cells, fail_some_cells, settings)
    sweep.merge_journal(out)
    assert run(["report", str(out)]) == 1
    return out


class PageReader(HTMLParser):
    """Checks that tags nest, and collects what matters."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(page: Path) -> PageReader:
    reader = PageReader()
    reader.feed(page.read_text())
    assert reader.open == []
    return reader


def test_verdict_comes_first_with_its_story(report_folder: Path) -> None:
    text = (report_folder / "report.html").read_text()
    positions = [
        text.index(part)
        for part in ("Violated", "process 3", "Who answers first", "Pictures", "What was run", "Every setting")
    ]
    assert positions == sorted(positions)
    assert "&lt;b&gt;process 3&lt;/b&gt;" in text
    assert "<b>process 3</b>" not in text
    row = next(row for row in sweep.read_cells(report_folder).to_pylist() if row["status"] == "violated")
    assert f"amcast simulate --plan {report_folder}/plans/{row['cell']}.toml --seed 1" in html.unescape(text)


def test_page_is_self_contained(report_folder: Path) -> None:
    reader = read_page(report_folder / "report.html")
    for tag, attributes in reader.seen:
        assert tag not in ("link", "img", "iframe", "image"), tag
        assert tag != "script" or attributes == {}, "a script of its own, nothing loaded"
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "srcset", "data"):
                assert (value or "").startswith("#"), f"{tag} asks for {value}"
    text = (report_folder / "report.html").read_text()
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket|sendBeacon", text)
    assert "Content-Security-Policy\" content=\"default-src 'none'" in text


def test_ids_are_unique_and_references_resolve(report_folder: Path) -> None:
    text = (report_folder / "report.html").read_text()
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names))
    for name in re.findall(r'(?:url\(#|xlink:href="#)([^)"]+)', text):
        assert name in set(names), name


def test_numbers_are_text(report_folder: Path) -> None:
    reader = read_page(report_folder / "report.html")
    assert sum(1 for tag, _ in reader.seen if tag == "text") > 20
    assert "messages per second" in reader.text
    assert "glyph" not in (report_folder / "report.html").read_text()


def test_colours_follow_the_colour_scheme(report_folder: Path) -> None:
    drawn = re.findall(r"<svg.*?</svg>", (report_folder / "report.html").read_text(), re.DOTALL)
    assert len(drawn) >= 3
    for light in (style.INK[0], style.SOFT[0], style.GRID[0], style.SERIES[0][0], style.heat_colour(7)):
        assert all(light not in drawing for drawing in drawn)
    assert "var(--ink)" in "".join(drawn)
    assert "prefers-color-scheme:dark" in (report_folder / "report.html").read_text()


def test_every_chart_has_svg_and_csv(report_folder: Path) -> None:
    drawings = sorted((report_folder / "pictures").glob("*.svg"))
    assert {"throughput-latency", "percentiles"} <= {file.stem for file in drawings}
    for file in drawings:
        assert "<text" in file.read_text()
        assert "var(--" not in file.read_text()
        with file.with_suffix(".csv").open() as numbers:
            rows = list(csv.reader(numbers))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1


def test_equal_measures_give_equal_bytes(report_folder: Path) -> None:
    before = {file: file.read_bytes() for file in report_folder.rglob("*") if file.suffix in (".html", ".svg", ".csv")}
    assert run(["report", str(report_folder), "--json"]) == 1
    assert before == {file: file.read_bytes() for file in before}


def test_comparison_row_is_mean_of_its_runs(report_folder: Path) -> None:
    import pyarrow.parquet as pq

    cells = sweep.read_cells(report_folder).to_pylist()
    lines = pq.read_table(report_folder / "measures" / "comparison.parquet").to_pylist()
    assert [(line["protocol"], line["outstanding"], line["runs"], line["not_ok"]) for line in lines] == [
        ("primcast", 1, 2, 1), ("skeen", 1, 2, 0), ("primcast", 3, 2, 1), ("skeen", 3, 2, 0),
    ]  # fmt: skip
    mine = [c["latency_ns_p50"] for c in cells if (c["protocol"], c["outstanding"]) == ("skeen", 3)]
    line = next(line for line in lines if (line["protocol"], line["outstanding"]) == ("skeen", 3))
    assert line["latency_ns_p50"] == sum(mine) / 2
    assert line["latency_ns_p50_low"] <= line["latency_ns_p50"] <= line["latency_ns_p50_high"]


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.25, "0.25"), (3.14159, "3.14"), (120.4, "120"), (15000, "15k"), (2.4e6, "2.4M")]
)
def test_numbers_on_axes_are_short(value: float, shown: str) -> None:
    assert format_compact(value) == shown


def test_empty_and_degenerate_data_can_be_drawn() -> None:
    frame = ChartFrame("odd", "Odd", "", Axis("x", zero=True), Axis("y", zero=True))
    assert "<svg" in draw_curves(frame, [Curve("one", [1.0], [2.0]), Curve("none", [], [])]).inline
    assert "<svg" in draw_heat_map(frame, ["a"], ["b"], [[None]]).inline
    assert "<svg" in draw_heat_map(frame, ["a", "b"], ["c"], [[1.0, 1.0]]).inline


def test_embedded_svg_styles_are_scoped() -> None:
    svg = "<svg><style>text{fill:red}.a,.b{x:y}@media(prefers-color-scheme:dark){.a{x:z}}</style></svg>"
    assert scope_styles(svg, "s") == (
        "<svg><style>.s text{fill:red}.s .a,.s .b{x:y}@media(prefers-color-scheme:dark){.s .a{x:z}}</style></svg>"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["report", "no/such/folder"], 64, "no such folder"),
        (["measure", "no/such/folder"], 64, "no such folder"),
        (["measure", ".", "--order", "1,x"], 64, "expected different group numbers"),
        (["sweep", "no-such.toml", "--out", "x"], 64, "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    code: int,
    sentence: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == code
    output = capfd.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert output.err.count("\n") == 1


# A real browser

PROBE = """<!doctype html><body style="margin:0"><iframe id="f" style="border:0;width:{width}px;height:900px"></iframe>
<pre id="result"></pre><script>
const frame = document.getElementById("f");
frame.srcdoc = {page};
frame.onload = () => {{
  const d = frame.contentDocument, w = frame.contentWindow;
  const label = [...d.querySelectorAll("figure svg text")].find(t => t.textContent.includes("messages per second"));
  const range = d.createRange(); range.selectNodeContents(label);
  w.getSelection().removeAllRanges(); w.getSelection().addRange(range);
  const wide = [...d.querySelectorAll("header *, main > section, figure, figure > svg, section > div")]
    .filter(e => e.getBoundingClientRect().right > w.innerWidth + 1).map(e => e.tagName + "." + e.className);
  document.getElementById("result").textContent = JSON.stringify({{
    scroll: d.documentElement.scrollWidth, inner: w.innerWidth, wide,
    selected: w.getSelection().toString(),
    verdict: d.querySelector(".verdict").getBoundingClientRect().top,
    figure: d.querySelector("figure").getBoundingClientRect().top,
    figures: d.querySelectorAll("figure svg").length,
    columns: new Set([...d.querySelectorAll("figure")].map(f => Math.round(f.getBoundingClientRect().left))).size,
    ground: w.getComputedStyle(d.body).backgroundColor,
    ink: w.getComputedStyle(label).fill,
    size: label.getBoundingClientRect().height,
  }});
}};
</script>"""


def quote_page(page: Path) -> str:
    return json.dumps(page.read_text()).replace("</", "<\\/")


def probe(page: Path, width: int, dark: bool, tmp_path: Path) -> dict[str, Any]:
    """Loads the page in a frame of some width and asks what became of it."""
    return run_in_browser(PROBE.format(width=width, page=quote_page(page)), dark, tmp_path)


def run_in_browser(text: str, dark: bool, tmp_path: Path) -> dict[str, Any]:
    """Opens a page that writes a result into itself."""
    file = tmp_path / "probe.html"
    file.write_text(text)
    chromium = need_program("chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"]
    flags += ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    # 0 is dark, 1 is light: what the reader's desktop would say.
    flags.append(f"--blink-settings=preferredColorScheme={0 if dark else 1}")
    flags += ["--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", file.as_uri()]
    done = subprocess.run([chromium, *flags], capture_output=True, text=True, timeout=180, check=False)
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert result is not None, done.stderr[-2000:]
    assert result[1], done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(html.unescape(result[1]))
    return answer


@pytest.mark.slow
def test_browser_shows_page_on_desktop_and_phone(report_folder: Path, tmp_path: Path) -> None:
    desk = probe(report_folder / "report.html", 1280, False, tmp_path)
    phone = probe(report_folder / "report.html", 390, True, tmp_path)
    for seen in (desk, phone):
        assert seen["scroll"] <= seen["inner"], f"the page is wider than its window: {seen['wide']}"
        assert seen["wide"] == []
        assert "messages per second" in seen["selected"]
        assert 0 < seen["verdict"] < 400 < seen["figure"]
        assert seen["figures"] >= 3
    assert desk["columns"] == 2
    assert phone["columns"] == 1
    assert phone["size"] >= 8, "labels are too small to read on a phone"
    assert desk["ground"] == "rgb(252, 252, 251)"
    assert phone["ground"] == "rgb(26, 26, 25)"
    assert desk["ink"] != phone["ink"]


PLAY = """<!doctype html><body style="margin:0"><iframe id="f" style="border:0;width:1280px;height:3000px"></iframe>
<pre id="result"></pre><script>
const frame = document.getElementById("f");
frame.srcdoc = {page};
frame.onload = () => {{
  const d = frame.contentDocument, w = frame.contentWindow, seen = {{}};
  const shown = () => [...d.querySelectorAll("[data-series=skeen]")].filter(e => e.getClientRects().length).length;
  seen.filters = [...d.querySelectorAll(".tools button[data-name]")].map(b => b.textContent);
  seen.before = shown();
  const button = d.querySelector(".tools button[data-name=skeen]");
  button.click();
  seen.without = shown();
  seen.pressed = button.getAttribute("aria-pressed");
  d.querySelector(".tools button.every").click();
  seen.again = shown();
  const svg = d.querySelector("#throughput-latency svg"), place = JSON.parse(svg.dataset.places)[0];
  const m = svg.getScreenCTM();
  const at = {{ clientX: m.a * place[0] + m.e, clientY: m.d * place[1] + m.f, bubbles: true }};
  svg.dispatchEvent(new w.PointerEvent("pointermove", at));
  seen.hint = d.querySelector(".hint").hidden ? "" : d.querySelector(".hint").textContent;
  const marker = [...svg.querySelectorAll("use")].map(u => u.getBoundingClientRect())
    .map(b => Math.hypot(b.x + b.width / 2 - at.clientX, b.y + b.height / 2 - at.clientY));
  seen.far = Math.min(...marker);
  svg.dispatchEvent(new w.PointerEvent("pointerleave", {{}}));
  seen.gone = d.querySelector(".hint").hidden;
  d.querySelector("#throughput-latency .enlarge").click();
  const large = d.querySelector("dialog svg"), whole = large.getAttribute("viewBox").split(" ").map(Number);
  const middle = {{ clientX: 400, clientY: 300, bubbles: true, cancelable: true }};
  large.dispatchEvent(new w.WheelEvent("wheel", {{ deltaY: -1, ...middle }}));
  seen.zoomed = large.getAttribute("viewBox").split(" ").map(Number)[2] / whole[2];
  large.dispatchEvent(new w.MouseEvent("dblclick", middle));
  seen.whole = large.getAttribute("viewBox").split(" ").map(Number)[2] === whole[2];
  document.getElementById("result").textContent = JSON.stringify(seen);
}};
</script>"""


@pytest.mark.slow
def test_reader_points_filters_and_zooms(report_folder: Path, tmp_path: Path) -> None:
    seen = run_in_browser(PLAY.format(page=quote_page(report_folder / "report.html")), False, tmp_path)
    assert seen["filters"] == ["primcast", "skeen"]
    assert seen["before"] == seen["again"] > 5
    assert (seen["without"], seen["pressed"]) == (0, "false")
    assert re.match(r"(primcast|skeen), outstanding 1: messages per second \S+, median latency, ms \S+", seen["hint"])
    assert seen["far"] < 2, "a hint does not stand where its point is drawn"
    assert seen["gone"]
    assert seen["zoomed"] == pytest.approx(0.8)
    assert seen["whole"]


def test_picture_of_one_setting_names_it(tmp_path: Path) -> None:
    """Charts over time show one of a protocol's settings, and the page says which."""
    plan = {
        "protocol": "skeen",
        "workload": {"messages": 20},
        "grid": {"seed": "0..0", "workload": {"outstanding": [1, 3]}},
    }
    cells = expand_cells(parse_grid(plan), normalise_plan)
    settings = sweep.SweepSettings(tmp_path / "sweep", traces=True)
    sweep.prepare_sweep(settings, plan, cells, parse_grid(plan).paths)
    sweep.run_bundle(cells, run_cell, settings)
    sweep.merge_journal(settings.out)
    measure_folder(str(tmp_path / "sweep"), tmp_path / "sweep" / "measures")
    assert run(["report", str(tmp_path / "sweep")]) == 0
    reader = read_page(tmp_path / "sweep" / "report.html")
    captions = [text for text in reader.text if "the one that counts; dashed lines are faults." in text]
    assert len(captions) == 1
    assert "One of 2 settings: " in captions[0]

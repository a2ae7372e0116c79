"""Two runs on one page: what differs with its interval, and both in one picture."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run
from amcast.figures.difference_page import ComparedSide, describe_limits, summarize_difference
from amcast.pipeline.measure.difference import NumberChange, RunsDifference, SettingChange
from tests.figures.test_report import read_page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    for name, protocol in (("one", "skeen"), ("two", "basecast")):
        out = str(folder / name)
        assert run(["simulate", "-p", protocol, "--replicas", "1", "--messages", "60", "--out", out, "--json"]) == 0
    return folder


def test_two_runs_are_on_one_page(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    assert run(["diff", "one", "two", "--out", "page", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    page = Path(answer["page"])
    reader = read_page(page)
    assert "one and two" in reader.text
    assert "Not shown" in reader.text
    rows = answer["settings"][0]["numbers"]
    assert {one["number"] for one in rows if one["gated"]} <= set(reader.text)
    figures = [attributes["id"] for tag, attributes in reader.seen if tag == "figure"]
    assert figures == ["differences", "distributions", "throughput"]
    assert (page.parent / "pictures" / "distributions.csv").read_text().count("before") > 5
    assert (page.parent / "pictures" / "distributions.csv").read_text().count("after") > 5
    changed = next(one for one in rows if one["number"] == "bytes_per_multicast")
    assert f"bytes_per_multicast, difference: {100 * changed['share']:.3g}"[:40] in page.read_text()


def test_what_a_page_leaves_out_is_said() -> None:
    numbers = [NumberChange("latency_ns_p50", 1.0, 2.0, (5, 5), "means", 0.9, 1.1, "worse", gated=True)] * 3
    found = RunsDifference([SettingChange(f"setting {at}", numbers, (0, 0)) for at in range(30)])
    page = summarize_difference(found, (ComparedSide("one"), ComparedSide("two")))
    assert page.story[-1] == f"and {90 - 8} more sentences: amcast diff shows them"
    assert describe_limits(found) == [
        "The picture of differences shows 24 of 90 numbers.",
        "The tables are those of 24 of 30 settings; amcast diff --json has all.",
    ]

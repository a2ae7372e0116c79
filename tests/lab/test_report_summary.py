"""What the page of a run says: the verdict, the story, and the scene that explains it. No Spark: measures by hand."""

from pathlib import Path
from typing import Any

import pytest

from amcast.check.judge import judge
from amcast.figures.report import PAGE_FILE, write_report
from amcast.lab import report_summary as account
from amcast.pipeline.measure import comparison as compare
from amcast.pipeline.measure.job import MeasureResult, prepare_folder, write_run_tables
from amcast.trace.run import read_run
from amcast.trace.run_folder import FolderRecorder
from tests.mutants.planted import MUTANTS, Trace, healthy, make_trace


def written(folder: Path, name: str) -> None:
    """A planted trace as a run folder."""
    trace = healthy() if name == "healthy" else make_trace(next(case for case in MUTANTS if case.name == name))
    record(trace, folder, name)


def record(trace: Trace, folder: Path, name: str) -> None:
    recorded = trace.recorder()
    with FolderRecorder(folder, trace.meta(name), latest=False) as files:
        for table in ("processes", "multicasts", "deliveries", "packets", "notes"):
            getattr(files, table).extend(getattr(recorded, table))
        files.close(complete=True)


def reported(folder: Path, out: Path) -> tuple[account.ReportSummary, str]:
    run = read_run(folder)
    verdict = judge(run).as_dict()
    described: dict[str, Any] = compare.describe_run(run.meta, str(folder))
    extra = {
        run.meta.run: {
            "multicasts": 4,
            "deliveries": 9,
            "latency_ns_p50": 1.5e6,
            "latency_ns_p95": 2e6,
            "latency_ns_p99": 2e6,
        }
    }
    prepare_folder(out / "measures")
    rows = compare.summarize_runs([described], extra)
    write_run_tables(MeasureResult(str(out / "measures"), 1, "exact", 0.1), rows, out / "measures")
    summary = account.summarize_runs(folder, {"verdict": verdict["verdict"], "runs": [verdict]}, rows, out / "measures")
    write_report(summary, out / "measures", out)
    return summary, (out / PAGE_FILE).read_text()


@pytest.mark.parametrize("name", ["two_groups_disagree", "cycle_of_three", "delivered_twice", "no_process_delivers"])
def test_violation_is_described_and_drawn(name: str, tmp_path: Path) -> None:
    written(tmp_path / "run", name)
    summary, page = reported(tmp_path / "run", tmp_path / "out")
    assert summary.verdict == "violated"
    assert summary.story
    assert "the violation, with message" in summary.spacetime_caption
    assert page.index("Violated") < page.index("is violated:") < page.index("In space and time")
    assert (tmp_path / "out" / "pictures" / "spacetime.svg").read_text() == summary.spacetime
    assert ".spacetime " in page


def test_correct_run_shows_its_slowest_message(tmp_path: Path) -> None:
    written(tmp_path / "run", "healthy")
    summary, page = reported(tmp_path / "run", tmp_path / "out")
    assert summary.verdict == "holds"
    assert summary.story == ()
    assert "the slowest" in summary.spacetime_caption
    assert "P1" in page
    assert "Percentiles are exact" in page


def test_limits_are_stated_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many sentences are left out, and why there is no diagram."""
    written(tmp_path / "run", "cycle_of_three")
    monkeypatch.setattr(account, "SCENE_ROWS", 3)
    monkeypatch.setattr(account, "MAX_STORY", 1)
    summary, page = reported(tmp_path / "run", tmp_path / "out")
    assert len(summary.story) == 2
    assert summary.story[1].startswith("and ")
    assert "more sentences: amcast check shows them" in summary.story[1]
    assert not summary.spacetime
    assert "No diagram: the folder has more than 2,000,000 deliveries; amcast view --picture" in page


def test_number_of_sentences_that_are_left_out_is_right(tmp_path: Path) -> None:
    written(tmp_path / "run", "cycle_of_three")
    reported(tmp_path / "run", tmp_path / "out")
    run = read_run(tmp_path / "run")
    verdict = judge(run).as_dict()
    rows = compare.summarize_runs([compare.describe_run(run.meta, str(tmp_path / "run"))], {})
    answer = {"verdict": "violated", "runs": [verdict] * 12}
    summary = account.summarize_runs(tmp_path, answer, rows, tmp_path / "out" / "measures")
    sentences = 12 * sum(p["claimed"] and p["verdict"] != "holds" for p in verdict["properties"].values())
    assert len(summary.story) == account.MAX_STORY + 1
    assert summary.story[-1] == f"and {sentences - account.MAX_STORY} more sentences: amcast check shows them"


def test_scene_is_the_message_that_a_crash_met(tmp_path: Path) -> None:
    """A replica that was down delivers much later, which says nothing about the message."""
    trace = Trace({0: [0, 1]}, [6])
    trace.multicast(6_000_000_000, 0, sender=6)
    trace.multicast(6_000_000_001, 0, sender=6)
    trace.sequences = {
        0: [(0, 6_000_000_000, 1_000), (1, 6_000_000_001, 5_010)],
        1: [(0, 6_000_000_000, 80_000_000), (1, 6_000_000_001, 80_000_001)],
    }
    trace.notes = [(1, "fault-crash", None, None)]
    record(trace, tmp_path / "run", "struck")
    _, caption = account.draw_scene(tmp_path / "run", None, (), "struck")
    assert caption.startswith("struck: message 6000000001, which waited longest of those that a crash met: 0.005 ms")


def test_properties_that_are_not_claimed_are_not_called_violated(tmp_path: Path) -> None:
    trace = Trace({0: [0]}, [6])
    trace.multicast(6_000_000_000, 0, sender=6)
    trace.multicast(6_000_000_001, 0, sender=6)
    trace.deliver(0, 6_000_000_001, 6_000_000_000)
    trace.claims.update(fifo=False, genuine="no")
    record(trace, tmp_path / "run", "out of order")
    assert judge(read_run(tmp_path / "run")).properties["P7"].verdict == "violated"
    summary, page = reported(tmp_path / "run", tmp_path / "out")
    assert summary.verdict == "holds"
    assert '<span class="soft">not claimed</span>' in page
    assert '<b class="violated">' not in page


def test_violated_cell_shows_its_witness_not_its_slowest_message(tmp_path: Path) -> None:
    """The cell's row has words only; the messages that contradict each other are found from its trace."""
    written(tmp_path / "runs" / "good", "healthy")
    written(tmp_path / "runs" / "bad", "cycle_of_three")
    report = judge(read_run(tmp_path / "runs" / "bad"))
    circle = {edge["message"] for edge in report.properties["P5"].witness}
    cells = [
        {**dict.fromkeys(("message", "replay", "multicasts", "deliveries", "packets")), "cell": name, "status": status,
         "protocol": "skeen", "seed": 3, "latency_ns_max": slow, "varied": "{}"}
        for name, status, slow in (("good", "ok", 10**9), ("bad", "violated", 10))
    ]  # fmt: skip
    prepare_folder(tmp_path / "measures")
    summary = account.summarize_sweep(tmp_path, {"plan": {}}, cells, tmp_path / "measures")
    assert summary.verdict == "violated"
    assert "the violation, with message" in summary.spacetime_caption
    assert any(f"message {message};" in summary.spacetime_caption for message in circle)
    fine = account.summarize_sweep(tmp_path, {"plan": {}}, cells[:1], tmp_path / "measures")
    assert "the slowest" in fine.spacetime_caption

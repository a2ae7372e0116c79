"""P9 in the way of large runs, without Spark: windows around a message instead of the whole run, files instead of
memory.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amcast.pipeline.check import real_time
from amcast.pipeline.check.examination import PositionGapError
from amcast.pipeline.check.survey import collect_late_window
from amcast.pipeline.rows import late_messages
from amcast.pipeline.rows.late_messages import LateMessages
from amcast.pipeline.rows.tables import FileTable
from tests.check.oracle import Oracle
from tests.mutants.planted import Trace
from tests.pipeline.small_runs import examine, plain, planted_runs, random_run


def judge_in_windows(monkeypatch: pytest.MonkeyPatch, trace: Trace, size: int) -> dict[str, Any]:
    """The finding about P9, of messages around the first one that was complete too early: at most `size` of them."""

    def collect(*arguments: Any) -> set[int] | None:
        return collect_late_window(*arguments[:-1], size)

    monkeypatch.setattr(real_time, "WHOLE_ENTRIES", 0)
    monkeypatch.setattr(real_time, "collect_late_window", collect)
    report = examine(trace)
    assert isinstance(report, dict)
    finding: dict[str, Any] = report["properties"]["P9"]
    return finding


def test_cycle_in_a_window_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = 0
    for seed in range(600, 750):
        trace = random_run(seed)
        report = plain(trace)
        if isinstance(report, str) or report["properties"]["P5"]["verdict"] != "holds":
            continue
        try:
            finding = judge_in_windows(monkeypatch, trace, 1000)
        except PositionGapError:
            continue
        assert finding["verdict"] == report["properties"]["P9"]["verdict"], f"random_run({seed})"
        oracle, edges = Oracle(trace), finding["witness"]
        for edge, after in zip(edges, [*edges[1:], *edges[:1]], strict=True):
            assert edge["next"] == after["message"], f"random_run({seed})"
            if "process" in edge:
                assert edge["process"] in oracle.precedes(edge["message"], edge["next"]), f"random_run({seed})"
            else:
                assert oracle.precedes_in_time(edge["message"], edge["next"]), f"random_run({seed})"
        judged += bool(edges)
    assert judged >= 15


def test_violation_beyond_any_window_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = judge_in_windows(monkeypatch, planted_runs()["auditor_sees_a_transfer_half_done"], 1)
    assert finding["verdict"] == "violated"
    assert finding["story"] == [
        "40 was complete at 3000 ns, but a message that precedes it, directly or over others, was multicast at 3100 ns"
    ]


@pytest.mark.parametrize("in_file", [False, True])
def test_late_messages_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool) -> None:
    monkeypatch.setattr(late_messages, "ROWS_PER_GROUP", 4)
    late = LateMessages(str(tmp_path / "late.parquet") if in_file else None)
    for first in (0, 3, 6, 9):
        assert late.absorb(np.arange(first, first + 3) + np.array([[0], [100], [200], [300]]))
    table = late.close()
    assert isinstance(table, FileTable) == in_file
    assert table.rows == 12
    parts = table.split(5)
    assert len(parts) == (2 if in_file else 1)
    found = [batch for part in parts for batch in part.batches(["message", "latest_ns"])]
    assert [value for batch in found for value in batch.column("message").to_pylist()] == list(range(12))
    assert [value for batch in found for value in batch.column("latest_ns").to_pylist()] == list(range(200, 212))

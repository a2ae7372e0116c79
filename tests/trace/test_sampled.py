"""Sampled deliveries: cheap, and honest about what they prove."""

from pathlib import Path

import pytest

from amcast.check.judge import judge
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import Run, read_run
from amcast.trace.run_folder import FolderRecorder

CLAIMS = RunClaims(complete=True, exactly_once=True)


def record_sampled(folder: Path, every: int) -> Run:
    """Ten messages to two processes of two groups, in the same order."""
    recorder = FolderRecorder(folder, Meta(run="run", claims=CLAIMS), packets=False, every=every, latest=False)
    for process in (0, 1):
        recorder.record_process(process, process)
    recorder.record_process(9, None)
    for number in range(10):
        message = Message(9_000_000_000 + number, 9, (0, 1))
        recorder.record_multicast(message, 1, 9, number)
        for process in (0, 1):
            recorder.record_delivery(process, process, number, message, 2)
    recorder.close(complete=True)
    return read_run(folder)


def test_all_processes_sample_the_same_messages(tmp_path: Path) -> None:
    run = record_sampled(tmp_path / "run", 3)
    by_process = {
        process: [m for p, m in zip(run.deliveries["process"], run.deliveries["message"], strict=True) if p == process]
        for process in (0, 1)
    }
    assert by_process[0] == by_process[1] == [9_000_000_000 + number for number in (0, 3, 6, 9)]
    assert len(run.multicasts["message"]) == 10, "what was multicast is told in full"


def test_sampled_trace_claims_and_proves_nothing(tmp_path: Path) -> None:
    run = record_sampled(tmp_path / "run", 3)
    assert not run.meta.claims.complete
    report = judge(run)
    assert report.verdict == "unknown"
    judged = {name: report.properties[name].verdict for name in ("P1", "P2", "P3", "P4", "P5", "P8")}
    assert set(judged.values()) == {"unknown"}, judged


def test_sampled_trace_still_shows_order_violation(tmp_path: Path) -> None:
    recorder = FolderRecorder(tmp_path / "run", Meta(run="run"), packets=False, every=2, latest=False)
    for process in (0, 1):
        recorder.record_process(process, process)
    recorder.record_process(9, None)
    for number in range(4):
        message = Message(9_000_000_000 + number, 9, (0, 1))
        recorder.record_multicast(message, 1)
        recorder.record_delivery(0, 0, number, message, 2)
        recorder.record_delivery(1, 1, 3 - number, message, 2)
    recorder.close()
    assert judge(read_run(tmp_path / "run")).verdict == "violated"


def test_full_trace_of_same_run_holds(tmp_path: Path) -> None:
    assert judge(record_sampled(tmp_path / "run", 1)).verdict == "holds"
    with pytest.raises(UsageError, match="every 0; expected 1"):
        record_sampled(tmp_path / "other", 0)

"""Histories that are judged in parts have the verdicts of the plain checker."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from amcast.check.histories.bank import check_bank
from amcast.check.histories.history import HistoryOperation, read_history
from amcast.check.histories.list_append import check_list_append
from amcast.check.histories.report import HistoryReport
from amcast.cli.main import run as run_command
from amcast.kernel.errors import UsageError
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.histories import job
from amcast.pipeline.histories.job import HistoryJob, check_history
from tests.check.histories.random_histories import make_bank_history, make_list_history

SEEDS = 60


def write(history: Sequence[HistoryOperation], file: Path) -> Path:
    lines: list[tuple[int, dict[str, Any]]] = []
    for one in history:
        line = {"process": one.process, "f": one.f}
        lines.append((one.begin, line | {"type": "invoke", "value": one.given if one.is_certain else one.value}))
        if one.end is not None:
            lines.append((one.end, line | {"type": "ok", "value": one.value}))
    lines.sort(key=lambda line: line[0])
    file.write_text("\n".join(json.dumps(line) for _, line in lines))
    return file


def judge_in_parts(file: Path, model: str, folder: Path, share_bytes: int = 700) -> HistoryReport:
    folder.mkdir()
    return HistoryJob(run_sequentially, file, folder, share_bytes).judge(model)


def judge_or_refuse(judge: Callable[[], HistoryReport]) -> tuple[str, dict[str, int], list[str]]:
    try:
        report = judge()
    except UsageError as error:
        return "refused", {}, [str(error)]
    return report.verdict, report.checked, report.story


def make_history(seed: int) -> list[HistoryOperation]:
    random = Random(f"parts {seed}")
    return make_list_history(
        random, random.choice((2, 4, 8)), random.choice((10, 40, 80)), random.choice(("xy", "abcdefg"))
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_lists_have_the_verdict_of_the_plain_checker(seed: int, tmp_path: Path) -> None:
    file = write(make_history(seed), tmp_path / "history.jsonl")
    plain = judge_or_refuse(lambda: check_list_append(read_history(file)))
    parts = judge_or_refuse(lambda: judge_in_parts(file, "list-append", tmp_path / "parts"))
    assert parts[:2] == plain[:2]
    assert bool(parts[2]) == bool(plain[2])
    if plain[2] and "each come before the next" in plain[2][0]:
        assert "each come before the next" in parts[2][0]
        assert int(parts[2][0].split()[0]) >= int(plain[2][0].split()[0]), "the plain checker tells the shortest"


def test_the_histories_above_are_of_all_kinds() -> None:
    verdicts, cycles = set(), 0
    for seed in range(SEEDS):
        history = make_history(seed)
        verdict, _, story = judge_or_refuse(lambda history=history: check_list_append(history))  # type: ignore[misc]
        verdicts.add(verdict)
        cycles += any("each come before the next" in sentence for sentence in story)
    assert verdicts >= {"holds", "violated", "refused"}
    assert cycles >= 4


CYCLE: list[dict[str, Any]] = [
    {"type": "invoke", "process": 0, "f": "txn", "value": [["append", "x", 1], ["r", "y", None]]},
    {"type": "invoke", "process": 1, "f": "txn", "value": [["append", "y", 2], ["r", "x", None]]},
    {"type": "ok", "process": 0, "f": "txn", "value": [["append", "x", 1], ["r", "y", [2]]]},
    {"type": "ok", "process": 1, "f": "txn", "value": [["append", "y", 2], ["r", "x", [1]]]},
]
"""Each of two transactions reads what the other one appended."""
STALE: list[dict[str, Any]] = [
    {"type": kind, "process": 0, "f": "txn", "value": value}
    for value in ([["append", "x", 1]], [["r", "x", []]], [["r", "x", [1]]])
    for kind in ("invoke", "ok")
]
"""A read does not show what was appended before it began."""


@pytest.mark.parametrize(
    ("lines", "mutate"),
    [
        (CYCLE, lambda points, before, free, begins: (points, before, begins.size)),
        (STALE, lambda points, before, free, begins: (begins, before, free)),
    ],
)
def test_time_and_cycles_decide(
    lines: list[dict[str, Any]], mutate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    plain = check_list_append(read_history(file))
    report = judge_in_parts(file, "list-append", tmp_path / "parts", 100)
    assert (report.verdict, report.story) == (plain.verdict, plain.story)
    assert report.story[0].startswith("2 transactions each come before the next")
    whole = job.find_points
    monkeypatch.setattr(job, "find_points", lambda *given: mutate(*whole(*given), given[3]))
    assert judge_in_parts(file, "list-append", tmp_path / "mutant", 100).verdict == "holds", "this part found it"


@pytest.mark.parametrize("seed", range(40))
def test_banks_have_the_verdict_of_the_plain_checker(seed: int, tmp_path: Path) -> None:
    file = write(make_bank_history(Random(f"bank {seed}"), 5, 30), tmp_path / "history.jsonl")
    plain = check_bank(read_history(file))
    parts = judge_in_parts(file, "bank", tmp_path / "parts", 300)
    assert (parts.verdict, parts.checked) == (plain.verdict, plain.checked)


def test_an_empty_history_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text("")
    assert judge_in_parts(tmp_path / "history.jsonl", "list-append", tmp_path / "parts").verdict == "unknown"


def test_a_wrong_line_is_named_by_its_number(tmp_path: Path) -> None:
    file = write(make_history(0), tmp_path / "history.jsonl")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:17], "{}", *lines[17:]]))
    with pytest.raises(UsageError, match=r"line 18: .*expected type, process, f and value"):
        judge_in_parts(file, "list-append", tmp_path / "parts")


@pytest.mark.usefixtures("spark")
def test_the_command_judges_with_spark(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text("\n".join(map(json.dumps, CYCLE)))
    assert run_command(["check", str(file), "--as", "list-append", "--engine", "spark", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "violated"
    assert "transactions each come before the next" in found["story"][0]
    report = check_history(file, "list-append", share_bytes=100)
    assert report.as_dict() == found
    with pytest.raises(UsageError, match="expected one of: list-append, bank"):
        check_history(file, "register")


def test_points_of_a_chain_are_those_of_its_last_begin() -> None:
    edges = np.array([[10, 40, 1, 30], [1, 30, 2, 9]], np.int64)  # 10 is before 1, which is before 2, which ended at 9
    assert job.find_contradiction(edges) == (1, 10)
    assert job.find_contradiction(edges[:1]) is None
    assert job.find_contradiction(np.array([[1, 9, 2, 8], [2, 8, 1, 9]], np.int64)) == (1, 2)

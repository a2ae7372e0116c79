"""Judges of histories: what they accept, what they find, and what they refuse to read."""

import json
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amcast.check.histories.bank import check_bank
from amcast.check.histories.history import HistoryLine, HistoryOperation, pair_lines, read_history
from amcast.check.histories.list_append import check_list_append
from amcast.check.histories.register import check_register
from amcast.cli.main import run as run_command
from amcast.kernel.errors import UsageError
from tests.check.histories.random_histories import find_difference


def make(*lines: tuple[str, int, str, Any]) -> list[HistoryOperation]:
    return pair_lines([HistoryLine(*line) for line in lines])  # type: ignore[arg-type]


def one_by_one(f: str, *values: Any) -> list[HistoryOperation]:
    """Operations after each other."""
    return make(*[(kind, 0, f, value) for value in values for kind in ("invoke", "ok")])


def test_a_read_of_an_old_value_is_found() -> None:
    sound = make(("invoke", 0, "write", 1), ("ok", 0, "write", 1), ("invoke", 1, "read", None), ("ok", 1, "read", 1))
    assert check_register(sound).verdict == "holds"
    stale = make(("invoke", 0, "write", 1), ("ok", 0, "write", 1), ("invoke", 1, "read", None), ("ok", 1, "read", None))
    report = check_register(stale)
    assert report.verdict == "violated"
    assert "no order of its operations explains the read of process 1 (lines 3 to 4) with None" in report.story[0]


def test_a_write_of_unknown_end_may_happen_late_or_never() -> None:
    begin = [("invoke", 0, "write", 1), ("info", 0, "write", 1)]
    reads = [("invoke", 1, "read", None), ("ok", 1, "read", None), ("invoke", 1, "read", None), ("ok", 1, "read", 1)]
    assert check_register(make(*begin, *reads)).verdict == "holds"
    back = [("invoke", 1, "read", None), ("ok", 1, "read", None)]
    assert check_register(make(*begin, *reads, *back)).verdict == "violated"


def test_the_search_gives_up_with_unknown() -> None:
    lines = [("invoke", number, "write", number) for number in range(12)]
    lines += [("ok", number, "write", number) for number in range(12)]
    lines += [("invoke", 99, "read", None), ("ok", 99, "read", 100)]
    assert check_register(make(*lines), max_states=500).verdict == "unknown"  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(60))
def test_the_search_agrees_with_trying_every_order(seed: int) -> None:
    random = Random(seed)
    lines: list[tuple[str, int, str, Any]] = []
    open_calls: dict[int, str] = {}
    while len(lines) < 10:
        process = random.randrange(3)
        if process in open_calls:
            f = open_calls.pop(process)
            value = random.choice((None, 1, 2)) if f == "read" else lines[_last(lines, process)][3]
            lines.append(("ok", process, f, value))
        else:
            f = open_calls[process] = random.choice(("read", "write"))
            lines.append(("invoke", process, f, random.choice((1, 2)) if f == "write" else None))
    history = [one for one in make(*lines) if one.is_certain]
    assert (check_register(history).verdict == "holds") == any(map(_explains, permutations(history)))


def _last(lines: list[tuple[str, int, str, Any]], process: int) -> int:
    return max(place for place, line in enumerate(lines) if line[1] == process)


def _explains(order: tuple[HistoryOperation, ...]) -> bool:
    value = None
    for place, operation in enumerate(order):
        if any(later.end is not None and later.end < operation.begin for later in order[place:]):
            return False
        if operation.f == "write":
            value = operation.value
        elif operation.value != value:
            return False
    return True


def test_list_append_accepts_a_serial_history() -> None:
    history = one_by_one("txn", [["append", "x", 1]], [["append", "x", 2], ["r", "y", []]], [["r", "x", [1, 2]]])
    assert check_list_append(history).verdict == "holds"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([[["append", "x", 1]], [["r", "x", [2]]]], "read 2 from 'x', which nobody appended"),
        ([[["append", "x", 1]], [["r", "x", [1, 1]]]], "read an element of 'x' twice"),
        (
            [[["append", "x", 1]], [["append", "x", 2]], [["r", "x", [1]]], [["r", "x", [2, 1]]]],
            "neither is the beginning of the other",
        ),
        ([[["append", "x", 1]], [["r", "x", []]], [["r", "x", [1]]]], "2 transactions each come before the next"),
    ],
)
def test_list_append_finds(values: list[Any], sentence: str) -> None:
    report = check_list_append(one_by_one("txn", *values))
    assert report.verdict == "violated"
    assert sentence in report.story[0]


def test_the_auditor_who_misses_money_is_told_as_a_cycle() -> None:
    lines = [
        ("invoke", 0, "txn", [["append", "a", 1], ["append", "b", 1]]),
        ("invoke", 1, "txn", [["r", "a", None]]),
        ("ok", 1, "txn", [["r", "a", [1]]]),
        ("invoke", 1, "txn", [["r", "b", None]]),
        ("ok", 1, "txn", [["r", "b", []]]),
        ("ok", 0, "txn", [["append", "a", 1], ["append", "b", 1]]),
        ("invoke", 1, "txn", [["r", "b", None]]),
        ("ok", 1, "txn", [["r", "b", [1]]]),
    ]
    report = check_list_append(make(*lines))  # type: ignore[arg-type]
    assert report.verdict == "violated"
    assert report.story[0].startswith("3 transactions")
    assert any("it had ended before the begin of" in sentence for sentence in report.story)
    assert any("without 1, which was appended by" in sentence for sentence in report.story)


def test_bank_finds_another_total_and_debts() -> None:
    assert check_bank(one_by_one("read", {"a": 5, "b": 5}, {"a": 2, "b": 8})).verdict == "holds"
    assert "saw 11 in all" in check_bank(one_by_one("read", {"a": 5, "b": 5}, {"a": 3, "b": 8})).story[0]
    assert "saw -1 in 'a'" in check_bank(one_by_one("read", {"a": 5, "b": 5}, {"a": -1, "b": 11})).story[0]
    assert check_bank([]).verdict == "unknown"


def test_the_command_judges_a_file_and_names_wrong_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    lines = [
        {"type": kind, "process": 0, "f": "txn", "value": [["r", "x", []]], "time": 1} for kind in ("invoke", "ok")
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert run_command(["check", str(file), "--as", "list-append", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "holds"
    assert run_command(["check", str(file), "--as", "register"]) == 64
    with pytest.raises(UsageError, match="line 1: ok of process 0, which began nothing"):
        make(("ok", 0, "read", None))
    with pytest.raises(UsageError, match="line 2: process 0 begins, and has an operation open"):
        make(("invoke", 0, "read", None), ("invoke", 0, "read", None))
    file.write_text('{"type": "begin"}')
    with pytest.raises(UsageError, match="line 1: Invalid enum value 'begin'"):
        read_history(file)


@pytest.mark.parametrize("seed", range(60))
def test_judges_agree_with_trying_every_order(seed: int) -> None:
    assert find_difference(seed) == ""


def test_appends_of_one_transaction_are_read_in_their_order() -> None:
    history = one_by_one("txn", [["append", "x", 1], ["append", "x", 2]], [["r", "x", [2, 1]]])
    report = check_list_append(history)
    assert report.verdict == "violated"
    assert (
        "read 2 before 1 from 'x': the txn of process 0 (lines 1 to 2) appended them the other way" in report.story[0]
    )

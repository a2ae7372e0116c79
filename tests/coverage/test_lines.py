"""Coverage by fuzzing: executable lines, the tracer, and the committed result."""

import json
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.coverage.__main__ import RESULT, measure, parse_ranges
from tests.coverage.lines import Line, LineTracer, find_lines, list_modules
from tests.coverage.reasons import Reason, find_reason, read_reasons

SOURCE = '''
LIMIT = 3

class Counter:
    """Counts."""

    def add(self, number):
        """Adds."""
        if number > LIMIT:
            raise ValueError(
                number)
        return [one
                for one in range(number)]

    def reset(self): self.value = 0
'''


@pytest.fixture
def restored_trace() -> Iterator[None]:
    """A debugger or another measurement keeps its trace function."""
    before = sys.gettrace()
    yield
    sys.settrace(before)


def test_lines_are_those_of_functions(tmp_path: Path) -> None:
    file = tmp_path / "counter.py"
    file.write_text(SOURCE)
    lines = find_lines(file)
    assert list(lines) == [
        Line("counter.py", "Counter.add", "if number > LIMIT:"),
        Line("counter.py", "Counter.add", "raise ValueError("),
        Line("counter.py", "Counter.add", "return [one"),
    ]
    assert list(lines.values()) == [{9}, {10, 11}, {12, 13}]


def test_equal_lines_of_a_function_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(
        "def f(x):\n    match x:\n        case 1:\n            return\n        case _:\n            return\n"
    )
    assert [line.text for line in find_lines(file)] == ["match x:", "case 1:", "return", "case _:", "return (2)"]


def test_tracer_sees_what_runs(tmp_path: Path, restored_trace: None) -> None:
    file = tmp_path / "counter.py"
    file.write_text(SOURCE)
    spec = spec_from_file_location("counter", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = find_lines(file)
    tracer = LineTracer([file])
    with tracer:
        module.Counter().add(2)
    assert [line.text for line in lines if not lines[line] & tracer.reached[str(file)]] == ["raise ValueError("]
    with tracer, pytest.raises(ValueError, match="9"):
        module.Counter().add(9)
    assert all(numbers & tracer.reached[str(file)] for numbers in lines.values())


def test_measured_seeds_add_to_an_earlier_result(restored_trace: None) -> None:
    first = measure(["ring"], range(1, 2), None, until=float("inf"))
    assert first["seeds"] == {"ring": "1"}
    assert 500 < first["reached"] < first["lines"]
    assert first["lines"] - first["reached"] == len(first["missed"])
    second = measure(["ring"], range(1, 3), first, until=float("inf"))
    assert second["seeds"] == {"ring": "1..2"}
    assert {tuple(line) for line in second["missed"]} <= {tuple(line) for line in first["missed"]}


def test_ranges_are_read() -> None:
    assert parse_ranges("0..2,7") == {0, 1, 2, 7}
    assert parse_ranges("") == set()


def test_reason_matches_by_name_and_text() -> None:
    reasons = [Reason("parts/*", "*.explain", "*", "diagnostics")]
    assert find_reason(reasons, "parts/x.py", "Log.explain", "return 1") == "diagnostics"
    assert find_reason(reasons, "storage/x.py", "Log.explain", "return 1") is None


def test_every_reason_is_used() -> None:
    missed = json.loads(RESULT.read_text())["missed"]
    used = {find_reason(read_reasons(), *line) for line in missed}
    assert {reason.reason for reason in read_reasons()} <= used


def test_modules_of_protocols_parts_and_storage_are_counted() -> None:
    names = {file.name for file in list_modules()}
    assert {"paxos.py", "log.py", "process.py", "node.py"} <= names

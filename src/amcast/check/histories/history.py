"""A history: JSON lines of Jepsen's shape, one for the begin and one for the end of each operation.

    {"type": "invoke", "process": 0, "f": "txn", "value": [["append", "x", 1], ["r", "x", null]]}
    {"type": "ok",     "process": 0, "f": "txn", "value": [["append", "x", 1], ["r", "x", [1]]]}

The order of the lines is the order of time. `ok`: it happened; `fail`: it did not happen; `info`, or no second line: it
may have happened, at any time after its begin, or may happen later. A process has one operation at a time, and none
after an `info`. Other fields (`time`, `index`) are ignored.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec

from amcast.kernel.errors import UsageError


class HistoryLine(msgspec.Struct, frozen=True):
    """One line of a history."""

    type: Literal["invoke", "ok", "fail", "info"]
    process: int | str
    f: str
    value: Any = None


@dataclass(frozen=True)
class HistoryOperation:
    """One operation of a history."""

    number: int
    """Its place among the operations, by begin."""
    process: int | str
    f: str
    given: Any
    """The value of its begin."""
    value: Any
    """The value of its end; that of its begin, if the end is unknown."""
    begin: int
    """The line on which it began, ..."""
    end: int | None
    """... and ended; None: it may have happened at any time after its begin, or not at all."""

    @property
    def is_certain(self) -> bool:
        """Whether it happened."""
        return self.end is not None

    def __str__(self) -> str:
        lines = f"lines {self.begin} to {self.end}" if self.end is not None else f"line {self.begin}, end unknown"
        return f"{self.f} of process {self.process} ({lines})"


def read_history(file: Path) -> list[HistoryOperation]:
    """Reads a file of JSON lines; an error names the line, the value and what was expected."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected a history as JSON lines") from None
    return pair_lines(decode_lines(text, str(file)), str(file))


def decode_lines(text: bytes, where: str, first: int = 1) -> list[HistoryLine]:
    """Decodes JSON lines, the first of which has a number."""
    decoder = msgspec.json.Decoder(HistoryLine)
    lines = []
    for number, line in enumerate(text.splitlines(), first):
        try:
            lines.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise UsageError(f"{where}, line {number}: {error}; expected type, process, f and value") from None
    return lines


def pair_lines(
    lines: Iterable[HistoryLine], where: str = "history", numbers: Iterable[int] | None = None
) -> list[HistoryOperation]:
    """The operations of a history, without those that failed. `numbers` are those of the lines, if they are only the
    lines of some processes."""
    open_lines: dict[int | str, tuple[int, HistoryLine]] = {}
    found: list[tuple[int, HistoryLine, int | None, Any]] = []
    ended: set[int | str] = set()
    for number, line in zip(count(1) if numbers is None else numbers, lines, strict=False):
        if line.type == "invoke":
            if line.process in open_lines or line.process in ended:
                state = "an operation open" if line.process in open_lines else "an operation of unknown end"
                raise UsageError(
                    f"{where}, line {number}: process {line.process} begins, and has {state}; expected its end before,"
                    f" or another process"
                )
            open_lines[line.process] = (number, line)
            continue
        if line.process not in open_lines:
            raise UsageError(f"{where}, line {number}: {line.type} of process {line.process}, which began nothing")
        begin, invoke = open_lines.pop(line.process)
        if line.type == "info":
            ended.add(line.process)
            found.append((begin, invoke, None, invoke.value))
        elif line.type == "ok":
            found.append((begin, invoke, number, line.value))
    found += [(begin, invoke, None, invoke.value) for begin, invoke in open_lines.values()]
    return [
        HistoryOperation(place, invoke.process, invoke.f, invoke.value, value, begin, end)
        for place, (begin, invoke, end, value) in enumerate(sorted(found, key=lambda one: one[0]))
    ]

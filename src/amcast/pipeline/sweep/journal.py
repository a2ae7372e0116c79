"""The journals of sweeps and campaigns: one line of JSON per result, complete when it ends.

A file system appends: each line is written at once. An object store replaces whole objects: the journal of a task,
which is small, is written anew about once a second and at the end, so what ends a task loses the results of a second.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from amcast.pipeline.rows.locations import Location

WRITE_SECONDS: Final = 1.0
"""How often the journal of a task is written to a store."""


class TaskJournal(Protocol):
    """The journal of one task."""

    rows: list[dict[str, Any]]
    """What an earlier attempt at the task left."""

    def add(self, row: dict[str, Any]) -> None: ...


@contextmanager
def open_journal(file: Location) -> Iterator[TaskJournal]:
    """The journal of a task, to be continued."""
    if file.is_local:
        with Path(file.path).open("a+b") as lines:
            yield _LocalJournal(lines)
        return
    journal = _StoredJournal(file)
    try:
        yield journal
    finally:
        journal.write()


class _LocalJournal:
    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self.rows = list(parse_journal(file.read()))
        self._file = file
        _end_partial_line(file)

    def add(self, row: dict[str, Any]) -> None:
        self._file.write(encode_line(row))
        self._file.flush()


class _StoredJournal:
    def __init__(self, file: Location) -> None:
        self._file = file
        self._data = bytearray(file.read_bytes() if file.is_file() else b"")
        self.rows = list(parse_journal(bytes(self._data)))
        self._written_at = 0.0
        self._is_written = True

    def add(self, row: dict[str, Any]) -> None:
        self._data += encode_line(row)
        self._is_written = False
        if time.monotonic() >= self._written_at + WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        if not self._is_written:
            self._file.write_bytes(bytes(self._data))
            self._written_at, self._is_written = time.monotonic(), True


def encode_line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def parse_journal(data: bytes) -> Iterator[dict[str, Any]]:
    """The complete lines of a journal."""
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def read_journal(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a journal in a file."""
    with file.open("rb") as lines:
        for line in lines:
            yield from parse_journal(line)


class JournalCounter:
    """Counts the lines added to the journals since it was made; it reads only new bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._lines = self._before = 0
        self._before = self()

    def __call__(self) -> int:
        for file in self._folder.glob("*.jsonl"):
            at = self._read.get(file, 0)
            with file.open("rb") as journal:
                journal.seek(at)
                fresh = journal.read()
            self._read[file] = at + len(fresh)
            self._lines += fresh.count(b"\n")
        return self._lines - self._before


def _end_partial_line(journal: BinaryIO) -> None:
    """Ends the last line if a killed writer left it incomplete, so that the next one stands alone."""
    journal.seek(0, os.SEEK_END)
    if journal.tell():
        journal.seek(-1, os.SEEK_END)
        if journal.read(1) != b"\n":
            journal.write(b"\n")

"""Stores for the records of a process: the interface that a host needs, a store that keeps nothing, and a durable log.

A host appends records while the process keeps stepping, and holds effects that must wait for them. At the end of a tick
it calls `commit`: all records appended so far become durable as one group. With `fsync` a thread writes the group and
waits for the disk, while the next group gathers; then it calls `on_durable(ticket)`. With `os` the group is written at
once: it survives the death of the process, not that of the machine.

A disk that fails, or is full, fails the store for good: a record that was not acknowledged never will be.
"""

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from amcast.kernel.errors import UsageError
from amcast.live.limits import MIB
from amcast.live.storage import segments
from amcast.live.storage.atomic_files import sync_folder, write_atomically

log = logging.getLogger("amcast.live")

Durability = Literal["fsync", "os", "memory"]
SEGMENT_BYTES: Final = 16 * MIB


class Store(Protocol):
    """The records of one process, over all its incarnations."""

    incarnation: int
    """The incarnation that now begins: 0 at the first boot, one more at each later one."""
    keeps: bool
    """Whether records are kept; if not, they need not be encoded."""

    def records(self) -> Sequence[bytes]:
        """The records of earlier incarnations that no snapshot has replaced, oldest first."""

    def start(self, on_durable: Callable[[int], object], on_failed: Callable[[Exception], object]) -> None:
        """Reports from now on, from any thread, the ticket of the last durable record; or, once, a failure."""

    def append(self, record: bytes, replaces: bool = False) -> int:
        """Appends a record; returns its ticket (1, 2, 3 ...), or 0 if nothing need wait for it."""

    def commit(self) -> int:
        """Starts to make appended records durable; returns the highest ticket that is durable already."""

    def close(self) -> None:
        """Makes appended records durable, and closes the files."""


class MemoryStore:
    """Keeps nothing: a later incarnation starts without state, which its number tells."""

    keeps = False

    def __init__(self, incarnation: int = 0, lock_file: int = -1) -> None:
        self.incarnation = incarnation
        self._lock_file = lock_file
        """Locked during this incarnation, if there is a folder that counts incarnations; else -1."""

    def records(self) -> Sequence[bytes]:
        return ()

    def start(self, on_durable: Callable[[int], object], on_failed: Callable[[Exception], object]) -> None:
        pass

    def append(self, record: bytes, replaces: bool = False) -> int:
        return 0

    def commit(self) -> int:
        return 0

    def close(self) -> None:
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


class LogStore:
    """An append-only, checksummed log in a folder of its own (`live/storage/segments.py` describes the files)."""

    keeps = True

    def __init__(
        self,
        folder: Path,
        durability: Durability = "fsync",
        segment_bytes: int = SEGMENT_BYTES,
        *,
        threaded: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock_file = _lock(folder)
        self._records: list[bytes] = []
        """Of earlier incarnations, until `records` returns them."""
        self._file = -1
        try:
            self._syncs = durability == "fsync"
            self._has_thread = self._syncs and threaded
            """Otherwise `commit` itself waits for the disk."""
            self._segment_bytes = segment_bytes
            self._recover()
            self.incarnation = next_incarnation(folder)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._ticket = 0
        self._waiting: list[tuple[bytes, bool]] = []
        self._condition = threading.Condition()
        self._closing = False
        self._failed: Exception | None = None
        self._thread: threading.Thread | None = None
        self._on_durable: Callable[[int], object] = lambda ticket: None
        self._on_failed: Callable[[Exception], object] = lambda error: None

    def records(self) -> Sequence[bytes]:
        records, self._records = self._records, []
        return records

    def start(self, on_durable: Callable[[int], object], on_failed: Callable[[Exception], object]) -> None:
        self._on_durable, self._on_failed = on_durable, on_failed
        if self._has_thread:
            self._thread = threading.Thread(target=self._write_groups, name=f"log {self._folder}", daemon=True)
            self._thread.start()

    def append(self, record: bytes, replaces: bool = False) -> int:
        with self._condition:
            self._ticket += 1
            self._waiting.append((record, replaces))
            return self._ticket

    def commit(self) -> int:
        if self._has_thread:
            with self._condition:
                self._condition.notify()
            return 0
        if self._failed is not None:
            return 0
        waiting, self._waiting = self._waiting, []
        try:
            if waiting:
                self._write(waiting)
        except OSError as error:
            self._fail(error)
            return 0
        return self._ticket

    def close(self) -> None:
        if self._thread is not None:
            with self._condition:
                self._closing = True
                self._condition.notify()
            self._thread.join()
        elif self._waiting and self._failed is None:
            self.commit()
        os.close(self._file)
        os.close(self._lock_file)

    # Writing

    def _write_groups(self) -> None:
        while self._write_group():
            pass

    def _write_group(self) -> bool:
        """Waits for records and makes them durable together; False when the store is closed or has failed."""
        with self._condition:
            while not self._waiting and not self._closing:
                self._condition.wait()
            waiting, self._waiting = self._waiting, []
            ticket = self._ticket
        if not waiting:
            return False
        try:
            self._write(waiting)
        except OSError as error:
            self._fail(error)
            return False
        self._on_durable(ticket)
        return True

    def _write(self, records: list[tuple[bytes, bool]]) -> None:
        """Writes records. A snapshot starts a segment of its own, so that all earlier ones can be removed."""
        last = max((i for i, (_, replaces) in enumerate(records) if replaces), default=None)
        if last is None:
            self._write_commit(records)
            return
        old = segments.list_segments(self._folder)
        self._new_segment()
        self._write_commit(records[last:])
        for file in old:
            file.unlink()
        sync_folder(self._folder)

    def _write_commit(self, records: list[tuple[bytes, bool]]) -> None:
        data = segments.encode_commit(self._next, records)
        if self._end + len(data) > self._size:
            self._new_segment(len(data))
        os.pwrite(self._file, data, self._end)
        self._sync()
        self._end += len(data)
        self._next += len(records)

    def _sync(self) -> None:
        if self._syncs:
            os.fdatasync(self._file)

    def _fail(self, error: Exception) -> None:
        self._failed = error
        self._on_failed(OSError(f"the log in {self._folder} cannot be written any more: {error}"))

    # Segments

    def _recover(self) -> None:
        scan = segments.scan_log(self._folder)
        self._records = [entry.record for entry in scan.entries]
        self._next = scan.next_number
        self._segment = int(scan.last.stem) if scan.last is not None else 0
        if scan.last is None:
            self._new_segment()
            return
        if scan.torn_bytes:
            log.warning(
                "%s: a torn tail of %d bytes behind byte %d was truncated; it was never acknowledged",
                scan.last,
                scan.torn_bytes,
                scan.end,
            )
        self._file = os.open(scan.last, os.O_RDWR)
        self._size = max(os.fstat(self._file).st_size, self._segment_bytes)
        self._end = max(scan.end, segments.FIRST_COMMIT)
        if scan.torn_bytes or scan.end == 0:
            os.ftruncate(self._file, scan.end)
        if scan.end == 0:
            os.pwrite(self._file, segments.encode_head(self._next), 0)
        os.posix_fallocate(self._file, 0, self._size)
        self._sync()

    def _new_segment(self, size: int = 0) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._segment += 1
        path = self._folder / f"{self._segment:08d}.log"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = max(self._segment_bytes, segments.FIRST_COMMIT + size)
        os.posix_fallocate(self._file, 0, self._size)
        os.pwrite(self._file, segments.encode_head(self._next), 0)
        self._end = segments.FIRST_COMMIT
        self._sync()
        if self._syncs:
            sync_folder(self._folder)


class LogSummary(NamedTuple):
    """The size of a valid log."""

    records: int
    segments: int
    bytes: int
    torn_bytes: int


def verify_log(folder: Path) -> LogSummary:
    """Reads a log without changing anything; raises `DamagedLogError` if it is damaged."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; expected one with a log")
    scan = segments.scan_log(folder)
    if not scan.files:
        raise UsageError(f"{folder}: no segments (00000001.log ...); expected a log")
    size = sum(file.stat().st_size for file in scan.files)
    return LogSummary(len(scan.entries), len(scan.files), size, scan.torn_bytes)


def next_incarnation(folder: Path) -> int:
    """Starts an incarnation: returns its number, which no later one gets."""
    file = folder / "incarnation"
    incarnation = 0
    if file.exists():
        text = file.read_text()
        if not text.strip().isdigit():
            raise UsageError(f"{file}: {text[:40]!r}; expected the number of the last incarnation")
        incarnation = int(text) + 1
    write_atomically(file, f"{incarnation}\n".encode())
    return incarnation


def open_store(folder: Path, durability: Durability) -> Store:
    """Opens the store of a node's data folder."""
    if durability == "memory":
        folder.mkdir(parents=True, exist_ok=True)
        store = MemoryStore(lock_file=_lock(folder))
        try:
            store.incarnation = next_incarnation(folder)
        except BaseException:
            store.close()
            raise
        return store
    return LogStore(folder, durability)


def _lock(folder: Path) -> int:
    """Locks the folder, so that no second process writes to it; returns the open lock file."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise UsageError(
            f"{folder}: in use by another process; expected a folder per process (is this node running already?)"
        ) from None
    return file

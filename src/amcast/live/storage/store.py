"""Where a process' records go: the interface that a host needs, a store that keeps nothing, and a durable log.

A host appends records while it goes on stepping, and holds back what must wait for them. At the end of a tick it says
`commit`: everything appended so far should become durable as one group. With `fsync` a thread of its own writes the
group and waits for the disk, while the next group gathers; then it calls `durable(ticket)`. With `os` the group is
written at once: that survives the death of the process, not that of the machine.

A disk that fails, or is full, fails the store for good: what was not acknowledged never will be.
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
    """False: records need not even be encoded."""

    def records(self) -> Sequence[bytes]:
        """What earlier incarnations made durable and no snapshot has replaced, oldest first."""

    def start(self, durable: Callable[[int], object], failed: Callable[[Exception], object]) -> None:
        """From now on, tell what became durable, from any thread; or, once, that nothing more will."""

    def append(self, record: bytes, replaces: bool = False) -> int:
        """Take one record; its ticket (1, 2, 3 ...), or 0 if it need not be waited for."""

    def commit(self) -> int:
        """Begin to make durable what was appended; the highest ticket that is so already."""

    def close(self) -> None:
        """Make durable what was appended, and let go of the files."""


class MemoryStore:
    """Keeps nothing: a later incarnation starts without memory and says so by its number."""

    keeps = False

    def __init__(self, incarnation: int = 0, lock_file: int = -1) -> None:
        self.incarnation = incarnation
        self._lock_file = lock_file
        """Held while this incarnation lasts, if there is a folder that counts incarnations."""

    def records(self) -> Sequence[bytes]:
        return ()

    def start(self, durable: Callable[[int], object], failed: Callable[[Exception], object]) -> None:
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
        self._lock_file = _locked(folder)
        self._records: list[bytes] = []
        """What earlier incarnations left, until it is asked for."""
        self._file = -1
        try:
            self._syncs = durability == "fsync"
            self._threaded = self._syncs and threaded
            """Otherwise `commit` waits for the disk itself."""
            self._segment_bytes = segment_bytes
            self._recover()
            self.incarnation = next_incarnation(folder)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._ticket = 0
        self._waiting: list[tuple[bytes, bool]] = []
        self._turn = threading.Condition()
        self._closing = False
        self._failed: Exception | None = None
        self._thread: threading.Thread | None = None
        self._tell: Callable[[int], object] = lambda ticket: None
        self._tell_failed: Callable[[Exception], object] = lambda error: None

    def records(self) -> Sequence[bytes]:
        records, self._records = self._records, []
        return records

    def start(self, durable: Callable[[int], object], failed: Callable[[Exception], object]) -> None:
        self._tell, self._tell_failed = durable, failed
        if self._threaded:
            self._thread = threading.Thread(target=self._keep_writing, name=f"log {self._folder}", daemon=True)
            self._thread.start()

    def append(self, record: bytes, replaces: bool = False) -> int:
        with self._turn:
            self._ticket += 1
            self._waiting.append((record, replaces))
            return self._ticket

    def commit(self) -> int:
        if self._threaded:
            with self._turn:
                self._turn.notify()
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
            with self._turn:
                self._closing = True
                self._turn.notify()
            self._thread.join()
        elif self._waiting and self._failed is None:
            self.commit()
        os.close(self._file)
        os.close(self._lock_file)

    # The writer

    def _keep_writing(self) -> None:
        while self._write_group():
            pass

    def _write_group(self) -> bool:
        """Wait for records, make them durable together; False when it is over."""
        with self._turn:
            while not self._waiting and not self._closing:
                self._turn.wait()
            waiting, self._waiting = self._waiting, []
            ticket = self._ticket
        if not waiting:
            return False
        try:
            self._write(waiting)
        except OSError as error:
            self._fail(error)
            return False
        self._tell(ticket)
        return True

    def _write(self, records: list[tuple[bytes, bool]]) -> None:
        """Snapshots begin a segment of their own, so that everything before can go."""
        last = max((i for i, (_, replaces) in enumerate(records) if replaces), default=None)
        if last is None:
            self._write_commit(records)
            return
        old = segments.segments(self._folder)
        self._new_segment()
        self._write_commit(records[last:])
        for file in old:
            file.unlink()
        sync_folder(self._folder)

    def _write_commit(self, records: list[tuple[bytes, bool]]) -> None:
        data = segments.commit(self._next, records)
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
        said = OSError(f"the log in {self._folder} cannot be written any more: {error}")
        self._tell_failed(said)

    # Segments

    def _recover(self) -> None:
        found = segments.scan(self._folder)
        self._records = [entry.record for entry in found.entries]
        self._next = found.next_number
        self._segment = int(found.last.stem) if found.last is not None else 0
        if found.last is None:
            self._new_segment()
            return
        if found.torn_bytes:
            log.warning(
                "%s: a torn tail of %d bytes behind byte %d was cut; it was never acknowledged",
                found.last,
                found.torn_bytes,
                found.end,
            )
        self._file = os.open(found.last, os.O_RDWR)
        self._size = max(os.fstat(self._file).st_size, self._segment_bytes)
        self._end = max(found.end, segments.FIRST_COMMIT)
        if found.torn_bytes or found.end == 0:
            os.ftruncate(self._file, found.end)
        if found.end == 0:
            os.pwrite(self._file, segments.head(self._next), 0)
        os.posix_fallocate(self._file, 0, self._size)
        self._sync()

    def _new_segment(self, room: int = 0) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._segment += 1
        path = self._folder / f"{self._segment:08d}.log"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = max(self._segment_bytes, segments.FIRST_COMMIT + room)
        os.posix_fallocate(self._file, 0, self._size)
        os.pwrite(self._file, segments.head(self._next), 0)
        self._end = segments.FIRST_COMMIT
        self._sync()
        if self._syncs:
            sync_folder(self._folder)


class Verified(NamedTuple):
    """What `verify` found in a sound log."""

    records: int
    segments: int
    bytes: int
    torn_bytes: int


def verify(folder: Path) -> Verified:
    """Read a log without changing anything; raises a sentence that says where it is damaged."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; expected one with a log")
    found = segments.scan(folder)
    if not found.files:
        raise UsageError(f"{folder}: no segments (00000001.log ...); expected a log")
    size = sum(file.stat().st_size for file in found.files)
    return Verified(len(found.entries), len(found.files), size, found.torn_bytes)


def next_incarnation(folder: Path) -> int:
    """Begin an incarnation: its number, which no later one will have again."""
    file = folder / "incarnation"
    incarnation = 0
    if file.exists():
        text = file.read_text()
        if not text.strip().isdigit():
            raise UsageError(f"{file}: {text[:40]!r}; expected the number of the last incarnation")
        incarnation = int(text) + 1
    write_atomically(file, f"{incarnation}\n".encode())
    return incarnation


def opened_store(folder: Path, durability: Durability) -> Store:
    """The store that an operator asked for."""
    if durability == "memory":
        folder.mkdir(parents=True, exist_ok=True)
        store = MemoryStore(lock_file=_locked(folder))
        try:
            store.incarnation = next_incarnation(folder)
        except BaseException:
            store.close()
            raise
        return store
    return LogStore(folder, durability)


def _locked(folder: Path) -> int:
    """Hold the folder, so that no second process writes to it."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise UsageError(
            f"{folder}: in use by another process; expected a folder per process (is this node running already?)"
        ) from None
    return file

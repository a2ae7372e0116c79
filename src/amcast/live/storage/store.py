"""Stores for the records of a process: the interface that a host needs, a store that keeps nothing, and a durable log.

A host appends records while the process keeps stepping, and holds effects that must wait for them. At the end of a tick
it calls `commit`: all records appended so far become durable as one group. With `fsync` a thread writes the group and
waits for the disk, while the next group gathers; then it calls `on_durable(ticket)`. With `os` the group is written at
once: it survives the death of the process, not that of the machine.

A disk that fails, or is full, fails the store for good: a record that was not acknowledged never will be.

The log itself, its recovery and the identity of the folder are in `amcast/storage`, over a file interface.
"""

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from amcast.kernel.effects import Remember
from amcast.kernel.errors import UsageError
from amcast.kernel.folder import FolderState
from amcast.live.storage.system_files import SystemFiles
from amcast.storage import segments
from amcast.storage.errors import DamagedLogError
from amcast.storage.folder import StorageFolder
from amcast.storage.identity import read_identity
from amcast.storage.log import SEGMENT_BYTES, Log
from amcast.storage.scrubber import Scrubber

log = logging.getLogger("amcast.live")

Durability = Literal["fsync", "os", "memory"]
IDLE_S: Final = 1.0
"""After this time without records, a marker proves that all before it was durable."""


class Store(Protocol):
    """The records of one process, over all its incarnations."""

    incarnation: int
    """The incarnation that now begins: 0 at the first boot, one more at each later one."""
    keeps: bool
    """Whether records are kept; if not, they need not be encoded."""
    folder: FolderState | None
    """What the data folder said of itself when it was opened; None if there is no folder."""
    has_records: bool
    """Whether there are records of earlier incarnations that can be used."""

    def records(self) -> Sequence[bytes]:
        """The records of earlier incarnations that no snapshot has replaced, oldest first."""

    def start(self, on_durable: Callable[[int], object], on_failed: Callable[[Exception], object]) -> None:
        """Reports from now on, from any thread, the ticket of the last durable record; or, once, a failure."""

    def append(self, record: bytes, replaces: bool = False) -> int:
        """Appends a record; returns its ticket (1, 2, 3 ...), or 0 if nothing need wait for it."""

    def commit(self) -> int:
        """Starts to make appended records durable; returns the highest ticket that is durable already."""

    def remember(self, memory: Remember) -> None:
        """Makes durable what the process knows of data folders; a lazy memory later, in another thread."""

    def discard(self, records: int, incarnation: int) -> None:
        """Puts all records aside (`StorageFolder.discard`); nothing more is appended in this incarnation."""

    def make_scrubber(self) -> Scrubber | None:
        """Makes a scrubber of the records; None if none are kept, or they are doubtful already."""

    def close(self) -> None:
        """Makes appended records durable, and closes the files."""


class FolderMemory:
    """Writes what a process knows of data folders to its own, the newest last."""

    def __init__(self, storage: StorageFolder) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._last = self._written = 0
        self._on_failed: Callable[[Exception], object] = lambda error: None

    def start(self, on_failed: Callable[[Exception], object]) -> None:
        """Reports from now on, from any thread, that the folder cannot be written."""
        self._on_failed = on_failed

    def remember(self, memory: Remember) -> None:
        self._last += 1
        if memory.lazy:
            arguments = (memory, self._last)
            threading.Thread(target=self._write_later, args=arguments, name="folder memory", daemon=True).start()
        else:
            self._write(memory, self._last)

    def _write_later(self, memory: Remember, number: int) -> None:
        try:
            self._write(memory, number)
        except OSError as error:
            self._on_failed(OSError(f"{self._storage.path} cannot be written any more: {error}"))

    def _write(self, memory: Remember, number: int) -> None:
        with self._lock:
            if number > self._written and self._storage.is_open:
                self._written = number
                self._storage.remember(memory.peers, memory.admitted, memory.doubt, memory.divergence)

    def close(self) -> None:
        """Waits for a write in progress, and closes the folder."""
        with self._lock:
            self._storage.close()


class MemoryStore:
    """Keeps nothing: a later incarnation starts without state, which its number shows."""

    keeps = False
    has_records = False

    def __init__(self, incarnation: int = 0, storage: StorageFolder | None = None) -> None:
        self.incarnation = incarnation
        self._storage = storage
        """Locked during this incarnation, if there is a folder that counts incarnations."""
        self._memory = None if storage is None else FolderMemory(storage)
        self.folder = None if storage is None else storage.state

    def records(self) -> Sequence[bytes]:
        return ()

    def start(self, on_durable: Callable[[int], object], on_failed: Callable[[Exception], object]) -> None:
        if self._memory is not None:
            self._memory.start(on_failed)

    def append(self, record: bytes, replaces: bool = False) -> int:
        return 0

    def commit(self) -> int:
        return 0

    def remember(self, memory: Remember) -> None:
        if self._memory is not None:
            self._memory.remember(memory)

    def discard(self, records: int, incarnation: int) -> None:
        if self._storage is not None:
            self._storage.discard(records, incarnation)

    def make_scrubber(self) -> Scrubber | None:
        return None

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = self._storage = None


class LogStore:
    """An append-only, checksummed log in a folder of its own (`storage/segments.py` describes the files)."""

    keeps = True

    def __init__(
        self,
        folder: Path,
        durability: Durability = "fsync",
        segment_bytes: int = SEGMENT_BYTES,
        *,
        threaded: bool = True,
        accepts_doubt: bool = False,
    ) -> None:
        """Opens a folder. A doubtful log is refused, unless the owner `accepts_doubt` and looks at `folder`."""
        syncs = durability == "fsync"
        self._path = folder
        self._storage = open_folder(folder, syncs=syncs, segment_bytes=segment_bytes)
        self._memory = FolderMemory(self._storage)
        self.folder: FolderState | None = self._storage.state
        self.has_records = bool(self._log.records)
        self._has_thread = syncs and threaded
        """Otherwise `commit` itself waits for the disk."""
        if self._log.doubt and not accepts_doubt:
            self._storage.close()
            raise DamagedLogError(f"{self._log.doubt}; the log was not changed")
        self.incarnation = self._storage.incarnation
        if self._log.torn_bytes:
            log.warning(
                "%s: a torn tail of %d bytes was truncated; it was never acknowledged", folder, self._log.torn_bytes
            )
        self._ticket = 0
        self._waiting: list[tuple[bytes, bool]] = []
        self._condition = threading.Condition()
        self._closing = False
        self._failed: Exception | None = None
        self._thread: threading.Thread | None = None
        self._on_durable: Callable[[int], object] = lambda ticket: None
        self._on_failed: Callable[[Exception], object] = lambda error: None

    @property
    def _log(self) -> Log:
        assert self._storage.log is not None
        return self._storage.log

    def records(self) -> Sequence[bytes]:
        return self._log.take_records()

    def start(self, on_durable: Callable[[int], object], on_failed: Callable[[Exception], object]) -> None:
        self._on_durable, self._on_failed = on_durable, on_failed
        self._memory.start(on_failed)
        if self._has_thread:
            self._thread = threading.Thread(target=self._write_groups, name=f"log {self._storage.path}", daemon=True)
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
                self._log.write(waiting)
        except OSError as error:
            self._fail(error)
            return 0
        return self._ticket

    def remember(self, memory: Remember) -> None:
        self._memory.remember(memory)

    def discard(self, records: int, incarnation: int) -> None:
        self._stop_writing()
        self._storage.discard(records, incarnation)

    def make_scrubber(self) -> Scrubber | None:
        log = self._log
        if log.doubt:
            return None
        return Scrubber(SystemFiles(self._path), self._storage.state.folder, lambda: log.durable_end)

    def close(self) -> None:
        self._stop_writing()
        if self._failed is None and not self._log.doubt:
            with contextlib.suppress(OSError):  # all records are durable without the marker
                self._log.mark()
        self._memory.close()

    def _stop_writing(self) -> None:
        if self._thread is not None:
            with self._condition:
                self._closing = True
                self._condition.notify()
            self._thread.join()
            self._thread = None
        elif self._waiting and self._failed is None:
            self.commit()

    # Writing

    def _write_groups(self) -> None:
        while self._write_group():
            pass

    def _write_group(self) -> bool:
        """Waits for records and makes them durable together; False when the store is closed or has failed."""
        with self._condition:
            while not self._waiting and not self._closing:
                if not self._condition.wait(None if self._log.is_marked else IDLE_S) and not self._waiting:
                    break
            waiting, self._waiting = self._waiting, []
            ticket = self._ticket
        if not waiting:
            return not self._closing and self._mark()
        try:
            self._log.write(waiting)
        except OSError as error:
            self._fail(error)
            return False
        self._on_durable(ticket)
        return True

    def _mark(self) -> bool:
        """Marks an idle log; False if the store has failed."""
        try:
            self._log.mark()
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: Exception) -> None:
        self._failed = error
        self._on_failed(OSError(f"the log in {self._storage.path} cannot be written any more: {error}"))


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
    files = SystemFiles(folder)
    identity = read_identity(files)
    scan = segments.scan_log(files, None if identity is None else identity.folder)
    if not scan.files:
        raise UsageError(f"{folder}: no segments (00000001.log ...); expected a log")
    remembered = 0 if identity is None else identity.records
    if doubt := scan.doubt or segments.describe_missing_end(files.path, scan.next_number, remembered):
        raise DamagedLogError(f"{doubt}; nothing was changed")
    size = sum((folder / name).stat().st_size for name in scan.files)
    return LogSummary(len(scan.records), len(scan.files), size, scan.torn_bytes)


def open_folder(
    folder: Path, *, keeps_log: bool = True, syncs: bool = True, segment_bytes: int = SEGMENT_BYTES
) -> StorageFolder:
    """Opens a data folder, which begins an incarnation; creates it if there is none."""
    files = SystemFiles(folder).make_folder()
    return StorageFolder(files, draw_folder, keeps_log=keeps_log, syncs=syncs, segment_bytes=segment_bytes)


def draw_folder() -> int:
    """Draws the number of a new folder."""
    return secrets.randbits(63)


def open_store(folder: Path, durability: Durability) -> Store:
    """Opens the store of a node's data folder."""
    if durability == "memory":
        storage = open_folder(folder, keeps_log=False)
        return MemoryStore(storage.incarnation, storage)
    return LogStore(folder, durability, accepts_doubt=True)

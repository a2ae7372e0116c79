"""The archive of a replica's deliveries on disk: subscribers can read further back than the memory of a replica
reaches, and after it was restarted.

    deliveries/
      from-00000000000000000017/     deliveries from position 17 on: a log of pages (`live/storage/store.py`)
      from-00000000000000004711/     and so on, without a gap

The archive follows the recent deliveries of its replica (`live/host/recent_deliveries.py`), page by page, in a thread
that nothing waits for, unless the disk is far behind; before memory or the log of the replica drops deliveries, the
archive has them. What a crash takes from its end the log repeats. It is bounded by size and age: the oldest log is
removed as a whole when there is too much, or when its last delivery is old.

All positions of an archive follow each other. Where a snapshot replaced deliveries, or a disk lost some, the archive
begins anew behind the gap: a reader gets every delivery or an error that names the first position that is left.
"""

import asyncio
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from amcast.kernel.message import Message
from amcast.live.limits import KIB, MIB
from amcast.live.storage.store import Durability, LogStore
from amcast.live.storage.system_files import SystemFiles
from amcast.storage.segments import FIRST_COMMIT, SECTOR, measure_commit, scan_log

log = logging.getLogger("amcast.live")

PAGE_BYTES: Final = 128 * KIB
LOG_BYTES: Final = 8 * MIB
"""A log of this size is followed by a new one; a smaller archive has eight logs."""
PAUSE_S: Final = 0.05
"""Between two groups of pages: deliveries gather meanwhile."""
IDLE_S: Final = 10.0
"""How often an archive without deliveries looks for logs that are too old."""
MAX_UNWRITTEN: Final = 64
"""With more pages that wait for the disk, the replica waits, too."""
PREFIX: Final = "from-"


class ArchivePage(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive messages; the first one was delivered at `position`."""

    position: int
    messages: list[Message]


class Deliveries(Protocol):
    """The recent deliveries of a replica."""

    first: int
    next: int

    def read_from(self, position: int, limit_bytes: int) -> list[Message]:
        """The deliveries from a position on."""

    async def wait_for_news(self, timeout_s: float | None = None) -> bool:
        """Waits for more."""


class ArchiveLog(NamedTuple):
    """One log of an archive."""

    first: int
    path: Path


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ArchivePage)


class DeliveryArchive:
    """The deliveries [first, next) of a replica, on disk."""

    def __init__(
        self,
        folder: Path,
        durability: Durability,
        limit_bytes: int,
        limit_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._durability = durability
        self._limit_bytes = limit_bytes
        self._limit_s = limit_s
        self._clock = clock
        self._log_bytes = max(min(LOG_BYTES, limit_bytes // 8), 64 * KIB)
        self._store: LogStore | None = None
        """The last log, which is written; only the worker uses it."""
        self._store_bytes = 0
        self._worker = ThreadPoolExecutor(1, "delivery archive")
        self._recent: Deliveries | None = None
        self._unwritten: deque[Future[None]] = deque()
        """Pages that the worker has not written, and some that it has."""
        self._failed: Exception | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._logs = [ArchiveLog(int(path.name[len(PREFIX) :]), path) for path in sorted(folder.glob(f"{PREFIX}*"))]
        self.next = self._open_last()
        """The position behind the last delivery that was given to the worker."""

    @property
    def first(self) -> int:
        """The first position that is held; `next` if there is none."""
        return self._logs[0].first if self._logs else self.next

    def _open_last(self) -> int:
        """Opens the last log of an earlier run; returns the position behind its deliveries."""
        if not self._logs:
            return 0
        position, path = self._logs[-1]
        self._store = LogStore(path, self._durability, self._log_bytes, threaded=False, accepts_doubt=True)
        self._store.start(lambda ticket: None, self._fail)
        if self._store.folder is not None and self._store.folder.condition == "doubtful":
            reason = self._store.folder.reason
            log.warning("the archive of deliveries begins anew, because its end is damaged: %s", reason)
            self._begin()
            return 0
        for record in self._store.records():
            page = _decoder.decode(record)
            position = page.position + len(page.messages)
            self._store_bytes += measure_commit([record])
        return position

    # Writing

    def follow(self, recent: Deliveries) -> None:
        """Sets the deliveries that the archive follows."""
        self._recent = recent

    async def run(self) -> None:
        """Archives deliveries as they come, until it is cancelled."""
        recent = self._recent
        assert recent is not None
        while True:
            self._submit_new()
            await asyncio.sleep(PAUSE_S)
            if recent.next <= self.next and not await recent.wait_for_news(IDLE_S):
                await asyncio.wrap_future(self._worker.submit(self._remove_old))

    def gather(self) -> None:
        """Called before memory forgets deliveries that the archive does not have: takes them. Waits for the disk only
        if it is far behind."""
        self._submit_new()
        while len(self._unwritten) > MAX_UNWRITTEN:
            self._unwritten.popleft().result()

    def save(self) -> None:
        """Called before the log of the replica drops delivered messages: returns when the archive has them."""
        self._submit_new()
        while self._unwritten:
            self._unwritten.popleft().result()

    def close(self) -> None:
        """Archives what is left, and closes the files."""
        self._submit_new()
        self._worker.shutdown()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _submit_new(self) -> None:
        """Gives the worker the deliveries that it does not have."""
        recent, unwritten = self._recent, self._unwritten
        while unwritten and unwritten[0].done():
            unwritten.popleft()
        while recent is not None and self.next < recent.next and recent.first < recent.next and self._failed is None:
            if self.next < recent.first:
                log.warning(
                    "the archive of deliveries begins anew at position %d: deliveries %d to %d are missing",
                    recent.first,
                    self.next,
                    recent.first - 1,
                )
                self._logs = []
                self.next = recent.first
                unwritten.append(self._worker.submit(self._begin))
            messages = recent.read_from(self.next, PAGE_BYTES)
            unwritten.append(self._worker.submit(self._append, ArchivePage(self.next, messages)))
            self.next += len(messages)

    def _append(self, page: ArchivePage) -> None:
        try:
            if self._failed is None:
                self._write(page)
                self._remove_old()
        except OSError as error:
            self._fail(error)

    def _write(self, page: ArchivePage) -> None:
        record = _encoder.encode(page)
        size = measure_commit([record])
        if self._store is None or self._store_bytes + size + SECTOR > self._log_bytes:  # a marker ends each log
            self._begin_log(page.position)
        assert self._store is not None
        self._store_bytes += size
        self._store.append(record)
        self._store.commit()

    def _begin(self) -> None:
        """Removes everything."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._logs = []
        for path in self._folder.glob(f"{PREFIX}*"):
            shutil.rmtree(path)

    def _begin_log(self, position: int) -> None:
        if self._store is not None:
            self._store.close()
        path = self._folder / f"{PREFIX}{position:020d}"
        self._store = LogStore(path, self._durability, self._log_bytes, threaded=False)
        self._store.start(lambda ticket: None, self._fail)
        self._store_bytes = FIRST_COMMIT
        self._logs = [*self._logs, ArchiveLog(position, path)]

    def _drop(self, damaged: ArchiveLog) -> None:
        """Removes a log and those before it."""
        if damaged not in self._logs:
            return
        index = self._logs.index(damaged) + 1
        if index == len(self._logs) and self._store is not None:
            self._store.close()
            self._store = None
        dropped, self._logs = self._logs[:index], self._logs[index:]
        for _, path in dropped:
            shutil.rmtree(path)

    def _remove_old(self) -> None:
        """Removes the oldest logs while there is too much, or they are too old; the last one stays."""
        sizes = {path: _measure(path) for _, path in self._logs}
        total = sum(sizes.values())
        while len(self._logs) > 1:
            oldest = self._logs[0].path
            if total <= self._limit_bytes and self._clock() - _last_write(oldest) <= self._limit_s:
                return
            total -= sizes[oldest]
            self._logs = self._logs[1:]
            shutil.rmtree(oldest)

    def _fail(self, error: Exception) -> None:
        """A disk that fails ends the archive, not the replica: subscribers have its memory."""
        self._failed = error
        log.error("the archive of deliveries is not continued: %s", error)

    # Reading

    async def read_from(self, position: int) -> list[ArchivePage]:
        """Some pages, the first of which begins with a position that is held; none if it was removed meanwhile, or is
        damaged: then it and everything before it is held no longer."""
        found = next((one for one in reversed(self._logs) if one.first <= position), None)
        if found is None:
            return []
        pages = await asyncio.to_thread(_read_log, found.path, position)
        if not pages:  # the worker may not have written it yet
            await asyncio.wrap_future(self._worker.submit(lambda: None))
            pages = await asyncio.to_thread(_read_log, found.path, position)
        if not pages and found in self._logs:
            log.error("the archive of deliveries is damaged at position %d: %s", position, found.path)
            await asyncio.wrap_future(self._worker.submit(self._drop, found))
        return pages


def _read_log(path: Path, position: int) -> list[ArchivePage]:
    """The pages of a log from a position on. The log may be written, or removed, meanwhile."""
    try:
        scan = scan_log(SystemFiles(path))
    except (OSError, ValueError):
        return []
    pages = []
    for record in scan.records:
        page = _decoder.decode(record)
        if page.position + len(page.messages) > position:
            skipped = max(0, position - page.position)
            pages.append(ArchivePage(page.position + skipped, page.messages[skipped:]))
    return pages if pages and pages[0].position == position else []


def _measure(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def _last_write(path: Path) -> float:
    return max((file.stat().st_mtime for file in path.glob("*.log")), default=0.0)

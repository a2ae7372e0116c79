"""The recent deliveries of a replica by position, for subscribers and for applications that catch up.

All members of a group deliver the same messages at the same positions, so a reader that knows its position can continue
at any of them. The buffer is bounded in bytes and shared by all readers: a slow reader costs nothing and delays nobody.
A reader that comes back too late gets an error that its position has expired.

Readers can be told which deliveries are closed (docs/real-time.md), or wait until some are.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Literal

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import MessageId
from amcast.kernel.message import Message
from amcast.live.limits import MIB
from amcast.live.storage.delivery_archive import DeliveryArchive

ACYCLIC: Final = 'the cluster has order = "acyclic"; expected order = "real-time" in its cluster.toml'
"""Why nothing is known to be closed."""
OVERHEAD_BYTES: Final = 200
"""Memory of a message, or bundle, besides its payload."""
Closing = Literal["unknown", "stated", "delivered"]
"""When a delivery is known to be closed: never, in the acyclic setting; when the process states it (`Close`); at its
delivery, if the protocol has real-time order by itself."""
WATCHED: Final = 64
LARGE_SHARE: Final = 16
"""A bundle larger than this share of the buffer is added message by message."""


class MissedDeliveriesError(CannotTellError):
    """Deliveries that no buffer has any more: a reader came too late, or a replica installed a snapshot."""

    def __init__(self, reader: str, position: int, first: int) -> None:
        super().__init__(
            f"{reader}: deliveries {position} to {first - 1} are no longer kept; the oldest kept is at position {first}"
        )
        self.position = position
        """The position that was requested."""
        self.first = first
        """The position from which reading can continue, with a gap."""


class NotClosedError(CannotTellError, TimeoutError):
    """Deliveries that are not known to be closed in time."""


SEARCHED_BYTES: Final = 4 * MIB
"""How far a message is searched for: more would delay everything else."""

_Run = tuple[Message | None, Sequence[Message], int, int]


class RecentDeliveries:
    """A run of positions without a gap, [first, next)."""

    __slots__ = (
        "_bytes", "_closed_until", "_closing", "_limit_bytes", "_open_bundle", "_runs", "_waiting",
        "_waiting_for_closing", "_watch_limit", "_watched", "archive", "first", "next", "subscribers",
    )  # fmt: skip

    def __init__(
        self,
        limit_bytes: int,
        open_bundle: Callable[[Message], Sequence[Message]] | None = None,
        closing: Closing = "unknown",
        archive: DeliveryArchive | None = None,
    ) -> None:
        """`open_bundle` returns the messages of a bundle; without it, everything is kept message by message. `archive`
        keeps more on disk."""
        self.archive = archive
        if archive is not None:
            archive.follow(self)
        self.first = 0
        self.next = 0
        """The position of the next delivery."""
        self.subscribers = 0
        """Subscriptions that are served from here now."""
        self._limit_bytes = limit_bytes
        self._open_bundle = open_bundle
        self._runs: deque[_Run] = deque()
        """Deliveries that came at once: the bundle, or else the messages; their count; their bytes. A bundle is one
        piece of memory, and each reader opens it anew."""
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._closing: Final = closing
        self._closed_until = 0
        self._waiting_for_closing: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap: positions up to which deliveries must be closed, a number that breaks ties, and who waits."""
        self._watched = 0
        self._watch_limit = WATCHED
        """With so many entries in the heap, those that were given up are removed."""

    @property
    def first_held(self) -> int:
        """The first position that is held here or in the archive."""
        archive = self.archive
        return self.first if archive is None or archive.next < self.first else min(self.first, archive.first)

    @property
    def closed_until(self) -> int | None:
        """Every delivery of the group before this position is closed; it may be ahead of `next`. None if that is not
        known in this setting."""
        if self._closing == "delivered":
            return self.next
        return self._closed_until if self._closing == "stated" else None

    def close_until(self, position: int) -> None:
        """Records that every delivery before a position is closed."""
        self._closed_until = max(self._closed_until, position)
        self._wake_readers()

    def add(self, position: int, message: Message) -> None:
        """Adds one delivery. A restarted process repeats some, which changes nothing."""
        if position != self.next:
            if position < self.next and self._runs:
                return
            self.skip_to(position)
        self._append(None, (message,), 1, len(message.payload) + OVERHEAD_BYTES)

    def add_bundle(self, position: int, bundle: Message, count: int) -> bool:
        """Adds all messages of a bundle at once; False if they must be added message by message."""
        size = len(bundle.payload) + OVERHEAD_BYTES
        if self._open_bundle is None or not count or position != self.next or size > self._limit_bytes // LARGE_SHARE:
            return False
        self._append(bundle, (), count, size)
        return True

    def add_all(self, position: int, messages: Sequence[Message]) -> None:
        """Adds several deliveries, the first at this position."""
        for place, message in enumerate(messages, position):
            self.add(place, message)

    def _append(self, bundle: Message | None, messages: Sequence[Message], count: int, size: int) -> None:
        self._runs.append((bundle, messages, count, size))
        self.next += count
        self._bytes += size
        while self._bytes > self._limit_bytes:
            if self.archive is not None and self.archive.next < self.next:
                self.archive.gather()
            _, _, count, size = self._runs.popleft()
            self._bytes -= size
            self.first += count
        if self._waiting or self._waiting_for_closing:
            self._wake_readers()

    def skip_to(self, position: int) -> None:
        """Records that a snapshot replaced the deliveries before this position."""
        if self.first <= position <= self.next:
            return
        self._runs.clear()
        self._bytes = 0
        self.first = self.next = position
        self._wake_readers()

    def read_from(self, position: int, limit_bytes: int, end: int | None = None) -> list[Message]:
        """The deliveries from a position on, up to `end`: at least one if there is any, and otherwise at most
        `limit_bytes`."""
        assert position >= self.first, f"position {position} has expired; the first kept is {self.first}"
        read: list[Message] = []
        size = 0
        if end is not None and position >= end:
            return read
        for bundle, messages, begin, until in self._runs_from(position):
            run = messages if bundle is None or self._open_bundle is None else self._open_bundle(bundle)
            count = until - begin
            assert len(run) == count, f"bundle at {begin}: {len(run)} messages, and {count} were delivered"
            for message in run[max(0, position - begin) :]:
                size += len(message.payload) + OVERHEAD_BYTES
                if read and (size > limit_bytes or position + len(read) == end):
                    return read
                read.append(message)
        return read

    def find(self, message: MessageId, since: int = 0) -> int | None:
        """The position of a message at or after a position, searched from the newest on; None if it is not found among
        SEARCHED_BYTES of deliveries."""
        end, searched = self.next, 0
        for bundle, messages, count, size in reversed(self._runs):
            if end <= since or searched > SEARCHED_BYTES:
                break
            searched += size
            run = messages if bundle is None or self._open_bundle is None else self._open_bundle(bundle)
            for place, one in enumerate(run):
                if one.id == message:
                    return end - count + place
            end -= count
        return None

    def _runs_from(self, position: int) -> Iterator[_Run]:
        """The runs at and after a position, each with its first and its end position; searched from the nearer end."""
        if position - self.first <= self.next - position:
            end = self.first
            for bundle, messages, count, _ in self._runs:
                begin, end = end, end + count
                if end > position:
                    yield bundle, messages, begin, end
            return
        last: list[_Run] = []
        begin = self.next
        for bundle, messages, count, _ in reversed(self._runs):
            if begin <= position:
                break
            end, begin = begin, begin - count
            last.append((bundle, messages, begin, end))
        yield from reversed(last)

    async def wait_for_news(self, timeout_s: float | None = None) -> bool:
        """Waits until something is delivered, or known to be closed; False if nothing was in time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            if future in self._waiting:
                self._waiting.remove(future)
        return True

    def watch_closing(self, position: int) -> asyncio.Future[None]:
        """A future that is done when every delivery before a position is closed, where that becomes known. Who gives up
        cancels it."""
        assert self._closing != "unknown", "nothing is known to be closed in the acyclic setting"
        heap = self._waiting_for_closing
        if len(heap) >= self._watch_limit:
            heap[:] = [entry for entry in heap if not entry[2].done()]
            heapify(heap)
            self._watch_limit = 2 * len(heap) + WATCHED
        self._watched += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(heap, (position, self._watched, future))
        self._wake_readers()
        return future

    def _wake_readers(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        closed, heap = self.closed_until, self._waiting_for_closing
        while heap and closed is not None and heap[0][0] <= closed:
            future = heappop(heap)[2]
            if not future.done():
                future.set_result(None)

"""The recent deliveries of a replica by position, for subscribers and for applications that catch up.

All members of a group deliver the same messages at the same positions, so a reader that knows its position can continue
at any of them. The buffer is bounded in bytes and shared by all readers: a slow reader costs nothing and delays nobody.
A reader that comes back too late gets an error that its position has expired.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from amcast.kernel.errors import CannotTellError
from amcast.kernel.message import Message

OVERHEAD_BYTES: Final = 200
"""Memory of a message, or bundle, besides its payload."""
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


_Run = tuple[Message | None, Sequence[Message], int, int]


class RecentDeliveries:
    """A run of positions without a gap, [first, next)."""

    __slots__ = ("_bytes", "_limit_bytes", "_open_bundle", "_runs", "_waiting", "first", "next", "subscribers")

    def __init__(self, limit_bytes: int, open_bundle: Callable[[Message], Sequence[Message]] | None = None) -> None:
        """`open_bundle` returns the messages of a bundle; without it, everything is kept message by message."""
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
            _, _, count, size = self._runs.popleft()
            self._bytes -= size
            self.first += count
        if self._waiting:
            self._wake_readers()

    def skip_to(self, position: int) -> None:
        """Records that a snapshot replaced the deliveries before this position."""
        if self.first <= position <= self.next:
            return
        self._runs.clear()
        self._bytes = 0
        self.first = self.next = position
        self._wake_readers()

    def read_from(self, position: int, limit_bytes: int) -> list[Message]:
        """The deliveries from a position on: at least one if there is any, and otherwise at most `limit_bytes`."""
        assert position >= self.first, f"position {position} has expired; the first kept is {self.first}"
        read: list[Message] = []
        size = 0
        for bundle, messages, begin, end in self._runs_from(position):
            run = messages if bundle is None or self._open_bundle is None else self._open_bundle(bundle)
            assert len(run) == end - begin, f"bundle at {begin}: {len(run)} messages, and {end - begin} were delivered"
            for message in run[max(0, position - begin) :]:
                size += len(message.payload) + OVERHEAD_BYTES
                if read and size > limit_bytes:
                    return read
                read.append(message)
        return read

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

    async def wait_for_delivery(self, timeout_s: float | None = None) -> bool:
        """Waits for a new delivery; False if none came in time."""
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

    def _wake_readers(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

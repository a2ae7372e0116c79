"""Application of a user on top of a replica: it receives every delivery, and its state survives restarts and snapshots.

Three events take deliveries away from an application. A restarted replica begins at the end of its log; a replica that
was down for long, or lost its state, installs a snapshot of the protocol in the place of deliveries; and a machine may
fail between a delivery and its effect in the application. An application that can export its state as bytes (`take`)
and replace it by such bytes (`install`) survives all three:

- with a log on disk, deliveries that the log is about to drop are first written to a journal beside it, behind a state
  of the application; a new incarnation installs the last state, delivers the journal, and continues;
- when positions are missing, the state of the application at another member after those positions is fetched and
  installed; deliveries since then follow from `live/host/recent_deliveries.py`.

An application without `take` and `install` is informed of a gap by `on_missed`, and continues behind it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from amcast.kernel.effects import Deliver
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.message import Message
from amcast.live.client_batch import Delivery, message_deliveries
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.limits import KIB, MIB
from amcast.live.membership.topology_follower import TopologyFollower
from amcast.live.rpc.client import RpcClient
from amcast.live.storage.store import Durability, LogStore

log = logging.getLogger("amcast.live")

Take = Callable[[], bytes]
Install = Callable[[bytes, int], None]
Fetch = Callable[[int], Awaitable[tuple[int, bytes]]]
"""Fetches the state of the application at another member, after at least a number of deliveries."""
JOURNAL_BYTES: Final = 8 * MIB
"""The journal may grow to this size, or four times the last state, before a new state is taken."""
CHUNK_BYTES: Final = 128 * KIB
SEGMENT_BYTES: Final = 2 * MIB
RETRY_S: Final = 0.5


class JournalPage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Consecutive messages; the first one was delivered at `position`."""

    position: int
    messages: list[Message]


class JournalState(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The state of the application after `position` deliveries."""

    position: int
    data: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(JournalPage | JournalState)


class Journal:
    """Messages delivered to an application since the last state of it that was taken."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._store = LogStore(folder, durability, SEGMENT_BYTES, threaded=False)
        self._written = 0
        self._state_bytes = 0
        self._waiting: list[Message] = []
        self._first = 0
        self._failed: Exception | None = None
        self._store.start(lambda ticket: None, self._fail)

    def replay(self, install: Install, deliver: Callable[[int, Message], None]) -> int:
        """Installs the last state and delivers the messages behind it; returns the position reached."""
        position = 0
        for record in self._store.records():
            match _decoder.decode(record):
                case JournalState(position=at, data=data):
                    install(data, at)
                    position = at
                    self._state_bytes = len(data)
                case JournalPage(position=at, messages=messages):
                    assert at == position, f"the journal continues at position {at}; expected {position}"
                    for message in messages:
                        deliver(position, message)
                        position += 1
                    self._written += len(record)
        self._first = position
        return position

    def add(self, message: Message) -> None:
        """Queues one delivery for the next `write`."""
        self._waiting.append(message)

    def write(self) -> None:
        """Makes the queued deliveries durable."""
        if self._waiting:
            page = _encoder.encode(JournalPage(self._first, self._waiting))
            self._first += len(self._waiting)
            self._waiting = []
            self._append(page, False)
            self._written += len(page)

    def begin_with(self, position: int, state: bytes) -> None:
        """Replaces everything before by a state."""
        self._waiting = []
        self._first = position
        self._written = 0
        self._state_bytes = len(state)
        self._append(_encoder.encode(JournalState(position, state)), True)

    @property
    def is_long(self) -> bool:
        """Whether a state would be shorter than the journal."""
        return self._written > max(JOURNAL_BYTES, 4 * self._state_bytes)

    def close(self) -> None:
        if self._failed is None:
            self.write()
        self._store.close()

    def _append(self, record: bytes, replaces: bool) -> None:
        self._store.append(record, replaces)
        self._store.commit()
        if self._failed is not None:
            raise self._failed

    def _fail(self, error: Exception) -> None:
        self._failed = error


class Application:
    """Delivers messages to a user's application, each once and in order, over all incarnations of its replica."""

    def __init__(
        self,
        on_delivery: Callable[[Delivery], None] | None,
        *,
        take: Take | None = None,
        install: Install | None = None,
        on_missed: Callable[[int, int], None] | None = None,
        delivered_until: int = 0,
        journal: Journal | None = None,
    ) -> None:
        if (take is None) != (install is None):
            raise UsageError("take and install belong together; expected both or none of them")
        self.position = delivered_until
        """The application has received every delivery before this position."""
        self._on_delivery = on_delivery
        self._take = take
        self._install = install
        self._on_missed = on_missed
        self._journal = journal
        self._recent: RecentDeliveries | None = None
        self._fetch: Fetch | None = None
        self._on_failed: Callable[[Exception], object] = lambda error: None
        """Called when the application fails while it catches up."""
        self._catch_up_task: asyncio.Task[None] | None = None
        self._position_changed = asyncio.Event()
        if journal is not None and install is not None:
            self.position = journal.replay(install, self._call_application)

    # Called by the host

    def deliver(self, effect: Deliver) -> None:
        """Delivers one message. While a state is being fetched, messages stay in `RecentDeliveries` and are delivered
        later."""
        if effect.position < self.position or self._catch_up_task is not None:
            return
        if effect.position > self.position and self.skip_to(effect.position):
            return
        self._deliver(effect.position, effect.message)

    def skip_to(self, position: int) -> bool:
        """Skips deliveries before a position, which will not come; returns True if a state is being fetched in their
        place."""
        if position <= self.position or self._catch_up_task is not None:
            return self._catch_up_task is not None
        if self._install is None:
            first, self.position = self.position, position
            if self._on_missed is not None:
                self._on_missed(first, position)
            elif self._on_delivery is not None:
                log.warning("the application missed deliveries %d to %d: a snapshot replaced them", first, position - 1)
            return False
        self._catch_up_task = asyncio.get_running_loop().create_task(self._run_catch_up(position))
        return True

    def save(self) -> None:
        """Called before the log of the replica drops delivered messages."""
        if self._journal is None:
            return
        if self._journal.is_long:
            assert self._take is not None
            self._journal.begin_with(self.position, self._take())
        else:
            self._journal.write()

    async def read_state(self, position: int) -> tuple[int, bytes]:
        """The application's state after at least a number of deliveries, for another member."""
        assert self._take is not None
        while self.position < position or self._catch_up_task is not None:
            self._position_changed.clear()
            await self._position_changed.wait()
        return self.position, self._take()

    @property
    def can_take(self) -> bool:
        """Whether the application can export its state, so that other members may fetch it (`read_state`)."""
        return self._take is not None

    def serve(self, host: Host, recent: RecentDeliveries, follower: TopologyFollower, rpc: RpcClient) -> None:
        """Attaches the application to a host that has not started."""
        self._recent = recent
        self._on_failed = host.fail

        async def fetch(position: int) -> tuple[int, bytes]:
            rpc.follow_topology(host.topology)
            return await rpc.fetch_state(follower.other_members(), position)

        self._fetch = fetch

    async def close(self) -> None:
        if self._catch_up_task is not None:
            self._catch_up_task.cancel()
            await asyncio.gather(self._catch_up_task, return_exceptions=True)
        if self._journal is not None:
            self._journal.close()

    # Internal

    def _deliver(self, position: int, message: Message) -> None:
        if self._journal is not None:
            self._journal.add(message)
        self._call_application(position, message)
        self.position = position + 1
        self._position_changed.set()

    def _call_application(self, position: int, message: Message) -> None:
        if self._on_delivery is not None:
            for delivery in message_deliveries(message, position):
                self._on_delivery(delivery)

    async def _run_catch_up(self, position: int) -> None:
        try:
            await self._catch_up(position)
        except Exception as error:
            self._on_failed(error)

    async def _catch_up(self, position: int) -> None:
        """Installs the state of another member, then delivers what followed; repeats while that is no longer held."""
        recent = self._recent
        assert recent is not None
        assert self._fetch is not None
        assert self._install is not None
        while True:
            try:
                reached, state = await self._fetch(max(position, recent.first))
            except CannotTellError as error:
                log.warning("no other member has the application's state after %d deliveries: %s", position, error)
                await asyncio.sleep(RETRY_S)
                continue
            if reached >= recent.first:
                break
        self._install(state, reached)
        log.info("the application installed another member's state after %d deliveries", reached)
        self.position = reached
        if self._journal is not None:
            self._journal.begin_with(reached, state)
        while self.position < recent.next:
            for message in recent.read_from(self.position, CHUNK_BYTES):
                self._deliver(self.position, message)
        self._catch_up_task = None
        self._position_changed.set()

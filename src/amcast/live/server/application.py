"""A program of the user's on top of a replica: it is handed every delivery, and never misses a state.

Three things take deliveries away from a program. A restarted replica begins at the end of what its log still tells; a
replica that was down for long, or lost its memory, takes over a snapshot of the protocol in the place of deliveries;
and a machine may die between a delivery and what the program makes of it. A program that can `take` its state as bytes
and `install` such bytes is safe from all three:

- with a log on disk, what the log forgets is first written to a journal beside it, with the program's own state in
  front; a new incarnation installs the last state, hands over the journal, and goes on;
- when positions are missing, a fellow is asked for the state of its program after those, and that is installed; what
  was delivered meanwhile follows from `live/host/recent_deliveries.py`.

A program without `take` and `install` is told of a hole by `on_missed`, and goes on behind it.
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
"""The state of a fellow's program after at least so many deliveries."""
JOURNAL_BYTES: Final = 8 * MIB
"""So much is journalled, or four times the last state if that is more, before the program's state is taken again."""
CHUNK_BYTES: Final = 128 * KIB
SEGMENT_BYTES: Final = 2 * MIB
RETRY_S: Final = 0.5


class JournalPage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Some deliveries, the first at this position."""

    position: int
    messages: list[Message]


class JournalState(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The program after so many deliveries."""

    position: int
    data: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(JournalPage | JournalState)


class Journal:
    """What a program was handed, since the last state of it that was taken."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._store = LogStore(folder, durability, SEGMENT_BYTES, threaded=False)
        self._written = 0
        self._state_bytes = 0
        self._waiting: list[Message] = []
        self._first = 0
        self._failed: Exception | None = None
        self._store.start(lambda ticket: None, self._fail)

    def replay(self, install: Install, hand: Callable[[int, Message], None]) -> int:
        """Install the last state, hand over what came after it; the position reached."""
        position = 0
        for record in self._store.records():
            match _decoder.decode(record):
                case JournalState(position=at, data=data):
                    install(data, at)
                    position = at
                    self._state_bytes = len(data)
                case JournalPage(position=at, messages=messages):
                    assert at == position, f"the journal tells position {at} after {position}"
                    for message in messages:
                        hand(position, message)
                        position += 1
                    self._written += len(record)
        self._first = position
        return position

    def add(self, message: Message) -> None:
        self._waiting.append(message)

    def write(self) -> None:
        """Make durable what was added."""
        if self._waiting:
            page = _encoder.encode(JournalPage(self._first, self._waiting))
            self._first += len(self._waiting)
            self._waiting = []
            self._append(page, False)
            self._written += len(page)

    def begin_with(self, position: int, state: bytes) -> None:
        """This state takes the place of everything before."""
        self._waiting = []
        self._first = position
        self._written = 0
        self._state_bytes = len(state)
        self._append(_encoder.encode(JournalState(position, state)), True)

    @property
    def is_long(self) -> bool:
        """A state would be shorter."""
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
    """Hands deliveries to a program, each once and in order, over all incarnations of its replica."""

    def __init__(
        self,
        on_delivery: Callable[[Delivery], None] | None,
        *,
        take: Take | None = None,
        install: Install | None = None,
        on_missed: Callable[[int, int], None] | None = None,
        handed: int = 0,
        journal: Journal | None = None,
    ) -> None:
        if (take is None) != (install is None):
            raise UsageError("take and install belong together; expected both or none of them")
        self.position = handed
        """The program has everything before."""
        self._on_delivery = on_delivery
        self._take = take
        self._install = install
        self._on_missed = on_missed
        self._journal = journal
        self._recent: RecentDeliveries | None = None
        self._fetch: Fetch | None = None
        self._failed: Callable[[Exception], object] = lambda error: None
        """Told when the program failed while it caught up."""
        self._catch_up_task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        if journal is not None and install is not None:
            self.position = journal.replay(install, self._call_program)

    # What the host calls

    def deliver(self, effect: Deliver) -> None:
        """A delivery; one that comes while a state is awaited is kept elsewhere, and handed over later."""
        if effect.position < self.position or self._catch_up_task is not None:
            return
        if effect.position > self.position and self.skip_to(effect.position):
            return
        self._deliver(effect.position, effect.message)

    def skip_to(self, position: int) -> bool:
        """Deliveries before this position will not come; True if a state is awaited in their place."""
        if position <= self.position or self._catch_up_task is not None:
            return self._catch_up_task is not None
        if self._install is None:
            first, self.position = self.position, position
            if self._on_missed is not None:
                self._on_missed(first, position)
            elif self._on_delivery is not None:
                log.warning("the program missed deliveries %d to %d: a snapshot took their place", first, position - 1)
            return False
        self._catch_up_task = asyncio.get_running_loop().create_task(self._run_catch_up(position))
        return True

    def save(self) -> None:
        """The replica's log is about to forget what was handed over."""
        if self._journal is None:
            return
        if self._journal.is_long:
            assert self._take is not None
            self._journal.begin_with(self.position, self._take())
        else:
            self._journal.write()

    async def read_state(self, position: int) -> tuple[int, bytes]:
        """The program's state after at least so many deliveries, for a fellow."""
        assert self._take is not None
        while self.position < position or self._catch_up_task is not None:
            self._moved.clear()
            await self._moved.wait()
        return self.position, self._take()

    @property
    def can_take(self) -> bool:
        """The program's state can be taken, so fellows may ask for it (`read_state`)."""
        return self._take is not None

    def serve(self, host: Host, recent: RecentDeliveries, follower: TopologyFollower, asker: RpcClient) -> None:
        """Be the application of this host, which has not started."""
        self._recent = recent
        self._failed = host.fail

        async def fetch(position: int) -> tuple[int, bytes]:
            asker.follow_topology(host.topology)
            return await asker.fetch_state(follower.other_members(), position)

        self._fetch = fetch

    async def close(self) -> None:
        if self._catch_up_task is not None:
            self._catch_up_task.cancel()
            await asyncio.gather(self._catch_up_task, return_exceptions=True)
        if self._journal is not None:
            self._journal.close()

    # Inside

    def _deliver(self, position: int, message: Message) -> None:
        if self._journal is not None:
            self._journal.add(message)
        self._call_program(position, message)
        self.position = position + 1
        self._moved.set()

    def _call_program(self, position: int, message: Message) -> None:
        if self._on_delivery is not None:
            for delivery in message_deliveries(message, position):
                self._on_delivery(delivery)

    async def _run_catch_up(self, position: int) -> None:
        try:
            await self._catch_up(position)
        except Exception as error:
            self._failed(error)

    async def _catch_up(self, position: int) -> None:
        """Get a state from a fellow, then hand over what followed; again, if that is gone meanwhile."""
        kept = self._recent
        assert kept is not None
        assert self._fetch is not None
        assert self._install is not None
        while True:
            try:
                reached, state = await self._fetch(max(position, kept.first))
            except CannotTellError as error:
                log.warning("no fellow has the state of its program after %d deliveries: %s", position, error)
                await asyncio.sleep(RETRY_S)
                continue
            if reached >= kept.first:
                break
        self._install(state, reached)
        log.info("the program took over a fellow's state after %d deliveries", reached)
        self.position = reached
        if self._journal is not None:
            self._journal.begin_with(reached, state)
        while self.position < kept.next:
            for message in kept.read_from(self.position, CHUNK_BYTES):
                self._deliver(self.position, message)
        self._catch_up_task = None
        self._moved.set()

"""Application of a user on top of a replica: it receives every delivery, and its state survives restarts and snapshots.

Three events take deliveries away from an application. A restarted replica begins at the end of its log; a replica that
was down for long, or lost its state, installs a snapshot of the protocol in the place of deliveries; and a machine may
fail between a delivery and its effect in the application. An application that can export its state (`take`) and replace
it by an exported one (`install`) survives all three:

- with a log on disk, deliveries that the log is about to drop are first written to a journal beside it, behind a state
  of the application (`live/server/journal.py`); a new incarnation installs the last state, delivers the journal, and
  continues;
- when positions are missing, the state of the application at another member after those positions is fetched and
  installed; deliveries since then follow from the journal.

**Off the event loop.** `take` is called between two deliveries. It returns bytes, or an iterator of pieces, of which
the first is drawn at once; the others are drawn in a thread, while deliveries go on, and written to a file. So the
contract is: every piece is of the state at the call, whenever it is drawn. (A generator copies what it needs, as
references, before its first `yield`; `live/server/forked_state.py` copies the whole process.) A member that asks for a
state is sent such a file. It installs bytes on its event loop, and pieces in a thread, between two deliveries as well.

With `compare_every` the state is also compared with those of the other replicas: at positions that are multiples of it,
`take` is called, and a digest of the bytes goes out with heartbeats (`parts/node/replica_comparison.py`). That is for
applications that export equal states as equal bytes.

With `only_closed` the application receives deliveries when they are closed (docs/real-time.md). Until then they wait
here, and in the journal: a restart may have lost the log that would repeat them. How many can wait is bounded by the
requests that gateways have open, because their clients wait, too. A fetched state is installed when it is closed.

An application may keep its state in files of its own (`FileState`). It is asked to save them, together with their
position, where other applications are asked for their state; `take` is called for other members only, after a `save`.

An application without `take` and `install` is informed of a gap by `on_missed`, and continues behind it.

A program that crashed receives again what its last state does not contain. Such deliveries are marked
(`Delivery.is_replayed`): before an application receives a position, its journal has reserved it, RESERVED positions at
a time, and what an earlier run had reserved, it may have received.
"""

import asyncio
import inspect
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Protocol

from amcast.kernel.effects import Deliver
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.events import StateTaken
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.live.client_batch import Delivery, message_deliveries
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import Closing
from amcast.live.membership.topology_follower import TopologyFollower
from amcast.live.rpc.client import RpcClient
from amcast.live.server.journal import Install, Journal, remove_files
from amcast.live.server.state_schedule import StateSchedule
from amcast.live.storage.state_files import (
    AbandonedError,
    State,
    StateFile,
    check_piece,
    read_state,
    write_state,
)

log = logging.getLogger("amcast.live")

Take = Callable[[], bytes | Iterable[bytes]]
Fetch = Callable[[int], Awaitable[StateFile]]
"""Fetches the state of the application at another member, after at least a number of deliveries."""
RETRY_S: Final = 0.5
TURN_S: Final = 0.02
"""So long the event loop executes deliveries of the journal before it does something else."""
SLOW_TAKE_S: Final = 0.25
"""An event loop that is busy for longer delays heartbeats, and its group may choose another leader."""
DIGEST_BYTES: Final = 7
"""Of a state, for comparison: an integer that fits 63 bits."""
NEVER: Final = 1 << 62


class FileState(Protocol):
    """The state of an application that keeps it in files of its own."""

    opened: int
    """The position that its files have at the start."""
    save_deliveries: int | None
    """How many deliveries are between two saves, at most."""

    def save(self, position: int) -> int:
        """Makes the state durable, which contains everything before a position (and this one may be behind a delivery
        that was for nobody); returns the bytes that this wrote beside the state."""

    def close_files(self, position: int) -> None:
        """Saves, unless the application has failed, and closes the files."""


class TakenState:
    """A state that an application exports: its first piece was drawn, the others are when it is iterated over."""

    def __init__(self, position: int, source: object) -> None:
        self.position = position
        self.whole: bytes | None = None
        """The state of an application that exports it at once."""
        self._source: Iterator[object] = iter(())
        if isinstance(source, bytes | bytearray | memoryview):
            self.whole = bytes(source)
        elif isinstance(source, Iterable) and not isinstance(source, str):
            self._source = iter(source)
            first = list(itertools.islice(self._source, 1))
            self._pieces = itertools.chain(first, self._source)
        else:
            raise UsageError(f"take returned {type(source).__name__}; expected bytes, or an iterable of bytes")

    @property
    def is_whole(self) -> bool:
        """Whether the application exports one `bytes`; known when all pieces are drawn."""
        return self.whole is not None or getattr(self._source, "is_whole", False)

    def __iter__(self) -> Iterator[bytes]:
        return iter([self.whole]) if self.whole is not None else map(check_piece, self._pieces)

    def close(self) -> None:
        """Ends the source: a generator, or a copy of the process."""
        self._call_source("close")

    def abandon(self) -> None:
        """Ends the source while a thread waits for its next piece, if the source can be ended so."""
        self._call_source("abandon")

    def _call_source(self, name: str) -> None:
        method = getattr(self._source, name, None)
        if method is not None:
            method()


def is_asynchronous(function: object) -> bool:
    """Whether a function of the user would return a coroutine."""
    method = getattr(type(function), "__call__", None)  # noqa: B004, the method of an object that is called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


def check_functions(on_delivery: object, take: object, install: object, on_closed: object, compare_every: int) -> None:
    """Refuses functions of the user that could not work."""
    if (take is None) != (install is None):
        raise UsageError("take and install belong together; expected both or none of them")
    if compare_every < 0 or (compare_every and take is None):
        raise UsageError(
            f"compare_every = {compare_every}; expected 0, or, together with take, the number of deliveries"
            f" between two comparisons of the application's state"
        )
    for name, function in (
        ("on_delivery", on_delivery),
        ("take", take),
        ("install", install),
        ("on_closed", on_closed),
    ):
        if is_asynchronous(function):
            raise UsageError(
                f"{name} is an `async def`; expected a plain function: deliveries are executed one after the other,"
                f" and a coroutine that waits would leave their order open"
            )
        if name != "take" and inspect.isgeneratorfunction(function):
            raise UsageError(f"{name} contains `yield`; expected a plain function: a generator would never be executed")


class Application:
    """Delivers messages to a user's application, each once and in order, over all incarnations of its replica."""

    def __init__(
        self,
        on_delivery: Callable[[Delivery], None] | None,
        topology: Topology,
        *,
        take: Take | None = None,
        install: Install | None = None,
        on_missed: Callable[[int, int], None] | None = None,
        delivered_until: int = 0,
        compare_every: int = 0,
        only_closed: bool = False,
        on_closed: Callable[[int], None] | None = None,
        closing: Closing = "unknown",
        journal: Journal | None = None,
        schedule: StateSchedule | None = None,
        files: FileState | None = None,
        digest: Callable[[], int | None] | None = None,
    ) -> None:
        """`digest` is compared instead of what `take` gives, unless it is None at the moment. `on_closed` gets
        positions: the application has received everything before, and it is closed. `closing` says when that is known
        of a delivery. `journal` is there if and only if `take` and `install` are."""
        check_functions(on_delivery, take, install, on_closed, compare_every)
        assert (journal is None) == (install is None), "an application with state needs a journal"
        self.position = delivered_until
        """The application has received every delivery before this position."""
        self.taken_until = delivered_until
        """Every delivery before this position was received, or waits to be closed."""
        self._waiting: deque[tuple[int, Message | None]] = deque()
        """Deliveries that wait to be closed, each with the position behind it; None for a gap up to that position."""
        self._only_closed = only_closed
        self._on_closed = on_closed
        self._closed_until = sys.maxsize if closing == "delivered" else 0
        """Every delivery of the group before this position is closed."""
        self._announced = 0
        """The last position that `on_closed` was called with."""
        self._on_delivery = on_delivery
        self._topology = topology
        """Names the groups of deliveries."""
        self._take = take
        self._install = install
        self._on_missed = on_missed
        self._compare_every = compare_every
        self._digest = digest
        self._journal = journal
        self._files = files
        self._saved_until = self._saved_bytes = 0
        """Of an application with files: the position of the last save, and what it wrote beside the state."""
        self._schedule = schedule or StateSchedule(deliveries=None if files is None else files.save_deliveries)
        self._fetch: Fetch | None = None
        self._on_failed: Callable[[Exception], object] = lambda error: None
        """Called when the application fails while it catches up, or its state cannot be taken."""
        self._report_state: Callable[[StateTaken], object] = lambda event: None
        self._catch_up_task: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None
        """Writes a state that was taken."""
        self._taken: TakenState | None = None
        """That state."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_bytes = self._due_position = NEVER
        """A state is taken when the journal has so many bytes, or the application is at this position."""
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker = ThreadPoolExecutor(1, "application state")
        """Draws the pieces of states, and installs them: one at a time."""
        self._position_changed = asyncio.Event()
        if journal is not None and install is not None and journal.keeps:
            self._replay(journal, install)
            self._set_due()

    # Called by the host

    def deliver(self, effect: Deliver) -> None:
        """Delivers one message. While a state is being fetched, messages are spooled, and delivered later."""
        if self._catch_up_task is not None:
            self._spool(effect)
        elif effect.position >= self.taken_until:
            if effect.position > self.taken_until and self.skip_to(effect.position):
                self._spool(effect)
            else:
                self._take_delivery(effect.position, effect.message)

    def skip_to(self, position: int) -> bool:
        """Skips deliveries before a position, which will not come; returns True if a state is being fetched in their
        place."""
        if self._catch_up_task is not None:
            assert self._journal is not None
            if position > self._journal.next_position:
                self._journal.spool_from(position)
            return True
        if position <= self.taken_until:
            return False
        if self._journal is None:
            self.taken_until = position
            if self._must_wait(position):
                self._waiting.append((position, None))
            else:
                self._miss(position)
            return False
        self._journal.spool_from(position)
        self._catch_up_task = asyncio.get_running_loop().create_task(self._run_catch_up())
        return True

    def close_until(self, position: int) -> None:
        """Hands out what waits for it: every delivery before a position is closed."""
        self._closed_until = max(self._closed_until, position)
        if self._catch_up_task is not None:
            self._position_changed.set()
            return
        self._hand_out_closed()
        self._announce_closed()

    def save(self) -> None:
        """Called before the log of the replica drops delivered messages."""
        if self._journal is not None and self._journal.keeps:
            self._journal.write()

    async def provide_state(self, position: int) -> StateFile:
        """A file with the application's state after at least a number of deliveries, which it has received."""
        assert self._journal is not None
        while True:
            state = self._journal.state
            if state is not None and state.position >= position:
                return state
            if self._catch_up_task is not None:
                await self.wait_for_position(position)
            elif self._taking is None:
                self._take_state()
            if self._taking is not None:
                await asyncio.shield(self._taking)
                if self._journal.state is state:
                    raise CannotTellError("the state of the application was not taken")

    async def wait_for_position(self, position: int) -> None:
        """Waits until the application has everything before a position: delivered, or in a state that it installed."""
        while self.position < position or self._catch_up_task is not None:
            self._position_changed.clear()
            await self._position_changed.wait()

    @property
    def can_take(self) -> bool:
        """Whether the application can export its state, so that other members may fetch it (`provide_state`)."""
        return self._take is not None

    def serve(self, host: Host, follower: TopologyFollower, rpc: RpcClient) -> None:
        """Attaches the application to a host that has not started."""
        self._on_failed = host.fail
        self._report_state = host.enqueue

        async def fetch(position: int) -> StateFile:
            assert self._journal is not None
            rpc.follow_topology(host.topology)
            return await rpc.fetch_state(follower.other_members(), position, self._journal.folder, self._journal.syncs)

        self._fetch = fetch

    async def close(self) -> None:
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._catch_up_task is not None:
            self._catch_up_task.cancel()
            await asyncio.gather(self._catch_up_task, return_exceptions=True)
        if self._taken is not None:
            self._taken.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._worker.shutdown)
        if self._files is not None:
            self._files.close_files(self.position)
        if self._journal is not None:
            self._journal.close(self.position)

    # Internal

    def _replay(self, journal: Journal, install: Install) -> None:
        """Begins with the state and the deliveries of earlier runs."""

        def install_first(state: State, position: int) -> None:
            install(state, position)
            self.position = position

        def deliver(position: int, message: Message) -> None:
            if self._only_closed:
                self._waiting.append((position + 1, message))
            else:
                self._call_application(position, message)
                self.position = position + 1

        opened = 0
        if self._files is not None:
            self.position = self._saved_until = opened = self._files.opened
        self.taken_until = journal.replay(install_first, deliver, opened)

    def _must_wait(self, end: int) -> bool:
        """Whether deliveries up to a position cannot be handed out yet."""
        return self._only_closed and end > self._closed_until

    def _take_delivery(self, position: int, message: Message) -> None:
        if self._journal is not None and self._journal.keeps:
            self._journal.add(message)
        self.taken_until = position + 1
        if self._must_wait(position + 1):
            self._waiting.append((position + 1, message))
        else:
            self._hand_out(position, message)
            self._announce_closed()

    def _hand_out_closed(self) -> None:
        """Hands out the deliveries that wait and are closed."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._closed_until:
            end, message = waiting.popleft()
            if message is None:
                self._miss(end)
            else:
                self._hand_out(end - 1, message)

    def _hand_out(self, position: int, message: Message) -> None:
        journal = self._journal
        if journal is not None and journal.keeps and position >= journal.reserved:
            journal.reserve(position)
        self._call_application(position, message)
        self.position = position + 1
        self._position_changed.set()
        if self._compare_every and self.position % self._compare_every == 0:
            self._compare_state()
        if self.position >= self._due_position or (journal is not None and journal.bytes >= self._due_bytes):
            self._keep_state()

    def _miss(self, position: int) -> None:
        """Reports that deliveries before a position will not come."""
        first, self.position = self.position, position
        if self._on_missed is not None:
            self._on_missed(first, position)
        elif self._on_delivery is not None:
            log.warning("the application missed deliveries %d to %d: a snapshot replaced them", first, position - 1)

    def _announce_closed(self) -> None:
        closed = min(self._closed_until, self.position)
        if closed > self._announced:
            self._announced = closed
            if self._on_closed is not None:
                self._on_closed(closed)

    def _spool(self, effect: Deliver) -> None:
        """Keeps a delivery for an application that waits for a state."""
        journal = self._journal
        assert journal is not None
        if effect.position > journal.next_position:
            journal.spool_from(effect.position)
        if effect.position == journal.next_position:
            journal.spool(effect.message)

    # States

    def _keep_state(self) -> None:
        """Makes the state durable from now on, so that the journal may forget the deliveries before."""
        if self._files is None:
            self._take_state()
        else:
            self._save_files(self._files)
            self._set_due()

    def _save_files(self, files: FileState) -> None:
        assert self._journal is not None
        begin = time.monotonic()
        self._saved_bytes = files.save(self.position)
        self._warn_if_slow("save", time.monotonic() - begin, "Save more often (save_deliveries)")
        self._saved_until = self.position
        superfluous = self._journal.forget_until(self.position)
        if superfluous:
            self._start_task(asyncio.to_thread(remove_files, superfluous))

    def _warn_if_slow(self, name: str, duration_s: float, advice: str) -> None:
        if duration_s > SLOW_TAKE_S:
            log.warning(
                "%s returned after %.1f s, and nothing else happened meanwhile: the group may choose other leaders. %s",
                name,
                duration_s,
                advice,
            )

    def _call_take(self) -> TakenState:
        assert self._take is not None
        begin = time.monotonic()
        state = TakenState(self.position, self._take())
        advice = "Return pieces, or use amcast.forked (docs/client.md)"
        self._warn_if_slow("take", time.monotonic() - begin, advice)
        return state

    def _take_state(self) -> None:
        """Takes the state now, and writes it to disk from now on."""
        assert self._journal is not None
        if self._files is not None:
            self._save_files(self._files)
        state = self._call_take()
        if self._files is None:
            self._journal.begin_state()
            self._due_bytes = self._due_position = NEVER
            if self._timer is not None:
                self._timer.cancel()
        self._taken = state
        self._taking = self._start_task(self._write_state(state))

    async def _write_state(self, state: TakenState) -> None:
        journal = self._journal
        assert journal is not None
        loop = asyncio.get_running_loop()
        try:
            write = partial(write_state, journal.folder, state.position, state, journal.syncs)
            file = await loop.run_in_executor(self._worker, write, lambda: self._is_closing)
            await asyncio.to_thread(remove_files, journal.adopt(file))
            self._set_due()
        except AbandonedError:
            pass
        except Exception as error:
            self._on_failed(error)
        finally:
            self._taking = self._taken = None
            await loop.run_in_executor(self._worker, state.close)

    def _set_due(self) -> None:
        """Determines when the next state is taken."""
        journal = self._journal
        if journal is None or not journal.keeps or self._is_closing or self._catch_up_task is not None:
            return
        last = self._kept_until(journal)
        self._due_bytes = self._schedule.limit_bytes(journal.state_bytes if self._files is None else self._saved_bytes)
        self._due_position = NEVER if self._schedule.deliveries is None else last + self._schedule.deliveries
        if self._timer is not None:
            self._timer.cancel()
        if self._schedule.seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._schedule.seconds, self._take_in_time)

    def _kept_until(self, journal: Journal) -> int:
        """The position of the last state that is durable."""
        if self._files is not None:
            return self._saved_until
        return 0 if journal.state is None else journal.state.position

    def _take_in_time(self) -> None:
        """Takes a state because the last one is old, if anything was delivered since."""
        journal = self._journal
        assert journal is not None
        try:
            if self._catch_up_task is None and self._taking is None and self.position > self._kept_until(journal):
                self._keep_state()
            else:
                self._set_due()
        except Exception as error:
            self._on_failed(error)

    def _compare_state(self) -> None:
        """Gives a digest of the state to the process, which compares it with those of the other replicas."""
        if self._digest is not None:
            digest = self._digest()
            if digest is not None:
                self._report_state(StateTaken(self.position, digest))
            return
        state = self._call_take()
        if state.whole is not None:
            self._report_state(StateTaken(state.position, digest_state(state)))
        else:
            self._start_task(self._compare_pieces(state))

    async def _compare_pieces(self, state: TakenState) -> None:
        try:
            digest = await asyncio.get_running_loop().run_in_executor(self._worker, digest_state, state)
            self._report_state(StateTaken(state.position, digest))
        except Exception as error:
            self._on_failed(error)
        finally:
            state.close()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _call_application(self, position: int, message: Message) -> None:
        if self._on_delivery is None:
            return
        is_replayed = self._journal is not None and self._journal.has_reserved_before(position)
        for delivery in message_deliveries(message, position, self._topology, is_replayed):
            self._on_delivery(delivery)

    async def _run_catch_up(self) -> None:
        self._due_bytes = self._due_position = NEVER
        try:
            while not await self._catch_up():
                pass
        except Exception as error:
            self._on_failed(error)

    async def _catch_up(self) -> bool:
        """Installs the state of another member, then delivers what followed; False if a snapshot of the protocol
        replaced some of that meanwhile."""
        journal = self._journal
        assert journal is not None
        assert journal.spool_first is not None
        assert self._fetch is not None
        await asyncio.to_thread(remove_files, journal.take_useless())
        try:
            state = await self._fetch(journal.spool_first)
        except CannotTellError as error:
            log.warning(
                "no other member has the application's state after %d deliveries: %s", journal.spool_first, error
            )
            await asyncio.sleep(RETRY_S)
            return False
        while self._must_wait(state.position):
            self._position_changed.clear()
            await self._position_changed.wait()
        if state.position < journal.spool_first:
            await asyncio.to_thread(remove_files, [journal.retire(state.path)])
            return False
        await self._install_state(state)
        log.info("the application installed another member's state after %d deliveries", state.position)
        self._waiting.clear()
        self.position = self.taken_until = state.position
        await asyncio.to_thread(remove_files, journal.adopt(state))
        return await self._deliver_spooled()

    async def _install_state(self, file: StateFile) -> None:
        assert self._install is not None
        loop = asyncio.get_running_loop()
        state: State = await loop.run_in_executor(self._worker, read_state, file.path)
        if isinstance(state, bytes):
            self._install(state, file.position)
        else:
            await loop.run_in_executor(self._worker, self._install, state, file.position)

    async def _deliver_spooled(self) -> bool:
        """Delivers what was spooled since the installed state; False if the spool does not begin there any more."""
        journal = self._journal
        assert journal is not None
        while True:
            assert journal.spool_first is not None
            if journal.spool_first > self.taken_until:
                return False
            waiting = journal.waiting_from(self.taken_until)
            if waiting is not None:
                for message in waiting:
                    self._take_spooled(message)
                break
            for path in journal.written_logs(self.taken_until):
                if journal.spool_first > self.taken_until:
                    return False
                pages = await asyncio.to_thread(list, journal.read_log(path, self.taken_until))
                await self._deliver_pages(pages)
        journal.end_spool(self.taken_until)
        self._catch_up_task = None
        self._position_changed.set()
        self._hand_out_closed()
        self._announce_closed()
        self._set_due()
        return True

    async def _deliver_pages(self, pages: list[list[Message]]) -> None:
        until = time.monotonic() + TURN_S
        for message in itertools.chain.from_iterable(pages):
            self._take_spooled(message)
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + TURN_S

    def _take_spooled(self, message: Message) -> None:
        """Takes a delivery that the journal has."""
        self.taken_until += 1
        self._hand_out_closed()
        if self._waiting or self._must_wait(self.taken_until):
            self._waiting.append((self.taken_until, message))
        else:
            self._hand_out(self.taken_until - 1, message)


def digest_state(state: TakenState) -> int:
    """A number that differs, almost certainly, for states of different bytes."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for piece in state:
        digest.update(piece)
    return int.from_bytes(digest.digest(), "big")

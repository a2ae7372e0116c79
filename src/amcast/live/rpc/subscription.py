"""Deliveries of a group, read by a client: in the group's order, each exactly once, from whichever replicas are up.

    async for delivery in client.deliveries("orders"):
        ...

All members of a group deliver the same messages at the same positions, so a subscription is a position: it reads from
one replica and, when that replica fails, stops answering or falls behind, continues at the same position with another
one. Each replica holds its last deliveries (`limits.recent_bytes`). A subscription whose position is no longer held by
any replica raises `MissedDeliveriesError`, which names the first position that is.

In the real-time setting replicas also say which deliveries are closed (`closed_until`), and with `only_closed` they
send no others: what the reader does next comes after them, in all groups.

A subscription follows changes of the group's members: it reads the change, which is a message, and does not pass it on.

A subscription with a name resumes where the last one with this name was, after restarts of readers and servers: it
acknowledges what it has handled, and replicas keep that on disk (`live/storage/cursors.py`), a majority of them before
`acknowledge` returns. Whoever comes next takes the furthest that a majority knows. What was handled and not
acknowledged comes again.

The consumer pulls: nothing is read ahead except the socket's buffer, so a slow reader needs no more memory than a fast
one. A reader that stops waiting (`read` with a time-out, a cancelled `anext`) loses nothing: the next call continues.
"""

import asyncio
import random
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.reconfiguration import is_change
from amcast.kernel.topology import Topology
from amcast.live.client_batch import Delivery, message_deliveries
from amcast.live.host.recent_deliveries import ACYCLIC, MissedDeliveriesError
from amcast.live.rpc.client import NoAnswerError, RpcCall, RpcClient
from amcast.live.rpc.messages import (
    Deliveries,
    FindCursor,
    FoundCursor,
    KeepAlive,
    PositionExpired,
    Progress,
    SaveCursor,
    Subscribe,
)
from amcast.live.storage.cursors import MAX_NAME_BYTES, Cursor

TIMEOUT_S: Final = 30.0
"""A subscription fails when no replica answers for this long."""


def check_closing(only_closed: bool, closes: bool) -> None:
    """Refuses readers of what is closed in the acyclic setting."""
    if only_closed and not closes:
        raise UsageError(f"only_closed = True, and {ACYCLIC}")


class Subscription:
    """An asynchronous iterator over one group's deliveries; `async with`, or `open`, fixes its start at the group's
    current position."""

    def __init__(
        self,
        rpc: RpcClient,
        group: GroupId,
        topology: Topology,
        *,
        since: int | None = None,
        after: Delivery | None = None,
        only_closed: bool = False,
        name: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if (since is not None) + (after is not None) + (name is not None) > 1:
            raise UsageError("more than one of since, after and name are given; expected at most one of them")
        if name is not None and (not name or len(name.encode()) > MAX_NAME_BYTES):
            raise UsageError(f"name = {name!r}; expected 1 to {MAX_NAME_BYTES} bytes")
        if since is not None and since < 0:
            raise UsageError(f"since = {since}; expected a position from 0 on")
        self.closed_until: int | None = None
        """Every delivery of the group before this position is closed, as far as a replica has said; None before the
        first one has, and in the acyclic setting."""
        self.switches = 0
        """Number of changes from one replica to another."""
        self._rpc = rpc
        self._group = group
        self._topology = topology
        self._name = topology.names_of((group,))[0]
        self._members = list(topology.members(group))
        random.shuffle(self._members)
        self._position: int | None = since if after is None else after.position
        self._last_place = -1 if after is None else after.place
        """The last place of the first batch that the reader already has."""
        self._only_closed = only_closed
        self._subscriber = name
        self._acknowledged: Cursor | None = None
        self._timeout_s = timeout_s
        self._ready: deque[Delivery] = deque()
        self._call: RpcCall | None = None
        self._reading: asyncio.Task[None] | None = None
        """Reads the next reply. It outlives a `read` whose time is over, because half a reply cannot be put back."""
        self.source: ProcessId = -1
        """The replica that this subscription reads from."""
        self._refusals: dict[ProcessId, str] = {}
        self._configuration = 0
        """The configuration that `_members` is from."""
        self._outdated = False
        """A change of members was read, so `_members` may be old."""
        self._progress_at = 0.0

    @property
    def position(self) -> int | None:
        """The next position to read: everything before it was returned or is queued; None before the start."""
        return self._position

    async def open(self) -> None:
        """Fixes the start at the group's current position, unless it was given; with a name, behind what was
        acknowledged."""
        if self._position is not None:
            return
        if self._subscriber is None:
            self._position = await self._current_position()
            return
        cursor = await self._ask_majority(FindCursor(self._group, self._subscriber))
        if cursor is None:
            cursor = Cursor(await self._current_position())
        await self._save(cursor)
        self._position, self._last_place = cursor.position, cursor.place

    async def acknowledge(self, delivery: Delivery) -> None:
        """Records that this delivery, and everything before it, was handled: the next subscription with this name
        begins behind it. Returns when a majority of the group's replicas has it on disk."""
        if self._subscriber is None:
            raise UsageError("acknowledge: the subscription has no name; expected deliveries(..., name=...)")
        cursor = Cursor(delivery.position, delivery.place)
        if not any(one.position == delivery.position and one.place > delivery.place for one in self._ready):
            cursor = Cursor(delivery.position + 1)
        await self._save(cursor)

    async def forget(self) -> None:
        """Lets all replicas that can be reached forget the name."""
        if self._subscriber is None:
            raise UsageError("forget: the subscription has no name; expected deliveries(..., name=...)")
        await self._ask_majority(SaveCursor(self._group, self._subscriber, None))

    async def _save(self, cursor: Cursor) -> None:
        assert self._subscriber is not None
        if self._acknowledged is None or cursor > self._acknowledged:
            await self._ask_majority(SaveCursor(self._group, self._subscriber, cursor))
            self._acknowledged = cursor

    async def _ask_majority(self, request: FindCursor | SaveCursor) -> Cursor | None:
        """The furthest cursor that a majority of the group knows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            replies = await self._rpc.request_all(self._members, request)
            cursors = [reply.cursor for reply in replies.values() if isinstance(reply, FoundCursor)]
            if 2 * len(cursors) > len(self._members):
                return max((cursor for cursor in cursors if cursor is not None), default=None)
            if loop.time() > deadline:
                raise CannotTellError(
                    f"{len(cursors)} of {len(self._members)} replicas of group {self._name} know or keep where"
                    f" subscriber {request.name!r} is; expected more than half within {self._timeout_s} s"
                )
            await asyncio.sleep(0.1)
            await self._follow()

    async def __aenter__(self) -> "Subscription":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.read()
        assert delivery is not None, "a read without a time-out ends with a delivery"
        return delivery

    async def read(self, timeout_s: float | None = None) -> Delivery | None:
        """Reads the next delivery; None if none came in time."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not self._ready:
            reading = self._reading
            if reading is None:
                reading = self._reading = loop.create_task(self._read())
            left = None if deadline is None else max(0.0, deadline - loop.time())
            try:
                done, _ = await asyncio.wait({reading}, timeout=left)
            except asyncio.CancelledError:
                self.close()  # perhaps nobody reads again; whoever does connects anew, at the same position
                raise
            if not done:
                return None
            if reading.cancelled():
                raise CannotTellError(f"the subscription to group {self._name} was closed while it was read")
            self._reading = None
            reading.result()
        return self._ready.popleft()

    def close(self) -> None:
        """Closes the connection; iterating again continues where it stopped."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._end_call()

    # Reading

    async def _read(self) -> None:
        """Reads one reply, or connects to another replica."""
        await self.open()
        if self._outdated:
            await self._follow()
        call = self._call or await self._connect()
        try:
            reply = await call.reply()
        except NoAnswerError as error:
            self._leave(str(error))
            return
        match reply:
            case Deliveries():
                self._accept(reply)
            case KeepAlive():
                self._learn_closed(reply.closed)
                await self._check_lag()
            case PositionExpired(first):
                self._leave(f"deliveries before {first} are no longer held by process {self.source}")
            case _:
                self._leave(f"process {self.source} replied with {type(reply).__name__}")

    def _accept(self, deliveries: Deliveries) -> None:
        assert self._position is not None
        if deliveries.position != self._position:
            self._leave(f"process {self.source} sent position {deliveries.position}; expected {self._position}")
            return
        self._learn_closed(deliveries.closed)
        if self._only_closed and self._position + len(deliveries.messages) > (deliveries.closed or 0):
            self._leave(f"process {self.source} sent deliveries and does not state that they are closed")
            return
        for position, message in enumerate(deliveries.messages, deliveries.position):
            self._outdated = self._outdated or is_change(message)
            for delivery in message_deliveries(message, position, self._topology):
                if delivery.place > self._last_place:
                    self._ready.append(delivery)
            self._last_place = -1
        self._position += len(deliveries.messages)
        self._progress_at = asyncio.get_running_loop().time()

    def _learn_closed(self, closed: int | None) -> None:
        if closed is not None:
            self.closed_until = max(closed, self.closed_until or 0)

    def _leave(self, reason: str) -> None:
        """Gives up the current replica and moves it to the end of the preference order."""
        self._end_call()
        self._refusals[self.source] = reason
        self.switches += 1
        if self.source in self._members:
            self._members.remove(self.source)
            self._members.append(self.source)

    def _end_call(self) -> None:
        if self._call is not None:
            self._call.close()
            self._call = None

    async def _follow(self) -> None:
        """Adopts the members of the newest topology."""
        self._outdated = False
        newest = await self._rpc.fetch_topology()
        if newest is None or newest.configuration <= self._configuration or self._group not in newest.groups:
            return
        self._configuration = newest.configuration
        self._rpc.follow_topology(newest)
        members = newest.members(self._group)
        stayed = [member for member in self._members if member in members]
        self._members = stayed + [member for member in members if member not in stayed]
        if self._acknowledged is not None:  # new members must know it, too
            cursor, self._acknowledged = self._acknowledged, None
            await self._save(cursor)

    # Choosing a replica

    async def _connect(self) -> RpcCall:
        """Connects to a replica that can send the next position."""
        assert self._position is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        wait = self._rpc.limits.reconnect_min_s
        while True:
            progress = await self._rpc.fetch_progress(self._members)
            check_closing(self._only_closed, not progress or any(one.closed is not None for one in progress.values()))
            call = await self._choose(progress, self._position)
            if call is not None:
                self._call = call
                self._progress_at = loop.time()
                return call
            late = loop.time() > deadline
            if progress and all(one.first > self._position for one in progress.values()):
                if late or len(progress) == len(self._members):  # one that is silent now may still hold it
                    first = min(one.first for one in progress.values())
                    raise MissedDeliveriesError(f"group {self._name}", self._position, first)
            elif late:
                raise CannotTellError(self._describe_failures())
            await asyncio.sleep(wait)
            await self._follow()
            wait = min(2 * wait, self._rpc.limits.reconnect_max_s)

    async def _choose(self, progress: Mapping[ProcessId, Progress], position: int) -> RpcCall | None:
        """Calls a replica that holds the position: first one that has already delivered it, then by order of
        preference."""
        able = [member for member in self._members if member in progress and progress[member].first <= position]
        if self._only_closed:
            able = [member for member in able if progress[member].closed is not None]
        for member in sorted(able, key=lambda one: self._readable_until(progress[one]) <= position):
            try:
                call = await self._rpc.call(member, Subscribe(self._group, position, self._only_closed))
            except NoAnswerError as error:
                self._refusals[member] = str(error)
            else:
                self.source = member
                return call
        return None

    def _readable_until(self, progress: Progress) -> int:
        """Up to where a replica can send deliveries now."""
        return min(progress.next, progress.closed or 0) if self._only_closed else progress.next

    def _describe_failures(self) -> str:
        reasons = "".join(f"; {reason}" for reason in self._refusals.values())
        return f"no replica of group {self._name} answered for {self._timeout_s} s{reasons}"

    async def _check_lag(self) -> None:
        """Leaves a replica that has sent nothing for a while if another member is further."""
        now = asyncio.get_running_loop().time()
        if now - self._progress_at < self._rpc.limits.heartbeat_timeout_s:
            return
        self._progress_at = now
        others = [member for member in self._members if member != self.source]
        progress = await self._rpc.fetch_progress(others)
        assert self._position is not None
        if any(one.first <= self._position < self._readable_until(one) for one in progress.values()):
            self._leave(f"process {self.source} is behind")

    async def _current_position(self) -> int:
        """The group's current position: the furthest of the members that answer, of which a majority must."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            progress = await self._rpc.fetch_progress(self._members)
            if 2 * len(progress) > len(self._members):
                return max(one.next for one in progress.values())
            if loop.time() > deadline:
                raise CannotTellError(
                    f"{len(progress)} of {len(self._members)} replicas of group {self._name} answer;"
                    f" expected more than half within {self._timeout_s} s"
                )
            await asyncio.sleep(0.1)
            await self._follow()

"""Deliveries of a group, read from outside: in the group's order, each exactly once, whichever replicas come and go.

    async for delivery in client.deliveries("orders"):
        ...

All members of a group deliver the same messages at the same positions, so a subscription is a position: it reads from
one replica and, when that fails, falls silent or falls behind, goes on at the same position with another one. Each
replica keeps its last deliveries (`limits.recent_bytes`). A subscription that comes back after they are gone everywhere
raises `Missed`, which says from where one could go on.

When the group's members change, it follows: the change itself is a message that it reads, and does not tell.

Reading is pulled: nothing is read ahead but what the socket buffers, so a slow reader needs no more memory than a
fast one.
"""

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.reconfiguration import is_change
from amcast.live.client_batch import Delivery, message_deliveries
from amcast.live.host.recent_deliveries import MissedDeliveriesError
from amcast.live.rpc.client import NoAnswerError, RpcCall, RpcClient
from amcast.live.rpc.server import Deliveries, KeepAlive, PositionExpired, Progress, Subscribe

TIMEOUT_S: Final = 30.0
"""Without any replica that answers for so long, a subscription gives up."""


class Subscription:
    """An asynchronous iterator over one group's deliveries; with `async with`, it starts where the group is then."""

    def __init__(
        self,
        asker: RpcClient,
        group: GroupId,
        members: Sequence[ProcessId],
        *,
        since: int | None = None,
        after: Delivery | None = None,
        patience_s: float = TIMEOUT_S,
    ) -> None:
        if since is not None and after is not None:
            raise UsageError("both since and after are given; expected at most one of them")
        if since is not None and since < 0:
            raise UsageError(f"since = {since}; expected a position from 0 on")
        self.switches = 0
        """How often another replica took over."""
        self._rpc = asker
        self._group = group
        self._members = list(members)
        random.shuffle(self._members)
        self._position: int | None = since if after is None else after.position
        self._last_place = -1 if after is None else after.place
        """The last place of the first batch that the reader has already."""
        self._timeout_s = patience_s
        self._ready: deque[Delivery] = deque()
        self._call: RpcCall | None = None
        self.source: ProcessId = -1
        """The replica that is read from."""
        self._refusals: dict[ProcessId, str] = {}
        self._configuration = 0
        """Of the topology that the members are from."""
        self._outdated = False
        """A change of members went by."""
        self._progress_at = 0.0

    @property
    def position(self) -> int | None:
        """Everything before this position was given to the reader, or is about to be; None before it has begun."""
        return self._position

    async def __aenter__(self) -> "Subscription":
        if self._position is None:
            self._position = await self._current_position()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Delivery:
        if self._position is None:
            await self.__aenter__()
        while not self._ready:
            await self._read()
        return self._ready.popleft()

    def close(self) -> None:
        """Hang up; iterating on goes on where it was."""
        if self._call is not None:
            self._call.close()
            self._call = None

    # Reading

    async def _read(self) -> None:
        """Take one answer, or find another replica."""
        if self._outdated:
            await self._follow()
        conversation = self._call or await self._connect()
        try:
            answer = await conversation.reply()
        except NoAnswerError as error:
            self._leave(str(error))
            return
        match answer:
            case Deliveries():
                self._accept(answer)
            case KeepAlive():
                await self._check_lag()
            case PositionExpired(first):
                self._leave(f"deliveries before {first} are no longer kept at process {self.source}")
            case _:
                self._leave(f"process {self.source} answers with {type(answer).__name__}")

    def _accept(self, told: Deliveries) -> None:
        assert self._position is not None
        if told.position != self._position:
            self._leave(f"process {self.source} tells position {told.position}; expected {self._position}")
            return
        for position, message in enumerate(told.messages, told.position):
            self._outdated = self._outdated or is_change(message)
            for delivery in message_deliveries(message, position):
                if delivery.place > self._last_place:
                    self._ready.append(delivery)
            self._last_place = -1
        self._position += len(told.messages)
        self._progress_at = asyncio.get_running_loop().time()

    def _leave(self, why: str) -> None:
        """This replica is of no use any more."""
        self.close()
        self._refusals[self.source] = why
        self.switches += 1
        if self.source in self._members:
            self._members.remove(self.source)
            self._members.append(self.source)

    async def _follow(self) -> None:
        """Read from those who are members now."""
        self._outdated = False
        newest = await self._rpc.fetch_topology()
        if newest is None or newest.configuration <= self._configuration or self._group not in newest.groups:
            return
        self._configuration = newest.configuration
        self._rpc.follow_topology(newest)
        members = newest.members(self._group)
        stayed = [member for member in self._members if member in members]
        self._members = stayed + [member for member in members if member not in stayed]

    # Choosing a replica

    async def _connect(self) -> RpcCall:
        """Somebody who has what comes next."""
        assert self._position is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        wait = self._rpc.limits.reconnect_min_s
        while True:
            standings = await self._rpc.fetch_progress(self._members)
            conversation = await self._choose(standings, self._position)
            if conversation is not None:
                self._call = conversation
                self._progress_at = loop.time()
                return conversation
            if standings and all(stands.first > self._position for stands in standings.values()):
                first = min(stands.first for stands in standings.values())
                raise MissedDeliveriesError(f"group {self._group}", self._position, first)
            if loop.time() > deadline:
                raise CannotTellError(self._describe_failures())
            await asyncio.sleep(wait)
            await self._follow()
            wait = min(2 * wait, self._rpc.limits.reconnect_max_s)

    async def _choose(self, standings: Mapping[ProcessId, Progress], position: int) -> RpcCall | None:
        """Of those who keep the position: who has already delivered what comes next, and whom we left longest ago."""
        able = [member for member in self._members if member in standings and standings[member].first <= position]
        for member in sorted(able, key=lambda one: standings[one].next <= position):
            try:
                conversation = await self._rpc.call(member, Subscribe(self._group, position))
            except NoAnswerError as error:
                self._refusals[member] = str(error)
            else:
                self.source = member
                return conversation
        return None

    def _describe_failures(self) -> str:
        said = "".join(f"; {why}" for why in self._refusals.values())
        return f"no replica of group {self._group} answers for {self._timeout_s} s{said}"

    async def _check_lag(self) -> None:
        """A replica that tells nothing for a while may be behind: leave it if another one is further."""
        now = asyncio.get_running_loop().time()
        if now - self._progress_at < self._rpc.limits.heartbeat_timeout_s:
            return
        self._progress_at = now
        others = [member for member in self._members if member != self.source]
        standings = await self._rpc.fetch_progress(others)
        assert self._position is not None
        if any(stands.first <= self._position < stands.next for stands in standings.values()):
            self._leave(f"process {self.source} is behind")

    async def _current_position(self) -> int:
        """Where the group is: as far as the furthest of its members that answer, and a majority must."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            standings = await self._rpc.fetch_progress(self._members)
            if 2 * len(standings) > len(self._members):
                return max(stands.next for stands in standings.values())
            if loop.time() > deadline:
                raise CannotTellError(
                    f"{len(standings)} of {len(self._members)} replicas of group {self._group} answer;"
                    f" expected more than half within {self._timeout_s} s"
                )
            await asyncio.sleep(0.1)
            await self._follow()

"""A gateway: multicast from any coroutine of this program, batched by tick, with a receipt for each message.

It sits on a host, a client's or a replica's. What is multicast between two turns of the event loop and has the same
destinations becomes one message for the protocol (`live/batch.py`).

A receipt means that in every destination group some process delivered the message. When none comes in time, the error
says `Unknown`: the message may or may not be delivered, and nobody can honestly say more.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from time import time_ns

from amcast.kernel.errors import Unknown, WrongUse
from amcast.kernel.ids import GroupId, MessageId, message_id
from amcast.kernel.message import Message
from amcast.live.admission import MOST_SETS
from amcast.live.batch import BATCH_MESSAGES, batched
from amcast.live.host import Host
from amcast.trace.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Receipt:
    """Every destination group has delivered the message."""

    message: MessageId
    """What was ordered: the batch that the message travelled in."""
    place: int
    """Its place in the batch."""
    destinations: tuple[GroupId, ...]


_Waiting = tuple[bytes, "asyncio.Future[Receipt]"]


class Gateway:
    """Multicasts for everybody in this program, in the name of one process."""

    def __init__(self, recorder: Recorder | None = None, *, batches: bool = True, first: int = 0) -> None:
        self.outstanding = 0
        """Messages without a receipt."""
        self._host: Host | None = None
        self._recorder = recorder
        self._batches = batches
        self._sequence = first
        """Of the next batch; dense, as sessions expect."""
        self._sets: dict[frozenset[GroupId | str], tuple[GroupId, ...]] = {}
        self._tick: dict[tuple[GroupId, ...], list[_Waiting]] = {}
        self._open: dict[MessageId, tuple[list[_Waiting], tuple[GroupId, ...]]] = {}
        """Batches on their way."""

    def sit_on(self, host: Host) -> None:
        """The host must call `resolved`."""
        self._host = host
        self._topology = host.process.topology
        self._limits = host.limits

    async def multicast(
        self, destinations: Iterable[GroupId | str], payload: bytes, timeout_s: float = 30.0
    ) -> Receipt:
        """Order one message at groups given by number or name; returns when each of them has delivered it."""
        groups = self._checked(destinations)
        receipt = await self.post(groups, payload)
        try:
            async with asyncio.timeout(timeout_s):
                return await receipt
        except TimeoutError:
            raise Unknown(
                f"a message to groups {list(groups)} was not answered within {timeout_s} s;"
                f" it may or may not be delivered"
            ) from None

    async def post(self, destinations: Iterable[GroupId | str], payload: bytes) -> "asyncio.Future[Receipt]":
        """Hand a message over, waiting only while too much is on its way already; the receipt comes later."""
        host = self._sound_host()
        groups = self._checked(destinations)
        if len(payload) > self._limits.message_bytes:
            raise WrongUse(
                f"payload of {len(payload)} bytes; expected at most {self._limits.message_bytes} (limits.message_bytes)"
            )
        if host.network.pressed:
            await host.network.room()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if not self._tick:
            loop.call_soon(self._flush)
        self._tick.setdefault(groups, []).append((payload, future))
        self.outstanding += 1
        return future

    def resolved(self, message: MessageId) -> None:
        """The host says that every group has answered what was ordered under this id."""
        batch = self._open.pop(message, None)
        if batch is None:
            return
        waiting, groups = batch
        self.outstanding -= len(waiting)
        for place, (_, future) in enumerate(waiting):
            if not future.done():
                future.set_result(Receipt(message, place, groups))

    def close(self) -> None:
        """Nobody will answer any more."""
        for waiting, _ in self._open.values():
            for _, future in waiting:
                future.cancel()
        self._open.clear()

    def _sound_host(self) -> Host:
        host = self._host
        if host is None:
            raise WrongUse("not connected; expected `async with` around the use of a client")
        if host.ended.done():
            raise Unknown(f"process {host.me} has stopped; nothing more can be multicast from here")
        return host

    def _checked(self, destinations: Iterable[GroupId | str]) -> tuple[GroupId, ...]:
        self._sound_host()
        key = frozenset(destinations)
        groups = self._sets.get(key)
        if groups is None:
            groups = self._topology.checked(self._group(name) for name in key)
            if len(self._sets) < MOST_SETS:
                self._sets[key] = groups
        return groups

    def _group(self, name: GroupId | str) -> GroupId:
        if isinstance(name, int):
            return name
        for group, known in self._topology.names.items():
            if known == name:
                return group
        known_names = sorted(self._topology.names.values())
        raise WrongUse(f"destinations: group {name!r} does not exist; expected some of {known_names}")

    def _flush(self) -> None:
        """End of the tick: one message, or a few, for each set of destinations."""
        tick, self._tick = self._tick, {}
        host = self._host
        assert host is not None
        for groups, waiting in sorted(tick.items(), key=lambda item: item[0]):
            for share in self._shares(waiting):
                host.submit(self._message(host, groups, share))
        host.tick()

    def _shares(self, waiting: list[_Waiting]) -> list[list[_Waiting]]:
        """As few batches as the limits allow."""
        most = BATCH_MESSAGES if self._batches else 1
        shares: list[list[_Waiting]] = []
        room = -1
        for one in waiting:
            size = len(one[0]) + 16
            if size > room or len(shares[-1]) == most:
                shares.append([])
                room = max(size, self._limits.message_bytes)
            shares[-1].append(one)
            room -= size
        return shares

    def _message(self, host: Host, groups: tuple[GroupId, ...], share: list[_Waiting]) -> Message:
        payload = batched([payload for payload, _ in share]) if self._batches else share[0][0]
        message = Message(message_id(host.me, self._sequence), host.me, groups, payload)
        self._open[message.id] = (share, groups)
        if self._recorder is not None:
            self._recorder.multicast(message, time_ns(), host.me, self._sequence)
        self._sequence += 1
        return message

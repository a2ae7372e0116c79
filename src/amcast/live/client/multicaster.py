"""A gateway: multicast from any coroutine of this program, batched by tick, with a receipt for each message.

It sits on a host, a client's or a replica's. What is multicast between two turns of the event loop and has the same
destinations becomes one message for the protocol (`live/client_batch.py`).

A receipt means that the message has its place in the order of every destination group (docs/guarantees.md). When none
comes in time, the error says `Unknown`: the message may or may not be delivered, and nobody can honestly say more.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from time import time_ns
from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, GroupId, MessageId, message_id
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.live.client_batch import MAX_BATCH_MESSAGES, encode_batch
from amcast.live.host.host import Host
from amcast.live.membership.state_survey import UnansweredDiagnosis
from amcast.live.security.request_filter import MAX_DESTINATION_SETS
from amcast.trace.recorder import Recorder

MAX_BATCHES: Final = MESSAGES_PER_SENDER - 1_000_000
"""Of one client number: message ids hold no more, and what one tick can hand over is far less than the rest."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The message has its place in the order of every destination group."""

    message: MessageId
    """What was ordered: the batch that the message travelled in."""
    place: int
    """Its place in the batch."""
    destinations: tuple[GroupId, ...]
    absent: tuple[GroupId, ...] = ()
    """Destinations that are lost as a whole, and so have not: only of protocols that survive that (`a-dt`)."""


def find_group(topology: Topology, name: GroupId | str) -> GroupId:
    """A group that a user gave by number or name."""
    if isinstance(name, int):
        return topology.check_destinations([name])[0]
    for group, known in topology.names.items():
        if known == name:
            return group
    raise UsageError(f"destinations: group {name!r} does not exist; expected some of {sorted(topology.names.values())}")


def _copy_payload(payload: object) -> bytes:
    """What else may be given for bytes: a copy, because whoever owns it may change it before it is sent. Nothing else
    may get into a batch: the payloads of others are in it, too."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    said = "; encode it first" if isinstance(payload, str) else ""
    raise UsageError(f"payload of type {type(payload).__name__}; expected bytes{said}")


_Waiting = tuple[bytes, "asyncio.Future[Receipt]"]


class Multicaster:
    """Multicasts for everybody in this program, in the name of one process."""

    def __init__(self, recorder: Recorder | None = None, *, batches: bool = True) -> None:
        self.outstanding = 0
        """Messages without a receipt."""
        self.diagnosis: UnansweredDiagnosis | None = None
        """What may be known of groups that do not answer."""
        self._host: Host | None = None
        self._recorder = recorder
        self._batches = batches
        self.sequence = 0
        """Of the next batch; dense, as sessions expect."""
        self._checked_destinations: dict[frozenset[GroupId | str], tuple[GroupId, ...]] = {}
        self._unsent: dict[tuple[GroupId, ...], list[_Waiting]] = {}
        self._unanswered: dict[MessageId, tuple[list[_Waiting], tuple[GroupId, ...]]] = {}
        """Batches on their way."""

    def attach(self, host: Host, first: int = 0) -> None:
        """The host must call `resolved`; `first` is a sequence number that was never used in its name."""
        self._host = host
        self.sequence = first
        self._topology = host.process.topology
        self._limits = host.limits

    async def multicast(
        self, destinations: Iterable[GroupId | str], payload: bytes, timeout_s: float = 30.0
    ) -> Receipt:
        """Order one message at groups given by number or name; returns when it has its place in the order of each."""
        if timeout_s <= 0:
            raise UsageError(f"timeout_s = {timeout_s}; expected more than 0 seconds")
        groups = self._check_destinations(destinations)
        receipt = await self.post(groups, payload)
        try:
            async with asyncio.timeout(timeout_s):
                return await receipt
        except TimeoutError:
            known = "" if self.diagnosis is None else await self.diagnosis.describe(groups, timeout_s)
            raise CannotTellError(
                f"a message to groups {list(groups)} was not answered within {timeout_s} s;"
                f" it may or may not be delivered{known}"
            ) from None

    async def post(self, destinations: Iterable[GroupId | str], payload: bytes) -> "asyncio.Future[Receipt]":
        """Hand a message over, waiting only while too much is on its way already; the receipt comes later."""
        host = self._running_host()
        groups = self._check_destinations(destinations)
        if type(payload) is not bytes:
            payload = _copy_payload(payload)
        if len(payload) > self._limits.message_bytes:
            raise UsageError(
                f"payload of {len(payload)} bytes; expected at most {self._limits.message_bytes} (limits.message_bytes)"
            )
        if self.sequence >= MAX_BATCHES:
            raise UsageError(f"process {host.me} has multicast {self.sequence} batches; expected a new client by now")
        if host.network.outbox.is_congested:
            await host.network.outbox.wait_for_capacity()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.setdefault(groups, []).append((payload, future))
        self.outstanding += 1
        return future

    def resolve(self, message: MessageId, absent: tuple[GroupId, ...] = ()) -> None:
        """The host says that every group has answered what was ordered under this id, but for those that are lost."""
        batch = self._unanswered.pop(message, None)
        if batch is None:
            return
        waiting, groups = batch
        self.outstanding -= len(waiting)
        for place, (_, future) in enumerate(waiting):
            if not future.done():
                future.set_result(Receipt(message, place, groups, absent))

    def close(self) -> None:
        """Nobody will answer any more."""
        waiting = [one for batch, _ in self._unanswered.values() for one in batch]
        for _, future in (*waiting, *(one for batch in self._unsent.values() for one in batch)):
            if not future.done():
                future.set_exception(CannotTellError("the client has hung up; the message may or may not be delivered"))
                future.exception()  # Who does not wait need not be told.
        self._unanswered.clear()
        self._unsent.clear()

    def _running_host(self) -> Host:
        host = self._host
        if host is None:
            raise UsageError("not connected; expected `async with` around the use of a client")
        if host.ended.done():
            raise CannotTellError(f"process {host.me} has stopped; nothing more can be multicast from here")
        return host

    def _check_destinations(self, destinations: Iterable[GroupId | str]) -> tuple[GroupId, ...]:
        self._running_host()
        if isinstance(destinations, str):
            raise UsageError(f"destinations: the text {destinations!r}; expected a set of groups, such as {{'orders'}}")
        key = frozenset(destinations)
        groups = self._checked_destinations.get(key)
        if groups is None:
            groups = self._topology.check_destinations(find_group(self._topology, name) for name in key)
            self._check_permissions(groups)
            if len(self._checked_destinations) < MAX_DESTINATION_SETS:
                self._checked_destinations[key] = groups
        return groups

    def _check_permissions(self, groups: tuple[GroupId, ...]) -> None:
        """What the servers would refuse is refused here, before it is sent."""
        host = self._running_host()
        security = host.network.wiring.security
        if security is not None and security.me.kind == "client":
            allowed = security.permissions.allowed_groups(host.me)
            if not allowed.issuperset(groups):
                names = self._topology.names
                raise UsageError(
                    f"{security.me} may not address {[names[g] for g in groups if g not in allowed]};"
                    f" expected some of {[names[g] for g in sorted(allowed)]} (clients.{security.me.name}.groups)"
                )

    def _flush(self) -> None:
        """End of the tick: one message, or a few, for each set of destinations."""
        tick, self._unsent = self._unsent, {}
        host = self._host
        assert host is not None
        for groups, waiting in sorted(tick.items(), key=lambda item: item[0]):
            for share in self._split(waiting):
                host.submit(self._make_message(host, groups, share), wake=False)
        host.tick()

    def _split(self, waiting: list[_Waiting]) -> list[list[_Waiting]]:
        """As few batches as the limits allow."""
        most = MAX_BATCH_MESSAGES if self._batches else 1
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

    def _make_message(self, host: Host, groups: tuple[GroupId, ...], share: list[_Waiting]) -> Message:
        payload = encode_batch([payload for payload, _ in share]) if self._batches else share[0][0]
        message = Message(message_id(host.me, self.sequence), host.me, groups, payload)
        self._unanswered[message.id] = (share, groups)
        if self._recorder is not None:
            self._recorder.record_multicast(message, time_ns(), host.me, self.sequence)
        self.sequence += 1
        return message

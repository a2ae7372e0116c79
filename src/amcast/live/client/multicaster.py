"""Multicasts for the coroutines of one program, batched by tick, with a receipt for each message.

Messages that are multicast in one iteration of the event loop to the same destinations become one message of the
protocol (`live/client_batch.py`).

A message with a key is one of its own, and is on disk before it is sent (`live/client/outbox.py`).

A receipt means that the message has its place in the order of every destination group (docs/guarantees.md). Without a
receipt in time the call raises `DeliveryUnknownError`: the message may or may not be delivered, and no process can
tell.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import Final, NamedTuple

from amcast.kernel.errors import CannotTellError, DeliveryUnknownError, UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, GroupId, MessageId, message_id, sequence_of
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.live.client.deadlines import Deadlines
from amcast.live.client.outbox import Answered, OpenOutbox, Posted
from amcast.live.client.position_finder import PositionFinder
from amcast.live.client_batch import MAX_BATCH_MESSAGES, encode_batch
from amcast.live.host.host import Host
from amcast.live.membership.state_survey import UnansweredDiagnosis
from amcast.live.security.request_filter import MAX_DESTINATION_SETS
from amcast.trace.recorder import Recorder

MAX_BATCHES: Final = MESSAGES_PER_SENDER - 1_000_000
"""Batches of one process id: message ids allow no more, and one tick submits far less than the reserve."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The message has its place in the order of every destination group."""

    message: MessageId
    """The ordered message: the batch that contained the payload."""
    place: int
    """The place of the payload in its batch."""
    destinations: tuple[str, ...]
    """The names of the destination groups."""
    absent: tuple[str, ...] = ()
    """Destination groups that are lost as a whole and did not order it: only with protocols that tolerate that
    (`a-dt`)."""
    positions: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The position of the message in each destination group, if `multicast` was called with `positions`: that of its
    deliveries (`Delivery.position`). A group is missing where no replica knew it any more, or in time."""


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """Every payload of a list has its place in the order of every destination group."""

    messages: tuple[MessageId, ...]
    """The ordered messages: one, or several where the list was larger than a message may be."""
    payloads: int
    """The number of payloads."""
    destinations: tuple[str, ...]
    """The names of the destination groups."""
    absent: tuple[str, ...] = ()
    """Destination groups that are lost as a whole, as in `Receipt`."""


Destinations = GroupId | str | Iterable[GroupId | str]
"""Groups of a message, by name or number: one, or several."""


def find_group(topology: Topology, name: GroupId | str) -> GroupId:
    """The group that a user gave by id or name."""
    if isinstance(name, int):
        return topology.check_destinations([name])[0]
    for group, known in topology.names.items():
        if known == name:
            return group
    raise UsageError(f"destinations: group {name!r} does not exist; expected some of {sorted(topology.names.values())}")


def collect_destinations(destinations: Destinations) -> frozenset[GroupId | str]:
    """The groups that a user gave, as a set. A text is the name of one group."""
    if isinstance(destinations, str | int):
        return frozenset((destinations,))
    try:
        return frozenset(destinations)
    except TypeError:
        raise UsageError(
            f"destinations = {destinations!r}; expected a group or a set of groups, such as {{'orders', 'stock'}}"
        ) from None


def _copy_payload(payload: object) -> bytes:
    """Copies a bytes-like payload, because its owner may change it before it is sent. Other types are refused: a batch
    contains payloads of other callers, too."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    hint = "; encode it first" if isinstance(payload, str) else ""
    raise UsageError(f"payload of type {type(payload).__name__}; expected bytes{hint}")


_Waiting = tuple[bytes, "asyncio.Future[Receipt]"]


class _Unanswered(NamedTuple):
    """A message without an answer."""

    futures: "list[asyncio.Future[Receipt]]"
    """One for each payload by its place, or one for a list of payloads."""
    payloads: int
    groups: tuple[GroupId, ...]


class Multicaster:
    """Multicasts for all coroutines of a program, in the name of one process."""

    def __init__(self, recorder: Recorder | None = None, *, batches: bool = True) -> None:
        self.outstanding = 0
        """Number of messages without a receipt."""
        self.diagnosis: UnansweredDiagnosis | None = None
        """Explains groups that do not answer in time."""
        self.position_finder: PositionFinder | None = None
        """Finds positions for callers who want them."""
        self._host: Host | None = None
        self._recorder = recorder
        if recorder is not None:
            recorder.has_answers = True
        self._batches = batches
        self.sequence = 0
        """Sequence number of the next batch; consecutive, as sessions expect."""
        self._checked_destinations: dict[frozenset[GroupId | str], tuple[GroupId, ...]] = {}
        self._unsent: dict[tuple[GroupId, ...], list[_Waiting]] = {}
        self._unanswered: dict[MessageId, _Unanswered] = {}
        self._message_of: dict[int, MessageId] | None = None
        """By identity of a future, during a tick in which some ran out: its message."""
        self._deadlines = Deadlines()
        self._outbox: OpenOutbox | None = None
        """Where messages with a key are kept."""
        self._keyed: dict[MessageId, tuple[str, list[asyncio.Future[Receipt]]]] = {}
        """Messages with a key that have no answer: the key, and who waits."""

    def attach(self, host: Host, first: int = 0, outbox: OpenOutbox | None = None) -> None:
        """Sets the host, which must call `resolve`; `first` is a sequence number that its process has never used."""
        self._host = host
        self.sequence = first
        self._topology = host.process.topology
        self._limits = host.limits
        self._outbox = outbox

    async def multicast(
        self,
        destinations: Destinations,
        payload: bytes,
        timeout_s: float = 30.0,
        *,
        positions: bool = False,
        key: str | None = None,
    ) -> Receipt:
        """Orders one message at one group or several; returns when it has its place in the order of each. With
        `positions` it waits until each has delivered it, and the receipt has its positions. With a `key` it is ordered
        once, however often it is multicast, by this run of the program or a later one with the same outbox."""
        if timeout_s <= 0:
            raise UsageError(f"timeout_s = {timeout_s}; expected more than 0 seconds")
        groups = self._check_destinations(destinations)
        deadline = asyncio.get_running_loop().time() + timeout_s if positions else 0.0
        waiting = self._submit(groups, payload) if key is None else self._submit_keyed(groups, payload, key)
        receipt = await self._wait_for_receipt(await waiting, groups, timeout_s)
        if not positions or self.position_finder is None:
            return receipt
        left_s = deadline - asyncio.get_running_loop().time()
        return replace(receipt, positions=await self.position_finder.find(receipt.message, groups, left_s))

    async def _wait_for_receipt(
        self, receipt: "asyncio.Future[Receipt]", groups: tuple[GroupId, ...], timeout_s: float
    ) -> Receipt:
        self._deadlines.add(receipt, timeout_s)
        try:
            return await receipt
        except DeliveryUnknownError:  # The client was closed; a DeliveryUnknownError is a TimeoutError, too.
            raise
        except TimeoutError:
            message = self._find_message(receipt)
            diagnosis = "" if self.diagnosis is None else await self.diagnosis.describe(groups, timeout_s)
            name = "a message" if message is None else f"message {message}"
            raise DeliveryUnknownError(
                f"{name} to {' and '.join(self._topology.names_of(groups))} was not answered within"
                f" {timeout_s:.3g} s; it may or may not be delivered{diagnosis}"
            ) from None

    def _find_message(self, receipt: "asyncio.Future[Receipt]") -> MessageId | None:
        """The message of a future, if it was sent. Futures of one tick run out together, so all are looked up once."""
        index = self._message_of
        if index is None:
            index = self._message_of = {}
            for message, batch in self._unanswered.items():
                waiting = self._keyed[message][1] if message in self._keyed else batch.futures
                index.update((id(future), message) for future in waiting)
            asyncio.get_running_loop().call_soon(self._forget_index)
        return index.get(id(receipt))

    def _forget_index(self) -> None:
        self._message_of = None

    async def post(self, destinations: Destinations, payload: bytes) -> "asyncio.Future[Receipt]":
        """Submits a message and returns a future of its receipt; waits only while too many bytes are queued."""
        return await self._submit(self._check_destinations(destinations), payload)

    async def _submit(self, groups: tuple[GroupId, ...], payload: bytes) -> "asyncio.Future[Receipt]":
        host = self._running_host()
        payload = self._check_payload(payload)
        self._check_sequence(host)
        if host.network.outbox.is_congested:
            await host.network.outbox.wait_for_capacity()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.setdefault(groups, []).append((payload, future))
        self.outstanding += 1
        return future

    async def _submit_keyed(self, groups: tuple[GroupId, ...], payload: bytes, key: str) -> "asyncio.Future[Receipt]":
        """Posts a message with a key, or waits for the one that has the key already."""
        host, outbox = self._running_host(), self._outbox
        if outbox is None:
            raise UsageError(
                f"key = {key!r}: the client has no outbox, and would forget it; expected connect(..., outbox=FOLDER)"
            )
        payload = self._check_payload(payload)
        self._check_sequence(host)
        if host.network.outbox.is_congested:
            await host.network.outbox.wait_for_capacity()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        names = self._topology.names_of(groups)
        known = outbox.find(key, names, payload)
        if isinstance(known, Answered):
            future.set_result(Receipt(known.message, 0, known.groups, known.absent))
        elif known is not None:
            self._keyed[known.message][1].append(future)
        else:
            if not self._unsent and not outbox.has_unwritten:
                loop.call_soon(self._flush)
            message = self._take_id(host)
            outbox.post(Posted(key, message, names, payload))
            self._keyed[message] = key, [future]
            self.outstanding += 1
        return future

    def resend(self) -> None:
        """Requests what earlier runs have posted, and what has no answer."""
        outbox, host = self._outbox, self._running_host()
        for posted in () if outbox is None else outbox.unanswered.values():
            self._keyed[posted.message] = posted.key, []
            self.outstanding += 1
            self._request_posted(host, posted)
        host.tick()

    def _write_posted(self, host: Host, outbox: OpenOutbox) -> None:
        """Makes messages with a key durable, and requests them."""
        try:
            written = outbox.write()
        except OSError as error:
            for message, (_, futures) in self._keyed.items():
                for future in futures:
                    if not future.done():
                        future.set_exception(
                            DeliveryUnknownError(f"message {message}: the outbox cannot be written ({error.strerror})")
                        )
            return
        for posted in written:
            self._request_posted(host, posted)

    def _request_posted(self, host: Host, posted: Posted) -> None:
        groups = self._topology.check_destinations(find_group(self._topology, name) for name in posted.groups)
        payload = encode_batch([posted.payload]) if self._batches else posted.payload
        message = Message(posted.message, host.me, groups, payload)
        self._unanswered[message.id] = _Unanswered([], 1, groups)
        if self._recorder is not None:
            self._recorder.record_multicast(message, time_ns(), host.me, sequence_of(message.id))
        host.submit(message, wake=False)

    async def multicast_many(
        self, destinations: Destinations, payloads: Iterable[bytes], timeout_s: float = 30.0
    ) -> BatchReceipt:
        """Orders a list of payloads at one group or several, in the order of the list; returns when all have their
        place in the order of each. Payloads of one message follow each other without a gap; the list is split only
        where it is larger than a message may be. It costs a future for each message, not for each payload."""
        if timeout_s <= 0:
            raise UsageError(f"timeout_s = {timeout_s}; expected more than 0 seconds")
        groups = self._check_destinations(destinations)
        host = self._running_host()
        if isinstance(payloads, bytes | bytearray | memoryview | str):
            raise UsageError(f"payloads of type {type(payloads).__name__}; expected a list of payloads")
        checked = [self._check_payload(payload) for payload in payloads]
        if not checked:
            raise UsageError("payloads is empty; expected one or more")
        futures: list[asyncio.Future[Receipt]] = []
        receipts: list[Receipt] = []
        try:
            async with asyncio.timeout(timeout_s):
                for share in self._split(checked):
                    if host.network.outbox.is_congested:
                        await host.network.outbox.wait_for_capacity()
                    futures.append(self._submit_list(host, groups, share))
                receipts = [await future for future in futures]
        except DeliveryUnknownError:
            raise
        except TimeoutError:
            diagnosis = "" if self.diagnosis is None else await self.diagnosis.describe(groups, timeout_s)
            raise DeliveryUnknownError(
                f"{len(checked)} payloads to {' and '.join(self._topology.names_of(groups))} were not all answered"
                f" within {timeout_s} s; each may or may not be delivered{diagnosis}"
            ) from None
        absent = tuple(dict.fromkeys(name for receipt in receipts for name in receipt.absent))
        messages = tuple(receipt.message for receipt in receipts)
        return BatchReceipt(messages, len(checked), receipts[0].destinations, absent)

    def _submit_list(self, host: Host, groups: tuple[GroupId, ...], payloads: list[bytes]) -> "asyncio.Future[Receipt]":
        self._check_sequence(host)
        if self._unsent or (self._outbox is not None and self._outbox.has_unwritten):
            self._flush()  # What was multicast earlier leaves earlier.
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        message = self._make_message(host, groups, payloads, [future])
        self.outstanding += len(payloads)
        host.submit(message, wake=False)
        host.tick()
        return future

    def _check_payload(self, payload: bytes) -> bytes:
        if type(payload) is not bytes:
            payload = _copy_payload(payload)
        if len(payload) > self._limits.message_bytes:
            raise UsageError(
                f"payload of {len(payload)} bytes; expected at most {self._limits.message_bytes} (limits.message_bytes)"
            )
        return payload

    def _check_sequence(self, host: Host) -> None:
        if self.sequence >= MAX_BATCHES:
            raise UsageError(
                f"process {host.me} has multicast {self.sequence} batches; expected at most {MAX_BATCHES} per client"
            )

    def resolve(self, message: MessageId, absent: tuple[GroupId, ...] = ()) -> None:
        """Completes the receipts of a message that every group has answered, except those that are lost."""
        batch = self._unanswered.pop(message, None)
        if batch is None:
            return
        if self._recorder is not None:
            self._recorder.record_answer(message, time_ns())
        self.outstanding -= batch.payloads
        names, absent_names = self._topology.names_of(batch.groups), self._topology.names_of(absent)
        for place, future in enumerate(batch.futures):
            if not future.done():
                future.set_result(Receipt(message, place, names, absent_names))
        if message in self._keyed:
            key, waiting = self._keyed.pop(message)
            if self._outbox is not None:
                self._outbox.answer(key, absent_names)
            for future in waiting:
                if not future.done():
                    future.set_result(Receipt(message, 0, names, absent_names))

    def close(self) -> None:
        """Fails all messages without a receipt."""
        futures = [future for batch in self._unanswered.values() for future in batch.futures]
        futures += [future for _, waiting in self._keyed.values() for future in waiting]
        for future in (*futures, *(future for waiting in self._unsent.values() for _, future in waiting)):
            if not future.done():
                future.set_exception(
                    DeliveryUnknownError("the client was closed; the message may or may not be delivered")
                )
                future.exception()  # A future that nobody awaits must not warn.
        self._unanswered.clear()
        self._unsent.clear()
        self._keyed.clear()
        self._deadlines.close()

    def _running_host(self) -> Host:
        host = self._host
        if host is None:
            raise UsageError("not connected; expected `async with` around the use of a client")
        if host.ended.done():
            raise CannotTellError(f"process {host.me} has stopped; nothing more can be multicast from here")
        return host

    def _check_destinations(self, destinations: Destinations) -> tuple[GroupId, ...]:
        self._running_host()
        key = collect_destinations(destinations)
        groups = self._checked_destinations.get(key)
        if groups is None:
            groups = self._topology.check_destinations(find_group(self._topology, name) for name in key)
            self._check_permissions(groups)
            if len(self._checked_destinations) < MAX_DESTINATION_SETS:
                self._checked_destinations[key] = groups
        return groups

    def _check_permissions(self, groups: tuple[GroupId, ...]) -> None:
        """Refuses groups that the servers would refuse, before anything is sent."""
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
        """Submits one message, or a few, for each set of destinations at the end of the tick."""
        unsent, self._unsent = self._unsent, {}
        host = self._host
        assert host is not None
        if self._outbox is not None:
            self._write_posted(host, self._outbox)
        for groups, waiting in sorted(unsent.items(), key=lambda item: item[0]):
            first = 0
            for share in self._split([payload for payload, _ in waiting]):
                last = first + len(share)
                futures = [future for _, future in waiting[first:last]]
                host.submit(self._make_message(host, groups, share, futures), wake=False)
                first = last
        host.tick()

    def _split(self, payloads: list[bytes]) -> list[list[bytes]]:
        """Splits payloads into as few batches as the limits allow."""
        max_messages = MAX_BATCH_MESSAGES if self._batches else 1
        shares: list[list[bytes]] = []
        free_bytes = -1
        for payload in payloads:
            size = len(payload) + 16
            if size > free_bytes or len(shares[-1]) == max_messages:
                shares.append([])
                free_bytes = max(size, self._limits.message_bytes)
            shares[-1].append(payload)
            free_bytes -= size
        return shares

    def _make_message(
        self, host: Host, groups: tuple[GroupId, ...], payloads: list[bytes], futures: "list[asyncio.Future[Receipt]]"
    ) -> Message:
        payload = encode_batch(payloads) if self._batches else payloads[0]
        message = Message(self._take_id(host), host.me, groups, payload)
        self._unanswered[message.id] = _Unanswered(futures, len(payloads), groups)
        if self._recorder is not None:
            self._recorder.record_multicast(message, time_ns(), host.me, self.sequence - 1)
        return message

    def _take_id(self, host: Host) -> MessageId:
        if self._outbox is not None:
            self._outbox.reserve(self.sequence)
        self.sequence += 1
        return message_id(host.me, self.sequence - 1)

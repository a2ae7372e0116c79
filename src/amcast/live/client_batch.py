"""Batches: what the protocol orders is one message, what clients sent are many.

A gateway takes what its clients multicast in one tick, puts together what has the same destinations, and lets the
protocol order that as a single message; every replica opens it at delivery. The price of ordering is then paid once
per batch, and the payloads are encoded once and forwarded as they are. There is no timer: a lone message is a batch of
one and waits for nobody.

Protocol, log and trace know only what is ordered; a client's message is named by its batch and its place in it. Whoever
opens a batch trusts nothing: what is no batch is delivered as it is, as one message, at every replica alike.
"""

from typing import Final, NamedTuple

import msgspec

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import is_change

MAX_BATCH_MESSAGES: Final = 4096
"""No batch holds more messages."""
BATCH_OVERHEAD_BYTES: Final = 64
"""What a batch of one adds to its message, at most."""


class Delivery(NamedTuple):
    """One client's message, as a replica hands it to the application."""

    message: MessageId
    """What was ordered: equal for all messages of a batch."""
    place: int
    """Which one of the batch."""
    position: int
    """The place of the batch in this process' order, over all its incarnations: from where an application can go on."""
    sender: ProcessId
    destinations: tuple[GroupId, ...]
    payload: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[bytes])
_LONG_ARRAY_BYTES: Final = {0xDC: 3, 0xDD: 5}
"""How msgpack begins an array of more than 15, and how many bytes that takes."""


def encode_batch(payloads: list[bytes]) -> bytes:
    assert 1 <= len(payloads) <= MAX_BATCH_MESSAGES
    return _encoder.encode(payloads)


def batch_size(payload: bytes) -> int:
    """How many messages a batch holds, by its first bytes; what is no batch is one."""
    first = payload[0] if payload else 0
    if first & 0xF0 == 0x90:
        return (first & 0x0F) or 1
    if first in _LONG_ARRAY_BYTES and len(payload) > _LONG_ARRAY_BYTES[first]:
        return min(int.from_bytes(payload[1 : _LONG_ARRAY_BYTES[first]], "big"), MAX_BATCH_MESSAGES) or 1
    return 1


def batch_deliveries(effect: Deliver) -> list[Delivery]:
    """The messages in a delivered batch, in order."""
    return message_deliveries(effect.message, effect.position)


def message_deliveries(message: Message, position: int) -> list[Delivery]:
    """The same, of a batch that was delivered at a position. A change of members has a position like any message, and
    is nothing that an application is told: hosts and subscriptions follow it by themselves."""
    if is_change(message):
        return []
    try:
        payloads = _decoder.decode(message.payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        payloads = [message.payload]
    id, sender, groups = message.id, message.sender, message.destinations
    return [Delivery(id, place, position, sender, groups, payload) for place, payload in enumerate(payloads)]

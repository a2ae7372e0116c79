"""Batches: the protocol orders one message that contains many payloads of one client process.

A client gathers what its callers multicast in one tick to the same destinations, and multicasts it as a single message;
every replica opens it at delivery. The cost of ordering is then paid once per batch, and payloads are encoded once and
forwarded unchanged. There is no timer: a lone message is a batch of one and is sent at once.

Protocol, log and trace know only the ordered message; a payload is identified by its batch and its place in it.
Replicas do not trust the sender: a payload that is not a valid batch is delivered unchanged, as one message, at every
replica alike.
"""

from typing import Final, NamedTuple

import msgspec

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import is_change
from amcast.kernel.topology import Topology
from amcast.services.messages import MARK, stamp_payload

MAX_BATCH_MESSAGES: Final = 4096
"""Maximum number of payloads in a batch."""
BATCH_OVERHEAD_BYTES: Final = 64
"""Bytes that a batch of one adds to its payload, at most."""


class Delivery(NamedTuple):
    """One payload of a client, as a replica delivers it to the application."""

    message: MessageId
    """The ordered message: equal for all payloads of a batch."""
    place: int
    """The place of the payload in its batch."""
    position: int
    """The position of the batch in the order of its replica, over all incarnations: where a reader can resume."""
    sender: ProcessId
    destinations: tuple[str, ...]
    """The names of the destination groups."""
    payload: bytes
    is_replayed: bool = False
    """An earlier run of the program may have received it: it is repeated from a log. Effects outside of the
    application's state may have happened already."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[bytes])
_LONG_ARRAY_BYTES: Final = {0xDC: 3, 0xDD: 5}
"""Length of the msgpack header of an array of more than 15 elements, by its first byte."""


def encode_batch(payloads: list[bytes]) -> bytes:
    """Encodes payloads as one batch."""
    assert 1 <= len(payloads) <= MAX_BATCH_MESSAGES
    return _encoder.encode(payloads)


def open_batch(payload: bytes) -> list[bytes]:
    """The payloads of a batch; what is not a valid batch is one payload."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return [payload]


def stamp_calls(message: Message, now_ns: int) -> Message:
    """A client's message with the time at which a server took it in each call of a service; another message stays as it
    is."""
    payload = message.payload
    if MARK not in payload:
        return message
    parts = open_batch(payload)
    stamped = [stamp_payload(part, now_ns) for part in parts]
    if stamped == parts:
        return message
    is_batch = parts[0] is not payload
    return Message(message.id, message.sender, message.destinations, encode_batch(stamped) if is_batch else stamped[0])


def batch_size(payload: bytes) -> int:
    """Number of payloads in a batch, from its header; 1 for a payload that is no batch."""
    first = payload[0] if payload else 0
    if first & 0xF0 == 0x90:
        return (first & 0x0F) or 1
    if first in _LONG_ARRAY_BYTES and len(payload) > _LONG_ARRAY_BYTES[first]:
        return min(int.from_bytes(payload[1 : _LONG_ARRAY_BYTES[first]], "big"), MAX_BATCH_MESSAGES) or 1
    return 1


def batch_deliveries(effect: Deliver, topology: Topology) -> list[Delivery]:
    """Opens a delivered batch, in order."""
    return message_deliveries(effect.message, effect.position, topology)


def message_deliveries(
    message: Message, position: int, topology: Topology, is_replayed: bool = False
) -> list[Delivery]:
    """Opens a batch that was delivered at a position. A change of members has a position like any message and contains
    no delivery for an application: hosts and subscriptions follow it themselves."""
    if is_change(message):
        return []
    payloads = open_batch(message.payload)
    id, sender, names = message.id, message.sender, topology.names_of(message.destinations)
    return [
        Delivery(id, place, position, sender, names, payload, is_replayed) for place, payload in enumerate(payloads)
    ]

"""Bundles: messages of many clients with the same destinations, ordered as one message.

A gateway bundles the requests that its clients send in one step. The protocol orders a bundle like any message, without
decoding it, and opens it when it is delivered. A client whose gateway does not answer moves to another one, so one
message may be in two bundles. All groups deliver the two bundles in the same order, because these have the same
destinations: each group delivers the message with the first bundle and skips it in the second.

The sender of a bundle is a gateway id, which is different in every incarnation: groups forget old sequence numbers of a
sender, and bundles that an earlier incarnation left in flight must not be confused with those of the next one.
"""

from typing import Final

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, MESSAGES_PER_SENDER, GroupId, MessageId, ProcessId
from amcast.kernel.message import Message, MessageHeader

FIRST_GATEWAY: Final = MAX_SENDER + 1
"""Gateway ids start here. No client or server has such an id, and none appears in a trace."""
MAX_GATEWAYS: Final = 1 << 12
MAX_INCARNATIONS: Final = 1 << 20
"""With these limits, ids of bundles fit 63 bits."""
FIRST_BUNDLE: Final = FIRST_GATEWAY * MESSAGES_PER_SENDER
"""Message ids from here on are those of bundles."""

_encoder: Final = msgspec.msgpack.Encoder()
_message_decoder: Final = msgspec.msgpack.Decoder(list[Message])
_header_decoder: Final = msgspec.msgpack.Decoder(list[MessageHeader])


def gateway_sender(process: ProcessId, incarnation: int) -> ProcessId:
    """The gateway id of a process in one of its incarnations."""
    if process >= MAX_GATEWAYS:
        raise UsageError(f"process {process} is a gateway; expected a number below {MAX_GATEWAYS}")
    if incarnation >= MAX_INCARNATIONS:
        raise UsageError(
            f"process {process} is a gateway in incarnation {incarnation}; "
            f"expected fewer than {MAX_INCARNATIONS} incarnations"
        )
    return FIRST_GATEWAY + incarnation * MAX_GATEWAYS + process


def gateway_process(gateway: ProcessId) -> ProcessId:
    """The process with this gateway id."""
    return gateway % MAX_GATEWAYS


def is_bundle(message: MessageId) -> bool:
    return message >= FIRST_BUNDLE


def make_bundle(
    gateway: ProcessId, sequence: int, destinations: tuple[GroupId, ...], messages: list[Message]
) -> Message:
    """Encodes messages as the payload of one message."""
    assert sequence < MESSAGES_PER_SENDER, f"gateway {gateway} has sent {sequence} bundles in one incarnation"
    return Message(gateway * MESSAGES_PER_SENDER + sequence, gateway, destinations, _encoder.encode(messages))


def bundle_messages(bundle: Message) -> list[Message]:
    """The messages of a bundle, in order. A bundle that cannot be decoded is empty, at every replica alike."""
    try:
        return _message_decoder.decode(bundle.payload)
    except (msgspec.MsgspecError, ValueError):
        return []


def bundle_headers(bundle: Message) -> list[MessageHeader]:
    """The headers of a bundle's messages, in order: cheaper to decode, and enough to record what was delivered."""
    try:
        return _header_decoder.decode(bundle.payload)
    except (msgspec.MsgspecError, ValueError):
        return []

"""Bundles: many clients' messages with the same destinations, ordered as one.

A gateway makes a bundle of what its clients asked for in one step; the protocol orders it like any message, without
looking inside, and opens it when it is delivered. A client whose gateway falls silent asks another one, so one message
may be in two bundles. All groups deliver the two bundles in the same order, because they have the same destinations:
each group takes the message from the first and skips it in the second.

A gateway's bundles carry a number of its own as their sender, another one in each incarnation: what an incarnation that
ended left in flight can never be taken for what the next incarnation sends.
"""

from typing import Final

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, MESSAGES_PER_SENDER, GroupId, MessageId, ProcessId
from amcast.kernel.message import Message, MessageHeader

FIRST_GATEWAY: Final = MAX_SENDER + 1
"""Numbers from here on are gateways': no client or server has one, no trace shows one."""
MAX_GATEWAYS: Final = 1 << 12
MAX_INCARNATIONS: Final = 1 << 20
"""Ids of bundles fit 63 bits."""
FIRST_BUNDLE: Final = FIRST_GATEWAY * MESSAGES_PER_SENDER
"""Ids from here on are bundles'."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Message])
_labels: Final = msgspec.msgpack.Decoder(list[MessageHeader])


def gateway_sender(process: ProcessId, incarnation: int) -> ProcessId:
    """The name in which a process bundles, in one of its incarnations."""
    if process >= MAX_GATEWAYS:
        raise UsageError(f"process {process} is a gateway; expected a number below {MAX_GATEWAYS}")
    if incarnation >= MAX_INCARNATIONS:
        raise UsageError(
            f"process {process} is a gateway in incarnation {incarnation}; "
            f"expected fewer than {MAX_INCARNATIONS} incarnations"
        )
    return FIRST_GATEWAY + incarnation * MAX_GATEWAYS + process


def gateway_process(gateway: ProcessId) -> ProcessId:
    """The process behind a gateway's number."""
    return gateway % MAX_GATEWAYS


def is_bundle(message: MessageId) -> bool:
    return message >= FIRST_BUNDLE


def make_bundle(
    gateway: ProcessId, sequence: int, destinations: tuple[GroupId, ...], messages: list[Message]
) -> Message:
    """One message that stands for many."""
    assert sequence < MESSAGES_PER_SENDER, f"gateway {gateway} has sent {sequence} bundles in one incarnation"
    return Message(gateway * MESSAGES_PER_SENDER + sequence, gateway, destinations, _encoder.encode(messages))


def bundle_messages(bundle: Message) -> list[Message]:
    """What a bundle holds, in order. What cannot be read holds nothing, at every replica alike."""
    try:
        return _decoder.decode(bundle.payload)
    except (msgspec.MsgspecError, ValueError):
        return []


def bundle_headers(bundle: Message) -> list[MessageHeader]:
    """Which messages a bundle holds, in order; most replicas need to know no more."""
    try:
        return _labels.decode(bundle.payload)
    except (msgspec.MsgspecError, ValueError):
        return []

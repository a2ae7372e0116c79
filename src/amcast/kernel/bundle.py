"""Bundles: many clients' messages with the same destinations, ordered as one.

A gateway makes a bundle of what its clients asked for in one step; the protocol orders it like any message, without
looking inside, and opens it when it is delivered. A client whose gateway falls silent asks another one, so one message
may be in two bundles. All groups deliver the two bundles in the same order, because they have the same destinations:
each group takes the message from the first and skips it in the second.

A gateway's bundles carry a number of its own as their sender, another one in each life: what a life that ended left in
flight can never be taken for what the next life sends.
"""

from typing import Final

import msgspec

from amcast.kernel.errors import WrongUse
from amcast.kernel.ids import MAX_SENDER, MESSAGES_PER_SENDER, GroupId, MessageId, ProcessId
from amcast.kernel.message import Label, Message

FIRST_GATEWAY: Final = MAX_SENDER + 1
"""Numbers from here on are gateways': no client or server has one, no trace shows one."""
MOST_PROCESSES: Final = 1 << 12
MOST_LIVES: Final = 1 << 20
"""Ids of bundles fit 63 bits."""
FIRST_BUNDLE: Final = FIRST_GATEWAY * MESSAGES_PER_SENDER
"""Ids from here on are bundles'."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Message])
_labels: Final = msgspec.msgpack.Decoder(list[Label])


def gateway_number(process: ProcessId, life: int) -> ProcessId:
    """The name in which a process bundles, in one of its lives."""
    if process >= MOST_PROCESSES:
        raise WrongUse(f"process {process} is a gateway; expected a number below {MOST_PROCESSES}")
    if life >= MOST_LIVES:
        raise WrongUse(f"process {process} is a gateway in life {life}; expected fewer than {MOST_LIVES} lives")
    return FIRST_GATEWAY + life * MOST_PROCESSES + process


def process_of(gateway: ProcessId) -> ProcessId:
    """The process behind a gateway's number."""
    return gateway % MOST_PROCESSES


def is_bundle(message: MessageId) -> bool:
    return message >= FIRST_BUNDLE


def bundled(gateway: ProcessId, sequence: int, destinations: tuple[GroupId, ...], messages: list[Message]) -> Message:
    """One message that stands for many."""
    assert sequence < MESSAGES_PER_SENDER, f"gateway {gateway} has sent {sequence} bundles in one life"
    return Message(gateway * MESSAGES_PER_SENDER + sequence, gateway, destinations, _encoder.encode(messages))


def parts_of(bundle: Message) -> list[Message]:
    """What a bundle holds, in order. What cannot be read holds nothing, at every replica alike."""
    try:
        return _decoder.decode(bundle.payload)
    except (msgspec.MsgspecError, ValueError):
        return []


def labels_of(bundle: Message) -> list[Label]:
    """Which messages a bundle holds, in order; most replicas need to know no more."""
    try:
        return _labels.decode(bundle.payload)
    except (msgspec.MsgspecError, ValueError):
        return []

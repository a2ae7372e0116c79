"""What generic broadcast says, and what a process knows of it.

What FIFO reliable multicast says and knows.
"""

from typing import Final

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.consensus.messages import (
    Accept,
    Accepted,
    CheckpointReady,
    Install,
    Learn,
    LogStatus,
    Nack,
    PaxosState,
    Prepare,
    Promise,
    Value,
)

TOP: Final = 0
"""An entry of a decision: the last number of a stream that belongs to the epoch."""
CLOSE: Final = 1
"""Nobody waits for this stream any more."""
OPEN: Final = 2
"""Everybody waits for this stream again."""

Change = tuple[int, GroupId]
"""SHUT or OPEN, and whose stream."""

Tops = tuple[int, ...]
"""One number per stream, in the order of the streams."""


class Item(Body, frozen=True):
    """The message with this number of a group's stream: what does not conflict."""

    stream: GroupId
    number: int
    messages: tuple[Message, ...]


class Ack(Body, frozen=True):
    """In this epoch I hold every item up to these."""

    epoch: int
    tops: Tops


class Frozen(Body, frozen=True):
    """I acknowledge nothing more in this epoch; this is what I acknowledged, what I hold by now, and what somebody
    wants changed."""

    epoch: int
    tops: Tops
    held: Tops
    wanted: tuple[Change, ...]


class ItemRequest(Body, frozen=True):
    """I need the items of a stream from this number on."""

    stream: GroupId
    number: int


class GlobalPaxos(Body, frozen=True):
    """What Paxos among all processes says; the groups' own Paxos says the same things bare."""

    body: Prepare | Promise | Nack | Accept | Accepted | LogStatus | Learn | Install | CheckpointReady


class GenericState(State, frozen=True):
    epoch: int
    open: tuple[GroupId, ...]
    base: Tops
    given: Tops
    floor: int
    vouched: tuple[int, Tops]
    items: tuple[tuple[GroupId, tuple[tuple[int, tuple[Message, ...]], ...]], ...]
    newest: Tops
    dropped: int
    acks: tuple[tuple[ProcessId, tuple[int, Tops]], ...]
    frozen: tuple[tuple[ProcessId, tuple[int, Tops, Tops]], ...]
    wanted: tuple[Change, ...]
    closing: bool
    decided: tuple[Value, ...]
    paxos: PaxosState


GENERIC_BODIES: tuple[type[Body], ...] = (Item, Ack, Frozen, ItemRequest, GlobalPaxos)

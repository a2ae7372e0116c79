"""Bodies and state of generic broadcast."""

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
"""Kind of an entry of a decision: the last number of a stream that belongs to the epoch."""
CLOSE: Final = 1
"""Kind of a change: no process waits for this stream any more."""
OPEN: Final = 2
"""Kind of a change: every process waits for this stream again."""

Change = tuple[int, GroupId]
"""CLOSE or OPEN, and the group whose stream it is."""

Tops = tuple[int, ...]
"""The highest item number per stream, in the order of the streams."""


class Item(Body, frozen=True):
    """The item with this number of a group's stream; items do not conflict with each other."""

    stream: GroupId
    number: int
    messages: tuple[Message, ...]


class Ack(Body, frozen=True):
    """In this epoch the sender holds every item up to these numbers."""

    epoch: int
    tops: Tops


class Frozen(Body, frozen=True):
    """The sender acknowledges nothing more in this epoch. It reports the numbers that it acknowledged and those that it
    holds by now, with the requested changes."""

    epoch: int
    tops: Tops
    held: Tops
    requested_changes: tuple[Change, ...]


class ItemRequest(Body, frozen=True):
    """Requests the items of a stream from this number on."""

    stream: GroupId
    number: int


class GlobalPaxos(Body, frozen=True):
    """Wraps a body of the Paxos among all processes, to tell it from a body of a group's own Paxos."""

    body: Prepare | Promise | Nack | Accept | Accepted | LogStatus | Learn | Install | CheckpointReady


class GenericState(State, frozen=True):
    """The fields of `GenericBroadcast`."""

    epoch: int
    open: tuple[GroupId, ...]
    base: Tops
    delivered: Tops
    floor: int
    installed_progress: tuple[int, Tops]
    items: tuple[tuple[GroupId, tuple[tuple[int, tuple[Message, ...]], ...]], ...]
    newest: Tops
    dropped: int
    acks: tuple[tuple[ProcessId, tuple[int, Tops]], ...]
    reports: tuple[tuple[ProcessId, tuple[int, Tops, Tops]], ...]
    requested_changes: tuple[Change, ...]
    is_frozen: bool
    decided: tuple[Value, ...]
    paxos: PaxosState


GENERIC_BODIES: tuple[type[Body], ...] = (Item, Ack, Frozen, ItemRequest, GlobalPaxos)

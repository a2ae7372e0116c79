"""What PrimCast's processes say, make durable and know."""

from typing import Final

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, Record, State
from amcast.parts.groups.messages import AdmissionVote, Entry, JoinRequest, LeaderGroupConfig, LeaderGroupState, Nack
from amcast.parts.ordering.messages import DeliveredRange


class PrimCastConfig(LeaderGroupConfig, frozen=True):
    hybrid: bool = False
    """Primaries propose no less than their local time (PrimCast-HC)."""
    records: bool = True
    """Make records of what must survive a crash. Without, a process that is started again has lost its memory, and
    nothing that it says need wait for a disk: its own word counts in the same step."""


class DeliveredMessage(Struct, frozen=True, array_like=True, gc=False):
    """A delivery: the message, the timestamp of the deliverer's group, the final timestamp."""

    message: Message
    timestamp: int
    final: int
    place: int
    """How many clients' messages were delivered before: as many as deliveries, but for bundles."""
    repeats: tuple[int, ...] = ()
    """In a bundle: which of its messages were delivered before it, and are skipped."""


class DeliveryRecord(Struct, frozen=True, array_like=True, gc=False):
    """A delivery as a record tells it: the text is left out where the records have it already, as an entry."""

    id: MessageId
    timestamp: int
    final: int
    message: Message | None = None


class OwedTimestamp(Struct, frozen=True, array_like=True, gc=False):
    """A delivered message whose group timestamp other groups may still ask for."""

    id: MessageId
    timestamp: int
    final: int
    groups: tuple[GroupId, ...]
    """Those in which no majority is known to have delivered it."""


# In the failure-free run


class Ack(Body, frozen=True):
    """Where its sender is. Accepts everything in the log of `epoch` below `length`; doubles as BUMP and as ACCEPT."""

    epoch: int
    length: int
    clock: int
    """The sender will never again propose at or below it, nor promise an epoch without telling it."""
    position: int
    time: int
    tie: MessageId
    """(time, tie) is the rank of what the sender delivered last; everything below is delivered there."""
    memory_losses: tuple[int, ...] = ()
    """By place in the group: the incarnation in which a member lost its memory. Empty: nobody did."""


class Propose(Body, frozen=True):
    """A primary's timestamps, (place in the log, message, timestamp) each; also its own acknowledgement."""

    proposals: tuple[tuple[int, MessageId, int], ...]
    ack: Ack
    word: tuple[tuple[int, MessageId, int], ...] = ()
    """What the primary has delivered lately, (position, bundle, final timestamp) each: its group may as well."""


# When the primary changes


class NewEpoch(Body, frozen=True):
    """A candidate asks its group to follow it."""

    epoch: int


class Promise(Body, frozen=True):
    """The sender leaves earlier epochs behind; what it accepted in them."""

    epoch: int
    current: int
    """The epoch of this log."""
    clock: int
    base: int
    floor: int
    entries: tuple[Entry, ...]
    memory_losses: tuple[int, ...]


class NewState(Body, frozen=True):
    """The log of an epoch from place `base` on; all before is among the group's first `floor` deliveries."""

    epoch: int
    clock: int
    base: int
    floor: int
    entries: tuple[Entry, ...]
    memory_losses: tuple[int, ...]


# When something was missed


class Start(Body, frozen=True):
    """A client's message, passed on by somebody who has it."""

    message: Message


class Query(Body, frozen=True):
    """Which timestamp does your group have for this message? With the message, if the asker has it."""

    id: MessageId
    message: Message | None


class Decided(Body, frozen=True):
    """A group's timestamp for a message, accepted by a majority."""

    id: MessageId
    group: GroupId
    timestamp: int


class Sync(Body, frozen=True):
    """Where its sender is, who wants to know where the receiver is and, if `full`, what it delivered since."""

    epoch: int
    length: int
    position: int
    full: bool


class CatchUp(Body, frozen=True):
    """Deliveries from position `first` on."""

    first: int
    past: tuple[DeliveredMessage, ...]


class Install(Body, frozen=True):
    """For a fellow too far behind to be told delivery by delivery: how far its group is."""

    position: int
    time: int
    tie: MessageId
    seen: tuple[DeliveredRange, ...]
    facts: tuple[OwedTimestamp, ...]
    served: int
    """How many clients' messages that is."""


BODIES: Final[tuple[type[Body], ...]] = (
    Ack,
    Propose,
    NewEpoch,
    Promise,
    NewState,
    Nack,
    Start,
    Query,
    Decided,
    Sync,
    CatchUp,
    Install,
    JoinRequest,
    AdmissionVote,
)


class Progress(Record, frozen=True):
    """What changed since the last record: promises, clock, accepted entries from place `first` on, deliveries."""

    promised: int
    clock: int
    memory_losses: tuple[int, ...]
    first: int
    entries: tuple[Entry, ...]
    delivered: tuple[DeliveryRecord, ...]


class Checkpoint(Record, frozen=True):
    """Everything that must survive."""

    promised: int
    epoch: int
    clock: int
    memory_losses: tuple[int, ...]
    base: int
    floor: int
    entries: tuple[Entry, ...]
    handed: int
    """Deliveries before this position have left the process; later ones are told again after a restart."""
    first: int
    """The position of the first of `past`."""
    past: tuple[DeliveredMessage, ...]
    time: int
    tie: MessageId
    seen: tuple[DeliveredRange, ...]
    facts: tuple[OwedTimestamp, ...]
    served: int


RECORDS: Final[tuple[type[Record], ...]] = (Progress, Checkpoint)


class ItemState(State, frozen=True):
    """A message that is not delivered yet, and what is known of it."""

    id: MessageId
    message: Message | None
    index: int
    timestamp: int
    highest: int
    decided: tuple[tuple[GroupId, int], ...]
    heard: tuple[GroupId, ...]
    committed_ns: int
    is_overdue: bool


class ViewState(State, frozen=True):
    """What is known of a group's members, by place."""

    group: GroupId
    epoch: int
    epochs: tuple[int, ...]
    lengths: tuple[int, ...]
    marks: tuple[tuple[int, MessageId], ...]
    waiting: tuple[tuple[int, MessageId, int], ...]


class PrimCastState(State, frozen=True):
    """All a process knows; see the fields of `protocols.primcast_order.Order`, its base and its heirs."""

    kept: Checkpoint
    member: LeaderGroupState
    established: bool
    published: int
    leader_clock: int
    said: tuple[int, int]
    stream: tuple[tuple[int, MessageId, int], ...]
    delivered_at: tuple[int, ...]
    items: tuple[ItemState, ...]
    unproposed: tuple[MessageId, ...]
    views: tuple[ViewState, ...]
    clocks: tuple[int, ...]
    later: tuple[tuple[int, Ack], ...]
    promises: tuple[tuple[int, Promise], ...]
    state: NewState | None
    durable_length: int
    decided: int
    undurable: tuple[tuple[DeliveredMessage, int], ...]
    word: tuple[tuple[int, MessageId, int], ...]
    told: tuple[tuple[int, MessageId, int], ...]
    word_due: bool
    word_ns: int
    proposed_ns: int
    streams: bool

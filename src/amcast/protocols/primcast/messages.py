"""PrimCast's bodies, records and states."""

from typing import ClassVar, Final

from msgspec import Struct

from amcast.kernel.config import SearchValues
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.parts.groups.leader_group_messages import (
    AdmissionVote,
    DeliveredPrefix,
    Entry,
    JoinRequest,
    LeaderGroupCheckpoint,
    LeaderGroupConfig,
    LeaderGroupProgress,
    LeaderGroupState,
    Nack,
)

Proposal = tuple[int, MessageId, int]
"""Index in the log, message, timestamp."""
DeliveryNotice = tuple[int, MessageId, int]
"""Position, bundle, final timestamp of a primary's delivery."""


class PrimCastConfig(LeaderGroupConfig, frozen=True):
    search_values: ClassVar[SearchValues] = {
        **LeaderGroupConfig.search_values,
        "small_bundle_bytes": (0, 200, 16 * 1024),
        "proposes_early": (False, True),
    }
    hybrid: bool = False
    """Primaries never propose less than their local time (PrimCast-HC)."""
    records: bool = True
    """Persist what must survive a crash. Without records a restarted process has lost its memory, and nothing that a
    process sends waits for a disk: its own acknowledgement counts within the step. Nodes in memory choose this, because
    records that nobody stores were an eighth of the work for a lone message."""
    proposes_early: bool = False
    """A primary with records sends its proposals before they are durable, and its acknowledgement when they are: its
    disk and those of its followers write at the same time, for one more packet to each. Nodes that sync choose this."""
    small_bundle_bytes: int = 16 * 1024
    """Bundles with a payload up to this size go to a majority of each group first (`protocols/primcast/thrift.py`); 0:
    none. Equal at all members."""


class DeliveredMessage(Struct, frozen=True, array_like=True, gc=False):
    """A delivery: the message, its timestamp in the deliverer's group, and its final timestamp."""

    message: Message
    timestamp: int
    final: int
    messages_before: int
    """How many clients' messages were delivered before it: a bundle counts as its messages."""
    duplicate_places: tuple[int, ...] = ()
    """The places in a bundle of messages that were delivered before it, which are skipped."""


class DeliveryRecord(Struct, frozen=True, array_like=True, gc=False):
    """A delivery in a record. The message is left out where this or an earlier record has it as a log entry."""

    id: MessageId
    timestamp: int
    final: int
    message: Message | None = None


# Without failures


class Ack(Body, frozen=True):
    """Acknowledges every entry below `length` in the log of `epoch`. Serves as the paper's ACK, BUMP and ACCEPT."""

    epoch: int
    length: int
    clock: int
    """The sender will not propose a timestamp at or below it, nor promise an epoch without reporting it."""
    position: int
    """How many deliveries the sender has made."""
    time: int
    tie: MessageId
    """(time, tie) is the rank of the sender's last delivery; it has delivered everything below."""
    memory_losses: tuple[int, ...] = ()
    """By place in the group: the incarnation in which a member lost its memory. Empty if none did."""


class Propose(Body, frozen=True):
    """A primary's timestamps, with its own acknowledgement of them."""

    proposals: tuple[Proposal, ...]
    ack: Ack
    notices: tuple[DeliveryNotice, ...] = ()
    """Recent deliveries of the primary, which its followers may deliver too."""


class Offer(Body, frozen=True):
    """A primary's timestamps before they are durable. It states nothing: an Ack follows when they are."""

    epoch: int
    proposals: tuple[Proposal, ...]
    clock: int
    """The primary's clock, which its followers follow."""
    notices: tuple[DeliveryNotice, ...] = ()


# Epoch changes


class NewEpoch(Body, frozen=True):
    """A candidate asks its group for promises."""

    epoch: int


class Promise(Body, frozen=True):
    """The sender takes no part in epochs below `epoch`; what it accepted in them."""

    epoch: int
    current: int
    """The epoch of this log."""
    clock: int
    base: int
    floor: int
    entries: tuple[Entry, ...]
    memory_losses: tuple[int, ...]


class NewState(Body, frozen=True):
    """The log of an epoch from index `base` on; all earlier entries are among the group's first `floor` deliveries."""

    epoch: int
    clock: int
    base: int
    floor: int
    entries: tuple[Entry, ...]
    memory_losses: tuple[int, ...]


# Repair


class Start(Body, frozen=True):
    """A client's message, forwarded by a destination that has it."""

    message: Message


class Query(Body, frozen=True):
    """Asks for the receiver's group timestamp of a message. Carries the message if the sender has it."""

    id: MessageId
    message: Message | None


class Decided(Body, frozen=True):
    """A group's timestamp of a message, acknowledged by a majority."""

    id: MessageId
    group: GroupId
    timestamp: int


class Sync(Body, frozen=True):
    """The sender's progress. The receiver answers with its own and, if `full`, with the deliveries the sender lacks."""

    epoch: int
    length: int
    position: int
    full: bool


class CatchUp(Body, frozen=True):
    """Deliveries from position `first` on."""

    first: int
    deliveries: tuple[DeliveredMessage, ...]


class Install(Body, frozen=True):
    """How far the group is, for a member that lacks deliveries which the sender no longer has."""

    position: int
    prefix: DeliveredPrefix
    message_count: int
    """How many clients' messages were delivered."""


BODIES: Final[tuple[type[Body], ...]] = (
    Ack,
    Propose,
    Offer,
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


class Progress(LeaderGroupProgress, frozen=True):
    """The changes since the last record: promise, clock, log entries from index `first` on, deliveries."""

    first: int
    entries: tuple[Entry, ...]
    delivered: tuple[DeliveryRecord, ...]


class Checkpoint(LeaderGroupCheckpoint, frozen=True):
    """All durable state. The first of `entries` has index `base`; earlier ones are among the group's first `floor`
    deliveries."""

    base: int
    floor: int
    deliveries: tuple[DeliveredMessage, ...]
    """From position `history_start` on."""
    message_count: int
    """How many clients' messages were delivered."""


RECORDS: Final[tuple[type[Record], ...]] = (Progress, Checkpoint)


class PendingMulticastState(State, frozen=True):
    """A `PendingMulticast`."""

    id: MessageId
    message: Message | None
    index: int
    timestamp: int
    highest_proposal: int
    decided: tuple[tuple[GroupId, int], ...]
    proposing_groups: tuple[GroupId, ...]
    committed_ns: int
    is_overdue: bool
    patience: int


class ThriftState(State, frozen=True):
    """A `Thrift`."""

    down: tuple[ProcessId, ...]
    is_timer_armed: bool
    is_timer_due: bool


class GroupProgressState(State, frozen=True):
    """A `GroupProgress`."""

    group: GroupId
    epoch: int
    epochs: tuple[int, ...]
    lengths: tuple[int, ...]
    delivered_ranks: tuple[tuple[int, MessageId], ...]
    undecided: tuple[Proposal, ...]


class DeliveryNoticesState(State, frozen=True):
    """A `DeliveryNotices`."""

    unannounced: tuple[DeliveryNotice, ...]
    announced: tuple[DeliveryNotice, ...]
    is_timer_armed: bool
    oldest_ns: int
    proposed_ns: int
    is_streaming: bool


class PrimCastState(State, frozen=True):
    """A `PrimCast` process; the fields are those of the class."""

    checkpoint: Checkpoint
    member: LeaderGroupState
    is_established: bool
    published_clock: int
    primary_clock: int
    primary_position: tuple[int, int]
    waiting_proposals: tuple[Proposal, ...]
    delivered_positions: tuple[int, ...]
    pending: tuple[PendingMulticastState, ...]
    unproposed: tuple[MessageId, ...]
    progress: tuple[GroupProgressState, ...]
    """The own group first."""
    clocks: tuple[int, ...]
    deferred_acks: tuple[tuple[int, Ack], ...]
    promises: tuple[tuple[int, Promise], ...]
    sent_state: NewState | None
    durable_length: int
    decided: int
    undurable: tuple[tuple[DeliveredMessage, int], ...]
    notices: DeliveryNoticesState
    thrift: ThriftState

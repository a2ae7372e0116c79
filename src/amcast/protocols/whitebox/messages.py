"""Bodies, records and snapshots of White-Box."""

from typing import Final

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
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


class WhiteBoxConfig(LeaderGroupConfig, frozen=True):
    """The settings of every group with a leader."""


class DeliveredMessage(Struct, frozen=True, array_like=True, gc=False):
    """A delivered message and its final timestamp."""

    message: Message
    final: int


class DeliveryHistory(Struct, frozen=True, array_like=True, gc=False):
    """A group's deliveries from position `first` on."""

    first: int
    deliveries: tuple[DeliveredMessage, ...]
    prefix: DeliveredPrefix | None = None
    """The deliveries before `first`, for a receiver that lags behind everything the sender retains."""


# Failure-free run


class Accept(Body, frozen=True):
    """A leader's timestamps, to all destinations."""

    ballot: int
    entries: tuple[Entry, ...]
    time: int
    tie: MessageId
    """A majority of the leader's group has delivered everything up to the rank (time, tie)."""
    memory_losses: tuple[int, ...]
    finals: tuple[tuple[MessageId, int], ...] = ()
    """Final timestamps that the leader learnt from processes that delivered the messages: its own group accepts them
    without the timestamps of other groups."""


class AcceptAck(Body, frozen=True):
    """Messages that the sender accepted, each with the ballots of its destinations' leaders; with the ballot of its own
    leader alone if that leader told the final timestamp."""

    acks: tuple[tuple[MessageId, tuple[int, ...]], ...]
    position: int
    time: int
    tie: MessageId
    memory_losses: tuple[int, ...]
    """By place in the sender's group: the incarnation in which a member lost its memory."""


class Delivery(Body, frozen=True):
    """A leader's deliveries from position `first` on, message and final timestamp each, to its group."""

    ballot: int
    first: int
    deliveries: tuple[tuple[MessageId, int], ...]
    waits: tuple[int, ...] = ()
    """For the trace: how many nanoseconds each of them waited for messages to several groups; empty if none did."""


# Leader change


class NewLeader(Body, frozen=True):
    """A candidate, which has delivered `position` messages, asks its group for promises."""

    ballot: int
    position: int


class NewLeaderAck(Body, frozen=True):
    """A promise: what the sender accepted under `current`, and what it delivered beyond the candidate."""

    ballot: int
    current: int
    clock: int
    position: int
    entries: tuple[Entry, ...]
    history: DeliveryHistory
    memory_losses: tuple[int, ...]


class NewState(Body, frozen=True):
    """The initial state of a ballot: accepted messages, clock, and the deliveries that a follower needs first."""

    ballot: int
    clock: int
    position: int
    entries: tuple[Entry, ...]
    history: DeliveryHistory
    memory_losses: tuple[int, ...]


class NewStateAck(Body, frozen=True):
    """The sender holds the state of the ballot."""

    ballot: int


# Repair


class Retry(Body, frozen=True):
    """A client's message, forwarded to a process that may not know it or whose timestamp was lost."""

    message: Message


class Decided(Body, frozen=True):
    """The final timestamp of a message that the sender has delivered."""

    id: MessageId
    final: int


class Sync(Body, frozen=True):
    """The sender's ballot (-1: none) and position; the receiver replies with what the sender lacks."""

    ballot: int
    position: int


class CatchUp(Body, frozen=True):
    """Deliveries that the receiver lacks."""

    history: DeliveryHistory


class DeliveredUntil(Body, frozen=True):
    """Sent by a process to itself: the deliveries before `position` have left it when this arrives."""

    position: int


BODIES: Final[tuple[type[Body], ...]] = (
    Accept,
    AcceptAck,
    Delivery,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Nack,
    Retry,
    Decided,
    Sync,
    CatchUp,
    DeliveredUntil,
    JoinRequest,
    AdmissionVote,
)


class Progress(LeaderGroupProgress, frozen=True):
    """The changes since the last record."""

    accepted: tuple[Entry, ...]
    delivered: tuple[DeliveredMessage, ...]


class Checkpoint(LeaderGroupCheckpoint, frozen=True):
    """The durable state of a process."""

    history: tuple[DeliveredMessage, ...]
    """The retained deliveries, from position `history_start` on."""


RECORDS: Final = (Progress, Checkpoint)


class PendingState(State, frozen=True):
    """The state of a message that is not delivered; the fields are those of `PendingMulticast`."""

    message: Message
    accepted: int
    proposed: int
    accepts: tuple[tuple[GroupId, int, int], ...]
    acks: tuple[tuple[tuple[int, ...], tuple[tuple[GroupId, int], ...]], ...]
    final: int
    is_committed: bool
    committed_ns: int
    is_ordered: bool
    is_overdue: bool
    is_requested: bool


class WhiteBoxState(State, frozen=True):
    """The state of a process; the fields are those of `WhiteBox` and its base."""

    checkpoint: Checkpoint
    member: LeaderGroupState
    next_position: int
    pending: tuple[PendingState, ...]
    member_ranks: tuple[tuple[int, MessageId], ...]
    stable_ranks: tuple[tuple[GroupId, tuple[int, MessageId]], ...]
    remote_memory_losses: tuple[tuple[GroupId, tuple[int, ...]], ...]
    promises: tuple[tuple[int, NewLeaderAck], ...]
    holders: int
    new_state: NewState | None
    undurable: tuple[DeliveredMessage, ...]
    awaits_delivered_until: bool

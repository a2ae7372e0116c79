"""What White-Box's processes say, make durable and know."""

from typing import Final

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, Record, State
from amcast.parts.groups.messages import AdmissionVote, Entry, JoinRequest, LeaderGroupConfig, LeaderGroupState, Nack
from amcast.parts.ordering.messages import DeliveredRange


class WhiteBoxConfig(LeaderGroupConfig, frozen=True):
    """Nothing of its own."""


class DeliveredMessage(Struct, frozen=True, array_like=True, gc=False):
    """A delivery: the message and its final timestamp."""

    message: Message
    final: int


class OwedTimestamp(Struct, frozen=True, array_like=True, gc=False):
    """A delivered message whose final timestamp other groups may still ask for."""

    id: MessageId
    final: int
    groups: tuple[GroupId, ...]


class Jump(Struct, frozen=True, array_like=True, gc=False):
    """How far a group is, for a member too far behind to be told delivery by delivery."""

    time: int
    tie: MessageId
    seen: tuple[DeliveredRange, ...]
    facts: tuple[OwedTimestamp, ...]


class Story(Struct, frozen=True, array_like=True, gc=False):
    """A group's deliveries from position `first` on; before them a jump to `first`, if there is one."""

    first: int
    past: tuple[DeliveredMessage, ...]
    jump: Jump | None = None


# In the failure-free run


class Accept(Body, frozen=True):
    """A leader's timestamps, to all destinations."""

    ballot: int
    entries: tuple[Entry, ...]
    time: int
    tie: MessageId
    """A majority of the leader's group has delivered everything up to the rank (time, tie)."""
    memory_losses: tuple[int, ...]


class AcceptAck(Body, frozen=True):
    """Messages that the sender accepted, each with the ballots of its destinations' leaders."""

    acks: tuple[tuple[MessageId, tuple[int, ...]], ...]
    position: int
    time: int
    tie: MessageId
    memory_losses: tuple[int, ...]
    """By place in the sender's group: the incarnation in which a member lost its memory."""


class Delivery(Body, frozen=True):
    """A leader to its group: message and final timestamp of the deliveries from position `first` on."""

    ballot: int
    first: int
    deliveries: tuple[tuple[MessageId, int], ...]
    waits: tuple[int, ...] = ()
    """For the trace: how many nanoseconds each of them waited for messages to several groups; empty if none did."""


# When the leader changes


class NewLeader(Body, frozen=True):
    """A candidate asks its group to follow it; it has delivered `position` messages."""

    ballot: int
    position: int


class NewLeaderAck(Body, frozen=True):
    """What the sender accepted under `current`, and what it delivered beyond the candidate."""

    ballot: int
    current: int
    clock: int
    position: int
    entries: tuple[Entry, ...]
    story: Story
    memory_losses: tuple[int, ...]


class NewState(Body, frozen=True):
    """How a ballot begins: accepted messages, clock, and the deliveries that a follower must have first."""

    ballot: int
    clock: int
    position: int
    entries: tuple[Entry, ...]
    story: Story
    memory_losses: tuple[int, ...]


class NewStateAck(Body, frozen=True):
    """The sender holds the state."""

    ballot: int


# When something was missed


class Retry(Body, frozen=True):
    """A client's message, passed on: to a leader that may not know it or whose word was lost."""

    message: Message


class Decided(Body, frozen=True):
    """The final timestamp of a message that the sender has delivered."""

    id: MessageId
    final: int


class Sync(Body, frozen=True):
    """Where its sender is, who wants what it lacks."""

    ballot: int
    position: int


class CatchUp(Body, frozen=True):
    story: Story


class Mark(Body, frozen=True):
    """To oneself: what was delivered before has left the process."""

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
    Mark,
    JoinRequest,
    AdmissionVote,
)


class Progress(Record, frozen=True):
    """What changed since the last record."""

    promised: int
    clock: int
    memory_losses: tuple[int, ...]
    accepted: tuple[Entry, ...]
    delivered: tuple[DeliveredMessage, ...]


class Checkpoint(Record, frozen=True):
    """Everything that must survive."""

    promised: int
    ballot: int
    clock: int
    memory_losses: tuple[int, ...]
    accepted: tuple[Entry, ...]
    handed: int
    """Deliveries before this position have left the process; later ones are told again after a restart."""
    first: int
    past: tuple[DeliveredMessage, ...]
    time: int
    tie: MessageId
    seen: tuple[DeliveredRange, ...]
    facts: tuple[OwedTimestamp, ...]


RECORDS: Final[tuple[type[Record], ...]] = (Progress, Checkpoint)


class ItemState(State, frozen=True):
    """A message that is not delivered yet, and what is known of it."""

    id: MessageId
    message: Message
    local: int
    proposed: int
    accepts: tuple[tuple[GroupId, int, int], ...]
    tallies: tuple[tuple[tuple[int, ...], tuple[tuple[GroupId, int], ...]], ...]
    final: int
    committed_ns: int
    ordered: bool
    is_overdue: bool


class WhiteBoxState(State, frozen=True):
    """All a process knows; see the fields of `protocols.whitebox_order.Order`, its base and its heirs."""

    kept: Checkpoint
    member: LeaderGroupState
    next: int
    items: tuple[ItemState, ...]
    marks: tuple[tuple[int, MessageId], ...]
    stable: tuple[tuple[GroupId, tuple[int, MessageId]], ...]
    far_memory_losses: tuple[tuple[GroupId, tuple[int, ...]], ...]
    promises: tuple[tuple[int, NewLeaderAck], ...]
    holders: int
    chosen: NewState | None
    undurable: tuple[DeliveredMessage, ...]
    marked: bool

"""Bodies, records and states of the parts that groups are made of.

Groups with a leader (`parts/groups/leader_group.py`): what their protocols, PrimCast and White-Box, have in common.

Replicated groups (`parts/groups/replicated.py`): the channels between them.

Groups that agree on timestamps (`parts/groups/timestamped.py`): timestamps and confirmations.
"""

from typing import Final, Literal

from msgspec import Struct

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.units import MILLISECOND
from amcast.parts.consensus.messages import PaxosConfig, PaxosState, RingAccept
from amcast.parts.ordering.messages import DeliveredRange


class LeaderGroupConfig(Config, frozen=True):
    repair_ns: tuple[int, int] = (1000 * MILLISECOND, 1500 * MILLISECOND)
    """How long a member waits before it requests what should have arrived."""
    keep: int = 256
    """Deliveries that a member retains for members that lag, and records between two checkpoints."""

    def __post_init__(self) -> None:
        low, high = self.repair_ns
        if not 0 < low <= high:
            raise ValueError(f"repair_ns = {list(self.repair_ns)}; expected a range above 0, lower end first")
        if not 1 <= self.keep <= 1_000_000:
            raise ValueError(f"keep = {self.keep}; expected 1 to 1000000 deliveries")


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """A message and its group's timestamp."""

    message: Message
    timestamp: int


class OwedTimestamp(Struct, frozen=True, array_like=True, gc=False):
    """The timestamp of a delivered message that other groups may still request."""

    id: MessageId
    timestamp: int
    """The answer to such a request."""
    final: int
    groups: tuple[GroupId, ...]
    """Those in which no majority is known to have delivered the message."""


class DeliveredPrefix(Struct, frozen=True, array_like=True, gc=False):
    """All deliveries of a group before some position, without the messages."""

    time: int
    tie: MessageId
    """(time, tie) is the rank of the last delivery."""
    delivered: tuple[DeliveredRange, ...]
    owed: tuple[OwedTimestamp, ...]


class LeaderGroupProgress(Record, frozen=True):
    """What changed since the last record; a protocol adds its accepted entries and its deliveries."""

    promised: int
    clock: int
    memory_losses: tuple[int, ...]


class LeaderGroupCheckpoint(Record, frozen=True):
    """The durable state of a member; a protocol adds its log and its retained deliveries."""

    promised: int
    epoch: int
    clock: int
    memory_losses: tuple[int, ...]
    entries: tuple[Entry, ...]
    """What the member accepted in `epoch` and has not delivered, or not trimmed from its log."""
    delivered_until: int
    """Deliveries before this position have left the process; a restart repeats the later ones."""
    history_start: int
    """The position of the first retained delivery."""
    prefix: DeliveredPrefix


class Nack(Body, frozen=True):
    """Rejects a candidate or leader: the sender has promised this higher ballot."""

    ballot: int


class JoinRequest(Body, frozen=True):
    """The sender lost its memory in this incarnation. The helper (-1: none) starts an epoch that admits it."""

    memory_loss: int
    helper: ProcessId


class AdmissionVote(Body, frozen=True):
    """The reply to JoinRequest: the voter ignores whatever the joining member sent before that incarnation."""

    memory_loss: int
    promised: int
    clock: int


class LeaderGroupState(State, frozen=True):
    """The volatile state of a member, without its protocol's; the fields are those of `LeaderGroupMember`."""

    position: int
    incarnation: int
    role: str
    positions: tuple[int, ...]
    suggested_leader: ProcessId
    highest_epoch: int
    admission_votes: tuple[tuple[int, AdmissionVote], ...]
    next_helper: int
    repair_armed: bool
    is_lagging: bool
    durable: tuple[int, int]
    """Promised ballot and clock of the last record."""
    durable_memory_losses: tuple[int, ...]
    records_since_checkpoint: int


class ReplicatedConfig(PaxosConfig, frozen=True):
    """Settings of a protocol for single processes that runs in replicated groups."""


class GroupMessage(Body, frozen=True):
    """A body of the inner protocol, encoded, with its number on the channel between two groups."""

    group: GroupId
    number: int
    about: MessageId
    """-1: no message."""
    body: bytes


class GroupMessageAck(Body, frozen=True):
    """The log of the sender's group has every body below `upto` of the receiver's group."""

    group: GroupId
    upto: int


class ReplicatedCheckpoint(State, frozen=True):
    """The state that follows from the log, and the bodies that other groups may not have received."""

    position: int
    inner: bytes
    ordered: tuple[DeliveredRange, ...]
    delivered: tuple[DeliveredRange, ...]
    received: tuple[tuple[GroupId, int], ...]
    sent: tuple[tuple[GroupId, int], ...]
    unacknowledged: tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]
    acknowledged: tuple[tuple[GroupId, int], ...]


class ReplicatedState(State, frozen=True):
    """The fields of `ReplicatedGroup`."""

    checkpoint: ReplicatedCheckpoint
    paxos: PaxosState
    requests: tuple[Message, ...]
    unproposed: tuple[MessageId, ...]
    overdue_requests: tuple[MessageId, ...]
    incoming: tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]
    next_proposed: tuple[tuple[GroupId, int], ...]
    overdue_below: tuple[tuple[GroupId, int], ...]
    led_ballot: int
    timer_set: bool


REPLICATED_BODIES: tuple[type[Body], ...] = (GroupMessage, GroupMessageAck)


SET: Final = 0
"""Kind of a log entry with a message: the log gives it the group's timestamp."""
SYNC: Final = 1
"""Kind of a log entry with a destination group's timestamp of a message."""
SOFT: Final = 2
"""Kind of a log entry with a guess of a destination group's timestamp."""
FINAL: Final = 3
"""Kind of a log entry with a message's final timestamp."""


class TimestampConfig(PaxosConfig, frozen=True):
    """Settings of every protocol whose groups agree on timestamps."""

    consensus: Literal["paxos", "ring"] = "paxos"
    """How a group agrees: plain Paxos, or Ring Paxos (as in 004)."""
    confirmation_batch: int = 64
    """The number of messages that are confirmed to another group at a time, and of final timestamps that are written at
    a time to the log of a group that delivers ahead of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.confirmation_batch <= 100_000:
            raise ValueError(f"confirmation_batch = {self.confirmation_batch}; expected 1 to 100000 messages")


class GroupTimestamp(Body, frozen=True):
    """SEND-HARD: the timestamp that a group's log gave a message. `ask` requests the receiver's timestamp, or its
    confirmation."""

    message: MessageId
    group: GroupId
    timestamp: int
    ask: bool = False


class FinalStored(Body, frozen=True):
    """Confirmation: the final timestamps of these messages are in the log of the sender's group, which will not ask for
    the receiver's timestamps again."""

    messages: tuple[MessageId, ...]


class FinalQuery(Body, frozen=True):
    """Asks another member of the group for the final timestamps of these messages."""

    messages: tuple[MessageId, ...]


class FinalReply(Body, frozen=True):
    """The final timestamps that the sender knows."""

    finals: tuple[tuple[MessageId, int], ...]


class TimestampPendingState(State, frozen=True):
    """The fields of `TimestampPending`."""

    message: Message
    own: int
    received: tuple[tuple[GroupId, int], ...]
    logged: tuple[tuple[GroupId, int], ...]
    guesses: tuple[tuple[GroupId, int], ...]
    final: int
    is_final_logged: bool
    is_delivered: bool
    confirmed_by: tuple[GroupId, ...]
    committed_ns: int
    is_overdue: bool
    proposed_ballot: int


class TimestampCheckpoint(State, frozen=True):
    """The state from which another member of the group can continue."""

    position: int
    clock: int
    last_delivered: tuple[int, MessageId]
    pending: tuple[TimestampPendingState, ...]
    ordered: tuple[DeliveredRange, ...]
    unconfirmed: tuple[tuple[GroupId, tuple[tuple[MessageId, int], ...]], ...]
    unsent_confirmations: tuple[tuple[GroupId, tuple[MessageId, ...]], ...]


class TimestampState(State, frozen=True):
    """The fields of `TimestampedGroup`."""

    checkpoint: TimestampCheckpoint
    paxos: PaxosState
    requests: tuple[Message, ...]
    overdue_requests: tuple[MessageId, ...]
    early_timestamps: tuple[tuple[MessageId, tuple[tuple[GroupId, int], ...]], ...]
    unproposed_requests: tuple[MessageId, ...]
    unproposed_timestamps: tuple[MessageId, ...]
    unproposed_finals: tuple[MessageId, ...]
    led_ballot: int
    timer_set: bool


TIMESTAMP_BODIES: tuple[type[Body], ...] = (GroupTimestamp, FinalStored, FinalQuery, FinalReply, RingAccept)

"""Bodies, records and states of the parts that groups are made of.

Groups with a leader (`parts/groups/leader_group.py`): what their protocols, PrimCast and White-Box, have in common.

What replicated groups say to each other, and know, beyond Paxos.

What groups that agree on timestamps say to each other, and what their members know.
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
    """What a protocol for single processes can be told when it is lifted to groups."""


class GroupMessage(Body, frozen=True):
    """What one group says to another, as its leader's packet: the n-th body on this channel, encoded."""

    group: GroupId
    number: int
    about: MessageId
    """-1: no message."""
    body: bytes


class GroupMessageAck(Body, frozen=True):
    """My group's log has everything below `upto` that yours said."""

    group: GroupId
    upto: int


class ReplicatedCheckpoint(State, frozen=True):
    """What the log determines, and which outputs other groups may not have taken."""

    position: int
    inner: bytes
    asked: tuple[DeliveredRange, ...]
    delivered: tuple[DeliveredRange, ...]
    taken: tuple[tuple[GroupId, int], ...]
    sent: tuple[tuple[GroupId, int], ...]
    outgoing: tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]
    settled: tuple[tuple[GroupId, int], ...]


class ReplicatedState(State, frozen=True):
    core: ReplicatedCheckpoint
    paxos: PaxosState
    waiting: tuple[Message, ...]
    fresh: tuple[MessageId, ...]
    old: tuple[MessageId, ...]
    arrived: tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]
    next: tuple[tuple[GroupId, int], ...]
    old_sent: tuple[tuple[GroupId, int], ...]
    led: int
    armed: bool


REPLICATED_BODIES: tuple[type[Body], ...] = (GroupMessage, GroupMessageAck)


SET: Final = 0
"""An entry with a message: give it the group's timestamp."""
SYNC: Final = 1
"""An entry with another group's (or the own) timestamp for a message."""
SOFT: Final = 2
"""The same, but a guess."""
FINAL: Final = 3
"""An entry with a message's final timestamp."""


class TimestampConfig(PaxosConfig, frozen=True):
    consensus: Literal["paxos", "ring"] = "paxos"
    """How a group agrees: everybody tells everybody, or round a ring (what 004 ran on)."""
    confirmation_batch: int = 64
    """So many messages are confirmed to another group (or, if delivered ahead of the log, written to it) at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.confirmation_batch <= 100_000:
            raise ValueError(f"confirmation_batch = {self.confirmation_batch}; expected 1 to 100000 messages")


class GroupTimestamp(Body, frozen=True):
    """SEND-HARD: the timestamp that a group's log gave a message. `ask`: please tell me yours, or that you are done."""

    message: MessageId
    group: GroupId
    timestamp: int
    ask: bool = False


class FinalStored(Body, frozen=True):
    """The final timestamps of these messages are in my group's log: yours need not be remembered for us."""

    messages: tuple[MessageId, ...]


class FinalQuery(Body, frozen=True):
    """To fellow members: do you know the final timestamps of these messages?"""

    messages: tuple[MessageId, ...]


class FinalReply(Body, frozen=True):
    """Final timestamps that I know."""

    finals: tuple[tuple[MessageId, int], ...]


class TimestampPendingState(State, frozen=True):
    """What is known of a message that the log stamped, until it is delivered and settled."""

    message: Message
    own: int
    heard: tuple[tuple[GroupId, int], ...]
    synced: tuple[tuple[GroupId, int], ...]
    soft: tuple[tuple[GroupId, int], ...]
    final: int
    settled: bool
    delivered: bool
    confirmed: tuple[GroupId, ...]
    committed_ns: int
    old: bool
    proposed: int


class TimestampCheckpoint(State, frozen=True):
    """What a fellow member needs in order to go on from here."""

    position: int
    clock: int
    last: tuple[int, MessageId]
    pending: tuple[TimestampPendingState, ...]
    seen: tuple[DeliveredRange, ...]
    kept: tuple[tuple[GroupId, tuple[tuple[MessageId, int], ...]], ...]
    confirming: tuple[tuple[GroupId, tuple[MessageId, ...]], ...]


class TimestampState(State, frozen=True):
    core: TimestampCheckpoint
    paxos: PaxosState
    waiting: tuple[Message, ...]
    old: tuple[MessageId, ...]
    early: tuple[tuple[MessageId, tuple[tuple[GroupId, int], ...]], ...]
    starting: tuple[MessageId, ...]
    fresh: tuple[MessageId, ...]
    ahead: tuple[MessageId, ...]
    led: int
    armed: bool


TIMESTAMP_BODIES: tuple[type[Body], ...] = (GroupTimestamp, FinalStored, FinalQuery, FinalReply, RingAccept)

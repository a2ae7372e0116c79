"""Bodies, log entries and states of groups that agree on timestamps."""

from typing import ClassVar, Final, Literal

from amcast.kernel.config import MILLISECOND, SearchValues
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.consensus.messages import PaxosConfig, PaxosState, RingAccept
from amcast.parts.ordering.messages import DeliveredRange

SET: Final = 0
"""Kind of a log entry with a message: the log gives it the group's timestamp."""
SYNC: Final = 1
"""Kind of a log entry with a destination group's timestamp of a message."""
SOFT: Final = 2
"""Kind of a log entry with a guess of a destination group's timestamp."""
FINAL: Final = 3
"""Kind of a log entry with a message's final timestamp."""

MAX_PACE_NS: Final = 60_000 * MILLISECOND


class TimestampConfig(PaxosConfig, frozen=True):
    """Settings of every protocol whose groups agree on timestamps."""

    search_values: ClassVar[SearchValues] = {
        **PaxosConfig.search_values,
        "consensus": ("paxos", "ring"),
        "stamps": ("leader", "all"),
        "confirmation_batch": (1, 2, 4),
        "pace_ns": (0, MILLISECOND),
    }
    consensus: Literal["paxos", "ring"] = "paxos"
    """How a group agrees: plain Paxos, or Ring Paxos (as in 004)."""
    stamps: Literal["leader", "all"] = "leader"
    """Who sends the group's timestamps to other groups: the leader alone, with the fewest packets; or every member, so
    that a destination hears them from the nearest one and the loss of a leader costs nothing."""
    confirmation_batch: int = 64
    """The number of messages that are confirmed to another group at a time, and of final timestamps that are written at
    a time to the log of a group that delivers ahead of it."""
    pace_ns: int = 0
    """The least time between two proposals of a leader: what arrives meanwhile is ordered together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.pace_ns <= MAX_PACE_NS:
            raise ValueError(f"pace_ns = {self.pace_ns}; expected 0 to {MAX_PACE_NS} (a minute)")
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
    is_pacing: bool


TIMESTAMP_BODIES: tuple[type[Body], ...] = (GroupTimestamp, FinalStored, FinalQuery, FinalReply, RingAccept)

"""Bodies, records and states of groups with a leader: what PrimCast and White-Box have in common."""

from typing import ClassVar

from msgspec import Struct

from amcast.kernel.config import MILLISECOND, Config, SearchValues
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.parts.ordering.messages import DeliveredRange


class LeaderGroupConfig(Config, frozen=True):
    search_values: ClassVar[SearchValues] = {"keep": (1, 2, 3, 4)}
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
    """The groups in which no majority is known to have delivered the message."""


class DeliveredPrefix(Struct, frozen=True, array_like=True, gc=False):
    """All deliveries of a group before some position, without the messages."""

    time: int
    tie: MessageId
    """(time, tie) is the rank of the last delivery."""
    delivered: tuple[DeliveredRange, ...]
    owed: tuple[OwedTimestamp, ...]


class LeaderGroupProgress(Record, frozen=True):
    """The changes since the last record; a protocol adds its accepted entries and its deliveries."""

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
    """The entries that the member accepted in `epoch` and has not delivered, or not trimmed from its log."""
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

"""Settings, bodies, records and states of Paxos and Ring Paxos.

A value is a tuple of entries; the empty value is the no-op that fills gaps. Entries have the same few fields for every
protocol, so that a value needs no encoding of its own: a kind that the protocol defines, the message's id, a group, a
timestamp, and the message itself where it must travel.
"""

from typing import ClassVar

from msgspec import Struct

from amcast.kernel.config import MILLISECOND, Config, SearchValues
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, Record, State


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """One item that a group agrees on."""

    kind: int
    id: MessageId
    group: GroupId = 0
    timestamp: int = 0
    message: Message | None = None


Value = tuple[Entry, ...]
Vote = tuple[int, int, Value]
"""Instance, ballot, and the value accepted in that ballot."""


class PaxosConfig(Config, frozen=True):
    """Settings of every protocol whose groups agree by Paxos."""

    search_values: ClassVar[SearchValues] = {"keep": (1, 2, 3, 4)}
    retry_ns: tuple[int, int] = (500 * MILLISECOND, 1000 * MILLISECOND)
    """How long a process waits before it repeats a body that had no effect, or requests one that did not arrive."""
    keep: int = 256
    """Decided instances between two checkpoints; the log before the previous checkpoint is truncated."""
    batch: int = 64
    """The most decided values in a body to a process that lags, and undecided ones that a leader proposes again at a
    time."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        if not 1 <= self.keep <= 1_000_000:
            raise ValueError(f"keep = {self.keep}; expected 1 to 1000000 instances")
        if self.batch < 1:
            raise ValueError(f"batch = {self.batch}; expected 1 or more values")


class Prepare(Body, frozen=True):
    """Phase 1a: a candidate's ballot. A member that lost its state also sends it, with the incarnation in which it did
    (`memory_loss`), to be admitted again."""

    ballot: int
    memory_loss: int


class Promise(Body, frozen=True):
    """Phase 1b: a promise to accept no lower ballot, the accepted values that are not known to be decided, and in which
    incarnation each member lost its state."""

    ballot: int
    decided_until: int
    votes: tuple[Vote, ...]
    memory_losses: tuple[int, ...]


class Nack(Body, frozen=True):
    """The sender has promised this higher ballot."""

    ballot: int


class Accept(Body, frozen=True):
    """Phase 2a: a proposal."""

    ballot: int
    instance: int
    value: Value


class Accepted(Body, frozen=True):
    """Phase 2b: votes for `count` instances from `first` on."""

    ballot: int
    first: int
    count: int = 1


class LogStatus(Body, frozen=True):
    """The sender has every instance below `decided_until`; the receiver sends what the sender lacks, or asks for what
    it lacks itself. A leader that knows every proposal of lower ballots adds its ballot."""

    decided_until: int
    ballot: int = 0


class Learn(Body, frozen=True):
    """Decided values from `first` on; the sender has every instance below `decided_until`."""

    first: int
    values: tuple[Value, ...]
    decided_until: int


class Install(Body, frozen=True):
    """A checkpoint, for a member that lacks truncated values: the owner's state after every instance below `end`, and
    the values from `floor` on that learners still need."""

    end: int
    checkpoint: bytes
    floor: int
    values: tuple[Value, ...]


class CheckpointReady(Body, frozen=True):
    """From a process to itself: everything it delivered before the checkpoint at `end` has left its outbox, so the
    checkpoint may become durable."""

    end: int


class Promised(Record, frozen=True):
    """A durable promise. Also the first record of every member's first incarnation: a restarted member that finds no
    record has lost its state."""

    ballot: int
    memory_losses: tuple[int, ...]


class Voted(Record, frozen=True):
    """A durable vote. It implies a promise of the same ballot."""

    ballot: int
    instance: int
    value: Value


class Snapshot(Record, frozen=True):
    """The whole durable state of a member: the checkpoint at `end`, the decided values from `floor` on, its promise and
    its votes."""

    end: int
    checkpoint: bytes
    floor: int
    decided: tuple[Value, ...]
    promised: int
    memory_losses: tuple[int, ...]
    votes: tuple[Vote, ...]


class LogState(State, frozen=True):
    """The fields of `Log`."""

    decided_until: int
    floor: int
    checkpoint_end: int
    checkpoint: bytes
    known_until: int
    decided: tuple[tuple[int, Value], ...]
    retain_from: int | None


class SlotState(State, frozen=True):
    """An undecided instance."""

    instance: int
    ballot: int
    value: Value
    voted_ballot: int
    votes: int


class PaxosState(State, frozen=True):
    """The fields of `Paxos`, in their order."""

    role: str
    incarnation: int
    suggested_leader: int
    promised: int
    memory_losses: tuple[int, ...]
    log: LogState
    pending_checkpoint: tuple[int, bytes] | None
    votes: tuple[Vote, ...]
    slots: tuple[SlotState, ...]
    ballot: int
    highest_refusal: int
    promises: tuple[tuple[int, Promise], ...]
    catch_up_until: int
    next_instance: int
    announced_ballot: int
    timer_set: bool
    resend_below: int
    catch_up_index: int
    last_decided_until: int


PAXOS_BODIES: tuple[type[Body], ...] = (
    Prepare,
    Promise,
    Nack,
    Accept,
    Accepted,
    LogStatus,
    Learn,
    Install,
    CheckpointReady,
)
PAXOS_RECORDS: tuple[type[Record], ...] = (Promised, Voted, Snapshot)


class RingAccept(Body, frozen=True):
    """Ring Paxos: phases 2a and 2b in one, a proposal and the votes (bits by place) that it has collected."""

    ballot: int
    instance: int
    value: Value
    votes: int
    remaining: int
    """Members that have not seen the value; counted down below 0 on the second lap, which carries only the votes."""

"""What the members of a Paxos group say to each other, make durable and know.

A value is a tuple of entries; the empty one is the no-op that fills gaps. Entries are the same few fields for every
protocol, so that a value needs no encoding of its own: a kind that the protocol defines, the message's id, a group, a
timestamp, and the message itself where it must travel.

What travels round a ring.
"""

from msgspec import Struct

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.units import MILLISECOND


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """One thing that a group agrees on."""

    kind: int
    id: MessageId
    group: GroupId = 0
    timestamp: int = 0
    message: Message | None = None


Value = tuple[Entry, ...]
Vote = tuple[int, int, Value]
"""Instance, ballot and the value accepted in it."""


class PaxosConfig(Config, frozen=True):
    """What every protocol over replicated groups can be told."""

    retry_ns: tuple[int, int] = (500 * MILLISECOND, 1000 * MILLISECOND)
    """How long to wait before something that should have happened is asked for again."""
    keep: int = 256
    """After so many decided instances a snapshot is made; the log before the previous one goes."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        if not 1 <= self.keep <= 1_000_000:
            raise ValueError(f"keep = {self.keep}; expected 1 to 1000000 instances")


class Prepare(Body, frozen=True):
    """Phase 1: who wants to lead under this ballot, or (with a new memory_loss) to be admitted after losing its
    memory."""

    ballot: int
    memory_loss: int


class Promise(Body, frozen=True):
    """Nothing lower will be accepted; what was accepted and is not known to be decided; the incarnations of the
    forgetful."""

    ballot: int
    chosen: int
    votes: tuple[Vote, ...]
    memory_losses: tuple[int, ...]


class Nack(Body, frozen=True):
    """A higher ballot was promised."""

    ballot: int


class Accept(Body, frozen=True):
    """Phase 2a."""

    ballot: int
    instance: int
    value: Value


class Accepted(Body, frozen=True):
    """Phase 2b, for `count` instances from `first` on."""

    ballot: int
    first: int
    count: int = 1


class LogStatus(Body, frozen=True):
    """I know everything below `chosen`: teach me, or ask me. A leader also says under which ballot it leads, once it
    knows everything that was proposed under lower ones."""

    chosen: int
    ballot: int = 0


class Learn(Body, frozen=True):
    """Decided values from `first` on; the teacher knows everything below `chosen`."""

    first: int
    values: tuple[Value, ...]
    chosen: int


class Install(Body, frozen=True):
    """What the owner was after everything below `upto`: for who is too far behind to be taught value by value. With
    the values before it from `floor` on that somebody else still needs."""

    upto: int
    state: bytes
    floor: int
    values: tuple[Value, ...]


class CheckpointReady(Body, frozen=True):
    """To oneself: everything this process delivered before has been handed over, so `upto` may become durable."""

    upto: int


class Promised(Record, frozen=True):
    """A promise that must survive; also the first record of every member's incarnation, to tell memory_loss from lost
    memory."""

    ballot: int
    memory_losses: tuple[int, ...]


class Voted(Record, frozen=True):
    """A vote that must survive. It implies a promise of the same ballot."""

    ballot: int
    instance: int
    value: Value


class Snapshot(Record, frozen=True):
    """Everything: the owner's state at `upto`, what was decided from `floor` on, what this member promised and voted
    for."""

    upto: int
    state: bytes
    floor: int
    decided: tuple[Value, ...]
    promised: int
    memory_losses: tuple[int, ...]
    votes: tuple[Vote, ...]


class LogState(State, frozen=True):
    chosen: int
    floor: int
    upto: int
    state: bytes
    goal: int
    decided: tuple[tuple[int, Value], ...]


class SlotState(State, frozen=True):
    instance: int
    ballot: int
    value: Value
    voted_ballot: int
    votes: int


class PaxosState(State, frozen=True):
    """All a member knows, in the order of the fields of `parts.paxos.Paxos`."""

    role: str
    incarnation: int
    believed: int
    promised: int
    memory_losses: tuple[int, ...]
    log: LogState
    marked: tuple[int, bytes] | None
    votes: tuple[Vote, ...]
    slots: tuple[SlotState, ...]
    ballot: int
    seen: int
    promises: tuple[tuple[int, Promise], ...]
    start: int
    next: int
    announced: int
    armed: bool
    resend: int
    turn: int
    reached: int


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
    """Phases 2a and 2b in one: a proposal and the votes (bits by place) it has collected."""

    ballot: int
    instance: int
    value: Value
    votes: int
    remaining: int
    """Members that have not seen the value; from 0 down, members that have not seen all votes."""


RING_PAXOS_BODIES: tuple[type[Body], ...] = (*PAXOS_BODIES, RingAccept)

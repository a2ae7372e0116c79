"""What White-Box's processes say, make durable and know."""

from typing import Final

from msgspec import Struct

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.parts.bodies.session import Known

MILLISECOND: Final = 1_000_000


class WhiteBoxConfig(Config, frozen=True):
    repair_ns: tuple[int, int] = (1000 * MILLISECOND, 1500 * MILLISECOND)
    """How long to wait before what should have come is asked for."""
    keep: int = 256
    """How many deliveries a process remembers for fellows that lag, and records between two checkpoints."""

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


class Past(Struct, frozen=True, array_like=True, gc=False):
    """A delivery: the message and its final timestamp."""

    message: Message
    final: int


class Fact(Struct, frozen=True, array_like=True, gc=False):
    """A delivered message whose final timestamp other groups may still ask for."""

    id: MessageId
    final: int
    groups: tuple[GroupId, ...]


class Jump(Struct, frozen=True, array_like=True, gc=False):
    """How far a group is, for a member too far behind to be told delivery by delivery."""

    time: int
    tie: MessageId
    seen: tuple[Known, ...]
    facts: tuple[Fact, ...]


class Story(Struct, frozen=True, array_like=True, gc=False):
    """A group's deliveries from position `first` on; before them a jump to `first`, if there is one."""

    first: int
    past: tuple[Past, ...]
    jump: Jump | None = None


# In the failure-free run


class Accept(Body, frozen=True):
    """A leader's timestamps, to all destinations."""

    ballot: int
    entries: tuple[Entry, ...]
    time: int
    tie: MessageId
    """A majority of the leader's group has delivered everything up to the rank (time, tie)."""
    births: tuple[int, ...]


class AcceptAck(Body, frozen=True):
    """Messages that the sender accepted, each with the ballots of its destinations' leaders."""

    acks: tuple[tuple[MessageId, tuple[int, ...]], ...]
    position: int
    time: int
    tie: MessageId
    births: tuple[int, ...]
    """By place in the sender's group: the life in which a member lost its memory."""


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
    births: tuple[int, ...]


class NewState(Body, frozen=True):
    """How a ballot begins: accepted messages, clock, and the deliveries that a follower must have first."""

    ballot: int
    clock: int
    position: int
    entries: tuple[Entry, ...]
    story: Story
    births: tuple[int, ...]


class NewStateAck(Body, frozen=True):
    """The sender holds the state."""

    ballot: int


class Nack(Body, frozen=True):
    """The sender has promised this higher ballot."""

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


class Join(Body, frozen=True):
    """The sender lost its memory in this life. The helper, if any, shall start a ballot to take it in."""

    birth: int
    helper: ProcessId


class Welcome(Body, frozen=True):
    """The answer: nothing that the forgetful member did before that life counts here any more."""

    birth: int
    promised: int
    clock: int


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
    Join,
    Welcome,
)


class Progress(Record, frozen=True):
    """What changed since the last record."""

    promised: int
    clock: int
    births: tuple[int, ...]
    accepted: tuple[Entry, ...]
    delivered: tuple[Past, ...]


class Checkpoint(Record, frozen=True):
    """Everything that must survive."""

    promised: int
    ballot: int
    clock: int
    births: tuple[int, ...]
    accepted: tuple[Entry, ...]
    handed: int
    """Deliveries before this position have left the process; later ones are told again after a restart."""
    first: int
    past: tuple[Past, ...]
    time: int
    tie: MessageId
    seen: tuple[Known, ...]
    facts: tuple[Fact, ...]


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
    old: bool


class WhiteBoxState(State, frozen=True):
    """All a process knows; see the fields of `protocols.whitebox_order.Order` and its heirs."""

    kept: Checkpoint
    position: int
    life: int
    role: str
    next: int
    items: tuple[ItemState, ...]
    marks: tuple[tuple[int, MessageId], ...]
    positions: tuple[int, ...]
    stable: tuple[tuple[GroupId, tuple[int, MessageId]], ...]
    births: tuple[tuple[GroupId, tuple[int, ...]], ...]
    oracle: ProcessId
    heard_ballot: int
    promises: tuple[tuple[int, NewLeaderAck], ...]
    holders: int
    chosen: NewState | None
    welcomes: tuple[tuple[int, Welcome], ...]
    turn: int
    armed: bool
    lag: bool
    durable: tuple[int, int]
    durable_births: tuple[int, ...]
    undurable: tuple[Past, ...]
    records: int
    marked: bool

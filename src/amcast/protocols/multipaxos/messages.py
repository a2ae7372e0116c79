"""What MultiPaxos says beyond Paxos, and what it knows."""

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.consensus.messages import PaxosConfig, PaxosState
from amcast.parts.ordering.messages import DeliveredRange


class MultiPaxosConfig(PaxosConfig, frozen=True):
    ordering: GroupId | str | None = None
    """The group that orders everything, by number or by name; none: the first of the topology."""


class CheckpointStored(Body, frozen=True):
    """A learner made durable what it was after everything below `upto`."""

    upto: int


class MultiPaxosCheckpoint(State, frozen=True):
    """What the log alone determines; the same at every process after the same prefix."""

    ordered: int
    positions: tuple[tuple[GroupId, int], ...]
    seen: tuple[DeliveredRange, ...]


class MultiPaxosState(State, frozen=True):
    position: int
    core: MultiPaxosCheckpoint
    paxos: PaxosState
    waiting: tuple[Message, ...]
    old: tuple[MessageId, ...]
    fresh: tuple[MessageId, ...]
    led: int
    stored: tuple[tuple[ProcessId, int], ...]
    armed: bool

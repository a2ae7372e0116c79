"""What replicated groups say to each other, and know, beyond Paxos."""

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.bodies.paxos import PaxosConfig, PaxosState
from amcast.parts.bodies.session import Known


class AdapterConfig(PaxosConfig, frozen=True):
    """What a protocol for single processes can be told when it is lifted to groups."""


class Carry(Body, frozen=True):
    """What one group says to another, as its leader's packet: the n-th body on this channel, encoded."""

    group: GroupId
    number: int
    about: MessageId
    """-1: no message."""
    body: bytes


class Taken(Body, frozen=True):
    """My group's log has everything below `upto` that yours said."""

    group: GroupId
    upto: int


class AdapterCore(State, frozen=True):
    """What the log determines, and which outputs other groups may not have taken."""

    position: int
    inner: bytes
    asked: tuple[Known, ...]
    delivered: tuple[Known, ...]
    taken: tuple[tuple[GroupId, int], ...]
    sent: tuple[tuple[GroupId, int], ...]
    outgoing: tuple[tuple[GroupId, tuple[Carry, ...]], ...]
    settled: tuple[tuple[GroupId, int], ...]


class AdapterState(State, frozen=True):
    core: AdapterCore
    paxos: PaxosState
    waiting: tuple[Message, ...]
    fresh: tuple[MessageId, ...]
    old: tuple[MessageId, ...]
    arrived: tuple[tuple[GroupId, tuple[Carry, ...]], ...]
    next: tuple[tuple[GroupId, int], ...]
    old_sent: tuple[tuple[GroupId, int], ...]
    led: int
    armed: bool


BODIES: tuple[type[Body], ...] = (Carry, Taken)

"""What groups that agree on timestamps say to each other, and what their members know."""

from typing import Final, Literal

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.bodies.paxos import PaxosConfig, PaxosState
from amcast.parts.bodies.ring_paxos import Pass
from amcast.parts.bodies.session import Known

SET: Final = 0
"""An entry with a message: give it the group's timestamp."""
SYNC: Final = 1
"""An entry with another group's (or the own) timestamp for a message."""
SOFT: Final = 2
"""The same, but a guess."""
FINAL: Final = 3
"""An entry with a message's final timestamp."""


class StampConfig(PaxosConfig, frozen=True):
    consensus: Literal["paxos", "ring"] = "paxos"
    """How a group agrees: everybody tells everybody, or round a ring (what 004 ran on)."""
    settle: int = 64
    """So many messages are confirmed to another group (or, if delivered ahead of the log, written to it) at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.settle <= 100_000:
            raise ValueError(f"settle = {self.settle}; expected 1 to 100000 messages")


class Stamp(Body, frozen=True):
    """SEND-HARD: the timestamp that a group's log gave a message. `ask`: please tell me yours, or that you are done."""

    message: MessageId
    group: GroupId
    timestamp: int
    ask: bool = False


class Settled(Body, frozen=True):
    """The final timestamps of these messages are in my group's log: yours need not be remembered for us."""

    messages: tuple[MessageId, ...]


class Ask(Body, frozen=True):
    """To fellow members: do you know the final timestamps of these messages?"""

    messages: tuple[MessageId, ...]


class Told(Body, frozen=True):
    """Final timestamps that I know."""

    finals: tuple[tuple[MessageId, int], ...]


class PendingState(State, frozen=True):
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


class StampCore(State, frozen=True):
    """What a fellow member needs in order to go on from here."""

    position: int
    clock: int
    last: tuple[int, MessageId]
    pending: tuple[PendingState, ...]
    seen: tuple[Known, ...]
    kept: tuple[tuple[GroupId, tuple[tuple[MessageId, int], ...]], ...]
    confirming: tuple[tuple[GroupId, tuple[MessageId, ...]], ...]


class StampState(State, frozen=True):
    core: StampCore
    paxos: PaxosState
    waiting: tuple[Message, ...]
    old: tuple[MessageId, ...]
    early: tuple[tuple[MessageId, tuple[tuple[GroupId, int], ...]], ...]
    starting: tuple[MessageId, ...]
    fresh: tuple[MessageId, ...]
    ahead: tuple[MessageId, ...]
    led: int
    armed: bool


BODIES: tuple[type[Body], ...] = (Stamp, Settled, Ask, Told, Pass)

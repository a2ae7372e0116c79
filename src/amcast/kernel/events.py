"""What can happen to a process. A driver puts events into a step; nothing else ever reaches a process."""

from msgspec import Struct

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request


class Event(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of events: plain data, so that a run can be recorded and stepped again."""


class Started(Event, frozen=True):
    """The first event of every incarnation. Incarnation 0 is the first boot; a later incarnation without records has
    lost its memory."""

    records: tuple[Record, ...] = ()
    incarnation: int = 0


class Submit(Event, frozen=True):
    """The user of this process a-multicasts a message."""

    message: Message


class Receive(Event, frozen=True):
    """A body arrived. Within one incarnation of both ends: in order, exactly once."""

    sender: ProcessId
    body: Body


class Requests(Event, frozen=True):
    """Clients ask for messages: the same as a Receive of a Request from the sender of each, for who serves many."""

    messages: list[Message]

    def expand(self) -> list[Receive]:
        """What it stands for."""
        return [Receive(message.sender, Request(message)) for message in self.messages]


class Timer(Event, frozen=True):
    """A timer that was set, and neither cancelled nor set again since, has run out."""

    name: str


class Leader(Event, frozen=True):
    """The oracle suggests a leader for a group. It may be wrong; safety never depends on it."""

    group: GroupId
    leader: ProcessId


class Suspect(Event, frozen=True):
    """The oracle believes that a whole group is down, or up again. It may be wrong."""

    group: GroupId
    up: bool


class LinkReset(Event, frozen=True):
    """The link with a peer begins anew: what was in flight either way may be lost."""

    peer: ProcessId
    incarnation: int


class PeerDown(Event, frozen=True):
    """Nobody is at a peer's address any more, as far as the driver can tell. It may be wrong."""

    peer: ProcessId

"""Events: everything that can happen to a process. A driver passes them to `Process.step`; no other input exists."""

from msgspec import Struct

from amcast.kernel.folder import FolderState
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request


class Event(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of events. Events are plain data, so that a run can be recorded and replayed."""


class Started(Event, frozen=True):
    """The first event of every incarnation. The first incarnation is 0. A later incarnation without records has lost
    its memory."""

    records: tuple[Record, ...] = ()
    incarnation: int = 0
    folder: FolderState | None = None
    """What the data folder says of itself; None: the driver makes no statement."""


class Submit(Event, frozen=True):
    """The local user of this process multicasts a message."""

    message: Message


class Receive(Event, frozen=True):
    """A body arrived. Within one incarnation of both ends, bodies arrive in order and exactly once."""

    sender: ProcessId
    body: Body


class Requests(Event, frozen=True):
    """Requests of many clients arrived at once: equivalent to a Receive of a Request for each, and cheaper."""

    messages: list[Message]

    def expand(self) -> list[Receive]:
        """The equivalent Receive events."""
        return [Receive(message.sender, Request(message)) for message in self.messages]


class Timer(Event, frozen=True):
    """A timer expired that was neither cancelled nor set again."""

    name: str


class Leader(Event, frozen=True):
    """The leader oracle suggests a leader for a group. It may be wrong; safety never depends on it."""

    group: GroupId
    leader: ProcessId


class Suspect(Event, frozen=True):
    """The oracle believes that a whole group is down, or up again. It may be wrong."""

    group: GroupId
    up: bool


class StateTaken(Event, frozen=True):
    """The application above this process has taken its state at a position: after all deliveries before it."""

    position: int
    digest: int
    """Of the state; equal states have equal digests."""


class Read(Event, frozen=True):
    """The local user reads: `ReadReady` answers when this process has delivered everything of its group that anybody
    was answered for before this event."""

    number: int


class LinkReset(Event, frozen=True):
    """The link with a peer starts over: bodies in flight in either direction may be lost."""

    peer: ProcessId
    incarnation: int


class PeerDown(Event, frozen=True):
    """No process answers at a peer's address, as far as the driver can tell. It may be wrong."""

    peer: ProcessId

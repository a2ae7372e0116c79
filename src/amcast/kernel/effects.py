"""What a process can ask for. Effects are data; the driver executes them in order."""

from msgspec import Struct

from amcast.kernel.bundle import bundle_messages
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record

About = MessageId | tuple[MessageId, ...] | None
"""Which messages a body is about: the one, several, or none (heartbeats, clocks, state transfer inside a group)."""


class Effect(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of effects."""


class Send(Effect, frozen=True):
    """Put one body on the links to some processes; a process may send to itself."""

    targets: tuple[ProcessId, ...]
    body: Body
    about: About = None
    deferrable: tuple[ProcessId, ...] = ()
    """Of the targets, those for whom nothing hangs on it: a driver may keep it for about a second, until there is
    more to tell them, as long as each of them hears everything in order."""


class SendEach(Effect, frozen=True):
    """Give each of these processes a body of its own: the same as a Send for each, from one who serves many."""

    targets: tuple[ProcessId, ...]
    bodies: tuple[Body, ...]
    abouts: tuple[MessageId, ...]

    def expand(self) -> list[Send]:
        """What it stands for."""
        rows = zip(self.targets, self.bodies, self.abouts, strict=True)
        return [Send((target,), body, about) for target, body, about in rows]


class Deliver(Effect, frozen=True):
    """Hand a message to the application. The rank is the order key of protocols that have one."""

    message: Message
    position: int
    """0, 1, 2 ... at this process over all its incarnations: a restarted process that replays its log repeats
    positions, and the driver drops what was handed over before."""
    rank_time: int | None = None
    rank_tie: int | None = None
    committed_ns: int | None = None
    """When the message's place in the order was known here, if something older still blocked it then."""
    message_count: int = -1
    """0 or more: the message is a bundle (`kernel/bundle.py`), and stands for so many deliveries of messages in it, at
    `position` and after (`opened`)."""
    duplicate_places: tuple[int, ...] = ()
    """The places in it of messages that were delivered before."""
    ordered_elsewhere: tuple[GroupId, ...] = ()
    """Other destinations of which it is known here that they put whatever they are asked for from now on behind it."""
    ordered_here: bool = False
    """The other destinations, too, learn that of this process' group without being told."""

    def messages(self) -> list[Message]:
        """What is delivered: the message itself, or what is fresh in a bundle. It is opened anew each time."""
        if self.message_count < 0:
            return [self.message]
        parts = bundle_messages(self.message)
        if self.duplicate_places:
            parts = [part for place, part in enumerate(parts) if place not in self.duplicate_places]
        assert len(parts) == self.message_count, (
            f"bundle {self.message.id}: {len(parts)} messages; expected {self.message_count}"
        )
        return parts

    def expand(self) -> "list[Deliver]":
        """The deliveries that this one stands for."""
        if self.message_count < 0:
            return [self]
        return [
            Deliver(part, position, self.rank_time, self.rank_tie, self.committed_ns)
            for position, part in enumerate(self.messages(), self.position)
        ]


class Resolve(Effect, frozen=True):
    """A client's message is done: every destination group has answered, or is known to be lost."""

    message: MessageId
    absent: tuple[GroupId, ...] = ()
    """Destinations that did not answer and are out of the view of the others (protocols that may lose groups)."""


class SetTimer(Effect, frozen=True):
    """Wake me after a time that the driver draws from [low, high]. Setting a name again replaces it."""

    name: str
    low_ns: int
    high_ns: int


class CancelTimer(Effect, frozen=True):
    """Forget a timer, if it is set."""

    name: str


class Persist(Effect, frozen=True):
    """A barrier: no Send, Deliver or Resolve after it, in this or a later step, happens before it is durable."""

    record: Record
    replaces: bool = False
    """A snapshot: this record alone is enough to start from, all earlier ones may go."""
    after_deliveries: bool = False
    """Whoever starts from it may not repeat what was delivered before it. So it waits until that was handed over."""


class Note(Effect, frozen=True):
    """Tell the trace something worth counting. Notes change nothing."""

    name: str
    message: MessageId | None = None
    value: float | None = None

"""Effects: everything that a process can ask of its driver. Effects are data; the driver executes them in order."""

from msgspec import Struct

from amcast.kernel.bundle import bundle_messages
from amcast.kernel.folder import KnownFolder
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record

About = MessageId | tuple[MessageId, ...] | None
"""The messages that a body concerns: one, several, or none (heartbeats, clocks, state transfer within a group). The
trace uses it to judge genuineness."""


class Effect(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of effects."""


class Send(Effect, frozen=True):
    """Sends one body to some processes, possibly including the sender itself. A self-send is a packet without delay, as
    the papers count it."""

    targets: tuple[ProcessId, ...]
    body: Body
    about: About = None
    deferrable: tuple[ProcessId, ...] = ()
    """The targets for which the body is not urgent. A driver may defer it for about a second to send it together with
    later bodies, as long as each target receives everything in order."""


class SendEach(Effect, frozen=True):
    """Sends a different body to each of many processes: equivalent to one Send for each, and cheaper."""

    targets: tuple[ProcessId, ...]
    bodies: tuple[Body, ...]
    abouts: tuple[MessageId, ...]

    def expand(self) -> list[Send]:
        """The equivalent Send effects."""
        rows = zip(self.targets, self.bodies, self.abouts, strict=True)
        return [Send((target,), body, about) for target, body, about in rows]


class Deliver(Effect, frozen=True):
    """Delivers a message, or the messages of a bundle, to the application."""

    message: Message
    position: int
    """The index of the delivery at this process over all its incarnations. A restarted process that replays its log
    repeats positions, and the driver drops the repeated deliveries."""
    rank_time: int | None = None
    rank_tie: int | None = None
    """The rank (time, tie) is the order key that all processes agree on, in protocols that have one."""
    committed_ns: int | None = None
    """When the message's place in the order was decided here, if an older message still blocked it then."""
    message_count: int = -1
    """0 or more: the message is a bundle (`kernel/bundle.py`), and the effect delivers this many of its messages, at
    `position` and the following ones. -1: the message is no bundle. The count saves decoding a bundle whose messages
    nobody reads, which was a quarter of a follower's work for many clients."""
    duplicate_places: tuple[int, ...] = ()
    """The indices of the bundle's messages that were delivered before, and are skipped."""
    ordered_elsewhere: tuple[GroupId, ...] = ()
    """Other destinations that are known to order all later requests behind this message."""
    ordered_here: bool = False
    """Whether the other destinations learn the same of this process's group without a Reply."""
    is_ahead: bool = False
    """Whether this process delivers without a word of its leader, which may deliver later."""

    def messages(self) -> list[Message]:
        """The delivered messages: the message itself, or the new ones of a bundle, which is decoded in each call."""
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
        """The equivalent deliveries of single messages."""
        if self.message_count < 0:
            return [self]
        return [
            Deliver(part, position, self.rank_time, self.rank_tie, self.committed_ns)
            for position, part in enumerate(self.messages(), self.position)
        ]


class Resolve(Effect, frozen=True):
    """Completes a local multicast: every destination group has replied, or is known to be lost."""

    message: MessageId
    absent: tuple[GroupId, ...] = ()
    """Destinations that did not reply and are lost, in protocols that tolerate the loss of whole groups."""


class Close(Effect, frozen=True):
    """States that nothing that is multicast from now on precedes a delivery of the process' group before a position, in
    any group (docs/real-time.md). The position only grows within an incarnation, and may be ahead of what this process
    has delivered."""

    position: int


class ReadReady(Effect, frozen=True):
    """Answers a `Read`: the deliveries before this effect contain everything of the group that anybody was answered for
    before the read began (`parts/node/read_index.py`)."""

    number: int


class SetTimer(Effect, frozen=True):
    """Sets a timer to expire after a duration that the driver draws from [low, high]. Setting a name again replaces
    the timer."""

    name: str
    low_ns: int
    high_ns: int


class CancelTimer(Effect, frozen=True):
    """Cancels a timer, if it is set."""

    name: str


class Persist(Effect, frozen=True):
    """Makes a record durable. It is a barrier: no later Send, Deliver, Resolve, Close or ReadReady, of this or a later
    step, takes effect before the record is durable."""

    record: Record
    replaces: bool = False
    """Whether the record is a checkpoint: a restart needs no earlier record."""
    after_deliveries: bool = False
    """Whether a restart from this record may not repeat earlier deliveries. The driver then writes it only after the
    application has received them."""


class Note(Effect, frozen=True):
    """Adds a named observation to the trace. Notes have no other effect."""

    name: str
    message: MessageId | None = None
    value: float | None = None


class Remember(Effect, frozen=True):
    """Makes durable what a node knows of the data folders of others and of its own, apart from its records. Effects
    after it happen when it is durable, unless it is `lazy`."""

    peers: tuple[KnownFolder, ...]
    """By process id."""
    admitted: bool
    """Whether the node may take part with its folder."""
    doubt: str = ""
    """Why the folder is doubtful, other than by damage that its storage finds; "" if it is not."""
    lazy: bool = False
    """Whether the driver may write it later: a crash may lose it."""
    divergence: str = ""
    """How the node diverged from its group; "" if it did not."""


class Restart(Effect, frozen=True):
    """Ends this incarnation at once, as a crash would; the driver starts the next one. It is the last effect of its
    step."""

    incarnation: int = 0
    """Above 0: the next incarnation is at least this one and starts without the records, which the driver puts aside;
    the numbers of later records are above all earlier ones. 0: it starts with the records."""
    records: int = 0
    """The highest number of records that other processes know of; numbers of later records are above it, too."""

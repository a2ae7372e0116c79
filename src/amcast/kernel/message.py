"""What travels: the application's message, and the bases of everything that goes over a wire or to a disk."""

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId, ProcessId


class MessageHeader(Struct, frozen=True, array_like=True, gc=False):
    """How a message begins: enough to tell which one it is, for who need not read the rest."""

    id: MessageId
    sender: ProcessId


class Message(MessageHeader, frozen=True, array_like=True, gc=False):
    """What a client multicasts: ordered as a whole, never looked into."""

    destinations: tuple[GroupId, ...]
    """Sorted, without repetition, never empty."""
    payload: bytes = b""


class Body(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of what processes say to each other. Fields are immutable; the tag is the class name."""


class Record(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of what a process asks to be made durable, and gets back when it starts again."""


class State(Struct, frozen=True, array_like=True, tag=True):
    """Base of snapshots: immutable and canonical, so that equal states have equal encodings."""


class Request(Body, frozen=True):
    """A client (or a gateway) hands a message to a contact of its protocol."""

    message: Message


class Reply(Body, frozen=True):
    """A destination tells the sender that its message was delivered there."""

    message: MessageId
    group: GroupId

"""Messages of the application, and the base types of all data that is sent or stored."""

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId, ProcessId


class MessageHeader(Struct, frozen=True, array_like=True, gc=False):
    """The first fields of a message: enough to identify it without decoding the rest."""

    id: MessageId
    sender: ProcessId


class Message(MessageHeader, frozen=True, array_like=True, gc=False):
    """An application's message: the unit of multicast and of order. No protocol reads its payload."""

    destinations: tuple[GroupId, ...]
    """Sorted, without duplicates, never empty."""
    payload: bytes = b""


class Body(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of protocol messages: what one process sends to another. Fields are immutable; the tag is the class name."""


class Record(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of durable records: a process persists them and gets them back when it restarts."""


class State(Struct, frozen=True, array_like=True, tag=True):
    """Base of snapshots. A snapshot is immutable and canonical: equal states have equal encodings."""


class Request(Body, frozen=True):
    """A sender, or its gateway, gives a message to a contact of the protocol."""

    message: Message


class Reply(Body, frozen=True):
    """From a member of a destination to the sender: its group has delivered the message."""

    message: MessageId
    group: GroupId

"""What a history says to others and knows itself."""

from typing import Final

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import State

WINDOW: Final = 1024
"""How far a client's sequence numbers may run ahead of its oldest unanswered message."""


class DeliveredRange(State, frozen=True):
    """A sender's messages that were seen: the newest sequence number, and as bits how far before it each is."""

    sender: ProcessId
    newest: int
    bits: bytes


class Link(Struct, frozen=True, array_like=True, gc=False):
    """Some group delivered this message, and right before it that one (None: nothing)."""

    id: MessageId
    destinations: tuple[GroupId, ...]
    before: MessageId | None


Links = tuple[Link, ...]


class Vertex(State, frozen=True):
    """A message of a history."""

    id: MessageId
    destinations: tuple[GroupId, ...]
    before: tuple[MessageId, ...]
    open: bool
    settled: int
    touched: int


class HistoryState(State, frozen=True):
    vertices: tuple[Vertex, ...]
    last: MessageId | None
    log: Links
    base: int
    cursors: tuple[tuple[GroupId, int], ...]
    learned: int

"""What a history says to others and knows itself."""

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import State


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

"""Bodies and states of sets of delivered messages, of histories and of chains of deliveries."""

from typing import Final

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import State

WINDOW: Final = 1024
"""The most that a client's sequence numbers may run ahead of its oldest unanswered message."""


class DeliveredRange(State, frozen=True):
    """The messages of one sender in a DeliveredSet: the newest sequence number, and a big-endian integer whose bit i
    stands for the number i before it."""

    sender: ProcessId
    newest: int
    bits: bytes


class ChainPoint(Struct, frozen=True, array_like=True, gc=False):
    """A place in a chain of deliveries (`parts/ordering/delivery_chain.py`)."""

    origin: int
    """The position at which the chain begins."""
    position: int
    digest: int
    """The checksum of the deliveries from the origin up to the position."""
    allowance: int
    """How many bytes the next message may have to be hashed completely, apart from what it adds itself."""


class Link(Struct, frozen=True, array_like=True, gc=False):
    """Some group delivered this message right after `before` (None: it was the group's first)."""

    id: MessageId
    destinations: tuple[GroupId, ...]
    before: MessageId | None


Links = tuple[Link, ...]


class Vertex(State, frozen=True):
    """A message of a history, as `_Vertex` describes it."""

    id: MessageId
    destinations: tuple[GroupId, ...]
    before: tuple[MessageId, ...]
    open: bool
    settled: int
    touched: int


class HistoryState(State, frozen=True):
    """The fields of `History`."""

    vertices: tuple[Vertex, ...]
    last: MessageId | None
    log: Links
    base: int
    cursors: tuple[tuple[GroupId, int], ...]
    version: int

"""What FlexCast's groups say and know."""

from typing import Literal

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.messages import ReplicatedConfig
from amcast.parts.ordering.messages import DeliveredRange, HistoryState, Links

Token = tuple[GroupId, int]
"""Something that must be heard before a message is delivered: (g, 0) is the acknowledgement of the destination g,
(g, n) the one that answers the n-th notification that g ever sent."""


class FlexCastConfig(ReplicatedConfig, frozen=True):
    order: tuple[GroupId, ...] = ()
    """The groups from lowest to highest; unsaid: in the order of their ids."""
    flush_every: int = 256
    """After so many new messages in its history a group asks for a flush; 0: never, histories grow for ever."""

    notify: Literal["all", "next"] = "all"
    """Who is asked what comes before a message. all: every group that may know, at once, and again by whoever learned
    more: few delays. next: the lowest of them up to the next destination, which asks the next in turn: few packets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.flush_every <= 10_000_000:
            raise ValueError(f"flush_every = {self.flush_every}; expected 0 to 10000000 messages")


class Msg(Body, frozen=True):
    """The lowest destination hands a message to the others, in its order."""

    message: Message
    links: Links
    notified: tuple[int, ...]
    """Which notifications of mine the receiver must see answered, by their numbers."""


class Ack(Body, frozen=True):
    """All that came before this message at my group has been told to you."""

    message: MessageId
    tokens: tuple[Token, ...]
    """What this answers for."""
    links: Links
    notified: tuple[int, ...]


class Notif(Body, frozen=True):
    """You may know what comes before this message: acknowledge it to its destinations above you."""

    message: MessageId
    destinations: tuple[GroupId, ...]
    number: int
    links: Links


class Full(Body, frozen=True):
    """My history is long: please flush, unless a later flush than this is under way."""

    flushes: int


class FlexCastPending(State, frozen=True):
    id: MessageId
    message: Message | None
    due: tuple[Token, ...]
    committed_ns: int


class FlexCastAsked(State, frozen=True):
    id: MessageId
    destinations: tuple[GroupId, ...]
    tokens: tuple[Token, ...]


class FlexCastState(State, frozen=True):
    position: int
    history: HistoryState
    asked_for: tuple[DeliveredRange, ...]
    pending: tuple[FlexCastPending, ...]
    asked: tuple[FlexCastAsked, ...]
    blocked: tuple[tuple[MessageId, tuple[MessageId, ...]], ...]
    covered: tuple[tuple[MessageId, int], ...]
    numbered: int
    flushes: int
    floor: int
    full: bool

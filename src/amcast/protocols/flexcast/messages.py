"""Bodies and snapshots of FlexCast."""

from typing import ClassVar, Literal

from amcast.kernel.config import SearchValues
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.replicated_messages import ReplicatedConfig
from amcast.parts.ordering.messages import DeliveredRange, HistoryState, Links

Token = tuple[GroupId, int]
"""An acknowledgement that must arrive before a message is delivered: (g, 0) is that of the destination g, (g, n) the
reply to the n-th notification of g."""


class FlexCastConfig(ReplicatedConfig, frozen=True):
    search_values: ClassVar[SearchValues] = {
        **ReplicatedConfig.search_values,
        "flush_every": (1, 2, 5, 20),
        "notify": ("all", "next"),
    }
    order: tuple[GroupId, ...] = ()
    """The groups from lowest to highest; default: in the order of their ids."""
    flush_every: int = 256
    """New messages in its history after which a group requests a flush; 0: never, histories grow without bound."""
    notify: Literal["all", "next"] = "all"
    """Which groups a group asks for predecessors of a message. all: every group that may know one, at once, and again
    by a group that learned more: few delays. next: the lowest of them below the next destination, which asks the next
    one: few packets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.flush_every <= 10_000_000:
            raise ValueError(f"flush_every = {self.flush_every}; expected 0 to 10000000 messages")


class Msg(Body, frozen=True):
    """The lowest destination sends a message to the others, in its order."""

    message: Message
    links: Links
    notified: tuple[int, ...]
    """The numbers of the sender's notifications whose acknowledgements the receiver awaits."""


class Ack(Body, frozen=True):
    """The receiver knows all predecessors of this message at the sender's group."""

    message: MessageId
    tokens: tuple[Token, ...]
    """The requests for acknowledgement that this body answers."""
    links: Links
    notified: tuple[int, ...]


class Notif(Body, frozen=True):
    """The receiver may know predecessors of this message: it acknowledges it to the higher destinations."""

    message: MessageId
    destinations: tuple[GroupId, ...]
    number: int
    links: Links


class FlushRequest(Body, frozen=True):
    """The sender's history is long: the receiver flushes, unless it has started a later flush than this."""

    flushes: int


class FlexCastPending(State, frozen=True):
    """A message to this group that is not delivered."""

    id: MessageId
    message: Message | None
    outstanding: tuple[Token, ...]
    committed_ns: int


class FlexCastNotification(State, frozen=True):
    """Notifications about one message that are not acknowledged."""

    id: MessageId
    destinations: tuple[GroupId, ...]
    tokens: tuple[Token, ...]


class FlexCastState(State, frozen=True):
    position: int
    history: HistoryState
    requested: tuple[DeliveredRange, ...]
    pending: tuple[FlexCastPending, ...]
    notifications: tuple[FlexCastNotification, ...]
    blocked: tuple[tuple[MessageId, tuple[MessageId, ...]], ...]
    notified_versions: tuple[tuple[MessageId, int], ...]
    notif_count: int
    flush_count: int
    pruned_length: int
    has_requested_flush: bool

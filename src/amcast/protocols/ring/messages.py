"""Bodies and snapshots of the ring."""

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.replicated_messages import ReplicatedConfig
from amcast.parts.ordering.messages import DeliveredRange


class RingConfig(ReplicatedConfig, frozen=True):
    order: tuple[GroupId, ...] = ()
    """The order in which a message visits its destinations; default: the order of the groups' ids."""


class Pass(Body, frozen=True):
    """A group passes a message to the next destination."""

    message: Message


class End(Body, frozen=True):
    """The last destination has delivered this message: the receiver is unlocked."""

    message: MessageId


class RingState(State, frozen=True):
    position: int
    requested: tuple[DeliveredRange, ...]
    queue: tuple[tuple[Message, int], ...]
    locked: MessageId | None

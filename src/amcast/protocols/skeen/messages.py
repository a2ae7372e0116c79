"""Bodies and snapshots of Skeen's protocol."""

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.replicated_messages import ReplicatedConfig
from amcast.parts.ordering.messages import DeliveredRange


class SkeenConfig(ReplicatedConfig, frozen=True):
    """The settings of replicated groups."""


class Propose(Body, frozen=True):
    """A destination's local timestamp for a message."""

    message: MessageId
    group: GroupId
    timestamp: int


class SkeenPending(State, frozen=True):
    """The state of a message that is not delivered."""

    id: MessageId
    message: Message | None
    proposed: int
    highest: int
    proposers: tuple[GroupId, ...]
    committed_ns: int


class SkeenState(State, frozen=True):
    position: int
    clock: int
    pending: tuple[SkeenPending, ...]
    requested: tuple[DeliveredRange, ...] = ()

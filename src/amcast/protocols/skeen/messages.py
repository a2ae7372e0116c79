"""What Skeen's processes say and know."""

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.messages import ReplicatedConfig


class SkeenConfig(ReplicatedConfig, frozen=True):
    """Skeen's protocol has no options beyond those of replicated groups."""


class Propose(Body, frozen=True):
    """A destination's local timestamp for a message."""

    message: MessageId
    group: GroupId
    timestamp: int


class SkeenPending(State, frozen=True):
    """A message that is not delivered yet: what is known of it."""

    id: MessageId
    message: Message | None
    proposed: int
    highest: int
    heard: tuple[GroupId, ...]
    committed_ns: int


class SkeenState(State, frozen=True):
    position: int
    clock: int
    pending: tuple[SkeenPending, ...]

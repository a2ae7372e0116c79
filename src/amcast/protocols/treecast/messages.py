"""What TreeCast's groups say and know."""

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.messages import ReplicatedConfig
from amcast.parts.ordering.messages import DeliveredRange


class TreeCastConfig(ReplicatedConfig, frozen=True):
    edges: tuple[tuple[GroupId, GroupId], ...] = ()
    """The tree as [parent, child] pairs; unsaid: a binary tree in the order of the groups' ids."""
    confirm: bool = True
    """Whether confirmations climb back up, and the lowest common ancestor answers the client for all destinations."""


class Forward(Body, frozen=True):
    """A parent hands a message down, in the order in which it ordered it."""

    message: Message


class Confirm(Body, frozen=True):
    """Everything at and below my group has delivered this message."""

    message: MessageId


class TreeCastWaiting(State, frozen=True):
    id: MessageId
    sender: ProcessId
    destinations: tuple[GroupId, ...]
    missing: tuple[GroupId, ...]


class TreeCastState(State, frozen=True):
    position: int
    asked_for: tuple[DeliveredRange, ...]
    waiting: tuple[TreeCastWaiting, ...]

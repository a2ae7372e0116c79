"""Bodies and snapshots of TreeCast."""

from typing import ClassVar

from amcast.kernel.config import SearchValues
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.replicated_messages import ReplicatedConfig
from amcast.parts.ordering.messages import DeliveredRange


class TreeCastConfig(ReplicatedConfig, frozen=True):
    search_values: ClassVar[SearchValues] = {**ReplicatedConfig.search_values, "confirm": (True, False)}
    edges: tuple[tuple[GroupId, GroupId], ...] = ()
    """The tree as [parent, child] pairs; default: a binary tree in the order of the groups' ids."""
    confirm: bool = True
    """Whether groups confirm deliveries to their parents, and the lowest common ancestor replies to the client for all
    destinations."""


class Forward(Body, frozen=True):
    """A parent forwards a message to a child; its Forwards come in its order."""

    message: Message


class Confirm(Body, frozen=True):
    """The sender's group and all destinations below it have delivered this message."""

    message: MessageId


class TreeCastWaiting(State, frozen=True):
    """A message that awaits confirmations from below."""

    id: MessageId
    sender: ProcessId
    destinations: tuple[GroupId, ...]
    missing: tuple[GroupId, ...]


class TreeCastState(State, frozen=True):
    position: int
    requested: tuple[DeliveredRange, ...]
    waiting: tuple[TreeCastWaiting, ...]

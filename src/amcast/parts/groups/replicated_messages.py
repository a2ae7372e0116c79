"""Bodies and states of replicated groups: the channels between them."""

from typing import Literal

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, Message, State
from amcast.parts.consensus.messages import PaxosConfig, PaxosState, RingAccept
from amcast.parts.ordering.messages import DeliveredRange


class ReplicatedConfig(PaxosConfig, frozen=True):
    """Settings of a protocol for single processes that runs in replicated groups."""

    consensus: Literal["paxos", "ring"] = "paxos"
    """How a group's members agree on its log: by messages to all, or round a ring (as in 004)."""
    transfer: Literal["members", "leader"] = "members"
    """Who receives the bodies for a group: all its members, so that the loss of its leader costs nothing; or its first
    member alone, the usual leader, and all of them when they are overdue (as the coordinators of 004)."""


class GroupMessage(Body, frozen=True):
    """A body of the inner protocol, encoded, with its number on the channel between two groups."""

    group: GroupId
    number: int
    about: MessageId
    """-1: no message."""
    body: bytes


class GroupMessageAck(Body, frozen=True):
    """The log of the sender's group has every body below `upto` of the receiver's group."""

    group: GroupId
    upto: int


class ReplicatedCheckpoint(State, frozen=True):
    """The state that follows from the log, and the bodies that other groups may not have received."""

    position: int
    inner: bytes
    ordered: tuple[DeliveredRange, ...]
    delivered: tuple[DeliveredRange, ...]
    received: tuple[tuple[GroupId, int], ...]
    sent: tuple[tuple[GroupId, int], ...]
    unacknowledged: tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]
    acknowledged: tuple[tuple[GroupId, int], ...]


class ReplicatedState(State, frozen=True):
    """The fields of `ReplicatedGroup`."""

    checkpoint: ReplicatedCheckpoint
    paxos: PaxosState
    requests: tuple[Message, ...]
    unproposed: tuple[MessageId, ...]
    overdue_requests: tuple[MessageId, ...]
    incoming: tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]
    next_proposed: tuple[tuple[GroupId, int], ...]
    overdue_below: tuple[tuple[GroupId, int], ...]
    led_ballot: int
    timer_set: bool


REPLICATED_BODIES: tuple[type[Body], ...] = (GroupMessage, GroupMessageAck, RingAccept)

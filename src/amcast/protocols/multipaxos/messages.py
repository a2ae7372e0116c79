"""Settings, bodies and states of MultiPaxos beyond Paxos."""

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.consensus.messages import PaxosConfig, PaxosState
from amcast.parts.ordering.messages import DeliveredRange


class MultiPaxosConfig(PaxosConfig, frozen=True):
    """Settings of MultiPaxos."""

    ordering: GroupId | str | None = None
    """The group that orders every message, by number or by name; the default is the first of the topology."""


class CheckpointStored(Body, frozen=True):
    """From a learner to the ordering group: its checkpoint at `end` is durable."""

    end: int


class MultiPaxosCheckpoint(State, frozen=True):
    """The state that follows from the log alone, equal at every process after the same prefix."""

    ordered_count: int
    positions: tuple[tuple[GroupId, int], ...]
    ordered_ids: tuple[DeliveredRange, ...]


class MultiPaxosState(State, frozen=True):
    """The fields of `MultiPaxos`."""

    position: int
    checkpoint: MultiPaxosCheckpoint
    paxos: PaxosState
    requests: tuple[Message, ...]
    overdue_requests: tuple[MessageId, ...]
    unproposed: tuple[MessageId, ...]
    led_ballot: int
    stored_until: tuple[tuple[ProcessId, int], ...]
    timer_set: bool

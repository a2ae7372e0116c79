"""A message that a White-Box process knows and has not delivered."""

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import place_of
from amcast.parts.groups.leader_group import PendingMessage
from amcast.protocols.whitebox.messages import PendingState


class PendingMulticast(PendingMessage):
    """A message, its timestamps, and the members that have accepted them."""

    __slots__ = (
        "accepted",
        "accepts",
        "acks",
        "committed_ns",
        "final",
        "id",
        "is_committed",
        "is_ordered",
        "is_requested",
        "message",
        "proposed",
    )

    def __init__(self, message: Message) -> None:
        self.id: MessageId = message.id
        self.message = message
        self.accepted = 0
        """The own group's timestamp as this process accepted it; durable. 0: not accepted."""
        self.proposed = 0
        """The timestamp that this process, as a leader, proposed in its ballot. 0: none."""
        self.accepts: dict[GroupId, tuple[int, int]] = {}
        """Ballot and timestamp proposed by the leader of each group."""
        self.acks: dict[tuple[int, ...], dict[GroupId, int]] = {}
        """By the leaders' ballots, then by group: the members that accepted the timestamps, as bits by place. Under the
        ballot of the own leader alone: the members that accepted the final timestamp."""
        self.final = -1
        """The final timestamp, whoever told it; -1: unknown."""
        self.is_committed = False
        """A majority of the own group holds the message and its final timestamp under the ballot that this process
        leads. Until then another leader may have ordered messages before it that this process does not know."""
        self.committed_ns = -1
        self.is_ordered = False
        """This process, as a leader, has ordered its group to deliver the message."""
        self.is_overdue = False
        self.is_requested = False
        """A client's request for it has arrived here."""

    def has_all_timestamps(self) -> bool:
        """Whether the leader of every destination has proposed a timestamp."""
        return len(self.accepts) >= len(self.message.destinations)

    def highest_timestamp(self) -> int:
        return max(timestamp for _, timestamp in self.accepts.values())

    def ballots(self) -> tuple[int, ...]:
        """The leaders' ballots; every destination's leader has proposed a timestamp."""
        return tuple(self.accepts[group][0] for group in self.message.destinations)

    def leaders(self, topology: Topology) -> tuple[ProcessId, ...]:
        """The leaders whose timestamps are known; every destination's leader has proposed one."""
        return tuple(topology.members(group)[place_of(self.accepts[group][0])] for group in self.message.destinations)

    def add_ack(self, ballots: tuple[int, ...], group: GroupId, bit: int) -> None:
        """Counts that a member accepted the timestamps that the leaders proposed under these ballots."""
        acks = self.acks.setdefault(ballots, {})
        acks[group] = acks.get(group, 0) | bit

    def discard_acks(self, group: GroupId, place: int) -> None:
        """Discards every acceptance by one member."""
        for acks in self.acks.values():
            acks[group] = acks.get(group, 0) & ~(1 << place)

    def has_ack_quorums(self, topology: Topology) -> bool:
        """Whether a majority of every destination accepted the timestamps under the ballots known here."""
        acks = self.acks.get(self.ballots())
        if acks is None:
            return False
        return all(acks.get(group, 0).bit_count() >= topology.quorum(group) for group in self.message.destinations)

    def has_home_quorum(self, ballot: int, home: GroupId, quorum: int) -> bool:
        """Whether a majority of the own group accepted the final timestamp under its leader's ballot."""
        return self.acks.get((ballot,), {}).get(home, 0).bit_count() >= quorum

    def missing_acks(self, topology: Topology) -> tuple[ProcessId, ...]:
        """Members whose acceptance under the ballots known here has not arrived."""
        acks = self.acks.get(self.ballots(), {})
        return tuple(
            member
            for group in self.message.destinations
            for place, member in enumerate(topology.members(group))
            if not acks.get(group, 0) >> place & 1
        )

    def reset_epoch(self, home: GroupId) -> None:
        """Discards what depends on the previous ballot of the own group."""
        self.accepted = self.proposed = 0
        self.accepts.pop(home, None)
        self.acks = {}
        self.is_committed = self.is_ordered = False

    def snapshot(self) -> PendingState:
        return PendingState(
            self.message,
            self.accepted,
            self.proposed,
            tuple((group, *accept) for group, accept in sorted(self.accepts.items())),
            tuple((ballots, tuple(sorted(acks.items()))) for ballots, acks in sorted(self.acks.items())),
            self.final,
            self.is_committed,
            self.committed_ns,
            self.is_ordered,
            self.is_overdue,
            self.is_requested,
        )


def restore_pending(state: PendingState) -> PendingMulticast:
    pending = PendingMulticast(state.message)
    pending.accepted = state.accepted
    pending.proposed = state.proposed
    pending.accepts = {group: (ballot, timestamp) for group, ballot, timestamp in state.accepts}
    pending.acks = {ballots: dict(acks) for ballots, acks in state.acks}
    pending.final = state.final
    pending.is_committed = state.is_committed
    pending.committed_ns = state.committed_ns
    pending.is_ordered = state.is_ordered
    pending.is_overdue = state.is_overdue
    pending.is_requested = state.is_requested
    return pending

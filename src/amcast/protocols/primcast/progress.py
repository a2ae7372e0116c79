"""What a PrimCast process knows of one message (`PendingMulticast`) and of one group (`GroupProgress`)."""

from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.groups.leader_group import PendingMessage
from amcast.protocols.primcast.messages import GroupProgressState, PendingMulticastState, Proposal


class PendingMulticast(PendingMessage):
    """A message, and what is known of its timestamps."""

    __slots__ = (
        "bound",
        "committed_ns",
        "decided",
        "delivered_at",
        "final",
        "highest_proposal",
        "id",
        "index",
        "message",
        "patience",
        "proposing_groups",
        "timestamp",
    )

    def __init__(self, id: MessageId) -> None:
        self.id = id
        self.message: Message | None = None
        self.index = -1
        """Its index in the log of this process' group; -1 if it has none."""
        self.timestamp = 0
        """The own group's timestamp, while `index` is not -1."""
        self.highest_proposal = 0
        """The highest timestamp known from another group, decided or not. Clocks must reach it."""
        self.decided: dict[GroupId, int] = {}
        """Timestamps that a majority of their group has acknowledged."""
        self.bound = 0
        """Lower bound of the final timestamp: the own group's timestamp, and every decided one."""
        self.final = -1
        """The final timestamp; -1 until every destination's is decided."""
        self.committed_ns = -1
        """Local time at which `final` became known."""
        self.proposing_groups: set[GroupId] = set()
        """Groups known to have proposed a timestamp. Their members have the message."""
        self.patience = 0
        """How often `HURRY_TIMER` expires before every member is sent the message; 0 if none waits for it."""
        self.delivered_at = -1
        """Position of its delivery; -1 until then."""
        self.is_overdue = False

    def snapshot(self) -> PendingMulticastState:
        return PendingMulticastState(
            self.id,
            self.message,
            self.index,
            self.timestamp,
            self.highest_proposal,
            tuple(sorted(self.decided.items())),
            tuple(sorted(self.proposing_groups)),
            self.committed_ns,
            self.is_overdue,
            self.patience,
        )

    def restore(self, state: PendingMulticastState) -> None:
        self.message = state.message
        self.index = state.index
        self.timestamp = state.timestamp
        self.highest_proposal = state.highest_proposal
        self.decided = dict(state.decided)
        self.proposing_groups = set(state.proposing_groups)
        self.committed_ns = state.committed_ns
        self.is_overdue = state.is_overdue
        self.patience = state.patience
        self.bound = max(self.timestamp if self.index >= 0 else 0, max(self.decided.values(), default=0))
        if self.committed_ns >= 0:
            self.final = self.bound


class GroupProgress:
    """How far each member of a group is, by the member's place in the group."""

    __slots__ = (
        "delivered_ranks",
        "epoch",
        "epochs",
        "group",
        "lengths",
        "members",
        "places",
        "quorum",
        "quorum_index",
        "undecided",
    )

    def __init__(self, group: GroupId, topology: Topology) -> None:
        self.group = group
        self.members = topology.members(group)
        self.quorum = topology.quorum(group)
        self.quorum_index = len(self.members) - self.quorum
        """In the sorted list of what each member has reached, a majority has reached the value at this index."""
        self.places = {member: place for place, member in enumerate(self.members)}
        self.epoch = 0
        """The highest epoch in which a primary of a remote group proposed. Unused for the own group."""
        self.epochs = [-1] * len(self.members)
        """The epoch of each member's last acknowledgement; -1 before the first."""
        self.lengths = [0] * len(self.members)
        """How many log entries each member has acknowledged in that epoch."""
        self.delivered_ranks: list[tuple[int, MessageId]] = [(0, 0)] * len(self.members)
        """The rank of each member's last delivery."""
        self.undecided: list[Proposal] = []
        """Heap of the proposals of `epoch` that no majority is known to have acknowledged."""

    def acknowledged_length(self, epoch: int) -> int:
        """The length of the prefix of an epoch's log that a majority has acknowledged."""
        lengths = self.lengths
        if self.epochs.count(epoch) < len(lengths):
            lengths = [length if at == epoch else 0 for at, length in zip(self.epochs, lengths, strict=True)]
        return sorted(lengths)[self.quorum_index]

    def has_quorum(self, epoch: int) -> bool:
        """Whether the last acknowledgements of a majority are of this epoch."""
        return sum(at == epoch for at in self.epochs) >= self.quorum

    def majority_rank(self) -> tuple[int, MessageId]:
        """A majority has delivered everything up to this rank."""
        return sorted(self.delivered_ranks)[self.quorum_index]

    def snapshot(self) -> GroupProgressState:
        return GroupProgressState(
            self.group,
            self.epoch,
            tuple(self.epochs),
            tuple(self.lengths),
            tuple(self.delivered_ranks),
            tuple(sorted(self.undecided)),
        )

    @classmethod
    def from_state(cls, state: GroupProgressState, topology: Topology) -> "GroupProgress":
        progress = cls(state.group, topology)
        progress.epoch = state.epoch
        progress.epochs = list(state.epochs)
        progress.lengths = list(state.lengths)
        progress.delivered_ranks = list(state.delivered_ranks)
        progress.undecided = list(state.undecided)
        return progress


def about_messages(pending: list[PendingMulticast]) -> About:
    """The value of `Send.about` for a body about these messages."""
    return pending[0].id if len(pending) == 1 else tuple([one.id for one in pending])

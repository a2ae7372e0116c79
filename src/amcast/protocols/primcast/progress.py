"""What a PrimCast process remembers of a message (`Item`) and of a group (`View`)."""

from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.groups.leader_group import PendingMessage

Proposal = tuple[int, MessageId, int]
"""Place in the log, message, timestamp."""
Word = tuple[int, MessageId, int]
"""Position, bundle, final timestamp: a primary has delivered it."""


class Item(PendingMessage):
    """A message, and what is known of its timestamps."""

    __slots__ = (
        "bound",
        "committed_ns",
        "decided",
        "delivered_at",
        "final",
        "heard",
        "highest",
        "id",
        "index",
        "message",
        "timestamp",
    )

    def __init__(self, id: MessageId) -> None:
        self.id = id
        self.message: Message | None = None
        self.index = -1
        """Its place in my group's log; -1 if it has none."""
        self.timestamp = 0
        """My group's proposal, while it has a place."""
        self.highest = 0
        """The highest proposal of another group heard of, decided or not: clocks must reach it."""
        self.decided: dict[GroupId, int] = {}
        self.bound = 0
        """No final timestamp will be lower: my group's proposal, and everything decided."""
        self.final = -1
        self.committed_ns = -1
        """When the final timestamp was known here."""
        self.heard: set[GroupId] = set()
        """Groups with a proposal for it: whom to ask for the message."""
        self.delivered_at = -1
        self.is_overdue = False


class GroupProgress:
    """A group's members, by place: how far each is."""

    __slots__ = ("epoch", "epochs", "group", "lengths", "marks", "members", "places", "quorum", "rank", "waiting")

    def __init__(self, group: GroupId, topology: Topology) -> None:
        self.group = group
        self.members = topology.members(group)
        self.quorum = topology.quorum(group)
        self.rank = len(self.members) - self.quorum
        """Of what all have reached, sorted, a majority has reached the one at this place."""
        self.places = {member: place for place, member in enumerate(self.members)}
        self.epoch = 0
        """The highest in which a primary of this group proposed to me; for my own group `_epoch` counts."""
        self.epochs = [-1] * len(self.members)
        self.lengths = [0] * len(self.members)
        self.marks: list[tuple[int, MessageId]] = [(0, 0)] * len(self.members)
        """The rank of what each delivered last."""
        self.waiting: list[Proposal] = []
        """Heap of what was proposed in `epoch` and is not decided."""

    def agreed(self, epoch: int) -> int:
        """Below this place, a majority has acknowledged the log of an epoch."""
        lengths = self.lengths
        if self.epochs.count(epoch) < len(lengths):
            lengths = [length if at == epoch else 0 for at, length in zip(self.epochs, lengths, strict=True)]
        return sorted(lengths)[self.rank]

    def present(self, epoch: int) -> bool:
        """A majority is known to have reached an epoch, and may be beyond."""
        return sum(at == epoch for at in self.epochs) >= self.quorum

    def mark(self) -> tuple[int, MessageId]:
        """A majority has delivered everything up to this rank."""
        return sorted(self.marks)[self.rank]


def about(items: list[Item]) -> About:
    return items[0].id if len(items) == 1 else tuple(item.id for item in items)

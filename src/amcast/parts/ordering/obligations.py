"""What a group owes to others about messages that it has delivered.

A message to several groups is not over where it is delivered first: somebody elsewhere may have lost a link or its
memory, and ask what this group said of it. The text of the answer is one number, and it cannot be kept for ever. It is
kept until a majority of every other destination is known to have delivered the message: from then on whoever lacks it
there is helped by its own fellows, and no longer asks here.

Groups deliver in the order of ranks, so "delivered up to this rank" settles a whole run of debts at once.
"""

from collections import deque

from amcast.kernel.ids import GroupId, MessageId

Rank = tuple[int, MessageId]
"""Final timestamp and message: the order of delivery."""


class Obligations:
    """Answers that other groups may still ask for."""

    __slots__ = ("answers", "by_group")

    def __init__(self) -> None:
        self.answers: dict[MessageId, tuple[int, int, set[GroupId]]] = {}
        """Delivered: the answer, the final timestamp, and the groups that may still ask."""
        self.by_group: dict[GroupId, deque[Rank]] = {}
        """The same by group, in the order of delivery."""

    def add(self, id: MessageId, answer: int, final: int, groups: tuple[GroupId, ...]) -> None:
        """A message is delivered here, and no majority of these groups is known to have it."""
        if groups:
            self.answers[id] = (answer, final, set(groups))
            rank = (final, id)
            for group in groups:
                owed = self.by_group.get(group)
                if owed is None:
                    owed = self.by_group[group] = deque()
                owed.append(rank)

    def resolve(self, group: GroupId, mark: Rank) -> None:
        """A majority of that group has delivered everything up to this rank."""
        owed = self.by_group.get(group)
        while owed and owed[0] <= mark:
            id = owed.popleft()[1]
            groups = self.answers[id][2]
            groups.discard(group)
            if not groups:
                del self.answers[id]

    def answer(self, id: MessageId) -> int | None:
        """What to say to who asks; None if nothing is owed."""
        fact = self.answers.get(id)
        return None if fact is None else fact[0]

    def list_all(self) -> list[tuple[MessageId, int, int, tuple[GroupId, ...]]]:
        """Every debt as `owe` takes it, in the order of delivery: for records and for fellows."""
        return [(id, answer, final, tuple(sorted(groups))) for id, (answer, final, groups) in self.answers.items()]

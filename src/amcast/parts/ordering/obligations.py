"""Answers about delivered messages that other groups may still ask for.

A group that has delivered a message to several groups is not done with it: a process of another destination may have
lost a link or its state, and ask for this group's timestamp. The answer is one number, and it is remembered until a
majority of every other destination is known to have delivered the message. From then on a process there that lacks the
message gets it from its own group.

Groups deliver in the order of ranks, so "delivered up to this rank" resolves a whole run of obligations at once.
"""

from collections import deque

from amcast.kernel.ids import GroupId, MessageId

Rank = tuple[int, MessageId]
"""Final timestamp and message: the order of delivery."""


class Obligations:
    """The answers that one group still owes to others."""

    __slots__ = ("answers", "by_group")

    def __init__(self) -> None:
        self.answers: dict[MessageId, tuple[int, int, set[GroupId]]] = {}
        """By delivered message: the answer, the final timestamp, and the groups that may still ask."""
        self.by_group: dict[GroupId, deque[Rank]] = {}
        """The ranks of the same messages by group, in the order of delivery."""

    def add(self, id: MessageId, answer: int, final: int, groups: tuple[GroupId, ...]) -> None:
        """Adds a message that was delivered here and is not known to be delivered by a majority of these groups."""
        if groups:
            self.answers[id] = (answer, final, set(groups))
            rank = (final, id)
            for group in groups:
                owed = self.by_group.get(group)
                if owed is None:
                    owed = self.by_group[group] = deque()
                owed.append(rank)

    def resolve(self, group: GroupId, rank: Rank) -> None:
        """Forgets what a group no longer asks for: a majority of it has delivered everything up to this rank."""
        owed = self.by_group.get(group)
        while owed and owed[0] <= rank:
            id = owed.popleft()[1]
            groups = self.answers[id][2]
            groups.discard(group)
            if not groups:
                del self.answers[id]

    def answer(self, id: MessageId) -> int | None:
        """The answer about a message; None if no group may ask any more."""
        known = self.answers.get(id)
        return None if known is None else known[0]

    def list_all(self) -> list[tuple[MessageId, int, int, tuple[GroupId, ...]]]:
        """Every obligation as arguments of `add`, in the order of delivery: for records and for other members."""
        return [(id, answer, final, tuple(sorted(groups))) for id, (answer, final, groups) in self.answers.items()]

"""Confirmations between groups that final timestamps are in their logs.

A group remembers its own timestamp of a message until every other destination has the final timestamp in its log and
has confirmed that (FinalStored): until then a member there may ask for it. Confirmations are sent in batches, one batch
per group; every member counts them, because they follow from the log, and the leader sends them.
"""

from typing import Final

from amcast.kernel.ids import GroupId, MessageId

CONFIRMATION_BATCHES: Final = 8
"""The most unsent confirmations to all groups together, in batches: they are part of every checkpoint, which must not
grow with the number of groups."""
OVERDUE_BATCHES: Final = 4
"""The number of batches that another group may leave unconfirmed before it is asked."""


class Confirmations:
    """The confirmations that one group has not sent, and the timestamps for which it has received none."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.timestamps: dict[GroupId, dict[MessageId, int]] = {}
        """The own group's timestamps, by the groups that have not confirmed the message."""
        self.unsent: dict[GroupId, list[MessageId]] = {}
        """Messages whose final timestamp is in the log, by the groups that were not sent the confirmation."""
        self.unsent_count = 0
        """The number of messages in `unsent`."""

    def add(self, group: GroupId, id: MessageId, timestamp: int | None) -> tuple[GroupId, ...]:
        """Adds a message whose final timestamp is in the log, and returns the groups whose batch is due. `timestamp` is
        None if the group has confirmed the message already."""
        timestamps = self.timestamps.setdefault(group, {})
        if timestamp is not None:
            timestamps[id] = timestamp
        unsent = self.unsent.setdefault(group, [])
        unsent.append(id)
        self.unsent_count += 1
        if len(unsent) >= self._batch:
            return (group,)
        if self.unsent_count >= CONFIRMATION_BATCHES * self._batch:
            return tuple(sorted(self.unsent))
        return ()

    def pop_batch(self, group: GroupId) -> tuple[MessageId, ...]:
        batch = tuple(self.unsent.pop(group))
        self.unsent_count -= len(batch)
        return batch

    def list_overdue(self, group: GroupId) -> list[tuple[MessageId, int]]:
        """The oldest unconfirmed timestamps, each time another batch is overdue: confirmations were lost with a leader
        or a link."""
        count = len(self.timestamps[group])
        if count < OVERDUE_BATCHES * self._batch or count % self._batch:
            return []
        return list(self.timestamps[group].items())[: self._batch]

    def confirm(self, group: GroupId, id: MessageId) -> None:
        """Forgets a timestamp that a group no longer asks for."""
        timestamps = self.timestamps.get(group)
        if timestamps is not None:
            timestamps.pop(id, None)

    def get_timestamp(self, group: GroupId, id: MessageId) -> int | None:
        """The own group's timestamp of a message, if that group has not confirmed it."""
        return self.timestamps.get(group, {}).get(id)

    def restore(
        self,
        timestamps: tuple[tuple[GroupId, tuple[tuple[MessageId, int], ...]], ...],
        unsent: tuple[tuple[GroupId, tuple[MessageId, ...]], ...],
    ) -> None:
        self.timestamps = {group: dict(pairs) for group, pairs in timestamps}
        self.unsent = {group: list(ids) for group, ids in unsent}
        self.unsent_count = sum(len(ids) for _, ids in unsent)

"""What one step of a leader has for other groups: 001 section 6 batches it, so that each group gets one body."""

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Message
from amcast.protocols.a_ge.messages import GroupTransfer


class Transfers:
    """Messages, timestamps and confirmations by group. Empty between steps, so that no snapshot has them."""

    def __init__(self, home: GroupId) -> None:
        self._home = home
        self._messages: dict[GroupId, dict[MessageId, Message]] = {}
        self._timestamps: dict[GroupId, dict[MessageId, int]] = {}
        self._stored: dict[GroupId, tuple[MessageId, ...]] = {}

    def add_message(self, group: GroupId, message: Message) -> None:
        self._messages.setdefault(group, {})[message.id] = message

    def add_timestamp(self, group: GroupId, id: MessageId, timestamp: int) -> None:
        self._timestamps.setdefault(group, {})[id] = timestamp

    def add_confirmations(self, group: GroupId, batch: tuple[MessageId, ...]) -> None:
        self._stored[group] = (*self._stored.get(group, ()), *batch)

    def pop_bodies(self) -> list[tuple[GroupId, GroupTransfer]]:
        """One body for each group that is due something, in the order of groups."""
        groups = sorted({*self._messages, *self._timestamps, *self._stored})
        bodies = [(group, self._build(group)) for group in groups]
        self._messages, self._timestamps, self._stored = {}, {}, {}
        return bodies

    def _build(self, group: GroupId) -> GroupTransfer:
        return GroupTransfer(
            self._home,
            tuple(self._messages.get(group, {}).values()),
            tuple(self._timestamps.get(group, {}).items()),
            self._stored.get(group, ()),
        )


def list_concerned(body: GroupTransfer) -> tuple[MessageId, ...]:
    """The messages that a body concerns, each once."""
    ids = [*(message.id for message in body.messages), *(id for id, _ in body.timestamps), *body.stored]
    return tuple(dict.fromkeys(ids))

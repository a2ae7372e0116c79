"""Replies that a group may owe because its leader crashed.

    leader      member      sender
      |--Reply (m1)----------->|
    deliver   deliver          |     m2
      x          |             |     the leader crashes; the member does not know yet, and does not reply
                 |--Reply (m2)>|     the member becomes leader, and replies for its recent deliveries

Only the leader of a destination replies to senders. A member that delivers while another process leads relies on that
leader. When it becomes leader itself, it replies once more for everything that it delivered since the heartbeat before
its predecessor's last one: for earlier deliveries the predecessor has replied, as a rule. A reply that is missing after
all costs only time, because sessions retry (`parts/client/session.py`).
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from amcast.kernel.ids import MessageId, ProcessId

MAX_REPLIES: Final = 8192
"""How many replies are remembered per heartbeat interval, the newest ones. A leader that is silent for longer is
suspected."""

PendingReply = tuple[ProcessId, MessageId]
"""The receiver of the reply, and the message."""


class PendingReplies:
    """The replies that one member would send if it became leader."""

    __slots__ = ("_earlier", "_recent")

    def __init__(self) -> None:
        self._recent: deque[PendingReply] = deque(maxlen=MAX_REPLIES)
        """Since the leader's last heartbeat."""
        self._earlier: deque[PendingReply] = deque(maxlen=MAX_REPLIES)
        """Between its last two heartbeats."""

    def add(self, receiver: ProcessId, message: MessageId) -> None:
        """Remembers a message that was delivered here without a reply."""
        self._recent.append((receiver, message))

    def record_heartbeat(self) -> None:
        """Forgets the interval before the last one: a heartbeat of the leader arrived."""
        self._earlier, self._recent = self._recent, self._earlier
        self._recent.clear()

    def pop_all(self) -> list[PendingReply]:
        """Forgets and returns all replies, in the order of delivery."""
        replies = [*self._earlier, *self._recent]
        self._earlier.clear()
        self._recent.clear()
        return replies

    def snapshot(self) -> tuple[tuple[PendingReply, ...], tuple[PendingReply, ...]]:
        return tuple(self._earlier), tuple(self._recent)

    def restore(self, state: tuple[Iterable[PendingReply], Iterable[PendingReply]]) -> None:
        self._earlier = deque(state[0], maxlen=MAX_REPLIES)
        self._recent = deque(state[1], maxlen=MAX_REPLIES)

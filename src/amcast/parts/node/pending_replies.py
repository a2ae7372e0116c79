"""What a group may not have answered, because its leader died.

    leader      member      sender
      |--Reply (m1)----------->|
    deliver   deliver          |     m2
      x          |             |     the leader dies; the member does not know yet, and says nothing
                 |--Reply (m2)>|     it leads: what it delivered of late it answers for

Senders are answered by the leader of each destination, and by nobody else. What a member delivers while it takes
another for the leader is answered if that lives. So whoever takes the lead answers once more for what it
delivered since the heartbeat before its predecessor's last: what the predecessor delivered before that it has answered,
as a rule. What was forgotten here is asked for again after a while (`parts/client/session.py`), so nothing but time is
at stake.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from amcast.kernel.ids import MessageId, ProcessId

MOST: Final = 8192
"""So many answers between two heartbeats are kept, the newest; a leader that is silent for longer is suspected."""

Answer = tuple[ProcessId, MessageId]
"""Who asked, and for what."""


class PendingReplies:
    """One member's memory of what its leader should have answered."""

    __slots__ = ("_before", "_lately")

    def __init__(self) -> None:
        self._lately: deque[Answer] = deque(maxlen=MOST)
        self._before: deque[Answer] = deque(maxlen=MOST)

    def keep(self, asker: ProcessId, message: MessageId) -> None:
        """Delivered here, and not answered."""
        self._lately.append((asker, message))

    def heard(self) -> None:
        """A heartbeat of the leader came."""
        self._before, self._lately = self._lately, self._before
        self._lately.clear()

    def take(self) -> list[Answer]:
        """I lead now: what to answer, in the order of delivery."""
        taken = [*self._before, *self._lately]
        self._before.clear()
        self._lately.clear()
        return taken

    def snapshot(self) -> tuple[tuple[Answer, ...], tuple[Answer, ...]]:
        return tuple(self._before), tuple(self._lately)

    def restore(self, state: tuple[Iterable[Answer], Iterable[Answer]]) -> None:
        self._before = deque(state[0], maxlen=MOST)
        self._lately = deque(state[1], maxlen=MOST)

"""Which messages were seen, in a few bytes per sender.

A message id is its sender and a sequence number. A sender numbers all its messages, whatever their destinations, so a
group sees gaps that will never close, and "everything below n" is not enough. But a sender never runs more than
`WINDOW` numbers ahead of its oldest unanswered message (`parts/session.py` holds it to that). So it is enough to
remember the newest number and, as the bits of one integer, the WINDOW numbers before it: anything older was answered.
"""

from amcast.kernel.ids import MESSAGES_PER_SENDER, MessageId, ProcessId
from amcast.parts.bodies.session import WINDOW, Known

_MASK = (1 << WINDOW) - 1


class Seen:
    """A set of message ids that only grows, and never in memory."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[ProcessId, tuple[int, int]] = {}
        """Sender: (newest sequence number, bit i set if newest - i was seen)."""

    def __contains__(self, message: MessageId) -> bool:
        known = self._known.get(message // MESSAGES_PER_SENDER)
        if known is None:
            return False
        behind = known[0] - message % MESSAGES_PER_SENDER
        return behind >= WINDOW or (behind >= 0 and known[1] >> behind & 1 == 1)

    def add(self, message: MessageId) -> bool:
        """Remember a message; False if it was seen before (or is older than anything that can be new)."""
        sender, sequence = divmod(message, MESSAGES_PER_SENDER)
        known = self._known.get(sender)
        if known is None:
            self._known[sender] = (sequence, 1)
            return True
        newest, bits = known
        ahead = sequence - newest
        if ahead > 0:
            self._known[sender] = (sequence, (bits << ahead & _MASK | 1) if ahead < WINDOW else 1)
            return True
        if -ahead >= WINDOW or bits >> -ahead & 1:
            return False
        self._known[sender] = (newest, bits | 1 << -ahead)
        return True

    def add_all(self, messages: list[MessageId]) -> tuple[int, ...]:
        """Remember many; the places of those that were seen before. The same as `add` for each, without its calls."""
        known_by = self._known
        again: list[int] = []
        for place, message in enumerate(messages):
            sender = message // MESSAGES_PER_SENDER
            known = known_by.get(sender)
            if known is None:
                known_by[sender] = (message % MESSAGES_PER_SENDER, 1)
                continue
            newest, bits = known
            ahead = message - sender * MESSAGES_PER_SENDER - newest
            if ahead == 1:
                known_by[sender] = (newest + 1, bits << 1 & _MASK | 1)
            elif not self.add(message):
                again.append(place)
        return tuple(again)

    def forget(self, message: MessageId) -> None:
        """Take a message back; what is older than the window stays known."""
        sender, sequence = divmod(message, MESSAGES_PER_SENDER)
        known = self._known.get(sender)
        if known is not None and 0 <= known[0] - sequence < WINDOW:
            self._known[sender] = (known[0], known[1] & ~(1 << known[0] - sequence))

    def merge(self, state: tuple[Known, ...]) -> None:
        """Remember all that another remembers, too."""
        for other in state:
            newest, bits = self._known.get(other.sender, (other.newest, 0))
            more = int.from_bytes(other.bits, "big")
            latest = max(newest, other.newest)
            bits = _shifted(bits, latest - newest) | _shifted(more, latest - other.newest)
            self._known[other.sender] = (latest, bits)

    def snapshot(self) -> tuple[Known, ...]:
        return tuple(
            Known(sender, newest, bits.to_bytes((bits.bit_length() + 7) // 8, "big"))
            for sender, (newest, bits) in sorted(self._known.items())
        )

    def restore(self, state: tuple[Known, ...]) -> None:
        self._known = {known.sender: (known.newest, int.from_bytes(known.bits, "big")) for known in state}


def _shifted(bits: int, by: int) -> int:
    return bits << by & _MASK if by < WINDOW else 0

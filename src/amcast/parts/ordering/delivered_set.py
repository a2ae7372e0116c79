"""Which messages were seen, in a few bytes per sender.

A message id is its sender and a sequence number. A sender numbers all its messages, whatever their destinations, so a
group sees gaps that will never close, and "everything below n" is not enough. But a sender never runs more than
`WINDOW` numbers ahead of its oldest unanswered message (`parts/client/session.py` holds it to that). So it is enough to
remember the newest number and, as the bits of one integer, the WINDOW numbers before it: anything older was answered.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import floordiv, ge

from amcast.kernel.ids import MESSAGES_PER_SENDER, MessageId, ProcessId
from amcast.kernel.message import MessageHeader
from amcast.parts.ordering.messages import WINDOW, DeliveredRange

_MASK = (1 << WINDOW) - 1


class DeliveredSet:
    """A set of message ids that only grows, and never in memory."""

    __slots__ = ("_newest", "_upto")

    def __init__(self) -> None:
        self._newest: dict[ProcessId, MessageId] = {}
        """Sender: its newest message."""
        self._upto: dict[ProcessId, tuple[MessageId, int]] = {}
        """Sender: (a message, bit i set if the one i before it was seen); all that is newer was seen. Most messages
        come in sequence, and long integers need not change for them."""

    def __contains__(self, message: MessageId) -> bool:
        newest = self._newest.get(message // MESSAGES_PER_SENDER)
        if newest is None or message > newest:
            return False
        upto, bits = self._upto[message // MESSAGES_PER_SENDER]
        return message > upto or newest - message >= WINDOW or bits >> upto - message & 1 == 1

    def has_any(self, messages: Sequence[MessageId]) -> bool:
        """Whether some of these were seen. Nearly always all are newer than what their senders sent before, and that is
        found without the interpreter."""
        senders = map(floordiv, messages, repeat(MESSAGES_PER_SENDER))
        if not any(map(ge, map(self._newest.get, senders, repeat(-1)), messages)):
            return False
        return any(message in self for message in messages)

    def add(self, message: MessageId) -> bool:
        """Remember a message; False if it was seen before (or is older than anything that can be new)."""
        sender = message // MESSAGES_PER_SENDER
        newest = self._newest.get(sender)
        if newest == message - 1:
            self._newest[sender] = message
            return True
        if newest is None:
            self._put(sender, message, 1)
            return True
        ahead = message - newest
        if ahead > 0:
            self._put(sender, message, _shift(self._bits(sender), ahead) | 1)
            return True
        if message in self:
            return False
        self._put(sender, newest, self._bits(sender) | 1 << -ahead)
        return True

    def add_all(self, messages: Sequence[MessageHeader]) -> tuple[int, ...]:
        """Remember many; the places of those that were seen before. The same as `add` for each, without its calls."""
        newest = self._newest
        again: list[int] = []
        for place, message in enumerate(messages):
            id, sender = message.id, message.sender
            if newest.get(sender) == id - 1:
                newest[sender] = id
            elif not self.add(id):
                again.append(place)
        return tuple(again)

    def forget(self, message: MessageId) -> None:
        """Take a message back; what is older than the window stays known."""
        sender = message // MESSAGES_PER_SENDER
        newest = self._newest.get(sender)
        if newest is not None and 0 <= newest - message < WINDOW:
            self._put(sender, newest, self._bits(sender) & ~(1 << newest - message))

    def merge(self, state: tuple[DeliveredRange, ...]) -> None:
        """Remember all that another remembers, too."""
        for other in state:
            theirs = other.sender * MESSAGES_PER_SENDER + other.newest
            newest = self._newest.get(other.sender, theirs)
            latest = max(newest, theirs)
            more = int.from_bytes(other.bits, "big")
            bits = _shift(self._bits(other.sender), latest - newest) | _shift(more, latest - theirs)
            self._put(other.sender, latest, bits)

    def _put(self, sender: ProcessId, newest: MessageId, bits: int) -> None:
        self._newest[sender] = newest
        self._upto[sender] = (newest, bits)

    def _bits(self, sender: ProcessId) -> int:
        """Bit i set if the one i before the newest was seen."""
        if sender not in self._newest:
            return 0
        upto, bits = self._upto[sender]
        since = self._newest[sender] - upto
        return _shift(bits, since) | (1 << min(since, WINDOW)) - 1

    def snapshot(self) -> tuple[DeliveredRange, ...]:
        known = []
        for sender, newest in sorted(self._newest.items()):
            bits = self._bits(sender)
            size = (bits.bit_length() + 7) // 8
            known.append(DeliveredRange(sender, newest - sender * MESSAGES_PER_SENDER, bits.to_bytes(size, "big")))
        return tuple(known)

    def restore(self, state: tuple[DeliveredRange, ...]) -> None:
        self._newest = {}
        self._upto = {}
        for known in state:
            newest = known.sender * MESSAGES_PER_SENDER + known.newest
            self._put(known.sender, newest, int.from_bytes(known.bits, "big"))


def _shift(bits: int, by: int) -> int:
    return bits << by & _MASK if by < WINDOW else 0

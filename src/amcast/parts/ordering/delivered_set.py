"""A set of message ids, for deduplication, in a few bytes per sender.

A message id is its sender and a sequence number. A sender numbers all its messages, whatever their destinations, so a
group sees gaps that never close, and "everything below n" is not enough. But a sender never runs more than `WINDOW`
numbers ahead of its oldest unanswered message (`parts/client/session.py` enforces it). So the set stores the newest
number and, as the bits of one integer, the WINDOW numbers before it: every older message was answered.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import floordiv, ge

from amcast.kernel.ids import MESSAGES_PER_SENDER, MessageId, ProcessId
from amcast.kernel.message import MessageHeader
from amcast.parts.ordering.messages import WINDOW, DeliveredRange

_MASK = (1 << WINDOW) - 1


class DeliveredSet:
    """A set of message ids whose size in memory does not grow with its members."""

    __slots__ = ("_newest", "_upto")

    def __init__(self) -> None:
        self._newest: dict[ProcessId, MessageId] = {}
        """By sender: its newest message."""
        self._upto: dict[ProcessId, tuple[MessageId, int]] = {}
        """By sender: (a message, bit i set if the message i numbers before it is in the set). Every newer message up
        to the newest is in the set. Most messages come in sequence, and need no change of a long integer."""

    def __contains__(self, message: MessageId) -> bool:
        newest = self._newest.get(message // MESSAGES_PER_SENDER)
        if newest is None or message > newest:
            return False
        upto, bits = self._upto[message // MESSAGES_PER_SENDER]
        return message > upto or newest - message >= WINDOW or bits >> upto - message & 1 == 1

    def has_any(self, messages: Sequence[MessageId]) -> bool:
        """Whether any of these is in the set. Nearly always all are newer than their senders' newest, which is checked
        without a loop in the interpreter."""
        senders = map(floordiv, messages, repeat(MESSAGES_PER_SENDER))
        if not any(map(ge, map(self._newest.get, senders, repeat(-1)), messages)):
            return False
        return any(message in self for message in messages)

    def add(self, message: MessageId) -> bool:
        """Adds a message; False if the set has it already, or it is older than the window."""
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
        """Adds many and returns the indexes of those that the set had already. Equals `add` for each, with fewer
        calls."""
        newest = self._newest
        repeated: list[int] = []
        for index, message in enumerate(messages):
            id, sender = message.id, message.sender
            if newest.get(sender) == id - 1:
                newest[sender] = id
            elif not self.add(id):
                repeated.append(index)
        return tuple(repeated)

    def forget(self, message: MessageId) -> None:
        """Removes a message, unless it is older than the window."""
        sender = message // MESSAGES_PER_SENDER
        newest = self._newest.get(sender)
        if newest is not None and 0 <= newest - message < WINDOW:
            self._put(sender, newest, self._bits(sender) & ~(1 << newest - message))

    def merge(self, state: tuple[DeliveredRange, ...]) -> None:
        """Adds every message of another set's snapshot."""
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
        """Bit i set if the message i numbers before the newest is in the set."""
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

"""Bodies that arrive before their configuration is reached."""

from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body

NEXT_CONFIGURATION: Final = -1
"""Stands for the configuration that comes next, whichever that is: a client's request belongs to any."""

EarlyBody = tuple[ProcessId, int, Body, int]
"""Sender, configuration, body, and the sender's barrier."""


class EarlyBodies:
    """A bounded buffer of early bodies, and the senders whose bodies did not fit."""

    __slots__ = ("_bodies", "_capacity", "_dropped")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._bodies: list[EarlyBody] = []
        self._dropped: dict[ProcessId, int] = {}
        """Per sender, the latest configuration of which a body was dropped."""

    def add(self, sender: ProcessId, configuration: int, body: Body, barrier: int) -> bool:
        """Buffers a body; False if the buffer is full. Senders of dropped bodies are asked to resend them, except
        for requests of clients, which retry anyway."""
        if len(self._bodies) < self._capacity:
            self._bodies.append((sender, configuration, body, barrier))
            return True
        if configuration != NEXT_CONFIGURATION:
            self._dropped[sender] = max(configuration, self._dropped.get(sender, 0))
        return False

    def pop_all(self) -> list[EarlyBody]:
        """Empties the buffer and returns its bodies in the order of arrival."""
        bodies, self._bodies = self._bodies, []
        return bodies

    def pop_dropped_senders(self, configuration: int) -> list[ProcessId]:
        """The senders that must resend what was dropped, now that this configuration is reached."""
        senders = [sender for sender, dropped in sorted(self._dropped.items()) if dropped <= configuration]
        for sender in senders:
            del self._dropped[sender]
        return senders

    def discard_from(self, sender: ProcessId) -> None:
        """Removes the bodies of a sender whose link was reset: it may have lost its memory of them."""
        self._bodies = [early for early in self._bodies if early[0] != sender]

    def snapshot(self) -> tuple[tuple[EarlyBody, ...], tuple[tuple[ProcessId, int], ...]]:
        return tuple(self._bodies), tuple(sorted(self._dropped.items()))

    def restore(self, bodies: tuple[EarlyBody, ...], dropped: tuple[tuple[ProcessId, int], ...]) -> None:
        self._bodies = list(bodies)
        self._dropped = dict(dropped)

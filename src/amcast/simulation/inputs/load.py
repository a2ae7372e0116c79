"""Clients with work: who multicasts what next, and when a client may go on.

A closed loop keeps a number of messages outstanding per client; a message is done when its client was told so
(`Resolve`), or, for bare protocols that send no replies, when every destination process delivered it.
"""

from collections.abc import Callable

from amcast.kernel.ids import GroupId, ProcessId, message_id, sender_of
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.simulation.world.world import World

Draw = Callable[[ProcessId], tuple[tuple[GroupId, ...], int, int]]
"""A client's next message: destinations, payload bytes, nanoseconds to wait before it may be sent."""


class ClientLoad:
    """The multicasts of one run. `ready` lists who may multicast now; `take` gives what."""

    def __init__(
        self,
        topology: Topology,
        draw: Draw,
        messages: int,
        outstanding: int,
        senders: tuple[ProcessId, ...] = (),
        replies: bool = False,
    ) -> None:
        self.topology = topology
        self.senders = senders or topology.clients
        self.outstanding = outstanding
        self.replies = replies
        self.remaining = messages
        """How many may still be multicast."""
        self.in_flight: dict[ProcessId, int] = dict.fromkeys(self.senders, 0)
        self._draw = draw
        self._sent: dict[ProcessId, int] = dict.fromkeys(self.senders, 0)

    def list_ready(self, world: World) -> list[ProcessId]:
        """Senders that are up and may multicast once more."""
        if self.remaining <= 0:
            return []
        limit = self.outstanding
        return [p for p in self.senders if self.in_flight[p] < limit and p in world.processes and p not in world.paused]

    def next_message(self, sender: ProcessId) -> tuple[Message, int]:
        """The sender's next message, which is now under way, and how long it thinks: the caller submits it then."""
        destinations, size, after_ns = self._draw(sender)
        sequence = self._sent[sender]
        self._sent[sender] = sequence + 1
        self.in_flight[sender] += 1
        self.remaining -= 1
        return Message(message_id(sender, sequence), sender, destinations, bytes(size)), after_ns

    def collect_done(self, world: World) -> list[ProcessId]:
        """Who was told that a message is done since the last call."""
        done = world.resolved if self.replies else world.completed
        clients: list[ProcessId] = []
        for message in done:
            client = sender_of(message)
            if client in self.in_flight:
                self.in_flight[client] -= 1
                clients.append(client)
        world.resolved.clear()
        world.completed.clear()
        return clients

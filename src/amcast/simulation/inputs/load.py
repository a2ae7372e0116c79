"""The load of a run: which client multicasts what next, and when it may go on.

A closed loop keeps a number of messages outstanding per client. A message is done when its client resolves it
(`Resolve`), when an answer that the plan asks for has arrived (`inputs/answers.py`) or, for bare protocols without
either, when every destination process has delivered it. The load ends after a number of messages, or a time.
"""

from collections.abc import Callable

from amcast.kernel.ids import GroupId, ProcessId, message_id, sender_of
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.simulation.world.world import World

Draw = Callable[[ProcessId], tuple[tuple[GroupId, ...], int, int]]
"""The next message of a client: destinations, payload bytes, nanoseconds to wait before it is multicast."""


class ClientLoad:
    """The multicasts of one run: `list_ready` names clients that may multicast, `next_message` draws the message."""

    def __init__(
        self,
        topology: Topology,
        draw: Draw,
        messages: int,
        outstanding: int,
        senders: tuple[ProcessId, ...] = (),
        replies: bool = False,
        demands_answers: bool = False,
        until_ns: int = 2**62,
    ) -> None:
        self.topology = topology
        self.senders = senders or topology.clients
        self.outstanding = outstanding
        self.replies = replies
        self.demands_answers = demands_answers
        """Whether a run is over only when every client that is up has all its answers."""
        self.until_ns = until_ns
        """When clients stop: nothing is multicast from then on."""
        self.remaining = messages
        """How many messages may still be multicast."""
        self.in_flight: dict[ProcessId, int] = dict.fromkeys(self.senders, 0)
        self._draw = draw
        self._sent: dict[ProcessId, int] = dict.fromkeys(self.senders, 0)

    def list_waiting(self, world: World) -> list[ProcessId]:
        """Clients that must still be answered: they are up, and were never down."""
        if not self.demands_answers:
            return []
        waiting = [client for client, count in self.in_flight.items() if count]
        return [client for client in waiting if client in world.processes and not world.incarnations[client]]

    def list_ready(self, world: World) -> list[ProcessId]:
        """Clients that are up and may multicast once more."""
        if self.remaining <= 0:
            return []
        limit = self.outstanding
        return [p for p in self.senders if self.in_flight[p] < limit and p in world.processes and p not in world.paused]

    def next_message(self, sender: ProcessId) -> tuple[Message, int]:
        """Draws a client's next message, which counts as outstanding from now on, and its think time: the caller
        submits it after that."""
        destinations, size, after_ns = self._draw(sender)
        sequence = self._sent[sender]
        self._sent[sender] = sequence + 1
        self.in_flight[sender] += 1
        self.remaining -= 1
        return Message(message_id(sender, sequence), sender, destinations, bytes(size)), after_ns

    def stop(self) -> None:
        """Ends the load; messages in flight are still answered."""
        self.remaining = 0

    def withdraw(self, sender: ProcessId) -> None:
        """A drawn message is not multicast, because the time of the load is over."""
        self.in_flight[sender] -= 1

    def collect_done(self, world: World) -> list[ProcessId]:
        """Clients with a message that was done since the last call, once for each message."""
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

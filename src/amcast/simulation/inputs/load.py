"""The load of a run: which client multicasts what next, and when it may go on.

A closed loop keeps a number of messages outstanding per client. A message is done when its client resolves it
(`Resolve`), when an answer that the plan asks for has arrived (`inputs/answers.py`) or, for bare protocols without
either, when every destination process has delivered it. The load ends after a number of messages, or a time.
"""

from collections.abc import Callable
from typing import Final

from amcast.kernel.ids import GroupId, ProcessId, message_id, sender_of
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.simulation.world.world import World

Draw = Callable[[ProcessId], tuple[tuple[GroupId, ...], int, int]]
"""The next message of a client: destinations, payload bytes, nanoseconds to wait before it is multicast."""
MAX_DRAWS: Final = 24
"""How often the destinations of one message are drawn until they are those that the caller wants."""


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
        equal_shares: bool = False,
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
        self._shares: dict[ProcessId, int] | None = None
        """How many messages each client multicasts; None: as many as it can."""
        if equal_shares:
            share, rest = divmod(messages, len(self.senders))
            self._shares = {sender: share + (place < rest) for place, sender in enumerate(self.senders)}
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
        may = self.may_multicast
        return [p for p in self.senders if may(p) and p in world.processes and p not in world.paused]

    def may_multicast(self, sender: ProcessId) -> bool:
        """Whether a message is left for a client, and the client has room for it."""
        if self.remaining <= 0 or self.in_flight[sender] >= self.outstanding:
            return False
        return self._shares is None or self._sent[sender] < self._shares[sender]

    def next_message(self, sender: ProcessId) -> tuple[Message, int]:
        """Draws a client's next message, which counts as outstanding from now on, and its think time: the caller
        submits it after that."""
        return self._make_message(sender, *self._draw(sender))

    def next_message_to(self, sender: ProcessId, wanted: tuple[GroupId, ...]) -> Message:
        """Draws a client's next message several times, until its destinations are those that are wanted, or else takes
        that whose destinations differ least."""
        best = self._draw(sender)
        for _ in range(MAX_DRAWS):
            if set(best[0]) == set(wanted):
                break
            best = min(best, self._draw(sender), key=lambda drawn: len(set(drawn[0]) ^ set(wanted)))
        return self._make_message(sender, *best)[0]

    def _make_message(
        self, sender: ProcessId, destinations: tuple[GroupId, ...], size: int, after_ns: int
    ) -> tuple[Message, int]:
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

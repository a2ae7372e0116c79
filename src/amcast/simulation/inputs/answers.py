"""Answers to clients of bare protocol processes: which deliveries answer a client, and when it knows.

Bare processes send no replies, so a driver stands in for them: an answer travels from the process that delivered to the
client over the same links as other packets, and is not counted among them.
"""

from typing import Literal

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.network import Network

AnswerRule = Literal["nearest", "first", "groups"]
"""nearest: the destination process that is nearest to the client answers, its own replica where it has one (as 001 and
002 measured); first: all do, and the first answer counts; groups: all do, and the first answer of each destination
counts."""


class Answers:
    """The answers that are on their way, or still needed."""

    def __init__(self, rule: AnswerRule, topology: Topology, network: Network) -> None:
        self._rule = rule
        self._topology = topology
        self._network = network
        self._nearest: dict[tuple[ProcessId, tuple[GroupId, ...]], ProcessId] = {}
        self._missing: dict[MessageId, set[GroupId]] = {}
        """By message that is not answered: the groups of which an answer is still needed."""

    def expect(self, message: Message) -> None:
        """A client multicasts a message."""
        self._missing[message.id] = set(message.destinations)

    def draw_arrival(self, process: ProcessId, message: Message, now: int) -> int | None:
        """When the answer for a delivery arrives at the client; None if this process does not answer."""
        client = message.sender
        if message.id not in self._missing:
            return None
        if self._rule == "nearest" and process != self.find_nearest(client, message.destinations):
            return None
        return self._network.draw_arrival(process, client, 0, now)

    def find_nearest(self, client: ProcessId, destinations: tuple[GroupId, ...]) -> ProcessId:
        """The destination process with the shortest way back to a client; the first of several."""
        key = client, destinations
        if key not in self._nearest:
            processes = self._topology.processes_of(destinations)
            self._nearest[key] = min(processes, key=lambda process: self._network.bases[process][client])
        return self._nearest[key]

    def receive(self, message: MessageId, group: GroupId) -> bool:
        """An answer arrives. Returns whether the message is answered by it."""
        missing = self._missing.get(message)
        if missing is None:
            return False
        missing.discard(group)
        if missing and self._rule == "groups":
            return False
        del self._missing[message]
        return True

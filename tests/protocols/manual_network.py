"""A network whose packets a test delivers by hand, one at a time, for scenarios written step by step."""

from collections import deque
from collections.abc import Callable

from amcast.check.incremental import check_chains
from amcast.kernel.effects import Deliver, Effect, Send
from amcast.kernel.events import Event, Receive, Started
from amcast.kernel.message import Body, Message, Request
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology

CLIENT = 10_000
MAX_PACKETS = 100_000


class ManualNetwork:
    """One process per group, FIFO links between them."""

    def __init__(self, make: Callable[[int, Topology], Process], topology: Topology) -> None:
        self.topology = topology
        self.processes = {process: make(process, topology) for process in topology.servers}
        self.links: dict[tuple[int, int], deque[Body]] = {}
        self.delivered: dict[int, list[int]] = {process: [] for process in topology.servers}
        self.destinations: dict[int, tuple[int, ...]] = {}
        self.carried: list[tuple[int, int, Body]] = []
        for process in topology.servers:
            self._step(process, Started())

    def _step(self, process: int, event: Event) -> None:
        effects: list[Effect] = self.processes[process].step([event], 0)
        for effect in effects:
            if isinstance(effect, Send):
                for target in effect.targets:
                    self.links.setdefault((process, target), deque()).append(effect.body)
            elif isinstance(effect, Deliver):
                self.delivered[process].append(effect.message.id)

    def receive(self, process: int, body: Body, sender: int = CLIENT) -> None:
        """A process receives a body that no process sent."""
        self._step(process, Receive(sender, body))

    def multicast(self, id: int, *destinations: int) -> None:
        """A client's request reaches the contact at once."""
        self.destinations[id] = destinations
        message = Message(id, CLIENT, destinations)
        for contact in next(iter(self.processes.values())).contacts(message):
            self.receive(contact, Request(message))

    def carry(self, source: int, target: int, count: int = 1) -> None:
        """The oldest packets of a link arrive."""
        for _ in range(count):
            body = self.links[(source, target)].popleft()
            self.carried.append((source, target, body))
            self._step(target, Receive(source, body))

    def carry_all(self) -> None:
        """All packets arrive."""
        for _ in range(MAX_PACKETS):
            full = [pair for pair, link in sorted(self.links.items()) if link and pair[1] in self.processes]
            if not full:
                return
            self.carry(*full[0])
        raise AssertionError(f"packets are still sent after {MAX_PACKETS} packets")

    def find_violation(self) -> str | None:
        """The first violation of the order, if any."""
        groups = {process: self.topology.group_of(process) for process in self.processes}
        return check_chains(self.delivered, self.destinations, groups)

    def list_undelivered(self) -> list[tuple[int, int]]:
        """Missing deliveries: message and process each."""
        delivered = {process: set(messages) for process, messages in self.delivered.items()}
        return [
            (message, process)
            for message, destinations in sorted(self.destinations.items())
            for process in self.topology.processes_of(destinations)
            if message not in delivered[process]
        ]

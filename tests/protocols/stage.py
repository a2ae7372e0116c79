"""A simulated world that a test steps through, oldest packet first.

Nodes have no heartbeats, clients retry; the test suggests leaders.
"""

from collections.abc import Callable
from typing import Any

from amcast.assembly import Assembly
from amcast.check.incremental import check_chains
from amcast.kernel.ids import GroupId, ProcessId, message_id
from amcast.kernel.message import Message
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.node.messages import NodeConfig
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import Arrive, Block, Crash, Fire, Heal, Recover, Renew, Suggest, Sync
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder

MAX_STEPS = 20_000
"""Steps after which a run that is not complete is blocked."""


class Stage(PendingActions):
    """A protocol on groups x replicas and two clients."""

    def __init__(
        self, spec: Spec | str, groups: int = 2, replicas: int = 3, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.spec = CATALOGUE[spec] if isinstance(spec, str) else spec
        self.topology = Topology.grid(groups, replicas, 2)
        self.config = self.spec.configure(options)
        self.assembly = self.assemble()
        self.recorder = Recorder()
        self.recorder.wants_packets = False
        self.world = World(self.topology, self.make, self, self.recorder)
        self.sent: dict[ProcessId, int] = {}
        self.world.start()

    def assemble(self) -> Assembly:
        """Nodes without heartbeats."""
        return Assembly(self.spec, self.config, NodeConfig(omega=None))

    def make(self, process: ProcessId) -> Process:
        return self.assembly.make(process, self.topology)

    def multicast(self, client: int, *destinations: GroupId) -> int:
        """Client 0 or 1 multicasts; returns the message's id."""
        sender = self.topology.clients[client]
        number = self.sent.get(sender, 0)
        self.sent[sender] = number + 1
        message = Message(message_id(sender, number), sender, destinations)
        self._submit(message)
        return message.id

    def step(self) -> bool:
        """Runs the next action: a disk write completes, the oldest packet arrives, or the first timer fires."""
        busy = [process for process, disk in sorted(self.world.disks.items()) if disk.busy]
        if busy:
            return self.apply(Sync(busy[0]))
        pairs = [pair for pair in self.links if self.is_open(pair)]
        if pairs:
            source, target = min(pairs, key=lambda pair: self.links[pair][0][0])
            return self.apply(Arrive(target, ((source, 0),)))
        timers = self.list_timers()
        if timers:
            return self.apply(Fire(*min(timers, key=lambda key: (self.timers[key][1], key))))
        return False

    def steps(self, count: int) -> None:
        for _ in range(count):
            if not self.step():
                return

    def finish(self) -> int:
        """Steps until everything is delivered and resolved; returns the number of steps."""
        for taken in range(MAX_STEPS):
            if self.is_done():
                return taken
            assert not self.world.violations, self.world.violations
            if not self.step():
                break
        raise AssertionError(
            f"undelivered: {self.world.list_due_deliveries()}, resolved: {sorted(self.world.resolved)}"
        )

    def run_until_blocked(self) -> None:
        """Steps until everything is delivered or no action is left, for protocols that may be wrong."""
        for _ in range(MAX_STEPS):
            if self.is_done() or not self.step():
                return

    def drain(self) -> None:
        """Delivers all packets without firing a timer."""
        for _ in range(MAX_STEPS // 4):
            busy = any(disk.busy for disk in self.world.disks.values())
            if not busy and not any(self.is_open(pair) for pair in self.links):
                return
            self.step()

    def step_until(self, reached: Callable[[], Any], limit: int = 200) -> None:
        """Steps until a condition holds."""
        for _ in range(limit):
            if reached():
                return
            assert self.step()
        assert reached(), f"not reached in {limit} steps"

    def raise_remote_clocks(self, steps: int = 200) -> None:
        """Group 1 delivers three local messages, so that its clocks are ahead of group 0's."""
        for _ in range(3):
            self.multicast(0, 1)
            self.finish()
        self.steps(steps)

    def is_done(self) -> bool:
        return not self.world.list_due_deliveries() and len(self.world.resolved) == sum(self.sent.values())

    @property
    def absent_groups(self) -> dict[object, tuple[GroupId, ...]]:
        """By message: the groups that clients were told not to wait for."""
        absent: dict[object, tuple[GroupId, ...]] = {}
        for _, _, name, message, value in self.recorder.notes:
            if name == "absent":
                absent[message] = (*absent.get(message, ()), int(value))  # type: ignore[call-overload]
        return absent

    def check(self) -> None:
        """Checks that no property is violated so far."""
        assert not self.world.violations, self.world.violations
        destinations = {id: message.destinations for id, message in self.multicasts.items()}
        group_of = {process: self.topology.group_of(process) for process in self.topology.processes}
        story = check_chains(self.world.history, destinations, group_of)
        assert story is None, story

    def crash(self, *processes: ProcessId) -> None:
        for process in processes:
            self.apply(Crash(process))

    def recover(self, *processes: ProcessId, amnesia: bool = False) -> None:
        for process in processes:
            self.apply(Recover(process, amnesia))

    def suggest_leader(self, group: GroupId, leader: ProcessId, *listeners: ProcessId) -> None:
        """The oracle suggests a leader to some processes, or to all."""
        for process in listeners or self.topology.processes:
            self.apply(Suggest(process, group, leader))

    def isolate(self, process: ProcessId) -> None:
        others = [other for other in self.topology.processes if other != process]
        self.apply(Block(tuple((other, process) for other in others) + tuple((process, other) for other in others)))

    def heal(self) -> None:
        self.apply(Heal())

    def reset_link(self, one: ProcessId, other: ProcessId) -> None:
        self.apply(Renew(one, other))

    def protocol(self, process: ProcessId) -> Any:
        """The protocol inside a node, for assertions on its state."""
        node = self.world.processes[process]
        assert isinstance(node, Node)
        return node.protocol

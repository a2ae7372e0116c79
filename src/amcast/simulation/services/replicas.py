"""The services of simulated replicas: each executes what its node delivers, and loses its memory with it.

A replica that restarts begins with the last state that it saved, at a random time, and executes what its node delivered
since; or with the state of another member, as one does whose node installed a snapshot or lost its disk. After every
delivery the whole state is compared with that of every other replica of the group at the same position: it must be a
function of what was delivered. Fields that are sets are read in an order of each replica's own, as in processes with
different hash seeds.
"""

from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from typing import Any, Final

from amcast.kernel.errors import Error
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.process import Process
from amcast.services.declaration import Description
from amcast.services.executor import Executor
from amcast.services.messages import Command, OwedValue, Value, decode_payload
from amcast.services.reads import ReadQueue
from amcast.simulation.world.world import World

SAVE_RATE: Final = 0.15
"""How often a replica saves its state after a delivery."""
TRANSFER_RATE: Final = 0.3
"""How often a restarted replica begins with the state of another member."""
DIGEST_BYTES: Final = 8


class UnorderedSet(set[Any]):
    """A set that is iterated over in a random order."""

    def __init__(self, items: set[Any], random: Random) -> None:
        super().__init__(items)
        self._random = random

    def __iter__(self) -> Iterator[Any]:
        items = list(super().__iter__())
        self._random.shuffle(items)
        return iter(items)


class SimulatedReplica:
    """The service of one incarnation of a node."""

    def __init__(self, executor: Executor, process: Process, position: int) -> None:
        self.executor = executor
        self.process = process
        """The process of the node: a restart makes another one."""
        self.position = position
        """The number of deliveries that were executed."""
        self.reads = ReadQueue(executor)
        self.given: dict[tuple[int, int, int], OwedValue] = {}
        """Owed values that this incarnation has multicast."""


class SimulatedReplicas:
    """The services of all replicas in a world."""

    def __init__(self, world: World, description: Description, names: dict[GroupId, str], random: Random) -> None:
        self._world = world
        self._description = description
        self._names = names
        self._random = random
        self.payloads: dict[MessageId, tuple[tuple[str, ...], bytes]] = {}
        """What messages carry: destinations and payload. The world transports their ids."""
        self.replicas: dict[ProcessId, SimulatedReplica] = {}
        """Those whose nodes are up."""
        self._saved: dict[ProcessId, tuple[int, bytes]] = {}
        self._digests: dict[tuple[GroupId, int], tuple[bytes, ProcessId]] = {}
        """By group and position: a digest of the state, and the replica that had it first."""
        self.events: list[str] = []
        """What happened, as sentences."""

    def follow(self) -> bool:
        """Executes what was delivered since the last call; returns whether there was anything."""
        moved = False
        world = self._world
        for process, positions in world.positions.items():
            running = world.processes.get(process)
            replica = self.replicas.get(process)
            if running is None:
                if replica is not None:
                    self.events.append(f"{self.name_of(process)} crashed at position {replica.position}")
                    del self.replicas[process]
                continue
            if replica is None or replica.process is not running:
                replica = self.replicas[process] = self._start(process, running)
            if replica.position < positions:
                moved = True
                self._execute(process, replica, positions)
        return moved

    def name_of(self, process: ProcessId) -> str:
        """A replica by group and process."""
        group = self._world.topology.group_of(process)
        assert group is not None
        return f"replica {process} of {self._names[group]}"

    def _start(self, process: ProcessId, running: Process) -> SimulatedReplica:
        world = self._world
        group = world.topology.group_of(process)
        assert group is not None
        executor = Executor(self._description, self._names[group], tuple(self._names.values()), checks=True)
        is_lost = world.memory_losses.get(process) == world.incarnations[process] and world.incarnations[process] > 0
        others = [one for one in world.topology.members(group) if one in self.replicas and one != process]
        position, how = 0, "from nothing"
        if others and world.incarnations[process] and (is_lost or self._random.random() < TRANSFER_RATE):
            other = self.replicas[self._random.choice(others)]
            executor.restore(other.executor.snapshot(), other.position)
            position, how = other.position, "with the state of another member"
        elif process in self._saved and not is_lost:
            position, snapshot = self._saved[process]
            executor.restore(snapshot, position)
            how = "with its saved state"
        if world.incarnations[process]:
            self.events.append(f"{self.name_of(process)} restarted {how} at position {position}")
        self._shuffle_sets(executor)
        return SimulatedReplica(executor, running, position)

    def _execute(self, process: ProcessId, replica: SimulatedReplica, until: int) -> None:
        group = self._world.topology.group_of(process)
        assert group is not None
        history = self._world.history[process]
        while replica.position < until:
            destinations, payload = self.payloads.get(history[replica.position], ((), b""))
            try:
                replica.executor.deliver(replica.position, destinations, payload)
            except Error as error:
                raise ServiceBrokenError(f"{self.name_of(process)}, at position {replica.position}: {error}") from error
            replica.executor.finished.clear()
            replica.position += 1
            self._compare(group, process, replica, payload)
            self._shuffle_sets(replica.executor)
            if self._random.random() < SAVE_RATE:
                self._saved[process] = (replica.position, replica.executor.snapshot())

    def _compare(self, group: GroupId, process: ProcessId, replica: SimulatedReplica, payload: bytes) -> None:
        digest = blake2b(replica.executor.snapshot(), digest_size=DIGEST_BYTES).digest()
        known, first = self._digests.setdefault((group, replica.position), (digest, process))
        if first == process:
            content = decode_payload(payload)
            what = content.name if isinstance(content, Command) else "a value"
            self.events.append(f"{self._names[group]} delivered {what} at position {replica.position - 1}")
        if known != digest:
            content = decode_payload(payload)
            what = f" after {content.name}" if isinstance(content, Command) else ""
            raise ServiceBrokenError(
                f"{self.name_of(process)} and {self.name_of(first)} have different states{what} at position"
                f" {replica.position - 1}: the service is not deterministic, or its snapshot is not complete"
            )

    def _shuffle_sets(self, executor: Executor) -> None:
        """Gives the sets among the fields an order of their own."""
        fields = vars(executor.service)
        for name, value in fields.items():
            if type(value) is set:
                fields[name] = UnorderedSet(value, self._random)
            elif type(value) is dict:
                for key, inner in value.items():
                    if type(inner) is set:
                        value[key] = UnorderedSet(inner, self._random)

    def take_owed(self, rate: float) -> list[tuple[GroupId, OwedValue]]:
        """Values that replicas multicast now: each owed value with this probability, once per incarnation."""
        taken = []
        for process, replica in self.replicas.items():
            group = self._world.topology.group_of(process)
            assert group is not None
            for key, owed in replica.executor.owed.items():
                if replica.given.get(key) is not owed and self._random.random() < rate:
                    replica.given[key] = owed
                    taken.append((group, owed))
        return taken

    def owe(self, group: str, payload: bytes) -> bool:
        """Whether a replica of a group still owes the value that a payload carries."""
        value = decode_payload(payload)
        assert isinstance(value, Value)
        key = (value.session, value.request, value.step)
        return any(key in one.executor.owed for one in self.list_members(group))

    def list_processes(self, group: str) -> list[ProcessId]:
        """The processes of a group that are up."""
        topology = self._world.topology
        ids = [one for one in topology.groups if self._names[one] == group]
        return [member for member in topology.members(ids[0]) if member in self.replicas]

    def list_members(self, group: str) -> list[SimulatedReplica]:
        """The replicas of a group that are up."""
        return [self.replicas[process] for process in self.list_processes(group)]

    def are_idle(self) -> bool:
        """Whether nothing is owed, and no command waits."""
        return all(not one.executor.owed and not one.executor.describe_waiting() for one in self.replicas.values())


class ServiceBrokenError(Error):
    """A service did what no service may do."""

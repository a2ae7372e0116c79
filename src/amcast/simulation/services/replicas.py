"""The services of simulated replicas: each executes what its node delivers, and loses its memory with it.

Services that keep their state in files have real files. A crash leaves what is in the folder at that moment, as kill -9
does: the next incarnation opens a copy of it. Their states are compared where they are saved. The pieces of a state
that goes to another member are drawn while its source goes on, as a thread of a live replica draws them.

A replica that restarts begins with the last state that it saved, at a random time, and executes what its node delivered
since; or with the state of another member, as one does whose node installed a snapshot or lost its disk. After every
delivery the whole state is compared with that of every other replica of the group at the same position: it must be a
function of what was delivered. Fields that are sets are read in an order of each replica's own, as in processes with
different hash seeds.
"""

import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from amcast.kernel.errors import Error
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.process import Process
from amcast.services.declaration import Description, DiskService
from amcast.services.executor import Executor
from amcast.services.messages import Command, OwedValue, Value, decode_payload
from amcast.services.reads import ReadQueue
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.world.world import World

COMPARE_RATE: Final = 0.25
"""At how many positions services with files are saved and compared, by all replicas of a group."""
SAVE_RATE: Final = 0.15
"""How often a replica saves its state after a delivery."""
JOIN_TRANSFER_RATE: Final = 0.7
"""How often a replica that joins begins with the state of another member."""
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


class ServiceFolders:
    """The folders of services that keep their state in files, by replica."""

    def __init__(self) -> None:
        self._root = TemporaryDirectory(prefix="amcast-services-")
        self._folders: dict[ProcessId, Path] = {}
        self._count = 0

    def begin(self, process: ProcessId) -> Path:
        """An empty folder, in the place of the one that a replica has."""
        self._count += 1
        folder = self._folders[process] = Path(self._root.name) / str(self._count)
        folder.mkdir()
        return folder

    def open(self, process: ProcessId, is_lost: bool) -> Path:
        """The folder of a replica that starts; empty if its disk is lost."""
        return self.begin(process) if is_lost or process not in self._folders else self._folders[process]

    def crash(self, process: ProcessId) -> None:
        """Replaces a folder by a copy of it, while the files are open: what nobody wrote yet is not in it."""
        old = self._folders[process]
        shutil.copytree(old, self.begin(process), dirs_exist_ok=True)

    def close(self) -> None:
        """Removes everything."""
        self._root.cleanup()


class SimulatedReplica:
    """The service of one incarnation of a node."""

    def __init__(self, executor: Executor, process: Process, position: int) -> None:
        self.executor = executor
        self.process = process
        """The process of the node: a restart makes another one."""
        self.position = position
        """The number of deliveries that were executed."""
        self.reads = ReadQueue(executor)
        self.exported: tuple[int, Iterator[bytes]] | None = None
        """A state of a service with files, and its position: its other pieces are drawn by the member that gets it."""
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
        self._saved: dict[ProcessId, tuple[int, tuple[bytes, ...]]] = {}
        self._files = ServiceFolders() if issubclass(description.service, DiskService) else None
        self._joining = set(world.absent)
        """Processes that are no members yet."""
        self._compared = random.getrandbits(64)
        """Draws the positions at which services with files are saved and compared."""
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
                    self._drop(process, replica)
                continue
            if replica is None or replica.process is not running:
                if replica is not None:
                    self._drop(process, replica)
                try:
                    replica = self.replicas[process] = self._start(process, running)
                except Error as error:
                    raise ServiceBrokenError(f"{self.name_of(process)}, at its start: {error}") from error
            if not replica.position and positions and process in self._joining:
                self._join(process, replica)
            if replica.position < positions:
                moved = True
                self._execute(process, replica, positions)
        return moved

    def _join(self, process: ProcessId, replica: SimulatedReplica) -> None:
        """A member that has joined begins with the state of another one, or executes everything."""
        self._joining.discard(process)
        others = [one for one in self._list_others(process) if self.replicas[one].position]
        how = "and executes everything"
        if others and self._random.random() < JOIN_TRANSFER_RATE:
            source = self.replicas[self._random.choice(others)]
            replica.position = self._transfer(process, replica.executor, source)
            how = "with the state of another member"
        self.events.append(f"{self.name_of(process)} joined {how} at position {replica.position}")

    def _list_others(self, process: ProcessId) -> list[ProcessId]:
        topology = self._world.topology
        group = topology.group_of(process)
        assert group is not None
        return [one for one in topology.members(group) if one in self.replicas and one != process]

    def _transfer(self, process: ProcessId, executor: Executor, source: SimulatedReplica) -> int:
        """Gives a replica the state of another one; returns its position."""
        if self._files is None:
            executor.restore(source.executor.snapshot(), source.position)
            return source.position
        exported, source.exported = source.exported, None
        if exported is None or exported[0] < executor.position:
            exported = self._export(source)
        position, pieces = exported
        executor.restore(pieces, position, self._files.begin(process))
        return position

    def _export(self, source: SimulatedReplica) -> tuple[int, Iterator[bytes]]:
        """The state of a service with files, whose first piece is drawn now."""
        source.executor.save(source.position)
        return source.position, source.executor.snapshot_pieces()

    def _drop(self, process: ProcessId, replica: SimulatedReplica) -> None:
        """A crash: memory is lost, files are as they were."""
        del self.replicas[process]
        if self._files is not None:
            self._files.crash(process)
            replica.executor.close()

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
        others = self._list_others(process)
        position, how = 0, "from nothing"
        if self._files is not None:
            executor.open(self._files.open(process, is_lost))
            position, how = executor.position, "with its files"
        if others and world.incarnations[process] and (is_lost or self._random.random() < TRANSFER_RATE):
            other = self.replicas[self._random.choice(others)]
            position, how = self._transfer(process, executor, other), "with the state of another member"
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
                if payload:  # a change of members is for nodes, and no service hears of it
                    replica.executor.deliver(replica.position, destinations, payload)
            except Error as error:
                raise ServiceBrokenError(f"{self.name_of(process)}, at position {replica.position}: {error}") from error
            replica.executor.finished.clear()
            replica.position += 1
            if self._files is None or make_stream(self._compared, group, replica.position).random() < COMPARE_RATE:
                if self._files is not None:
                    replica.executor.save(replica.position)
                self._compare(group, process, replica, payload)
            self._shuffle_sets(replica.executor)
            if self._random.random() < SAVE_RATE:
                self._save(process, replica)

    def _save(self, process: ProcessId, replica: SimulatedReplica) -> None:
        if self._files is not None:
            replica.exported = self._export(replica)
        else:
            self._saved[process] = (replica.position, replica.executor.snapshot())

    def digest(self) -> str:
        """A digest of all states that were compared."""
        states = sorted((group, position, state) for (group, position), (state, _) in self._digests.items())
        return blake2b(repr(states).encode(), digest_size=DIGEST_BYTES).hexdigest()

    def close(self) -> None:
        """Removes the files of services."""
        if self._files is not None:
            for replica in self.replicas.values():
                replica.executor.close()
            self._files.close()

    def _compare(self, group: GroupId, process: ProcessId, replica: SimulatedReplica, payload: bytes) -> None:
        digest = blake2b(b"".join(replica.executor.snapshot()), digest_size=DIGEST_BYTES).digest()
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

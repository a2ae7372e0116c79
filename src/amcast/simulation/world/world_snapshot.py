"""Snapshots of a whole world, from which an exhaustive search tries every action that could happen next.

A world snapshot holds one process snapshot per process (its state, timers, disk and deliveries) and all packets in
flight. A step changes one process, so a new world snapshot shares all others with the one before it, restoring loads
only those that differ, and only the changed one is encoded anew. Time stands still at 0: two paths to equal states
reach the same state, however long they took.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from amcast.kernel.effects import About, Effect
from amcast.kernel.events import Event
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Links
from amcast.kernel.topology import Topology
from amcast.simulation.monitors.monitors import Monitoring
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.world import Envelope, Pair, World

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


Packet = tuple[int, Envelope]


class ProcessSnapshot(NamedTuple):
    """One process with its timers, disk and deliveries."""

    state: State | None
    """None: the process is down."""
    incarnation: int
    timers: tuple[str, ...]
    records: tuple[Record, ...]
    waiting: tuple[Effect, ...]
    history: tuple[MessageId, ...]
    code: bytes
    """All fields above, encoded."""


class WorldSnapshot(NamedTuple):
    """All processes and all packets in flight."""

    cells: tuple[ProcessSnapshot, ...]
    """In the order of `topology.processes`."""
    links: dict[Pair, tuple[Packet, ...]]
    stale: frozenset[Pair]
    multicasts: tuple[Message, ...]
    """Sorted by id."""


class BranchingWorld(World):
    """A world that records which processes its actions changed."""

    def __init__(
        self,
        topology: Topology,
        make: Callable[[ProcessId], Process],
        scheduler: PendingActions,
        monitoring: Monitoring | None = None,
    ) -> None:
        super().__init__(
            topology,
            make,
            scheduler,
            monitoring=None if monitoring is None else replace(monitoring, rehearse_every=0),
        )
        self.changed: set[ProcessId] = set()

    def step(self, process: ProcessId, events: Sequence[Event]) -> None:
        self.changed.add(process)
        super().step(process, events)

    def complete_writes(self, process: ProcessId, count: int = 0) -> None:
        self.changed.add(process)
        super().complete_writes(process, count)

    def crash(self, process: ProcessId, kept: int = 0, torn: int = 0) -> None:
        self.changed.add(process)
        super().crash(process, kept, torn)

    def restore_process(self, process: ProcessId, cell: ProcessSnapshot) -> None:
        """Restores a process from its snapshot, as a new object, so that no state of another branch remains."""
        if cell.state is None:
            self.processes.pop(process, None)
            self.down[process] = 0
        else:
            self.down.pop(process, None)
            self.processes[process] = self._make(process)
            self.processes[process].restore(cell.state)
        self.incarnations[process] = cell.incarnation
        self.timers[process] = dict.fromkeys(cell.timers, 0)
        disk = self.disks[process]
        disk.records = list(cell.records)
        disk.waiting = deque(cell.waiting)
        disk.busy = bool(cell.waiting)
        (self._waiting_for_disk.add if cell.waiting else self._waiting_for_disk.discard)(process)
        self.history[process] = list(cell.history)
        self.positions[process] = len(cell.history)

    def snapshot_process(self, process: ProcessId) -> ProcessSnapshot:
        """Takes the snapshot of a process."""
        up = self.processes.get(process)
        disk = self.disks[process]
        parts: tuple[Any, ...] = (
            None if up is None else up.snapshot(),
            self.incarnations[process],
            tuple(sorted(self.timers[process])),
            tuple(disk.records),
            tuple(disk.waiting),
            tuple(self.history.get(process, ())),
        )
        return ProcessSnapshot._make((*parts, _encode(parts)))

    def clear_deliveries(self) -> None:
        """Drops bookkeeping that a search does not use; `rebuild_undelivered` restores it from the histories."""
        self.undelivered.clear()
        self.undelivered_messages.clear()
        self.completed.clear()
        self.resolved.clear()
        self._cut_below.clear()

    def rebuild_undelivered(self, multicasts: Sequence[Message]) -> None:
        """Rebuilds `undelivered` from the histories."""
        self.clear_deliveries()
        for message in multicasts:
            addressed = self.topology.processes_of(message.destinations)
            missing = {process for process in addressed if message.id not in self.history[process]}
            if missing:
                self.undelivered[message.id] = missing
                self.undelivered_messages[message.id] = message


class BranchingActions(PendingActions):
    """An untimed scheduler that can take and restore snapshots of its world."""

    def __init__(
        self,
        topology: Topology,
        make: Callable[[ProcessId], Process],
        links: Links,
        monitoring: Monitoring | None = None,
    ) -> None:
        super().__init__(links, tick_ns=0)
        self.branching_world = BranchingWorld(topology, make, self, monitoring)
        self.world = self.branching_world
        self._places = {process: place for place, process in enumerate(topology.processes)}
        self._restored: WorldSnapshot | None = None
        """The snapshot that was restored last; only `changed` processes differ from it."""
        self.offered: list[Packet] = []
        """Packets that were sent since the list was last emptied."""

    def take_snapshot(self) -> WorldSnapshot:
        """Takes a snapshot of the world."""
        world = self.branching_world
        before = self._restored
        if before is None:
            cells = tuple(world.snapshot_process(process) for process in self._places)
        else:
            changed = list(before.cells)
            for process in world.changed:
                changed[self._places[process]] = world.snapshot_process(process)
            cells = tuple(changed)
        multicasts = before.multicasts if before is not None else ()
        if len(multicasts) != len(self.multicasts):
            multicasts = tuple(message for _, message in sorted(self.multicasts.items()))
        return WorldSnapshot(cells, self.links.copy(), frozenset(world.stale), multicasts)

    def restore_snapshot(self, snapshot: WorldSnapshot) -> None:
        """Restores the world from a snapshot."""
        world = self.branching_world
        before = self._restored
        for process, place in self._places.items():
            cell = snapshot.cells[place]
            if before is None or cell is not before.cells[place] or process in world.changed:
                self._restore_process(process, cell)
        world.changed.clear()
        world.clear_deliveries()
        if world.monitors is not None:
            world.monitors.clear()
        self.links = snapshot.links.copy()
        world.stale = set(snapshot.stale)
        if before is not snapshot or len(self.multicasts) != len(snapshot.multicasts):
            self.multicasts = {message.id: message for message in snapshot.multicasts}
        self._restored = snapshot

    def offer_packet(self, number: int, envelope: Envelope) -> None:
        self.offered.append((number, envelope))
        super().offer_packet(number, envelope)

    def offer_packets(
        self, number: int, source: ProcessId, targets: Sequence[ProcessId], body: Body, about: About, size: int
    ) -> None:
        for place, target in enumerate(targets):
            self.offer_packet(number + place, (source, target, body, about, size, self.world.now))

    def _restore_process(self, process: ProcessId, cell: ProcessSnapshot) -> None:
        for name in self.world.timers[process]:
            self.timers.pop((process, name), None)
        for name in cell.timers:
            self.timers[(process, name)] = (0, 0, 0)
        self.branching_world.restore_process(process, cell)

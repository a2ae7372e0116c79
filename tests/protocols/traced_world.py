"""A world that keeps traces as live hosts do: what was delivered waits in memory, and is written before a log forgets.

A process that is killed loses what waits. In its next incarnation it records again what its log tells it again, from
the first position on that its trace does not have. So every position of a group should end up in the trace of some
member, whoever is killed when (`live/host/host.py`, `live/host/delivery_sink.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from amcast.kernel.effects import Deliver, Effect, Persist
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.simulation.world.disk import Disk
from amcast.simulation.world.world import World


class TracedDisk(Disk):
    """Tells when a record becomes durable that ends something: the trace was written just before."""

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__()
        self._write = write

    def keep(self, effect: Persist) -> None:
        if effect.after_deliveries:
            self._write()
        super().store(effect)


class TracedWorld(World):
    """Remembers whose trace has which positions."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        everybody = self.topology.processes
        self.traces: dict[ProcessId, set[int]] = {process: set() for process in everybody}
        """What is in files."""
        self.unwritten: dict[ProcessId, set[int]] = {process: set() for process in everybody}
        self.recorded: dict[ProcessId, int] = dict.fromkeys(everybody, 0)
        """A process tells its trace what it delivers from this position on."""
        self.disks = {process: TracedDisk(partial(self._write, process)) for process in everybody}

    def lost(self, group: GroupId) -> list[int]:
        """Positions that no trace has, though a member is beyond them."""
        members = self.topology.members(group)
        told = set[int]().union(*(self.traces[member] | self.unwritten[member] for member in members))
        inside = [self.processes[member] for member in members if member in self.processes]
        reached = max(getattr(process, "protocol", process).position for process in inside)
        return [position for position in range(reached) if position not in told]

    def crash(self, process: ProcessId, kept: int = 0) -> None:
        super().crash(process, kept)
        self.unwritten[process].clear()
        self.recorded[process] = max(self.traces[process], default=-1) + 1

    def _write(self, process: ProcessId) -> None:
        self.traces[process] |= self.unwritten[process]
        self.unwritten[process].clear()

    def _admit(self, process: ProcessId, effect: Effect) -> None:
        if type(effect) is Persist and effect.replaces:
            self._write(process)
        super()._admit(process, effect)

    def _deliver(self, process: ProcessId, effect: Deliver) -> None:
        if effect.message_count < 0 and effect.position >= self.recorded[process]:
            self.unwritten[process].add(effect.position)
            self.recorded[process] = effect.position + 1
        super()._deliver(process, effect)

    def _note(
        self, process: ProcessId, name: str, message: MessageId | None = None, value: float | None = None
    ) -> None:
        if name == "installed" and value is not None:
            self.recorded[process] = max(self.recorded[process], int(value))
        super()._note(process, name, message, value)

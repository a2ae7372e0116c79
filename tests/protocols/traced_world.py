"""A simulated world that keeps traces as live hosts do: deliveries are buffered, and written before a log is truncated.

A killed process loses its buffer. Its next incarnation records the deliveries that its log repeats, from the first
position that its trace lacks. So every position of a group must end up in the trace of some member, whatever the
schedule of kills (`live/host/host.py`, `live/host/delivery_sink.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from amcast.kernel.effects import Deliver, Effect, Persist
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.simulation.world.disk import Disk
from amcast.simulation.world.world import World


class TracedDisk(Disk):
    """Writes the trace just before a record that follows deliveries becomes durable."""

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__()
        self._write = write

    def store(self, effect: Persist, limit: int = 1) -> None:
        if effect.after_deliveries:
            self._write()
        super().store(effect, limit)


class TracedWorld(World):
    """Knows the positions in the trace of each process."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        processes = self.topology.processes
        self.traces: dict[ProcessId, set[int]] = {process: set() for process in processes}
        """Positions in files."""
        self.unwritten: dict[ProcessId, set[int]] = {process: set() for process in processes}
        self.recorded: dict[ProcessId, int] = dict.fromkeys(processes, 0)
        """The process records deliveries from this position on."""
        self.disks = {process: TracedDisk(partial(self._write, process)) for process in processes}

    def list_lost_positions(self, group: GroupId) -> list[int]:
        """Positions that are in no trace although a member is beyond them."""
        members = self.topology.members(group)
        traced = set[int]().union(*(self.traces[member] | self.unwritten[member] for member in members))
        inside = [self.processes[member] for member in members if member in self.processes]
        reached = max(getattr(process, "protocol", process).position for process in inside)
        return [position for position in range(reached) if position not in traced]

    def crash(self, process: ProcessId, kept: int = 0, torn: int = 0) -> None:
        super().crash(process, kept, torn)
        self.unwritten[process].clear()
        self.recorded[process] = max(self.traces[process], default=-1) + 1

    def _write(self, process: ProcessId) -> None:
        self.traces[process] |= self.unwritten[process]
        self.unwritten[process].clear()

    def _queue_or_execute(self, process: ProcessId, effect: Effect) -> None:
        if type(effect) is Persist and effect.replaces:
            self._write(process)
        super()._queue_or_execute(process, effect)

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

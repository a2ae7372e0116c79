"""The monitor of reads: whoever may read has delivered all that its group had delivered when the read began.

*Theorem.* When a process states that its user may read (`ReadReady`), it has delivered everything that any member of
its group had delivered before the read began. *Proof*: a majority of the group had accepted it by then and keeps it;
the majority that reports to the reader contains one of these, and the reader waits for all that is reported
(`parts/node/read_index.py`). QED. It is more than users are promised: what nobody was answered for may be missing.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology

Report = Callable[[ProcessId, str, str], None]
"""Takes the process, the rule that it broke, and how."""


class ReadWorld(Protocol):
    """What the monitor reads of a world."""

    @property
    def positions(self) -> Mapping[ProcessId, int]: ...

    @property
    def topology(self) -> Topology: ...


class ReadMonitor:
    """The reads that are open, and what each must contain."""

    def __init__(self, report: Report, world: ReadWorld) -> None:
        self._report = report
        self._world = world
        self._needed: dict[tuple[ProcessId, int], tuple[int, ProcessId]] = {}
        """By process and number of a read: the furthest position of its group, and who was there."""

    def hear_read(self, process: ProcessId, number: int) -> None:
        """A process is asked for a read."""
        group = self._world.topology.group_of(process)
        assert group is not None, f"process {process} is in no group and is read"
        positions = self._world.positions
        members = self._world.topology.members(group)
        self._needed[(process, number)] = max((positions[member], member) for member in members)

    def hear_ready(self, process: ProcessId, number: int) -> None:
        """A process states that its user may read."""
        needed, member = self._needed.pop((process, number), (0, process))
        position = self._world.positions[process]
        if position < needed:
            sentence = f"lets its user read after {position} deliveries; process {member} had made {needed} before"
            self._report(process, "reads", sentence)

    def forget(self, process: ProcessId) -> None:
        """A process restarts: its reads are gone."""
        self._needed = {read: needed for read, needed in self._needed.items() if read[0] != process}

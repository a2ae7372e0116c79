"""What a driver tells about a run, while it runs.

A driver calls one method per fact; rows are plain tuples in the order of the table's columns without `run`, which is
the same in every row of a run and is added where rows become files. A recorder decides what becomes of them: kept in
memory (`Recorder` itself), or written to a run folder (`trace/run_folder.py`).
"""

from collections.abc import Sequence
from math import inf

from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message

Row = tuple[object, ...]


class Recorder:
    """Keeps everything in memory: for tests, fuzzing and small runs."""

    wants_packets: bool = True
    """False spares the driver the work of measuring packets."""
    sample_every: int = 1
    """Deliveries are sampled: those of messages whose id is a multiple of this, at every process alike."""

    max_buffered_rows: float = inf
    """So many rows of one table may wait in memory; then they are `flushed`."""

    def __init__(self) -> None:
        self.processes: list[Row] = []
        self.multicasts: list[Row] = []
        self.deliveries: list[Row] = []
        self.packets: list[Row] = []
        self.notes: list[Row] = []

    def flush_table(self, table: str, rows: list[Row]) -> None:
        """Too many rows wait; whoever takes them empties the list."""
        raise AssertionError(f"rows of {table} wait for nobody")

    def record_process(
        self, process: ProcessId, group: GroupId | None, region: str = "", crashed_at_ns: int | None = None
    ) -> None:
        """Once per process, at the end, when it is known who stayed down."""
        self.processes.append((process, group, region, crashed_at_ns))

    def record_multicast(
        self, message: Message, at_ns: int, session: int | None = None, sequence: int | None = None
    ) -> None:
        rows = self.multicasts
        rows.append((message.id, message.sender, message.destinations, at_ns, len(message.payload), session, sequence))
        if len(rows) >= self.max_buffered_rows:
            self.flush_table("multicasts", rows)

    def record_delivery(
        self,
        process: ProcessId,
        group: GroupId,
        position: int,
        message: Message,
        at_ns: int,
        rank_time: int | None = None,
        rank_tie: int | None = None,
        multicast_ns: int | None = None,
        committed_ns: int | None = None,
    ) -> None:
        if self.sample_every > 1 and message.id % self.sample_every:
            return
        rows = self.deliveries
        rows.append(
            (
                process,
                group,
                position,
                message.id,
                at_ns,
                rank_time,
                rank_tie,
                multicast_ns,
                committed_ns,
                message.destinations,
            )
        )
        if len(rows) >= self.max_buffered_rows:
            self.flush_table("deliveries", rows)

    def record_packet(
        self,
        about: About,
        body: str,
        source: ProcessId,
        target: ProcessId,
        size: int,
        sent_ns: int,
        received_ns: int | None,
    ) -> None:
        """Once per packet, when its fate is known: received, or lost (None)."""
        self.record_packets(about, body, source, (target,), size, sent_ns, received_ns)

    def record_packets(
        self,
        about: About,
        body: str,
        source: ProcessId,
        targets: Sequence[ProcessId],
        size: int,
        sent_ns: int,
        received_ns: int | None,
    ) -> None:
        """The same for one body that reached several targets at once."""
        rows = self.packets
        about, several = (None, about) if type(about) is tuple else (about, None)
        for target in targets:
            rows.append((about, body, source, target, size, sent_ns, received_ns, None, None, several))
        if len(rows) >= self.max_buffered_rows:
            self.flush_table("packets", rows)

    def record_note(
        self,
        process: ProcessId,
        at_ns: int,
        name: str,
        message: MessageId | None = None,
        value: float | None = None,
    ) -> None:
        rows = self.notes
        rows.append((process, at_ns, name, message, value))
        if len(rows) >= self.max_buffered_rows:
            self.flush_table("notes", rows)

"""Records the events of a run while it runs.

A driver (the simulator or a live node) calls one method per event. Rows are plain tuples in the order of the table's
columns without `run`, which is the same in every row and is added when rows are written. `Recorder` keeps rows in
memory; `trace/run_folder.py` writes them to a run folder.
"""

from collections.abc import Sequence
from math import inf

from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message

Row = tuple[object, ...]


class Recorder:
    """Keeps all rows in memory: for tests, fuzzing and small runs."""

    wants_packets: bool = True
    """False spares the driver the work of measuring packets."""
    sample_every: int = 1
    """Deliveries are sampled: only messages whose id is a multiple of this are recorded, at every process alike."""

    has_answers: bool = False
    """Whether the senders of this run record answers. A driver whose senders do sets it: a message without an answer is
    then known to be unanswered."""

    max_buffered_rows: float = inf
    """A table with this many rows in memory is flushed."""

    def __init__(self) -> None:
        self.processes: list[Row] = []
        self.multicasts: list[Row] = []
        self.deliveries: list[Row] = []
        self.answers: list[Row] = []
        self.packets: list[Row] = []
        self.notes: list[Row] = []

    def flush_table(self, table: str, rows: list[Row]) -> None:
        """Takes the buffered rows of a table and empties the list."""
        raise AssertionError(f"{len(rows)} rows of {table} are buffered, and this recorder writes none")

    def record_process(
        self,
        process: ProcessId,
        group: GroupId | None,
        region: str = "",
        crashed_at_ns: int | None = None,
        host: str | None = None,
    ) -> None:
        """Called once per process, at the end, when it is known which processes stayed down. `host`: whose clock the
        process reads; None if all processes read one clock."""
        self.processes.append((process, group, region, crashed_at_ns, host))

    def record_multicast(
        self, message: Message, at_ns: int, session: int | None = None, sequence: int | None = None
    ) -> None:
        rows = self.multicasts
        rows.append((message.id, message.sender, message.destinations, at_ns, len(message.payload), session, sequence))
        if len(rows) >= self.max_buffered_rows:
            self.flush_table("multicasts", rows)

    def record_answer(self, message: MessageId, at_ns: int) -> None:
        """Called when a message is answered to its sender."""
        rows = self.answers
        rows.append((message, at_ns))
        if len(rows) >= self.max_buffered_rows:
            self.flush_table("answers", rows)

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
        """Called once per packet, when its fate is known: received, or lost (None)."""
        rows = self.packets
        about, messages = (None, about) if type(about) is tuple else (about, None)
        rows.append((about, body, source, target, size, sent_ns, received_ns, None, None, messages))
        if len(rows) >= self.max_buffered_rows:
            self.flush_table("packets", rows)

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
        """`record_packet` for one body that several targets received at once."""
        rows = self.packets
        about, messages = (None, about) if type(about) is tuple else (about, None)
        for target in targets:
            rows.append((about, body, source, target, size, sent_ns, received_ns, None, None, messages))
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

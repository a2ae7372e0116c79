"""The monitors of one world: they hear every packet that leaves, every delivery and every disk that becomes idle.

Restart equivalence: now and then, when a disk is idle, the process is rebuilt from its records alone and asked for a
promise. Its answers are held against everything that the process has said: whatever it told others must survive a
restart. The rebuilt process is thrown away.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from amcast.kernel.effects import Deliver, Effect, Note, Send, SendEach
from amcast.kernel.events import Event, Receive, Started
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Record
from amcast.kernel.process import Process
from amcast.kernel.statements import StatementTable
from amcast.kernel.topology import Topology
from amcast.simulation.monitors.closings import ClosingMonitor
from amcast.simulation.monitors.durable_state import DurableState, RetainedDeliveries
from amcast.simulation.monitors.ledger import Ledger
from amcast.simulation.monitors.readings import ReadMonitor

Rank = tuple[int, int]
IDLE_DISKS_PER_REHEARSAL: Final = 12
"""How many times the disk of a process becomes idle between two rehearsals of its restart."""


@dataclass(frozen=True)
class Monitoring:
    """What the monitors of a run need to know of its protocol."""

    table: StatementTable
    make: Callable[[ProcessId], Process]
    """Builds a process, as the world does."""
    is_ranked: bool
    """Whether all processes deliver a message with the same rank."""
    discards: bool = False
    """Members change: a process discards what an instance delivers after its last message."""
    rehearse_every: int = IDLE_DISKS_PER_REHEARSAL
    """0: restarts are not rehearsed."""
    answers_closed: bool = False
    """Nodes answer when messages are closed (`parts/node/real_time_order.py`), and no group may be lost."""


class MonitoredDisk(Protocol):
    """The durable records of a process, and the effects that wait for others."""

    @property
    def records(self) -> list[Record]: ...

    @property
    def waiting(self) -> Iterable[Effect]: ...


class MonitoredWorld(Protocol):
    """What monitors read of a world."""

    steps: int

    @property
    def disks(self) -> Mapping[ProcessId, MonitoredDisk]: ...

    @property
    def processes(self) -> Mapping[ProcessId, Process]: ...

    @property
    def positions(self) -> Mapping[ProcessId, int]: ...

    @property
    def history(self) -> Mapping[ProcessId, Sequence[MessageId]]: ...

    @property
    def topology(self) -> Topology: ...

    def report_violation(self, process: ProcessId, sentence: str) -> None: ...


class Monitors:
    """Hears a world and reports broken rules."""

    def __init__(self, monitoring: Monitoring, world: MonitoredWorld) -> None:
        self._table = monitoring.table
        self._make = monitoring.make
        self._is_ranked = monitoring.is_ranked
        self._rehearse_every = monitoring.rehearse_every
        self._world = world
        self._idle_counts: dict[ProcessId, int] = {}
        """How many times each disk became idle."""
        self._rehearsed_first: dict[ProcessId, Record] = {}
        """By process: the first of the records from which a restart was rehearsed last."""
        self._highest_ranks: dict[ProcessId, tuple[int, Rank, MessageId]] = {}
        """By process: position, rank and message of the delivery at its highest position."""
        self._durable: dict[ProcessId, DurableState] = {}
        self._discards = monitoring.discards
        self._heard_losses: set[tuple[ProcessId, type[Body], tuple[int, ...]]] = set()
        """By process and type of body: what it has heard of losses of memory."""
        self._has_losses = False
        self._installed: dict[ProcessId, int] = {}
        """By process: the highest position of a state of others that it had installed when it crashed."""
        self._closings: ClosingMonitor | None = None
        if monitoring.answers_closed:
            self._closings = ClosingMonitor(self._report, world.topology.group_of)
        self._reads = ReadMonitor(self._report, world)
        self._ledger = self._make_ledger(is_partial=False)

    def _make_ledger(self, is_partial: bool) -> Ledger:
        return Ledger(
            self._report,
            self._follow_disk,
            self._list_delivered,
            is_partial,
            self._discards,
            self._holds_message,
            self._find_own_clock,
        )

    def clear(self) -> None:
        """Forgets everything that was said, for a world that continues from another state."""
        self._durable = {}
        self._highest_ranks = {}
        self._closings = None
        self._ledger = self._make_ledger(is_partial=True)

    def hear_send(self, source: ProcessId, effect: Send) -> None:
        """A body leaves its process; all records before it are durable."""
        state = self._table.bodies.get(type(effect.body))
        if state is not None:
            self._ledger.targets = effect.targets
            state(self._ledger, source, effect.body)

    def hear_delivery(self, process: ProcessId, effect: Deliver) -> None:
        if self._closings is not None:
            self._closings.hear_delivery(process, effect)
        if self._is_ranked and effect.rank_time is not None:
            rank = (effect.rank_time, effect.rank_tie or 0)
            self._ledger.agree(process, "the rank of message", effect.message.id, rank)
            if not self._discards:  # each configuration counts ranks anew
                self._check_rank(process, effect, rank)
                self._ledger.pass_own_clock(process, rank[0])
                self._ledger.deliver(process, rank[1], rank)
        if self._table.delivery is not None and not self._discards:
            self._table.delivery(self._ledger, process, effect)

    def hear_closing(self, process: ProcessId, position: int) -> None:
        """A process states that what its group has delivered before a position is closed."""
        if self._closings is not None:
            self._closings.hear_closing(process, position)

    def hear_answer(self, process: ProcessId, message: MessageId) -> None:
        """A process learns that its message is delivered."""
        if self._closings is not None:
            self._closings.hear_answer(message, process)

    def hear_read(self, process: ProcessId, number: int) -> None:
        """The user of a process begins a read."""
        self._reads.hear_read(process, number)

    def hear_read_ready(self, process: ProcessId, number: int) -> None:
        """A process states that its user may read."""
        self._reads.hear_ready(process, number)

    def hear_step(self, process: ProcessId, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        """What a process sends in the step in which it is asked something. Of several events, the later ones may take
        away what the first ones ask for."""
        event = events[0]
        if self._has_losses:
            self._follow_losses(process, events)
        if type(event) is Started and event.records and not self._discards:
            self._check_skipped(process, effects)
        if self._discards or len(events) > 1 or type(event) is not Receive:
            return
        duty = self._table.duties.get(type(event.body))
        if duty is None:
            return
        answers = duty(self._ledger, process, event.sender, event.body)
        if answers is None or any(
            type(effect) is Send and event.sender in effect.targets and answers(effect.body) for effect in effects
        ):
            return
        self._report(process, "answers", f"does not answer {event.body!r} of process {event.sender}")

    def _check_skipped(self, process: ProcessId, effects: Sequence[Effect]) -> None:
        """A restart from records repeats every delivery that has not left, or may not have: nobody else will."""
        reached = self._find_left(process)
        for effect in effects:
            if type(effect) is Note and effect.name == "installed" and (effect.value or 0) > reached:
                sentence = f"restarts at position {int(effect.value or 0)}; deliveries from {reached} on never left it"
                self._report(process, "skipped deliveries", sentence)

    def _check_rank(self, process: ProcessId, effect: Deliver, rank: Rank) -> None:
        """A process delivers in the order of ranks; those that it repeats after a restart were judged before."""
        position, highest, message = self._highest_ranks.get(process, (-1, (-1, 0), -1))
        if effect.position <= position:
            return
        if rank < highest:
            sentence = f"delivers message {effect.message.id} with rank {rank} after message {message} with {highest}"
            self._report(process, "ascending ranks", sentence)
        self._highest_ranks[process] = (effect.position, rank, effect.message.id)

    def find_promise(self, process: ProcessId) -> int:
        """The highest promise that a process has sent, or implied by a vote; -1 if it sent none."""
        return self._ledger.find_promise(process)

    def _follow_losses(self, process: ProcessId, events: Sequence[Event]) -> None:
        """Looks at what a process relies on once it has heard of another loss of memory."""
        for event in events:
            if type(event) is not Receive:
                continue
            find = self._table.losses.get(type(event.body))
            if find is not None:
                report = (process, type(event.body), find(event.body))
                if any(report[2]) and report not in self._heard_losses:
                    self._heard_losses.add(report)
                    self._hear_snapshot(process)

    def hear_boot(self, process: ProcessId) -> None:
        """A server has begun its first incarnation, and all that it wrote is durable."""
        if self._table.has_first_record and not self._world.disks[process].records:
            self._report(process, "first record", "begins without a record, as if it had lost its memory")

    def hear_crash(self, process: ProcessId) -> None:
        """A process crashes. Records of a state that another member sent may be durable, though the process never told
        that it had installed it."""
        self._installed[process] = self._find_left(process)

    def hear_checkpoint(self, process: ProcessId, record: Record) -> None:
        """A process writes a record that replaces all others."""
        state = self._table.records.get(type(record))
        if state is None or self._discards:
            return
        retained = RetainedDeliveries()
        state(retained, process, record)
        left = self._find_left(process)
        if retained.first > left:
            sentence = f"has deliveries from {retained.first} on in a checkpoint; those from {left} on have not left it"
            self._report(process, "skipped deliveries", sentence)

    def _find_left(self, process: ProcessId) -> int:
        """The position before which all deliveries have left a process, or are those of a state that it has installed:
        it may wait for its disk to say so."""
        installed = [
            int(effect.value or 0)
            for effect in self._world.disks[process].waiting
            if type(effect) is Note and effect.name == "installed"
        ]
        return max(self._world.positions[process], *installed, self._installed.get(process, 0))

    def hear_start(self, process: ProcessId) -> None:
        """A process begins an incarnation."""
        self._reads.forget(process)
        self._ledger.start(process)

    def hear_memory_loss(self, process: ProcessId) -> None:
        """A process begins an incarnation without its records."""
        self._has_losses = True
        self._ledger.forget(process)

    def hear_idle_disk(self, process: ProcessId, incarnation: int, now: int) -> None:
        """All effects of a process have happened, and all its records are durable. A restart is rehearsed now and then,
        and once for each checkpoint, where most can be forgotten."""
        records = self._world.disks[process].records
        if self._table.probe is None or not self._rehearse_every or not records:
            return
        count = self._idle_counts.get(process, 0) + 1
        self._idle_counts[process] = count
        if records[0] is not self._rehearsed_first.get(process) or count % self._rehearse_every == 0:
            self._rehearsed_first[process] = records[0]
            self._hear_snapshot(process)
            self._rehearse(process, incarnation + 1, now)

    def _hear_snapshot(self, process: ProcessId, copy: Process | None = None) -> None:
        """What a process, or its rebuilt copy, relies on and has: as its snapshot shows, or that of the protocol in a
        node's."""
        if not self._table.states or self._discards:
            return
        snapshot = (copy or self._world.processes[process]).snapshot()
        for state in (snapshot, *(getattr(snapshot, name) for name in snapshot.__struct_fields__)):
            tell = self._table.states.get(type(state))
            if tell is not None:
                tell(self._ledger, process, state)

    def _rehearse(self, process: ProcessId, incarnation: int, now: int) -> None:
        """Restarts a copy of a process, and asks it for a promise that it must refuse and for one that it must give."""
        assert self._table.probe is not None
        ledger = self._ledger
        forbidden = self._table.probe(process, max(0, ledger.find_promise(process)))
        allowed = self._table.probe(process, -1)
        ledger.rehearsed = True
        try:
            copy = self._make(process)
            self._hear_rehearsal(
                process, copy.step((Started(tuple(self._world.disks[process].records), incarnation),), now)
            )
            self._hear_snapshot(process, copy)
            if forbidden is not None:
                ledger.refuses_promise = True
                self._hear_rehearsal(process, copy.step((Receive(*forbidden),), now))
                ledger.refuses_promise = False
            if allowed is not None:
                self._hear_rehearsal(process, copy.step((Receive(*allowed),), now))
        except Exception as error:  # whatever stops the copy would stop the process
            self._report(process, "restart", f"cannot restart from its records: {type(error).__name__}: {error}")
        finally:
            ledger.rehearsed = ledger.refuses_promise = False

    def _hear_rehearsal(self, process: ProcessId, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Send:
                self.hear_send(process, effect)
            elif type(effect) is SendEach:
                for send in effect.expand():
                    self.hear_send(process, send)

    def _follow_disk(self, process: ProcessId) -> DurableState:
        durable = self._durable.get(process)
        if durable is None:
            durable = self._durable[process] = DurableState(self._table)
        durable.follow(process, self._world.disks[process].records)
        return durable

    def _report(self, process: ProcessId, rule: str, sentence: str) -> None:
        self._world.report_violation(process, f"breaks the rule '{rule}' in step {self._world.steps}: {sentence}")

    def _find_own_clock(self, process: ProcessId) -> int | None:
        shown = self._world.processes[process].status() if process in self._world.processes else {}
        clock = shown.get("clock")
        return clock if isinstance(clock, int) else None

    def _holds_message(self, process: ProcessId, message: MessageId) -> bool:
        return self._world.processes[process].stored_message(message) is not None

    def _list_delivered(self, process: ProcessId) -> Sequence[MessageId]:
        return self._world.history.get(process, ())

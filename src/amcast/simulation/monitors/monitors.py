"""The monitors of one world: they hear every packet that leaves, every delivery and every disk that becomes idle.

Restart equivalence: now and then, when a disk is idle, the process is rebuilt from its records alone and asked for a
promise. Its answers are held against everything that the process has said: whatever it told others must survive a
restart. The rebuilt process is thrown away.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from amcast.kernel.effects import Deliver, Effect, Send, SendEach
from amcast.kernel.events import Receive, Started
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Record
from amcast.kernel.process import Process
from amcast.kernel.statements import StatementTable
from amcast.simulation.monitors.durable_state import DurableState
from amcast.simulation.monitors.ledger import Ledger

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


class MonitoredDisk(Protocol):
    """The durable records of a process."""

    @property
    def records(self) -> list[Record]: ...


class MonitoredWorld(Protocol):
    """What monitors read of a world."""

    steps: int

    @property
    def disks(self) -> Mapping[ProcessId, MonitoredDisk]: ...

    @property
    def history(self) -> Mapping[ProcessId, Sequence[MessageId]]: ...

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
        self._ledger = Ledger(self._report, self._follow_disk, self._list_delivered, discards=self._discards)

    def clear(self) -> None:
        """Forgets everything that was said, for a world that continues from another state."""
        self._durable = {}
        self._highest_ranks = {}
        self._ledger = Ledger(
            self._report, self._follow_disk, self._list_delivered, is_partial=True, discards=self._discards
        )

    def hear_send(self, source: ProcessId, effect: Send) -> None:
        """A body leaves its process; all records before it are durable."""
        state = self._table.bodies.get(type(effect.body))
        if state is not None:
            self._ledger.targets = effect.targets
            state(self._ledger, source, effect.body)

    def hear_delivery(self, process: ProcessId, effect: Deliver) -> None:
        if self._is_ranked and effect.rank_time is not None:
            rank = (effect.rank_time, effect.rank_tie or 0)
            self._ledger.agree(process, "the rank of message", effect.message.id, rank)
            if not self._discards:  # each configuration counts ranks anew
                self._check_rank(process, effect, rank)

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

    def hear_memory_loss(self, process: ProcessId) -> None:
        """A process begins an incarnation without its records."""
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
            self._rehearse(process, incarnation + 1, now)

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

    def _list_delivered(self, process: ProcessId) -> Sequence[MessageId]:
        return self._world.history.get(process, ())

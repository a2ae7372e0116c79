"""One number's instance of a protocol, and how a process finds its instances again in its records."""

from collections.abc import Callable, Sequence
from typing import Final

from amcast.kernel.events import Event, Started
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import decode_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.membership.messages import (
    ConfigurationRecord,
    ConfigurationStart,
    InstanceRecord,
    InstanceState,
    JoinRecord,
    SkippedBarrier,
)
from amcast.parts.ordering.delivered_set import DeliveredSet

ProcessFactory = Callable[[ProcessId, Topology], Process]

NUMBER: Final = "#"
"""How the names of timers of later numbers begin: "#2:retry"."""


class ConfigurationInstance:
    """What one number's topology runs at one process."""

    def __init__(
        self, begin: ConfigurationStart, topology: Topology, process: Process | None, incarnation: int
    ) -> None:
        self.start = begin
        self.configuration = begin.configuration
        self.topology = topology
        self.process = process
        """None where this process is no member (any more)."""
        self.incarnation = incarnation
        """The incarnation in which it was begun after a loss of memory; 0 if there was none."""
        self.base = DeliveredSet()
        """What my group delivered under earlier numbers."""
        self.base.restore(begin.delivered)
        self.skipped_barrier = False
        """A fellow's state was taken over that lies beyond the barrier: what is delivered here is worth nothing."""
        self.barrier = -1
        """My group's position at the end of this number, if a fellow told it."""
        self.own_deliveries: DeliveredSet | None = None
        """What was delivered, where the protocol cannot say."""
        if process is not None and process.delivered_set(-1) is None:
            self.own_deliveries = DeliveredSet()
        self.inbox: list[Event] = []

    def has_delivered(self, message: int) -> bool:
        """Whether my group delivered it, under this number or before."""
        if message in self.base:
            return True
        if self.skipped_barrier or self.process is None:
            return False
        return (
            message in self.own_deliveries if self.own_deliveries is not None else self.process.has_delivered(message)
        )

    def has_delivered_any(self, messages: Sequence[int]) -> bool:
        """Whether my group delivered some of them."""
        if self.base.has_any(messages):
            return True
        if self.skipped_barrier or self.process is None:
            return False
        return (
            self.own_deliveries.has_any(messages)
            if self.own_deliveries is not None
            else self.process.has_delivered_any(messages)
        )

    def timer_name(self, name: str) -> str:
        """The name under which the driver knows a timer of mine."""
        return f"{NUMBER}{self.configuration}:{name}" if self.configuration else name

    def snapshot(self) -> InstanceState:
        return InstanceState(
            self.start,
            self.incarnation,
            None if self.process is None else self.process.snapshot(),
            self.skipped_barrier,
            self.barrier,
            None if self.own_deliveries is None else self.own_deliveries.snapshot(),
        )

    @classmethod
    def from_state(cls, state: InstanceState, me: ProcessId, make: ProcessFactory) -> "ConfigurationInstance":
        topology = decode_topology(state.start.topology)
        process = None if state.process is None else make(me, topology)
        instance = cls(state.start, topology, process, state.incarnation)
        if process is not None and state.process is not None:
            process.restore(state.process)
        if instance.own_deliveries is not None and state.own_deliveries is not None:
            instance.own_deliveries.restore(state.own_deliveries)
        instance.skipped_barrier = state.skipped_barrier
        instance.barrier = state.barrier
        return instance


def recover_instances(
    records: Sequence[Record], incarnation: int, me: ProcessId, first: Topology, make: ProcessFactory, old: int
) -> list[ConfigurationInstance]:
    """The instances that records tell of, oldest first, each about to start; none if there are no records."""
    passed: dict[int, ConfigurationRecord] = {}
    kept: dict[int, list[Record]] = {}
    overtaken: set[int] = set()
    for record in records:
        match record:
            case ConfigurationRecord():
                passed[record.start.configuration] = record
            case InstanceRecord(number, replaces, inner, begin):
                if begin is not None:
                    passed, kept = {number: ConfigurationRecord(begin, b"", 0)}, {}
                if replaces:
                    kept[number] = []
                kept.setdefault(number, []).append(inner)
            case SkippedBarrier(number):
                overtaken.add(number)
            case JoinRecord():
                pass
            case _:
                kept.setdefault(0, []).append(record)
    numbers = sorted({*passed, *kept})
    found = []
    for number in numbers[-old - 1 :]:
        begun = passed.get(number)
        if begun is not None:
            begin = begun.start
        elif number + 1 in passed and passed[number + 1].before:
            begin = ConfigurationStart(number, passed[number + 1].before)
        elif number == first.configuration:
            begin = ConfigurationStart(number, encode_topology(first))
        else:
            continue
        lost = 0 if begun is None else begun.incarnation
        found.append(_reopened(begin, kept.get(number, []), incarnation, lost, me, make))
        found[-1].skipped_barrier = number in overtaken
    return found


def _reopened(
    begin: ConfigurationStart, records: list[Record], incarnation: int, lost: int, me: ProcessId, make: ProcessFactory
) -> ConfigurationInstance:
    """Nothing was said in an instance of which there is no record, unless its memory was lost."""
    topology = decode_topology(begin.topology)
    process = None if topology.group_of(me) is None else make(me, topology)
    instance = ConfigurationInstance(begin, topology, process, lost)
    instance.inbox.append(Started(tuple(records), incarnation if records or lost else 0))
    return instance

"""The instance of a protocol in one configuration, and the recovery of instances from records."""

from collections.abc import Callable, Sequence
from typing import Final

from amcast.kernel.events import Event, Started
from amcast.kernel.ids import MessageId, ProcessId, sequence_of
from amcast.kernel.message import Message, Record
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import decode_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.membership.messages import (
    ConfigurationRecord,
    ConfigurationStart,
    DoubtEnded,
    InstanceRecord,
    InstanceState,
    JoinRecord,
    SkippedBarrier,
)
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.messages import WINDOW

ProcessFactory = Callable[[ProcessId, Topology], Process]
"""Builds the protocol's process for one topology."""

TIMER_PREFIX: Final = "#"
"""The first character of timer names of configurations after 0: "#2:retry"."""


class ConfigurationInstance:
    """The protocol's process in one configuration, with what reconfiguration must know about it."""

    def __init__(self, start: ConfigurationStart, topology: Topology, process: Process | None, doubt: int) -> None:
        self.start = start
        self.configuration = start.configuration
        self.topology = topology
        self.process = process
        """None where this process is not a member of its group."""
        self.doubt = doubt
        """Above 0: the instance was started as one without memory, which was lost before this incarnation."""
        self.earlier_deliveries = DeliveredSet()
        """The messages that the group delivered in earlier configurations."""
        self.earlier_deliveries.restore(start.delivered)
        self.own_deliveries: DeliveredSet | None = None
        """The messages delivered in this configuration, where the protocol itself does not remember them."""
        if process is not None and process.delivered_set(-1) is None:
            self.own_deliveries = DeliveredSet()
        self.has_skipped_barrier = False
        """A state transfer led past the barrier: deliveries of this instance are discarded."""
        self.barrier = -1
        """The group's position at the end of this configuration, if another member announced it."""
        self.first_sequences: dict[ProcessId, int] = {}
        """Per sender: the lowest sequence number for which a destination has confirmed, in this configuration, that no
        earlier configuration delivered it."""
        self.inbox: list[Event] = []
        """Events for the process, taken in the next step."""

    def has_delivered(self, message: MessageId) -> bool:
        """Whether the group delivered a message in this configuration or an earlier one."""
        if message in self.earlier_deliveries:
            return True
        if self.has_skipped_barrier or self.process is None:
            return False
        if self.own_deliveries is not None:
            return message in self.own_deliveries
        return self.process.has_delivered(message)

    def has_delivered_any(self, messages: Sequence[MessageId]) -> bool:
        """Whether the group delivered one of these messages."""
        if self.earlier_deliveries.has_any(messages):
            return True
        if self.has_skipped_barrier or self.process is None:
            return False
        if self.own_deliveries is not None:
            return self.own_deliveries.has_any(messages)
        return self.process.has_delivered_any(messages)

    def record_confirmed(self, message: Message) -> None:
        """Records that a destination confirmed a message as not delivered in an earlier configuration."""
        sequence = sequence_of(message.id)
        self.first_sequences[message.sender] = min(sequence, self.first_sequences.get(message.sender, sequence))

    def is_newer(self, message: Message) -> bool:
        """Whether the message must be newer than this configuration: its sender can first have sent it only after a
        message of this configuration was acknowledged, because sessions run at most WINDOW ahead."""
        first = self.first_sequences.get(message.sender)
        return first is not None and sequence_of(message.id) >= first + WINDOW

    def timer_name(self, name: str) -> str:
        """The name of a timer of this instance as the driver knows it."""
        return f"{TIMER_PREFIX}{self.configuration}:{name}" if self.configuration else name

    def snapshot(self) -> InstanceState:
        return InstanceState(
            self.start,
            self.doubt,
            None if self.process is None else self.process.snapshot(),
            self.has_skipped_barrier,
            self.barrier,
            None if self.own_deliveries is None else self.own_deliveries.snapshot(),
            tuple(sorted(self.first_sequences.items())),
        )

    @classmethod
    def from_state(cls, state: InstanceState, me: ProcessId, make_process: ProcessFactory) -> "ConfigurationInstance":
        topology = decode_topology(state.start.topology)
        process = None if state.process is None else make_process(me, topology)
        instance = cls(state.start, topology, process, state.doubt)
        if process is not None and state.process is not None:
            process.restore(state.process)
        if instance.own_deliveries is not None and state.own_deliveries is not None:
            instance.own_deliveries.restore(state.own_deliveries)
        instance.has_skipped_barrier = state.skipped_barrier
        instance.barrier = state.barrier
        instance.first_sequences = dict(state.first_sequences)
        return instance


class _RecordedConfigurations:
    """The records of one process, sorted by configuration."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.started: dict[int, ConfigurationRecord] = {}
        self.inner: dict[int, list[Record]] = {}
        """Per configuration: the records of the protocol itself."""
        self.skipped: set[int] = set()
        for record in records:
            self._add(record)

    def _add(self, record: Record) -> None:
        match record:
            case ConfigurationRecord():
                self.started[record.start.configuration] = record
            case InstanceRecord(configuration, replaces, inner, start, _):
                if start is not None:
                    self.started, self.inner = {configuration: ConfigurationRecord(start, b"", 0)}, {}
                if replaces:
                    self.inner[configuration] = []
                self.inner.setdefault(configuration, []).append(inner)
            case SkippedBarrier(configuration):
                self.skipped.add(configuration)
            case JoinRecord() | DoubtEnded():
                pass
            case _:
                self.inner.setdefault(0, []).append(record)

    def start_of(self, configuration: int, initial: Topology) -> ConfigurationStart | None:
        """The start of a configuration; None if the records do not hold its topology any more."""
        if configuration in self.started:
            return self.started[configuration].start
        following = self.started.get(configuration + 1)
        if following is not None and following.before:
            return ConfigurationStart(configuration, following.before)
        if configuration == initial.configuration:
            return ConfigurationStart(configuration, encode_topology(initial))
        return None


def find_recorded_topology(records: Sequence[Record]) -> Topology | None:
    """The topology of the newest configuration that the records start; None if they start none."""
    started = _RecordedConfigurations(records).started
    return decode_topology(started[max(started)].start.topology) if started else None


def recover_instances(
    records: Sequence[Record],
    incarnation: int,
    me: ProcessId,
    initial: Topology,
    make_process: ProcessFactory,
    max_old_instances: int,
) -> list[ConfigurationInstance]:
    """The instances that the records describe, oldest first, each about to start; none if there are no records."""
    recorded = _RecordedConfigurations(records)
    instances = []
    known = {*recorded.started, *recorded.inner}
    lost = {later - 1 for later, begun in recorded.started.items() if begun.before} - known
    for configuration in sorted(known | lost)[-max_old_instances - 1 :]:
        start = recorded.start_of(configuration, initial)
        if start is None:
            continue
        begun = recorded.started.get(configuration)
        # An instance that ran and left no record was waiting for its admission after a loss of memory.
        doubt = incarnation if configuration in lost else 0 if begun is None else begun.doubt
        instance = _reopen_instance(start, recorded.inner.get(configuration, []), incarnation, doubt, me, make_process)
        instance.has_skipped_barrier = configuration in recorded.skipped
        instances.append(instance)
    return instances


def _reopen_instance(
    start: ConfigurationStart,
    records: list[Record],
    incarnation: int,
    doubt: int,
    me: ProcessId,
    make_process: ProcessFactory,
) -> ConfigurationInstance:
    """An instance without records has not sent anything, unless it was started after a loss of memory: it starts as in
    the first incarnation."""
    topology = decode_topology(start.topology)
    process = None if topology.group_of(me) is None else make_process(me, topology)
    instance = ConfigurationInstance(start, topology, process, doubt)
    instance.inbox.append(Started(tuple(records), incarnation if records or doubt else 0))
    return instance

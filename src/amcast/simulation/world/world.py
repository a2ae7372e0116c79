"""A world: processes, links, timers and disks, and what each action does to them. It chooses nothing.

Every effect that takes time becomes an offer to the scheduler (a packet in flight, a timer, a disk write); the
scheduler decides when it happens and calls back `arrive`, `fire` or `complete_writes`. Faults are actions, too. Links
are FIFO and exactly-once within one incarnation of both ends. When an incarnation ends, packets in flight are lost, and
the peer gets a LinkReset for the new incarnation before any other event from that link.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec

from amcast.kernel.checksum import crc32
from amcast.kernel.effects import (
    About,
    CancelTimer,
    Close,
    Deliver,
    Effect,
    Note,
    Persist,
    ReadReady,
    Remember,
    Resolve,
    Restart,
    Send,
    SendEach,
    SetTimer,
)
from amcast.kernel.events import (
    Event,
    Leader,
    LinkReset,
    PeerDown,
    Read,
    Receive,
    Requests,
    Started,
    StateTaken,
    Submit,
    Suspect,
    Timer,
)
from amcast.kernel.folder import FolderState
from amcast.kernel.ids import GroupId, MessageId, ProcessId, sequence_of
from amcast.kernel.message import Body, Message, Request
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import is_change, is_marker
from amcast.kernel.topology import Topology
from amcast.simulation.monitors.monitors import Monitoring, Monitors
from amcast.simulation.world.disk import Disk
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.folder import Folder
from amcast.simulation.world.log_disk import LogDisk
from amcast.trace.recorder import Recorder

Envelope = tuple[ProcessId, ProcessId, Body, About, int, int]
"""A packet in flight: source, target, body, about, size in bytes (0 if sizes are not measured), sent_ns."""

Flight = tuple[int, int, ProcessId, Sequence[ProcessId], Body, About, int, int]
"""A body in flight to several targets: kind of calendar entry, number of the first packet, source, targets, body,
about, size, sent_ns."""

Pair = tuple[ProcessId, ProcessId]


class NodeBodies(NamedTuple):
    """The bodies of nodes that their driver sends itself, or must know."""

    farewell: Callable[[int], Body] | None = None
    """Makes the body with which a process, in an incarnation, tells others that it leaves; None if nodes have none."""
    admission: tuple[type[Body], ...] = ()
    """`Spec.admission_bodies`; if there are any, servers have data folders, which their groups admit."""


POSITIONS_PER_STATE: Final = 4
"""How often the application of a simulated node takes its state."""
NO_NODES: Final = NodeBodies()
"""Bare processes."""


class Hello(Body, frozen=True):
    """The first packet on a link that begins a new incarnation. Processes see it as a LinkReset event."""

    incarnation: int


class Scheduler(Protocol):
    """Chooses when offers of a world happen, and calls the actions of the world in that order."""

    def offer_packet(self, number: int, envelope: Envelope) -> None:
        """Offers a packet."""

    def offer_packets(
        self, number: int, source: ProcessId, targets: Sequence[ProcessId], body: Body, about: About, size: int
    ) -> None:
        """Offers one body to several targets; their packets are numbered from `number` on."""

    def offer_timer(self, process: ProcessId, name: str, ticket: int, low_ns: int, high_ns: int) -> None:
        """Offers a timer; `ticket` distinguishes it from earlier timers of the same name."""

    def offer_write(self, process: ProcessId) -> None:
        """Offers a disk write: a process has records that are not durable yet."""

    def link_cut(self, source: ProcessId, target: ProcessId) -> None:
        """Drops the packets in flight on a link."""


class World:
    """The state of all processes and links. `make` builds a process, also for each new incarnation."""

    # fmt: off
    __slots__ = (
        "_boot_packets",
        "_cut_below",
        "_decode",
        "_encode",
        "_highest_incarnations",
        "_make",
        "_markers",
        "_number",
        "_sent_ns",
        "_starts",
        "_states_due",
        "_waiting_for_disk",
        "_wants_packets",
        "absent",
        "answering",
        "blocked",
        "changes",
        "closed_until",
        "closings",
        "collecting",
        "completed",
        "configurations",
        "deliveries",
        "differing",
        "disks",
        "down",
        "folders",
        "history",
        "incarnations",
        "keeps_history",
        "leaving",
        "lossless",
        "memory_losses",
        "monitors",
        "multicasts",
        "node_bodies",
        "note_counts",
        "now",
        "open_reads",
        "operator",
        "packets",
        "paused",
        "positions",
        "processes",
        "ready_reads",
        "recorder",
        "resolved",
        "scheduler",
        "skews",
        "stale",
        "steps",
        "storage",
        "timers",
        "topology",
        "undelivered",
        "undelivered_messages",
        "violations",
    )
    # fmt: on

    def __init__(
        self,
        topology: Topology,
        make: Callable[[ProcessId], Process],
        scheduler: Scheduler,
        recorder: Recorder | None = None,
        *,
        measures_sizes: bool = False,
        wire_bodies: Sequence[type[Body]] = (),
        keeps_history: bool = True,
        absent: frozenset[ProcessId] = frozenset(),
        operator: ProcessId | None = None,
        node_bodies: NodeBodies = NO_NODES,
        monitoring: Monitoring | None = None,
        storage: int = 0,
    ) -> None:
        """`storage`: the records of servers live in the real log, in segments of so many bytes on simulated files; 0:
        in a list."""
        self.topology, self.scheduler, self.recorder = topology, scheduler, recorder
        self.processes: dict[ProcessId, Process] = {}
        self.incarnations: dict[ProcessId, int] = dict.fromkeys(topology.processes, 0)
        self._highest_incarnations = dict(self.incarnations)
        self.memory_losses: dict[ProcessId, int] = {}
        """The incarnations that began without records last."""
        self.down: dict[ProcessId, int] = {}
        """Crashed processes, with the time of the crash."""
        self.absent: set[ProcessId] = set(absent)
        self.leaving: set[ProcessId] = set()
        """Processes that are no members yet or any more; processes that are being removed (`world/membership.py`)."""
        self.operator, self.changes = operator, 0
        """The client that requests changes of members, and how many it requested."""
        self.configurations: dict[ProcessId, int] = {}
        """The configuration that each process has started and made durable."""
        self.paused: set[ProcessId] = set()
        self.blocked: set[Pair] = set()
        """Links, by source and target, that hold back packets until they heal."""
        self.collecting: set[ProcessId] = set()
        """Servers that take the requests of clients as Requests events."""
        self.node_bodies = node_bodies
        self.skews: dict[ProcessId, tuple[int, float]] = {}
        """By process: how far its clock differs from real time, in nanoseconds and as a drift."""
        self.timers: dict[ProcessId, dict[str, int]] = {process: {} for process in topology.processes}
        self.storage = storage
        """Segment size of the logs of servers; 0: records live in lists."""
        self.disks: dict[ProcessId, Disk] = {process: self._make_disk(process) for process in topology.processes}
        self._boot_packets: list[tuple[ProcessId, ProcessId, Body]] | None = None
        """Bodies of the admission at the first boot, while it takes no time."""
        self.folders: dict[ProcessId, Folder | LogDisk] = {
            process: disk if type(disk := self.disks[process]) is LogDisk else Folder(1 + number)
            for number, process in enumerate(topology.servers if node_bodies.admission else ())
        }
        """The data folders of servers, if they have any, apart from their records."""
        self.stale: set[Pair] = set()
        """(source, target): the source has not received the Hello of the target's new incarnation."""
        self.history: dict[ProcessId, list[MessageId]] = {process: [] for process in topology.servers}
        """Messages that each server delivered, in order; empty without `keeps_history`."""
        self.positions: dict[ProcessId, int] = dict.fromkeys(topology.servers, 0)
        self.undelivered: dict[MessageId, set[ProcessId]] = {}
        """By message: the destination processes that have not delivered it. Messages that all delivered are removed."""
        self.undelivered_messages: dict[MessageId, Message] = {}
        """The messages of `undelivered`, by id."""
        self.violations: list[str] = []
        """Steps that no process may take, as sentences."""
        self.note_counts: dict[str, int] = {}
        """How often each note was made, by name."""
        self.resolved: list[MessageId] = []
        """Messages that clients saw resolved since a scheduler last emptied the list."""
        self.closings: dict[GroupId, list[tuple[int, int]]] = {}
        """By group: growing positions, and when a member first stated that all before is closed; with a recorder."""
        self.closed_until: dict[ProcessId, tuple[int, int]] = {}
        """By process: the position before which everything is closed, as it last stated in this incarnation; when."""
        self.answering: Callable[[ProcessId, Message], None] | None = None
        """Hears every delivery of a run whose driver answers clients in place of bare processes."""
        self.ready_reads: list[tuple[ProcessId, int, int]] = []
        """Reads that may be answered since a driver last emptied the list: process, number, position."""
        self.differing: set[ProcessId] = set()
        """Processes whose applications have another state than those of their groups."""
        self.open_reads: dict[ProcessId, set[int]] = {}
        """Reads that `begin_read` began and nothing has answered, by process that runs."""
        self.completed: list[MessageId] = []
        """Messages that every destination process delivered since a scheduler last emptied the list."""
        self._make = make
        self.now = self.multicasts = self.packets = self.deliveries = self.steps = self._number = self._starts = 0
        """The last two: the number of the last offer to the scheduler; how often processes started: numbers their
        starts and new folders."""
        self._cut_below: dict[Pair, int] = {}
        """By link: packets below this number were lost with an earlier incarnation."""
        self._markers: dict[MessageId, bool] = {}
        """The markers that were requested; whether each was delivered."""
        self._sent_ns: dict[MessageId, int] = {}
        self._states_due: list[tuple[ProcessId, int]] = []
        """Positions at which the applications of nodes are to take their states, at the end of the step."""
        self._waiting_for_disk: set[ProcessId] = set()
        """Processes with effects that wait for their disk."""
        self.keeps_history = keeps_history
        self._wants_packets = recorder is not None and recorder.wants_packets
        encodes = measures_sizes or self._wants_packets or bool(wire_bodies)
        self._encode: Callable[[Any], bytes] | None = msgspec.msgpack.Encoder().encode if encodes else None
        self._decode: Callable[[bytes], Any] | None = None
        if wire_bodies:
            self._decode = msgspec.msgpack.Decoder(reduce(or_, wire_bodies)).decode
        self.lossless = not wire_bodies
        """No packet was ever lost or is passed through the codec: `fast_arrive` may be used."""
        self.monitors = None if monitoring is None else Monitors(monitoring, self)

    def next_number(self) -> int:
        """Allocates a number for an entry of the scheduler itself."""
        self._number += 1
        return self._number

    # Actions

    def start(self, gradually: bool = False) -> None:
        """Boots every process that is a member. Nodes admit each other at once, or (`gradually`) by packets."""
        members = [process for process in self.topology.processes if process not in self.absent]
        self.down.update(dict.fromkeys(sorted(self.absent), 0))
        self.processes.update((process, self._make(process)) for process in members)
        if self.recorder is not None:
            self.recorder.has_answers = any(self.processes[client].awaits_answers for client in self.topology.clients)
        self._boot_packets = None if gradually or not self.folders else []
        for process in members:
            self.step(process, (self._start_disk(process),))
        while self._boot_packets:
            source, target, body = self._boot_packets.pop(0)
            self.step(target, (Receive(source, body),))
        self._boot_packets = None
        # A process that crashed before its first write would look like one that lost its disk.
        for process in members:
            self.complete_writes(process)
            if self.monitors is not None and self.topology.group_of(process) is not None:
                self.monitors.hear_boot(process)

    def submit(self, process: ProcessId, message: Message) -> None:
        """Lets a client a-multicast."""
        id = message.id
        assert id not in self.undelivered, f"message {id} was multicast before"
        self.undelivered[id] = set(self.topology.processes_of(message.destinations)) - self.absent
        self.undelivered_messages[id] = message
        self.multicasts += 1
        if self.storage and self.folders:
            self._allocate_client_id()
        if self.recorder is not None:
            self._sent_ns[id] = self.now
            self.recorder.record_multicast(message, self.now, message.sender, sequence_of(message.id))
        if process in self.processes:
            self.step(process, (Submit(message),))

    def _allocate_client_id(self) -> None:
        """Gives some client an id, as the servers of a live cluster do in turns once they take part."""
        server = self.topology.servers[self.multicasts % len(self.topology.servers)]
        disk, node = self.disks[server], self.processes.get(server)
        if type(disk) is LogDisk and node is not None and node.status().get("admission") == "admitted":
            fault = disk.allocate_client_id()
            if fault is not None:
                self.report_violation(server, fault)

    def arrive(self, number: int, envelope: Envelope) -> None:
        """A packet reaches its target, unless its link has begun a new incarnation meanwhile."""
        event = self._receive(number, envelope)
        if event is not None:
            self.step(envelope[1], self._collect(envelope[1], (event,)) if self.collecting else (event,))

    def fast_arrive(self, flight: Flight) -> None:
        """The fast twin of `arrive` for worlds in which nothing was lost: one body reaches its targets one after the
        other."""
        _, _, source, targets, body, about, size, sent_ns = flight
        if self._wants_packets:
            self.recorder.record_packets(about, type(body).__name__, source, targets, size, sent_ns, self.now)  # type: ignore[union-attr]
        events = (Receive(source, body),)
        for target in targets:
            self.step(target, events)

    def arrive_together(self, target: ProcessId, packets: Sequence[tuple[int, Envelope]]) -> None:
        """Several packets reach one target and are handled in one step."""
        events = [event for number, envelope in packets if (event := self._receive(number, envelope)) is not None]
        if events:
            self.step(target, self._collect(target, events) if self.collecting else events)

    def fire(self, process: ProcessId, name: str, ticket: int) -> None:
        """Fires a timer, unless it was cancelled or set again."""
        timers = self.timers[process]
        if timers.get(name) == ticket:
            del timers[name]
            self.step(process, (Timer(name),))

    def complete_writes(self, process: ProcessId, count: int = 0) -> None:
        """Makes the first `count` waiting records durable (0: all) and executes the effects that waited for them."""
        disk = self.disks[process]
        disk.busy = False
        left = count or len(disk.waiting)
        while disk.waiting:
            effect = disk.waiting[0]
            if type(effect) is Persist:
                if left == 0:
                    break
                try:
                    disk.store(effect, left)
                except OSError:
                    self.crash(process)  # the disk is full or has failed: a node stops
                    return
                left -= 1
                disk.waiting.popleft()
            else:
                disk.waiting.popleft()
                self._execute(process, effect)
        if disk.waiting:
            disk.busy = True
            self.scheduler.offer_write(process)
        else:
            self._waiting_for_disk.discard(process)
            if self.monitors is not None and process in self.processes:
                self.monitors.hear_idle_disk(process, self.incarnations[process], self.now)
        if self._states_due:
            self._take_states()

    def crash(self, process: ProcessId, kept: int = 0, torn: int = 0) -> None:
        """Crashes a process. The first `kept` waiting records are durable, though the process never learnt it; or, if
        the power is cut while they are written (`torn`), perhaps not."""
        assert process in self.processes, f"process {process} is down already"
        if self.monitors is not None:
            self.monitors.hear_crash(process)
        self.disks[process].crash(kept, torn)
        self._waiting_for_disk.discard(process)
        del self.processes[process]
        self.timers[process].clear()
        self.down[process] = self.now
        self.paused.discard(process)
        self.skews.pop(process, None)
        self.open_reads.pop(process, None)
        for peer in self.topology.processes:
            self._cut_link(process, peer)
            self._cut_link(peer, process)

    def recover(self, process: ProcessId, amnesia: bool = False, emptied: bool = False, rolled_back: int = 0) -> None:
        """Starts a new incarnation, with or (amnesia) without its records, or with a folder that somebody spoilt
        (`world/actions.py`); peers get a LinkReset before anything else."""
        assert process in self.down, f"process {process} is not down"
        disk = self.disks[process]
        self.incarnations[process] += 1
        if emptied:
            self.incarnations[process] = 0
        elif amnesia:
            # An operator who replaces a node asks its peers for the highest incarnation that it had.
            self.incarnations[process] = 1 + self._highest_incarnations[process]
            self._forget(process)
        if amnesia or emptied:
            disk.erase()
            self._replace_folder(process, is_lost=amnesia)
        disk.roll_back(rolled_back)
        self.boot(process)

    def boot(self, process: ProcessId) -> None:
        """Starts an incarnation of a crashed or new process from the records on its disk."""
        del self.down[process]
        if process in self.absent:  # it was removed, somebody starts it nevertheless, and it must stop again
            self.leaving.add(process)
        self.closed_until.pop(process, None)
        self.processes[process] = self._make(process)
        if self.monitors is not None:
            self.monitors.hear_start(process)
        started = self._start_disk(process)
        for peer in self.topology.processes:
            if peer != process:
                self.stale.discard((process, peer))
                if peer in self.processes:
                    self._cut_link(peer, process)
                    self._begin_link(process, peer)
        highest = self._highest_incarnations
        highest[process] = max(highest[process], self.incarnations[process])
        self.step(process, (started,))

    def _make_disk(self, process: ProcessId) -> Disk:
        if not self.storage or self.topology.group_of(process) is None:
            return Disk()
        return LogDisk(process, self.storage, bool(self.node_bodies.admission))

    def _start_disk(self, process: ProcessId) -> Started:
        disk = self.disks[process]
        had_records = bool(disk.records)
        incarnation = self.incarnations[process]
        if disk is self.folders.get(process):
            incarnation = 1 + self._highest_incarnations[process]  # for a folder that must be replaced
        started, fault = disk.start(incarnation)
        if fault is not None:
            self.report_violation(process, fault)
        if started.folder is not None:
            self.incarnations[process] = started.incarnation
            if started.folder.condition == "lost":
                self._forget(process)
            return started
        if had_records and not started.records:
            self._forget(process)
        return Started(started.records, started.incarnation, self._open_folder(process))

    def _open_folder(self, process: ProcessId) -> FolderState | None:
        folder = self.folders.get(process)
        if type(folder) is not Folder:
            return None
        self._starts += 1
        return folder.describe(self.incarnations[process], self.disks[process].count, self._starts)

    def _replace_folder(self, process: ProcessId, is_lost: bool) -> None:
        """Puts an empty folder in place, which an operator may have prepared (`is_lost`)."""
        folder = self.folders.get(process)
        if type(folder) is Folder:
            self.folders[process] = Folder(len(self.topology.servers) + 1 + self._starts, is_lost)
        elif type(folder) is LogDisk and is_lost:
            folder.replace(self.incarnations[process])

    def _restart(self, process: ProcessId, effect: Restart) -> None:
        """Ends an incarnation at the process' own wish, and starts the next one."""
        disk, folder = self.disks[process], self.folders[process]
        if effect.incarnation > 0 and type(folder) is LogDisk:
            try:
                folder.discard(effect.records, effect.incarnation)
            except OSError:
                self.crash(process)  # the disk is full: a node stops
                return
        self.crash(process)
        self.incarnations[process] = max(self.incarnations[process] + 1, effect.incarnation)
        if effect.incarnation > 0:
            if type(folder) is Folder:
                count = max(disk.count, effect.records)
                disk.erase()
                disk.count = count
                folder.doubt, folder.starts = "", ()
            self._forget(process)
        if disk.can_start:
            self.boot(process)

    def _forget(self, process: ProcessId) -> None:
        """Begins an incarnation without records, which the group of the process knows or will be told."""
        self.memory_losses[process] = self.incarnations[process]
        if self.monitors is not None:
            self.monitors.hear_memory_loss(process)

    def restore_from_snapshot(self, process: ProcessId) -> None:
        """Replaces a process by a copy that is restored from its snapshot, which must have the same snapshot."""
        state = self.processes[process].snapshot()
        copy = self._make(process)
        copy.restore(state)
        again = copy.snapshot()
        for name in state.__struct_fields__:
            if getattr(again, name) != getattr(state, name):
                self.report_violation(process, f"is not restored by its own snapshot: {name} differs")
        self.processes[process] = copy

    def reset_link(self, one: ProcessId, other: ProcessId) -> None:
        """Begins a new incarnation of a link both ways, as after an overflow; both ends get a LinkReset."""
        if one in self.processes and other in self.processes:
            self._cut_link(one, other)
            self._cut_link(other, one)
            self._begin_link(one, other)
            self._begin_link(other, one)

    def begin_read(self, process: ProcessId) -> None:
        """Lets the local user of a process read; the number of the read is that of the step."""
        number = self.steps + 1
        self.open_reads.setdefault(process, set()).add(number)
        if self.monitors is not None:
            self.monitors.hear_read(process, number)
        self.step(process, (Read(number),))

    def suggest(self, process: ProcessId, group: GroupId, leader: ProcessId) -> None:
        """Suggests a leader to one process."""
        if process in self.processes:
            self.step(process, (Leader(group, leader),))

    def suspect(self, process: ProcessId, group: GroupId, up: bool) -> None:
        """Reports a group as up or down to one process."""
        if process in self.processes:
            self.step(process, (Suspect(group, up),))

    def report_unreachable(self, process: ProcessId, peer: ProcessId) -> None:
        """Tells a process that nobody is at a peer's address, which may be wrong."""
        if process in self.processes:
            self.step(process, (PeerDown(peer),))

    def say_farewell(self, process: ProcessId) -> None:
        """Lets a process tell all others that it leaves in good order; it runs on until it crashes."""
        farewell = self.node_bodies.farewell
        assert farewell is not None, "nodes of this run have no farewell"
        others = tuple(peer for peer in self.topology.processes if peer != process and peer in self.processes)
        self._send(process, Send(others, farewell(self.incarnations[process])))

    # Deliveries that are due

    def list_due_deliveries(self) -> list[tuple[MessageId, ProcessId]]:
        """The deliveries that must still happen: messages of senders that are up, or that somebody delivered, at
        processes that are up."""
        pairs = []
        for message, missing in sorted(self.undelivered.items()):
            message_sent = self.undelivered_messages[message]
            delivered_by_someone = len(missing) < len(self.topology.processes_of(message_sent.destinations))
            if delivered_by_someone or message_sent.sender not in self.down:
                pairs += [(message, process) for process in sorted(missing) if process not in self.down]
        return pairs

    def find_due_message(self) -> MessageId | None:
        """The earliest message of which a delivery is due. One look suffices while the oldest open message is due, so
        a run may ask after every event."""
        return next((message for message in self.undelivered if self.is_due(message)), None)

    def is_due(self, message: MessageId | None) -> bool:
        """Whether a delivery of this message is due."""
        missing = None if message is None else self.undelivered.get(message)
        if message is None or missing is None or self.down.keys() >= missing:
            return False
        sent = self.undelivered_messages[message]
        return sent.sender not in self.down or len(missing) < len(self.topology.processes_of(sent.destinations))

    def list_busy_disks(self) -> list[ProcessId]:
        """The processes with records that are not durable yet, in the order of the topology."""
        waiting = self._waiting_for_disk
        return [process for process in self.disks if process in waiting] if len(waiting) > 1 else list(waiting)

    # Inside a step

    def _collect(self, target: ProcessId, events: Sequence[Event]) -> Sequence[Event]:
        """Replaces each run of clients' requests by one Requests event, if the target takes them so. A live node gets
        the same, but for changes of members, which come one by one."""
        if target not in self.collecting:
            return events
        collected: list[Event] = []
        for event in events:
            if not self._is_plain_request(event):
                collected.append(event)
            elif collected and type(collected[-1]) is Requests:
                collected[-1].messages.append(event.body.message)  # type: ignore[attr-defined]
            else:
                collected.append(Requests([event.body.message]))  # type: ignore[attr-defined]
        return collected

    def _is_plain_request(self, event: Event) -> bool:
        if type(event) is not Receive or type(event.body) is not Request:
            return False
        message = event.body.message
        return message.sender == event.sender in self.topology.clients and not is_change(message)

    def step(self, process: ProcessId, events: Sequence[Event]) -> None:
        """Hands events to a process; its effects happen now or wait for its disk. Raises ProcessFailedError if the
        process raises."""
        self.steps += 1
        now = self._local_time(process) if process in self.skews else self.now
        try:
            effects = self.processes[process].step(events, now)
        except Exception as error:
            raise ProcessFailedError(process, self.steps, events, error) from error
        if self.monitors is not None and events:
            self.monitors.hear_step(process, events, effects)
        if not effects:
            return
        if self._wants_packets:
            effects = self.processes[process].attribute_to_messages(effects)
        for effect in effects:
            kind = type(effect)
            if self._waiting_for_disk and process in self._waiting_for_disk:
                self._queue_or_execute(process, effect)
                if process not in self.processes:
                    return
            elif kind is Send:
                self._send(process, effect)  # type: ignore[arg-type]
            elif kind is Deliver:
                self._deliver(process, effect)  # type: ignore[arg-type]
            elif kind is Note:
                self._note(process, effect.name, effect.message, effect.value)  # type: ignore[attr-defined]
            else:
                self._queue_or_execute(process, effect)
                if process not in self.processes:
                    return
        if self._states_due:
            self._take_states()

    def _take_states(self) -> None:
        """Reports to nodes the states of their applications, which are the lists of what they received."""
        due, self._states_due = self._states_due, []
        for process, position in due:
            if process in self.processes:
                state = array("q", self.history[process][:position])
                self.step(process, (StateTaken(position, crc32(state)),))

    def _local_time(self, process: ProcessId) -> int:
        """The time that a process' clock shows."""
        offset, drift = self.skews[process]
        return max(0, self.now + offset + round(self.now * drift))

    def _queue_or_execute(self, process: ProcessId, effect: Effect) -> None:
        """Executes an effect, or queues it behind the records that it must wait for."""
        disk = self.disks[process]
        kind = type(effect)
        if kind is Remember:
            try:
                self.folders[process].remember(effect)  # type: ignore[arg-type]
            except OSError:
                self.crash(process)  # the disk is full: a node stops
        elif kind is Restart:
            self._restart(process, effect)  # type: ignore[arg-type]
        elif kind is SendEach:
            for send in effect.expand():  # type: ignore[attr-defined]
                self._queue_or_execute(process, send)
        elif kind is Persist:
            self._waiting_for_disk.add(process)
            disk.waiting.append(effect)
            if effect.replaces and self.monitors is not None:  # type: ignore[attr-defined]
                self.monitors.hear_checkpoint(process, effect.record)  # type: ignore[attr-defined]
            if not disk.busy:
                disk.busy = True
                self.scheduler.offer_write(process)
        elif disk.waiting and kind is not SetTimer and kind is not CancelTimer:
            disk.waiting.append(effect)
        else:
            self._execute(process, effect)

    def _execute(self, process: ProcessId, effect: Effect) -> None:
        if type(effect) is Send:
            self._send(process, effect)
            return
        match effect:
            case Deliver():
                self._deliver(process, effect)
            case SetTimer(name, low, high):
                if process in self.processes:  # a removed process stops within its last step
                    self._number += 1
                    self.timers[process][name] = self._number
                    self.scheduler.offer_timer(process, name, self._number, low, high)
            case CancelTimer(name):
                self.timers[process].pop(name, None)
            case Note(name, message, value):
                self._note(process, name, message, value)
            case Resolve(message, absent):
                if absent:
                    self.resolved.append(message)
                else:
                    self.resolve(message)
                    if self.monitors is not None:
                        self.monitors.hear_answer(process, message)
            case ReadReady(number):
                self._answer_read(process, number)
            case Close(position):
                self.closed_until[process] = position, self.now
                if self.monitors is not None:
                    self.monitors.hear_closing(process, position)
                if self.recorder is not None:
                    self._close(process, position)
            case _:
                raise AssertionError(f"unknown effect {effect!r}")

    def _answer_read(self, process: ProcessId, number: int) -> None:
        if number not in self.open_reads.get(process, ()):
            self.ready_reads.append((process, number, self.positions[process]))
            return
        self.open_reads[process].discard(number)
        if self.monitors is not None:
            self.monitors.hear_read_ready(process, number)

    def _send(self, source: ProcessId, effect: Send) -> None:
        body = effect.body
        targets = effect.targets
        if self._boot_packets is not None and type(body) in self.node_bodies.admission:
            self._boot_packets += [(source, target, body) for target in targets]
            return
        if self.monitors is not None:
            self.monitors.hear_send(source, effect)
        size = len(self._encode(body)) if self._encode is not None else 0
        about = self._drop_markers(body, effect.about) if self._wants_packets else effect.about
        if self.stale:
            targets = self._drop_stale_targets(source, effect, size)
        first = self._number + 1
        self._number += len(targets)
        self.packets += len(effect.targets)
        self.scheduler.offer_packets(first, source, targets, body, about, size)

    def _drop_stale_targets(self, source: ProcessId, effect: Send, size: int) -> tuple[ProcessId, ...]:
        """The targets without those whose new incarnation the source has not learnt; its packets to these are lost."""
        for target in effect.targets:
            if (source, target) in self.stale:
                self.lose_packet((source, target, effect.body, effect.about, size, self.now))
        return tuple(target for target in effect.targets if (source, target) not in self.stale)

    def _deliver(self, process: ProcessId, effect: Deliver) -> None:
        if effect.message_count >= 0:
            for one in effect.expand():
                self._deliver(process, one)
            return
        if self.monitors is not None:
            self.monitors.hear_delivery(process, effect)
        message = effect.message
        position = self.positions[process]
        if effect.position != position:
            if effect.position < position:
                self._check_replay(process, effect)
                return
            self.report_violation(
                process, f"delivered message {message.id} at position {effect.position} after {position - 1}"
            )
        self.positions[process] = effect.position + 1
        self.deliveries += 1
        if is_marker(message) and not self._markers.get(message.id):
            self._record_marker(message)
        if self.keeps_history:
            self.history[process].append(message.id)
            if self.folders and self.positions[process] % POSITIONS_PER_STATE == 0:
                self._states_due.append((process, self.positions[process]))
        if self.recorder is not None:
            self.recorder.record_delivery(
                process,
                self.topology.group_of(process),  # type: ignore[arg-type]
                effect.position,
                message,
                self.now,
                effect.rank_time,
                effect.rank_tie,
                self._sent_ns.get(message.id),
                effect.committed_ns,
            )
        self.record_delivered(process, message.id)
        if self.answering is not None:
            self.answering(process, message)

    def _record_marker(self, message: Message) -> None:
        """Counts the marker of a process without memory as a multicast, when it is first delivered: of unknown time,
        because the process may have lost its memory again since, and with it the marker."""
        self._markers[message.id] = True
        self.undelivered[message.id] = set(self.topology.processes_of(message.destinations)) - self.absent
        self.undelivered_messages[message.id] = message
        if self.recorder is not None:
            self.recorder.record_multicast(message, 0)

    @property
    def has_markers(self) -> bool:
        return any(self._markers.values())

    def _drop_markers(self, body: Body, about: About) -> About:
        """What a body is about, without markers that nobody has delivered: nobody may ever, if the process that
        requested one has lost its memory again. A trace counts a marker as a multicast when it is first delivered."""
        if type(body) is Request and is_marker(body.message):
            self._markers.setdefault(body.message.id, False)
        if about is None or not self._markers:
            return about
        if not isinstance(about, tuple):
            return about if self._markers.get(about, True) else None
        return tuple([id for id in about if self._markers.get(id, True)]) or None

    def resolve(self, message: MessageId) -> None:
        """A client knows that its message is delivered."""
        self.resolved.append(message)
        if self.recorder is not None:
            self.recorder.record_answer(message, self.now)

    def _close(self, process: ProcessId, position: int) -> None:
        """Records that a process states deliveries of its group to be closed, if it is the first one."""
        group = self.topology.group_of(process)
        assert group is not None, f"process {process} is in no group and closes position {position}"
        closings = self.closings.setdefault(group, [])
        if not closings or closings[-1][0] < position:
            closings.append((position, self.now))

    def record_delivered(self, process: ProcessId, message: MessageId) -> None:
        """Counts a message as delivered by a process; completes it after the last one."""
        missing = self.undelivered.get(message)
        if missing is not None:
            missing.discard(process)
            if not missing:
                del self.undelivered[message]
                del self.undelivered_messages[message]
                if self._sent_ns:
                    self._sent_ns.pop(message, None)
                self.completed.append(message)

    def _check_replay(self, process: ProcessId, effect: Deliver) -> None:
        """Checks that a new incarnation replays its log: the same messages at the same positions."""
        history = self.history[process]
        if self.keeps_history and effect.position < len(history) and history[effect.position] != effect.message.id:
            self.report_violation(
                process,
                f"delivered message {effect.message.id} at position {effect.position},"
                f" where it had delivered {history[effect.position]} in an earlier incarnation",
            )

    def _note(self, process: ProcessId, name: str, message: MessageId | None, value: float | None) -> None:
        self.note_counts[name] = self.note_counts.get(name, 0) + 1
        if name == "installed" and value is not None:
            self._install_snapshot(process, int(value))
        elif name == "resumed" and value is not None:
            self._check_resumption(process, int(value))
        elif name == "turned" and value is not None:
            self.configurations[process] = int(value)
        elif name in ("comparison-split", "comparison-minority") and not self._may_find_difference(process, name):
            self.report_violation(process, f"found at position {self.positions[process]} that replicas differ ({name})")
        elif name == "retired":
            self._remove_member(process)
        if self.recorder is not None:
            self.recorder.record_note(process, self.now, name, message, value)

    def _may_find_difference(self, process: ProcessId, note: str) -> bool:
        """Whether what a process notes of a comparison is so: one that differs is wrong, and the others of its group
        may not know for some time who is."""
        group = self.topology.group_of(process)
        differs = any(self.topology.group_of(one) == group for one in self.differing)
        return process in self.differing or (differs and note == "comparison-split")

    def _remove_member(self, process: ProcessId) -> None:
        """Stops a process that is no member of its group any more: it owes no delivery."""
        self.absent.add(process)
        self.leaving.discard(process)
        for message in sorted(self.undelivered):
            self.record_delivered(process, message)
        self.crash(process)

    def _install_snapshot(self, process: ProcessId, position: int) -> None:
        """Counts the prefix of a peer's snapshot as delivered."""
        group = self.topology.group_of(process)
        if group is None or position <= self.positions[process]:
            return
        longest = max(self.topology.members(group), key=lambda member: len(self.history[member]))
        prefix = self.history[longest][self.positions[process] : position]
        if self.keeps_history and len(self.history[longest]) < position:
            self.report_violation(process, f"installed a snapshot of position {position} that no member has reached")
        self.positions[process] = position
        if self.keeps_history:
            self.history[process].extend(prefix)
        for message in prefix:
            self.record_delivered(process, message)

    def _check_resumption(self, process: ProcessId, position: int) -> None:
        """Checks that a new incarnation does not skip what earlier ones have not delivered."""
        delivered = self.positions[process]
        if position > delivered:
            self.report_violation(process, f"resumed at position {position}, and had delivered {delivered} messages")

    def report_violation(self, process: ProcessId, sentence: str) -> None:
        """Records that a process took a step that no process may take."""
        self.violations.append(f"process {process} {sentence}")

    # Links

    def _receive(self, number: int, envelope: Envelope) -> Event | None:
        source, target, body, about, size, sent_ns = envelope
        if target not in self.processes or (self._cut_below and number < self._cut_below.get((source, target), 0)):
            self.lose_packet(envelope)
            return None
        if type(body) is Hello:
            return self._accept_hello(source, target)
        if self.stale and (target, source) in self.stale:
            # On a link without order a body overtook the Hello; the LinkReset comes first all the same.
            self.step(target, (cast(LinkReset, self._accept_hello(source, target)),))
        if self._wants_packets:
            self.recorder.record_packet(about, type(body).__name__, source, target, size, sent_ns, self.now)  # type: ignore[union-attr]
        if self._decode is not None:
            assert self._encode is not None
            body = self._decode(self._encode(body))
        return Receive(source, body)

    def _accept_hello(self, source: ProcessId, target: ProcessId) -> LinkReset | None:
        if (target, source) not in self.stale:
            return None
        self.stale.discard((target, source))
        return LinkReset(source, self.incarnations[source])

    def _begin_link(self, source: ProcessId, target: ProcessId) -> None:
        """Sends the Hello of a new incarnation; packets of the target are lost until it arrives."""
        self.stale.add((target, source))
        self._number += 1
        self.scheduler.offer_packet(self._number, (source, target, Hello(self.incarnations[source]), None, 0, self.now))

    def _cut_link(self, source: ProcessId, target: ProcessId) -> None:
        self.lossless = False
        self._cut_below[(source, target)] = self._number + 1
        self.scheduler.link_cut(source, target)

    def lose_packet(self, envelope: Envelope) -> None:
        source, target, body, about, size, sent_ns = envelope
        if self._wants_packets and type(body) is not Hello:
            self.recorder.record_packet(about, type(body).__name__, source, target, size, sent_ns, None)  # type: ignore[union-attr]

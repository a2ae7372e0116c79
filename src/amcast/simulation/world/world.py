"""A world: processes, links, timers and disks, and what each action does to them. It chooses nothing.

Every effect that takes time becomes an offer to the scheduler (a packet in flight, a timer, a disk write); the
scheduler decides when it happens and calls back `arrive`, `fire` or `complete_writes`. Faults are actions, too. Links
are FIFO and exactly-once within one incarnation of both ends. When an incarnation ends, packets in flight are lost, and
the peer gets a LinkReset for the new incarnation before any other event from that link.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Protocol, cast

import msgspec

from amcast.kernel.effects import About, CancelTimer, Deliver, Effect, Note, Persist, Resolve, Send, SendEach, SetTimer
from amcast.kernel.events import Event, Leader, LinkReset, Receive, Started, Submit, Suspect, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId, sequence_of
from amcast.kernel.message import Body, Message
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.simulation.world.disk import Disk
from amcast.simulation.world.membership import install_snapshot, remove_member
from amcast.trace.recorder import Recorder

Envelope = tuple[ProcessId, ProcessId, Body, About, int, int]
"""A body in flight: source, target, body, about, size in bytes (0 if nobody asked), sent_ns."""

Flight = tuple[int, int, ProcessId, Sequence[ProcessId], Body, About, int, int]
"""A body in flight to several targets: kind of calendar entry, number of the first packet, source, targets, body,
about, size, sent_ns."""

Pair = tuple[ProcessId, ProcessId]


class Hello(Body, frozen=True):
    """The first thing on a link that begins anew. Link control: processes see it as a Peer event."""

    incarnation: int


class Scheduler(Protocol):
    """Choice without physics. Offers come from the world; the scheduler calls the world's actions in its own order."""

    def offer_packet(self, number: int, envelope: Envelope) -> None:
        """A packet is in flight."""

    def offer_packets(
        self, number: int, source: ProcessId, targets: Sequence[ProcessId], body: Body, about: About, size: int
    ) -> None:
        """One body is in flight to several targets; their packets are numbered from `number` on."""

    def offer_timer(self, process: ProcessId, name: str, ticket: int, low_ns: int, high_ns: int) -> None:
        """A timer was set; `ticket` tells it from earlier ones of the same name."""

    def offer_write(self, process: ProcessId) -> None:
        """A process waits for its disk."""

    def link_cut(self, source: ProcessId, target: ProcessId) -> None:
        """What is in flight on this link is lost."""


class World:
    """The state of everything. `make` builds a process; a restarted one is built anew."""

    # fmt: off
    __slots__ = (
        "_cuts",
        "_decode",
        "_encode",
        "_held",
        "_make",
        "_number",
        "_sent_ns",
        "_wants_packets",
        "absent",
        "blocked",
        "changes",
        "completed",
        "configurations",
        "deliveries",
        "disks",
        "down",
        "history",
        "incarnations",
        "keeps_history",
        "leaving",
        "lossless",
        "multicasts",
        "note_counts",
        "now",
        "operator",
        "packets",
        "paused",
        "positions",
        "processes",
        "recorder",
        "resolved",
        "scheduler",
        "skews",
        "stale",
        "steps",
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
        wire: Sequence[type[Body]] = (),
        keeps_history: bool = True,
        absent: frozenset[ProcessId] = frozenset(),
        operator: ProcessId | None = None,
    ) -> None:
        self.topology = topology
        self.scheduler = scheduler
        self.recorder = recorder
        self.now = 0
        self.processes: dict[ProcessId, Process] = {}
        self.incarnations: dict[ProcessId, int] = dict.fromkeys(topology.processes, 0)
        self.down: dict[ProcessId, int] = {}
        """Who is down, and since when."""
        self.absent: set[ProcessId] = set(absent)
        self.leaving: set[ProcessId] = set()
        """Who is no member yet, or not any more; who is being removed (`simulation/world/membership.py`)."""
        self.operator, self.changes = operator, 0
        """The client that asks for changes of members, and how many it asked for."""
        self.configurations: dict[ProcessId, int] = {}
        """The number of the topology that a process has begun, and will not forget unless it forgets everything."""
        self.paused: set[ProcessId] = set()
        self.blocked: set[Pair] = set()
        """Links that hold everything back until they heal."""
        self.skews: dict[ProcessId, tuple[int, float]] = {}
        """Offset in nanoseconds and drift of a process' clock."""
        self.timers: dict[ProcessId, dict[str, int]] = {process: {} for process in topology.processes}
        self.disks: dict[ProcessId, Disk] = {process: Disk() for process in topology.processes}
        self.stale: set[Pair] = set()
        """(source, target): the source has not heard yet that the target began a new incarnation."""
        self.history: dict[ProcessId, list[MessageId]] = {process: [] for process in topology.servers}
        """What each process delivered, in order; empty lists when `keeps_history` is off."""
        self.positions: dict[ProcessId, int] = dict.fromkeys(topology.servers, 0)
        self.undelivered: dict[MessageId, set[ProcessId]] = {}
        """Who has not delivered yet, per message that was multicast."""
        self.undelivered_messages: dict[MessageId, Message] = {}
        """The messages in `owing`."""
        self.violations: list[str] = []
        """What a process did that no process may do, in sentences."""
        self.note_counts: dict[str, int] = {}
        """How often each name was noted."""
        self.resolved: list[MessageId] = []
        """What clients were told to be done, since somebody last emptied it."""
        self.completed: list[MessageId] = []
        """What every destination process delivered, since somebody last emptied it."""
        self.multicasts = 0
        self.packets = 0
        self.deliveries = 0
        self.steps = 0
        self._make = make
        self._number = 0
        """Rises with everything that is offered to the scheduler."""
        self._cuts: dict[Pair, int] = {}
        """Packets below this number were lost with their link."""
        self._sent_ns: dict[MessageId, int] = {}
        self._held: set[ProcessId] = set()
        """Processes some of whose effects wait for their disk."""
        self.keeps_history = keeps_history
        self._wants_packets = recorder is not None and recorder.wants_packets
        self._encode: Callable[[Any], bytes] | None = None
        if measures_sizes or self._wants_packets or wire:
            self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes], Any] | None = None
        if wire:
            self._decode = msgspec.msgpack.Decoder(reduce(or_, wire)).decode
        self.lossless = not wire
        """Nothing was ever lost: a packet that arrives is received, and that is all."""

    def next_number(self) -> int:
        """The next number, for what an scheduler adds of its own."""
        self._number += 1
        return self._number

    # Actions

    def start(self) -> None:
        """Boot every process."""
        there = [process for process in self.topology.processes if process not in self.absent]
        self.down.update(dict.fromkeys(sorted(self.absent), 0))
        self.processes.update((process, self._make(process)) for process in there)
        for process in there:
            self.step(process, (Started(),))
        # Who crashes before its disk is set up at all could not be told from who lost its memory.
        for process in there:
            self.complete_writes(process)

    def submit(self, process: ProcessId, message: Message) -> None:
        """A user a-multicasts."""
        id = message.id
        assert id not in self.undelivered, f"message {id} was multicast before"
        self.undelivered[id] = set(self.topology.processes_of(message.destinations)) - self.absent
        self.undelivered_messages[id] = message
        self.multicasts += 1
        if self.recorder is not None:
            self._sent_ns[id] = self.now
            self.recorder.record_multicast(message, self.now, message.sender, sequence_of(message.id))
        if process in self.processes:
            self.step(process, (Submit(message),))

    def arrive(self, number: int, envelope: Envelope) -> None:
        """A packet reaches its target, if its link still incarnations."""
        event = self._received(number, envelope)
        if event is not None:
            self.step(envelope[1], (event,))

    def fast_arrive(self, flight: Flight) -> None:
        """On smooth links: one body reaches several targets, one after the other."""
        _, _, source, targets, body, about, size, sent_ns = flight
        if self._wants_packets:
            self.recorder.record_packets(about, type(body).__name__, source, targets, size, sent_ns, self.now)  # type: ignore[union-attr]
        events = (Receive(source, body),)
        for target in targets:
            self.step(target, events)

    def arrive_together(self, target: ProcessId, packets: Sequence[tuple[int, Envelope]]) -> None:
        """Several packets reach one target and are taken in one step."""
        events = [event for number, envelope in packets if (event := self._received(number, envelope)) is not None]
        if events:
            self.step(target, events)

    def fire(self, process: ProcessId, name: str, ticket: int) -> None:
        """A timer runs out, unless it was cancelled or set again."""
        timers = self.timers[process]
        if timers.get(name) == ticket:
            del timers[name]
            self.step(process, (Timer(name),))

    def complete_writes(self, process: ProcessId, count: int = 0) -> None:
        """The disk is done with the first `count` records that wait (0: all); what they held back happens now."""
        disk = self.disks[process]
        disk.busy = False
        left = count or len(disk.waiting)
        while disk.waiting:
            effect = disk.waiting[0]
            if type(effect) is Persist:
                if left == 0:
                    break
                left -= 1
                disk.store(effect)
                disk.waiting.popleft()
            else:
                disk.waiting.popleft()
                self._execute(process, effect)
        if disk.waiting:
            disk.busy = True
            self.scheduler.offer_write(process)
        else:
            self._held.discard(process)

    def crash(self, process: ProcessId, kept: int = 0) -> None:
        """A process stops. Of the records that wait for the disk the first `kept` made it, unacknowledged."""
        assert process in self.processes, f"process {process} is down already"
        self.disks[process].lose_pending(kept)
        self._held.discard(process)
        del self.processes[process]
        self.timers[process].clear()
        self.down[process] = self.now
        self.paused.discard(process)
        self.skews.pop(process, None)
        for peer in self.topology.processes:
            self._sever(process, peer)
            self._sever(peer, process)

    def recover(self, process: ProcessId, amnesia: bool = False) -> None:
        """A process starts again, with its disk or with an empty one; peers hear of the new incarnation first."""
        assert process in self.down, f"process {process} is not down"
        self.incarnations[process] += 1
        if amnesia:
            self.disks[process].records.clear()
        self.boot(process)

    def boot(self, process: ProcessId) -> None:
        """A process that is down begins an incarnation with what is on its disk."""
        del self.down[process]
        self.processes[process] = self._make(process)
        for peer in self.topology.processes:
            if peer != process:
                self.stale.discard((process, peer))
                if peer in self.processes:
                    self._sever(peer, process)
                    self._begin(process, peer)
        self.step(process, (Started(tuple(self.disks[process].records), self.incarnations[process]),))

    def reset_link(self, one: ProcessId, other: ProcessId) -> None:
        """A link overflows: its incarnation ends both ways, and both ends are told."""
        if one in self.processes and other in self.processes:
            self._sever(one, other)
            self._sever(other, one)
            self._begin(one, other)
            self._begin(other, one)

    def suggest(self, process: ProcessId, group: GroupId, leader: ProcessId) -> None:
        """The leader oracle speaks to one process."""
        if process in self.processes:
            self.step(process, (Leader(group, leader),))

    def suspect(self, process: ProcessId, group: GroupId, up: bool) -> None:
        """The group oracle speaks to one process."""
        if process in self.processes:
            self.step(process, (Suspect(group, up),))

    # What is owed

    def list_due_deliveries(self) -> list[tuple[MessageId, ProcessId]]:
        """What must still be delivered: messages of correct senders, or delivered by anyone, at whoever is up."""
        pairs = []
        for message, missing in sorted(self.undelivered.items()):
            said = self.undelivered_messages[message]
            delivered_by_someone = len(missing) < len(self.topology.processes_of(said.destinations))
            if delivered_by_someone or said.sender not in self.down:
                pairs += [(message, process) for process in sorted(missing) if process not in self.down]
        return pairs

    # Inside a step

    def step(self, process: ProcessId, events: Sequence[Event]) -> None:
        """Let a process take events; its effects happen, or wait for its disk."""
        self.steps += 1
        effects = self.processes[process].step(events, self._local(process) if self.skews else self.now)
        if not effects:
            return
        if self._wants_packets:
            effects = self.processes[process].attribute_to_messages(effects)
        for effect in effects:
            kind = type(effect)
            if self._held and process in self._held:
                self._admit(process, effect)
            elif kind is Send:
                self._send(process, effect)  # type: ignore[arg-type]
            elif kind is Deliver:
                self._deliver(process, effect)  # type: ignore[arg-type]
            elif kind is Note:
                self._note(process, effect.name, effect.message, effect.value)  # type: ignore[attr-defined]
            else:
                self._admit(process, effect)

    def _local(self, process: ProcessId) -> int:
        """What a process' clock shows."""
        offset, drift = self.skews.get(process, (0, 0.0))
        return max(0, self.now + offset + round(self.now * drift))

    def _admit(self, process: ProcessId, effect: Effect) -> None:
        """Execute an effect now, or behind the records that it must wait for."""
        disk = self.disks[process]
        kind = type(effect)
        if kind is SendEach:
            for send in effect.expand():  # type: ignore[attr-defined]
                self._admit(process, send)
        elif kind is Persist:
            self._held.add(process)
            disk.waiting.append(effect)
            if not disk.busy:
                disk.busy = True
                self.scheduler.offer_write(process)
        elif disk.waiting and kind is not SetTimer and kind is not CancelTimer:
            disk.waiting.append(effect)
        else:
            self._execute(process, effect)

    def _execute(self, process: ProcessId, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(process, effect)
            case Deliver():
                self._deliver(process, effect)
            case SetTimer(name, low, high):
                if process in self.processes:  # it may just have retired
                    self._number += 1
                    self.timers[process][name] = self._number
                    self.scheduler.offer_timer(process, name, self._number, low, high)
            case CancelTimer(name):
                self.timers[process].pop(name, None)
            case Note(name, message, value):
                self._note(process, name, message, value)
            case Resolve(message):
                self.resolved.append(message)
            case _:
                raise AssertionError(f"no world knows the effect {effect!r}")

    def _send(self, source: ProcessId, effect: Send) -> None:
        body = effect.body
        targets = effect.targets
        size = len(self._encode(body)) if self._encode is not None else 0
        if self.stale:
            targets = self._to_the_living(source, effect, size)
        first = self._number + 1
        self._number += len(targets)
        self.packets += len(effect.targets)
        self.scheduler.offer_packets(first, source, targets, body, effect.about, size)

    def _to_the_living(self, source: ProcessId, effect: Send, size: int) -> tuple[ProcessId, ...]:
        """Whoever does not know yet that a target began a new incarnation speaks to the old one."""
        for target in effect.targets:
            if (source, target) in self.stale:
                self.lose_packet((source, target, effect.body, effect.about, size, self.now))
        return tuple(target for target in effect.targets if (source, target) not in self.stale)

    def _deliver(self, process: ProcessId, effect: Deliver) -> None:
        if effect.message_count >= 0:
            for one in effect.expand():
                self._deliver(process, one)
            return
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
        if self.keeps_history:
            self.history[process].append(message.id)
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

    def record_delivered(self, process: ProcessId, message: MessageId) -> None:
        """This process owes this message no more."""
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
        """A restarted process tells its log again: the same messages at the same positions, and nothing new."""
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
            install_snapshot(self, process, int(value))
        elif name == "turned" and value is not None:
            self.configurations[process] = int(value)
        elif name == "retired":
            remove_member(self, process)
        if self.recorder is not None:
            self.recorder.record_note(process, self.now, name, message, value)

    def report_violation(self, process: ProcessId, sentence: str) -> None:
        """It did what no process may do."""
        self.violations.append(f"process {process} {sentence}")

    # Links

    def _received(self, number: int, envelope: Envelope) -> Event | None:
        source, target, body, about, size, sent_ns = envelope
        if target not in self.processes or (self._cuts and number < self._cuts.get((source, target), 0)):
            self.lose_packet(envelope)
            return None
        if type(body) is Hello:
            return self._greet(source, target)
        if self.stale and (target, source) in self.stale:
            # On a link without order a body overtook the greeting; the process must hear of the new incarnation first.
            self.step(target, (cast(LinkReset, self._greet(source, target)),))
        if self._wants_packets:
            self.recorder.record_packet(about, type(body).__name__, source, target, size, sent_ns, self.now)  # type: ignore[union-attr]
        if self._decode is not None:
            assert self._encode is not None
            body = self._decode(self._encode(body))
        return Receive(source, body)

    def _greet(self, source: ProcessId, target: ProcessId) -> LinkReset | None:
        if (target, source) not in self.stale:
            return None
        self.stale.discard((target, source))
        return LinkReset(source, self.incarnations[source])

    def _begin(self, source: ProcessId, target: ProcessId) -> None:
        """What the target sends is lost until it hears the greeting that goes out now."""
        self.stale.add((target, source))
        self._number += 1
        self.scheduler.offer_packet(self._number, (source, target, Hello(self.incarnations[source]), None, 0, self.now))

    def _sever(self, source: ProcessId, target: ProcessId) -> None:
        self.lossless = False
        self._cuts[(source, target)] = self._number + 1
        self.scheduler.link_cut(source, target)

    def lose_packet(self, envelope: Envelope) -> None:
        source, target, body, about, size, sent_ns = envelope
        if self._wants_packets and type(body) is not Hello:
            self.recorder.record_packet(about, type(body).__name__, source, target, size, sent_ns, None)  # type: ignore[union-attr]

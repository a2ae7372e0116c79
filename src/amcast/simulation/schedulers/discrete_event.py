"""The discrete-event scheduler: everything happens when the network, the CPUs and the disks say.

Time is an integer in nanoseconds. Entries of equal times keep the order in which they were added, so links with
constant delays are FIFO without further care. One body that reaches several targets at one time is one entry.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, cast

from amcast.kernel.effects import About
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message
from amcast.simulation.inputs.answers import Answers
from amcast.simulation.inputs.faults import perform_fault
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.inputs.network import Network
from amcast.simulation.schedulers.calendar import Calendar
from amcast.simulation.world.actions import Action, Fault, Suggest, Suspicion, Unreachable
from amcast.simulation.world.world import Envelope, Flight, Hello, World

ARRIVE: Final = 0
HANDLE: Final = 1
FIRE: Final = 2
SYNC: Final = 3
SUBMIT: Final = 4
FAULT: Final = 5
BURST: Final = 6
ANSWER: Final = 7

MAX_ROUTES: Final = 10_000

_Leg = tuple[int, tuple[ProcessId, ...], int]


class DiscreteEventScheduler:
    """Lets offers happen in the order of time."""

    def __init__(self, network: Network, random: Random, answers: Answers | None = None) -> None:
        self.network = network
        self._answers = answers
        """Answers in place of bare processes; None: processes reply, or deliveries everywhere end a message."""
        self.world: World
        self.slow: dict[ProcessId, int] = {}
        self._random = random
        self._calendar = Calendar()
        """Entries (kind, argument), and flights."""
        self._routes: dict[ProcessId, dict[Sequence[ProcessId], tuple[_Leg, ...]]] = {}
        """Of networks with constant delays: the targets of one body, split by delay. The same targets come again and
        again."""
        self._busy: dict[ProcessId, int] = {}
        """By process: when its CPU is free."""
        self._io_busy: dict[ProcessId, int] = {}
        """By process: when its thread for sending and reading is free, if it has one."""
        self._inbox: dict[ProcessId, list[tuple[int, Envelope]]] = {}
        """Burst mode: packets that wait for a busy process."""
        self._paused_entries: dict[ProcessId, list[tuple[int, Any]]] = {}
        """Entries that wait for a paused process."""
        self._blocked_packets: list[tuple[int, Envelope]] = []
        """Packets that blocked links hold back, in order."""
        self._writes: dict[ProcessId, int] = {}
        """By process: the number of its latest disk write; earlier ones ended with a crash."""
        self._pending: set[ProcessId] = set()
        """Clients whose next multicast is in the calendar."""
        config = network.config
        self._uses_cpu = any((config.cpu_ns, config.cpu_send_ns, config.cpu_byte_ns, config.cpu_work_ns))
        self._may_hold = self._uses_cpu
        """Processes or links may hold packets back. Once true it stays: otherwise a packet could overtake a held
        one."""
        self._raw = network.config.links == "raw"
        self._is_constant = network.is_constant and not self._raw

    # Offers

    def offer_packet(self, number: int, envelope: Envelope) -> None:
        source, target, body, about, size, now = envelope
        at = self.network.draw_arrival(source, target, size, now)
        packet = (ARRIVE, number, source, (target,), body, about, size, now)
        if self._raw and source != target and type(body) is not Hello:
            if self.network.draw_loss():
                self.world.lose_packet(envelope)
                return
            if self.network.draw_duplicate():
                self._calendar.add(at, packet)
        self._calendar.add(at, packet)

    def offer_packets(
        self, number: int, source: ProcessId, targets: Sequence[ProcessId], body: Body, about: About, size: int
    ) -> None:
        now = self.world.now
        if self._is_constant:
            try:
                route = self._routes[source][targets]
            except KeyError:
                route = self._route(source, targets)
            due = self._calendar.entries
            for delay, leg, place in route:
                flight = (ARRIVE, number + place, source, leg, body, about, size, now)
                at = now + delay
                if at in due:
                    due[at].append(flight)
                else:
                    self._calendar.add(at, flight)
            return
        if self.network.has_fast_draws:
            add = self._calendar.add
            for target, at in zip(targets, self.network.fast_draw_arrivals(source, targets, now), strict=True):
                add(at, (ARRIVE, number, source, (target,), body, about, size, now))
                number += 1
            return
        for target in targets:
            self.offer_packet(number, (source, target, body, about, size, now))
            number += 1

    def _route(self, source: ProcessId, targets: Sequence[ProcessId]) -> tuple["_Leg", ...]:
        """Splits targets where the delay changes: (delay, targets with that delay, place of the first)."""
        delays = self.network.bases[source]
        legs: list[_Leg] = []
        for place, target in enumerate(targets):
            if legs and legs[-1][0] == delays[target]:
                delay, leg, first = legs[-1]
                legs[-1] = (delay, (*leg, target), first)
            else:
                legs.append((delays[target], (target,), place))
        routes = self._routes.setdefault(source, {})
        if len(routes) >= MAX_ROUTES:
            routes.clear()
        route = routes[targets] = tuple(legs)
        return route

    def offer_timer(self, process: ProcessId, name: str, ticket: int, low_ns: int, high_ns: int) -> None:
        after = low_ns if low_ns == high_ns else self._random.randint(low_ns, high_ns)
        self._calendar.add(self.world.now + after, (FIRE, (process, name, ticket)))

    def offer_write(self, process: ProcessId) -> None:
        waiting = self.world.disks[process].waiting
        at = self.world.now + self.network.config.disk_ns
        # A write covers the records that wait when it begins; later ones go with the next write.
        number = self._writes[process] = self.world.next_number()
        self._calendar.add(at, (SYNC, (process, number, len(waiting))))

    def link_cut(self, source: ProcessId, target: ProcessId) -> None:
        """Drops packets that wait for a blocked link or a paused process; the world drops those in the calendar by
        their numbers."""
        for packet in [packet for packet in self._blocked_packets if packet[1][:2] == (source, target)]:
            self._blocked_packets.remove(packet)
            self.world.lose_packet(packet[1])
        for kind, argument in self._paused_entries.pop(target, []):
            if kind == ARRIVE and argument[1][0] == source:
                self.world.lose_packet(argument[1])
            else:
                self._paused_entries.setdefault(target, []).append((kind, argument))

    def answer_delivery(self, process: ProcessId, message: Message) -> None:
        """Sends the client of a message the answer of a process that delivered it, if that is one that answers."""
        assert self._answers is not None
        at = self._answers.draw_arrival(process, message, self.world.now)
        if at is not None:
            self._calendar.add(at, (ANSWER, (message.id, self.world.topology.group_of(process))))

    def schedule(self, at_ns: int, fault: Fault | Callable[[], None]) -> None:
        """Adds a fault, or a call, at a time."""
        self._calendar.add(at_ns, (FAULT, fault))

    def has_pending_multicast(self) -> bool:
        """Whether a client that can send waits for the time of its next multicast."""
        return bool(self._pending) and not self._pending <= self.world.paused

    # The loop

    def run(self, load: ClientLoad, until_ns: int, over: Callable[[], bool] = lambda: False) -> None:
        """Runs until no entry is left, the time is over, or `over` returns True (asked after some entries)."""
        world = self.world
        calendar = self._calendar
        self._submit_ready(load, load.senders)
        done = world.resolved if load.replies else world.completed
        reach = world.fast_arrive
        while (at := calendar.peek()) is not None:
            if at > until_ns:
                world.now = until_ns
                return
            world.now = at
            single = calendar.pop_single()
            for entry in calendar.pop_due() if single is None else (single,):
                kind = entry[0]
                if kind == ARRIVE:
                    if world.lossless and not self._may_hold:
                        reach(entry)
                    else:
                        self._arrive(entry)
                elif kind == SUBMIT:
                    self._submit(load, entry[1])
                else:
                    self._perform(kind, entry[1])
                    if kind == FAULT:
                        self._submit_ready(load, load.senders)
                    if over():
                        return
                if done:
                    self._submit_ready(load, load.collect_done(world))

    def _arrive(self, flight: Flight) -> None:
        """The slow twin of `World.fast_arrive`: targets may be down, paused, cut off or busy."""
        world = self.world
        _, number, source, targets, body, about, size, sent_ns = flight
        for target in targets:
            envelope = (source, target, body, about, size, sent_ns)
            if self._may_hold:
                self._pass_link(number, envelope)
            else:
                world.arrive(number, envelope)
            number += 1

    def _submit(self, load: ClientLoad, message: Message) -> None:
        """Submits a message after its think time; that of a paused client waits."""
        world = self.world
        sender = message.sender
        if sender in world.paused:
            self._paused_entries.setdefault(sender, []).append((SUBMIT, message))
            return
        self._pending.discard(sender)
        if world.now >= load.until_ns:
            load.withdraw(sender)
            return
        if sender in world.processes:
            self._multicast(sender, message)
        self._submit_ready(load, (sender,))

    def _submit_ready(self, load: ClientLoad, senders: tuple[ProcessId, ...] | list[ProcessId]) -> None:
        """Lets clients with free slots multicast."""
        world = self.world
        for sender in senders:
            if sender in self._pending:
                continue
            while load.may_multicast(sender) and sender in world.processes:
                message, after_ns = load.next_message(sender)
                if after_ns or sender in world.paused:
                    self._pending.add(sender)
                    self._calendar.add(world.now + after_ns, (SUBMIT, message))
                    break
                self._multicast(sender, message)

    def _multicast(self, sender: ProcessId, message: Message) -> None:
        if self._answers is not None:
            self._answers.expect(message)
        self.world.submit(sender, message)

    def _perform(self, kind: int, argument: Any) -> None:
        world = self.world
        if kind == HANDLE:
            self._handle(*argument)
        elif kind == BURST:
            self._handle_burst(argument)
        elif kind == ANSWER:
            assert self._answers is not None
            if self._answers.receive(*argument):
                world.resolve(argument[0])
        elif kind == FIRE:
            if argument[0] in world.paused:
                self._paused_entries.setdefault(argument[0], []).append((FIRE, argument))
            else:
                world.fire(*argument)
        elif kind == SYNC:
            process, write, size = argument
            if self._writes[process] == write and process in world.processes:
                self._sync(process, size)
        elif isinstance(argument, Suggest | Suspicion | Unreachable) and argument.process in world.paused:
            self._paused_entries.setdefault(argument.process, []).append((FAULT, argument))
        elif isinstance(argument, Action):
            self._may_hold = True
            perform_fault(world, self, cast(Fault, argument))
        else:
            argument()

    def _sync(self, process: ProcessId, size: int) -> None:
        """Makes those records durable that were among the `size` effects that waited when the write began."""
        waiting = self.world.disks[process].waiting
        records = sum(1 for place, effect in enumerate(waiting) if place < size and hasattr(effect, "record"))
        self.world.complete_writes(process, records)

    # Processes that take time

    def _pass_link(self, number: int, envelope: Envelope) -> None:
        if self.world.blocked and envelope[:2] in self.world.blocked:
            self._blocked_packets.append((number, envelope))
        else:
            self._accept(number, envelope)

    def _accept(self, number: int, envelope: Envelope) -> None:
        """Hands a packet to its target, behind all earlier packets that still wait there."""
        packet = (number, envelope)
        target = envelope[1]
        idle = self._busy.get(target, -1) < self.world.now and target not in self._inbox
        if idle and target in self.world.paused:
            self._paused_entries.setdefault(target, []).append((ARRIVE, packet))
        elif idle and not self._uses_cpu and target not in self.slow:
            self.world.arrive(number, envelope)
        elif self.network.config.burst:
            self._queue(target, packet)
        else:
            read = self._read(target, envelope[4])
            done = max(read, self._busy.get(target, 0)) + self._cost(target, envelope[4])
            self._busy[target] = done
            self._calendar.add(done, (HANDLE, packet))

    def _read(self, process: ProcessId, size: int) -> int:
        """When a packet that arrives now has been read: at once, unless a second thread does it."""
        config = self.network.config
        if not config.io_thread or self._is_free(process):
            return self.world.now
        start = max(self.world.now, self._io_busy.get(process, 0))
        done = self._io_busy[process] = start + round(size * config.cpu_byte_ns)
        return done

    def _is_free(self, process: ProcessId) -> bool:
        """Whether a process needs no CPU time."""
        return not self.network.config.cpu_clients and self.world.topology.group_of(process) is None

    def _cost(self, process: ProcessId, size: int) -> int:
        config, slow = self.network.config, self.slow.get(process, 0)
        if self._is_free(process):
            return slow
        read = 0 if config.io_thread else round(size * config.cpu_byte_ns)
        return config.cpu_ns + slow + read

    def _handle(self, number: int, envelope: Envelope) -> None:
        target = envelope[1]
        if target in self.world.paused:
            self._paused_entries.setdefault(target, []).append((ARRIVE, (number, envelope)))
            return
        before = self.world.packets, self._work_of(target)
        self.world.arrive(number, envelope)
        self._charge(target, *before)

    def _queue(self, target: ProcessId, packet: tuple[int, Envelope]) -> None:
        inbox = self._inbox.setdefault(target, [])
        inbox.append(packet)
        if len(inbox) == 1:
            start = max(self.world.now, self._busy.get(target, 0))
            self._calendar.add(start + self._cost(target, packet[1][4]), (BURST, target))

    def _handle_burst(self, target: ProcessId) -> None:
        packets = self._inbox.pop(target, [])
        if target in self.world.paused:
            self._paused_entries.setdefault(target, []).extend((ARRIVE, packet) for packet in packets)
            return
        before = self.world.packets, self._work_of(target)
        self.world.arrive_together(target, packets)
        # The CPU time of the first packet has passed; that of the others is charged now.
        self._busy[target] = self.world.now + sum(self._cost(target, envelope[4]) for _, envelope in packets[1:])
        self._charge(target, *before)

    def _work_of(self, process: ProcessId) -> int:
        """The units that a process has counted. One that has crashed has none."""
        there = self.world.processes.get(process) if self.network.config.cpu_work_ns else None
        return 0 if there is None else there.work

    def _charge(self, process: ProcessId, sent_before: int, work_before: int) -> None:
        """Charges what a process sent and worked."""
        config = self.network.config
        if not (config.cpu_send_ns or config.cpu_work_ns) or self._is_free(process):
            return
        sending = (self.world.packets - sent_before) * config.cpu_send_ns
        work = max(0, self._work_of(process) - work_before) * config.cpu_work_ns
        sender = self._io_busy if config.io_thread else self._busy
        for threads, cost in ((sender, sending), (self._busy, work)):
            if cost:
                threads[process] = max(threads.get(process, 0), self.world.now) + cost

    # Faults that end

    def resume(self, process: ProcessId) -> None:
        """Handles the entries that waited for a paused process at once, before later ones; their CPU time is charged
        after."""
        for kind, argument in self._paused_entries.pop(process, []):
            if kind == FIRE:
                self.world.fire(*argument)
            elif kind == SUBMIT:
                self._calendar.add(self.world.now, (SUBMIT, argument))
            elif kind == FAULT:
                perform_fault(self.world, self, argument)
            else:
                self._handle(*argument)
                cost = self._cost(process, argument[1][4])
                if cost:
                    self._busy[process] = max(self._busy.get(process, 0), self.world.now) + cost

    def heal_links(self) -> None:
        """Accepts the packets that links held back and no longer block, in order."""
        blocked, self._blocked_packets = self._blocked_packets, []
        for number, envelope in blocked:
            self._pass_link(number, envelope)

    def set_loss(self, loss: float) -> None:
        self.network.set_loss(loss)
        self._is_constant = False

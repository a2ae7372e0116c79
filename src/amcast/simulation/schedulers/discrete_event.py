"""The timed scheduler: discrete-event simulation. Everything happens when the network, the CPUs and the disks say.

Time is an integer in nanoseconds. The calendar keeps what was offered first before its equals, so links with equal
delays keep their order without further care. One body that reaches several targets at one time is one entry.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, cast

from amcast.kernel.effects import About
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message
from amcast.simulation.inputs.faults import perform_fault
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.inputs.network import Network
from amcast.simulation.schedulers.calendar import Calendar
from amcast.simulation.world.actions import Action, Fault, Suggest, Suspicion
from amcast.simulation.world.world import Envelope, Flight, Hello, World

ARRIVE: Final = 0
HANDLE: Final = 1
FIRE: Final = 2
SYNC: Final = 3
SUBMIT: Final = 4
FAULT: Final = 5
TAKE: Final = 6

MAX_ROUTES: Final = 10_000

_Leg = tuple[int, tuple[ProcessId, ...], int]


class DiscreteEventScheduler:
    """Chooses by time alone."""

    def __init__(self, network: Network, random: Random) -> None:
        self.network = network
        self.world: World
        self.slow: dict[ProcessId, int] = {}
        self._random = random
        self._calendar = Calendar()
        """Entries (kind, what), and flights."""
        self._routes: dict[ProcessId, dict[Sequence[ProcessId], tuple[_Leg, ...]]] = {}
        """Plain networks: how the targets of one body part by delay. The same targets come again and again."""
        self._busy: dict[ProcessId, int] = {}
        """Until when a process handles what it took."""
        self._inbox: dict[ProcessId, list[tuple[int, Envelope]]] = {}
        """Burst mode: what waits while a process is busy."""
        self._parked: dict[ProcessId, list[tuple[int, Any]]] = {}
        """What a paused process will find."""
        self._held: list[tuple[int, Envelope]] = []
        """What blocked links hold back, in order."""
        self._writes: dict[ProcessId, int] = {}
        """The number of each disk's latest write; earlier ones ended with a crash."""
        self._pending: set[ProcessId] = set()
        """Senders whose next multicast is on the heap."""
        self._working = network.config.cpu_ns > 0 or network.config.cpu_send_ns > 0
        self._careful = self._working
        """Processes and links may hold packets back; once true it stays, or a packet could overtake a held one."""
        self._raw = network.config.links == "raw"
        self._plain = network.is_constant and not self._raw

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
        if self._plain:
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
        for target in targets:
            self.offer_packet(number, (source, target, body, about, size, now))
            number += 1

    def _route(self, source: ProcessId, targets: Sequence[ProcessId]) -> tuple["_Leg", ...]:
        """Split targets where the delay changes: (delay, targets of that delay, place of the first)."""
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
        # One write covers what waits when it begins; the rest goes with the next.
        number = self._writes[process] = self.world.next_number()
        self._calendar.add(at, (SYNC, (process, number, len(waiting))))

    def link_cut(self, source: ProcessId, target: ProcessId) -> None:
        """The world knows lost packets by their numbers when they come up; those held back would never come up."""
        for packet in [packet for packet in self._held if packet[1][:2] == (source, target)]:
            self._held.remove(packet)
            self.world.lose_packet(packet[1])
        for kind, what in self._parked.pop(target, []):
            if kind == ARRIVE and what[1][0] == source:
                self.world.lose_packet(what[1])
            else:
                self._parked.setdefault(target, []).append((kind, what))

    def schedule(self, at_ns: int, fault: Fault | Callable[[], None]) -> None:
        """Let a fault (or anything else) happen at a time."""
        self._calendar.add(at_ns, (FAULT, fault))

    # The loop

    def run(self, load: ClientLoad, until_ns: int, over: Callable[[], bool] = lambda: False) -> None:
        """Go on until nothing is left to happen, the time has come, or `over` says so (asked now and then)."""
        world = self.world
        calendar = self._calendar
        self._refill(load, load.senders)
        done = world.resolved if load.replies else world.completed
        reach = world.fast_arrive
        while (at := calendar.peek()) is not None:
            if at > until_ns:
                world.now = until_ns
                return
            world.now = at
            for entry in calendar.pop_due():
                kind = entry[0]
                if kind == ARRIVE:
                    if world.lossless and not self._careful:
                        reach(entry)
                    else:
                        self._arrive(entry)
                elif kind == SUBMIT:
                    self._submit(load, entry[1])
                else:
                    self._other(kind, entry[1])
                    if kind == FAULT:
                        self._refill(load, load.senders)
                    if over():
                        return
                if done:
                    self._refill(load, load.collect_done(world))

    def _arrive(self, flight: Flight) -> None:
        """One body is at its targets, which may be down, paused, cut off or busy."""
        world = self.world
        _, number, source, targets, body, about, size, sent_ns = flight
        for target in targets:
            envelope = (source, target, body, about, size, sent_ns)
            if self._careful:
                self._admit(number, envelope)
            else:
                world.arrive(number, envelope)
            number += 1

    def _submit(self, load: ClientLoad, message: Message) -> None:
        """A client has thought long enough; a paused one goes on thinking."""
        world = self.world
        sender = message.sender
        if sender in world.paused:
            self._parked.setdefault(sender, []).append((SUBMIT, message))
            return
        self._pending.discard(sender)
        if sender in world.processes:
            world.submit(sender, message)
        self._refill(load, (sender,))

    def _refill(self, load: ClientLoad, senders: tuple[ProcessId, ...] | list[ProcessId]) -> None:
        """Let clients with room in their window multicast again."""
        world = self.world
        for sender in senders:
            if sender in self._pending:
                continue
            while load.remaining > 0 and load.in_flight[sender] < load.outstanding and sender in world.processes:
                message, after_ns = load.next_message(sender)
                if after_ns or sender in world.paused:
                    self._pending.add(sender)
                    self._calendar.add(world.now + after_ns, (SUBMIT, message))
                    break
                world.submit(sender, message)

    def _other(self, kind: int, what: Any) -> None:
        world = self.world
        if kind == HANDLE:
            self._handle(*what)
        elif kind == TAKE:
            self._take(what)
        elif kind == FIRE:
            if what[0] in world.paused:
                self._parked.setdefault(what[0], []).append((FIRE, what))
            else:
                world.fire(*what)
        elif kind == SYNC:
            process, write, size = what
            if self._writes[process] == write and process in world.processes:
                self._sync(process, size)
        elif isinstance(what, Suggest | Suspicion) and what.process in world.paused:
            self._parked.setdefault(what.process, []).append((FAULT, what))
        elif isinstance(what, Action):
            self._careful = True
            perform_fault(world, self, cast(Fault, what))
        else:
            what()

    def _sync(self, process: ProcessId, size: int) -> None:
        """`size` effects waited when the write began; make the records among them durable."""
        waiting = self.world.disks[process].waiting
        records = sum(1 for place, effect in enumerate(waiting) if place < size and hasattr(effect, "record"))
        self.world.complete_writes(process, records)

    # Processes that take time

    def _admit(self, number: int, envelope: Envelope) -> None:
        if self.world.blocked and envelope[:2] in self.world.blocked:
            self._held.append((number, envelope))
        else:
            self._accept(number, envelope)

    def _accept(self, number: int, envelope: Envelope) -> None:
        """A packet is at its target. What came before it and still waits there is handled before it."""
        packet = (number, envelope)
        target = envelope[1]
        idle = self._busy.get(target, -1) < self.world.now and target not in self._inbox
        if idle and target in self.world.paused:
            self._parked.setdefault(target, []).append((ARRIVE, packet))
        elif idle and not self._working and target not in self.slow:
            self.world.arrive(number, envelope)
        elif self.network.config.burst:
            self._queue(target, packet)
        else:
            done = max(self.world.now, self._busy.get(target, 0)) + self._cost(target)
            self._busy[target] = done
            self._calendar.add(done, (HANDLE, packet))

    def _cost(self, process: ProcessId) -> int:
        return self.network.config.cpu_ns + self.slow.get(process, 0)

    def _handle(self, number: int, envelope: Envelope) -> None:
        target = envelope[1]
        if target in self.world.paused:
            self._parked.setdefault(target, []).append((ARRIVE, (number, envelope)))
            return
        before = self.world.packets
        self.world.arrive(number, envelope)
        self._charge(target, before)

    def _queue(self, target: ProcessId, packet: tuple[int, Envelope]) -> None:
        inbox = self._inbox.setdefault(target, [])
        inbox.append(packet)
        if len(inbox) == 1:
            start = max(self.world.now, self._busy.get(target, 0))
            self._calendar.add(start + self._cost(target), (TAKE, target))

    def _take(self, target: ProcessId) -> None:
        packets = self._inbox.pop(target, [])
        if target in self.world.paused:
            self._parked.setdefault(target, []).extend((ARRIVE, packet) for packet in packets)
            return
        before = self.world.packets
        self.world.arrive_together(target, packets)
        # The first packet's time is over; the others still have to be paid for.
        self._busy[target] = self.world.now + self._cost(target) * (len(packets) - 1)
        self._charge(target, before)

    def _charge(self, process: ProcessId, before: int) -> None:
        if self.network.config.cpu_send_ns:
            sent = self.world.packets - before
            self._busy[process] = (
                max(self._busy.get(process, 0), self.world.now) + sent * self.network.config.cpu_send_ns
            )

    # Faults that end

    def resume(self, process: ProcessId) -> None:
        """What a paused process missed it takes at once, before anything that waits for its time, and pays later."""
        for kind, what in self._parked.pop(process, []):
            if kind == FIRE:
                self.world.fire(*what)
            elif kind == SUBMIT:
                self._calendar.add(self.world.now, (SUBMIT, what))
            elif kind == FAULT:
                perform_fault(self.world, self, what)
            else:
                self._handle(*what)
                if self._cost(process):
                    self._busy[process] = max(self._busy.get(process, 0), self.world.now) + self._cost(process)

    def heal_links(self) -> None:
        """What blocked links held back arrives, in order."""
        held, self._held = self._held, []
        for number, envelope in held:
            self._accept(number, envelope)

    def set_loss(self, loss: float) -> None:
        self.network.set_loss(loss)
        self._plain = False

"""The state that untimed schedulers share: every action that could happen now, and how a chosen one is applied.

The random, the exhaustive and the scripted scheduler differ only in how they choose. Time hardly exists here: each
action takes a microsecond, and a timer may fire at any moment.
"""

from collections.abc import Sequence
from typing import Final

from amcast.kernel.effects import About
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.spec import Links
from amcast.simulation.inputs.faults import perform_fault
from amcast.simulation.world.actions import AnyAction, Arrive, Drop, Fire, Multicast, Repeat, Sync
from amcast.simulation.world.world import Envelope, Hello, Pair, World

TICK_NS: Final = 1_000


class PendingActions:
    """Packets in flight by link, timers, and disks with pending writes."""

    def __init__(self, links: Links = "fifo", tick_ns: int = TICK_NS) -> None:
        self.world: World
        self.tick_ns = tick_ns
        """How long each action takes; 0: time stands still, also for timers."""
        self.slow: dict[ProcessId, int] = {}
        self.link_kind = links
        self.links: dict[Pair, tuple[tuple[int, Envelope], ...]] = {}
        """Links with packets in flight, in the order of sending. Tuples are never changed in place, so a copy of the
        dictionary is a snapshot."""
        self.timers: dict[tuple[ProcessId, str], tuple[int, int, int]] = {}
        """Ticket, earliest and latest time."""
        self.loss = 0.0
        self.multicasts: dict[MessageId, Message] = {}
        """Messages that were multicast so far."""

    # Offers

    def offer_packet(self, number: int, envelope: Envelope) -> None:
        if envelope[1] in self.world.processes:
            self.add_packet(number, envelope)
        else:
            # A crashed process never gets it: a new incarnation begins with new links.
            self.world.lose_packet(envelope)

    def add_packet(self, number: int, envelope: Envelope) -> None:
        """Adds a packet behind all others on its link."""
        pair = (envelope[0], envelope[1])
        self.links[pair] = (*self.links.get(pair, ()), (number, envelope))

    def remove_packet(self, pair: Pair, place: int) -> tuple[int, Envelope]:
        """Removes a packet from its link."""
        link = self.links[pair]
        if len(link) == 1:
            del self.links[pair]
        else:
            self.links[pair] = link[:place] + link[place + 1 :]
        return link[place]

    def offer_packets(
        self, number: int, source: ProcessId, targets: Sequence[ProcessId], body: Body, about: About, size: int
    ) -> None:
        world, links = self.world, self.links
        processes, now = world.processes, world.now
        for target in targets:
            envelope = (source, target, body, about, size, now)
            if target in processes:
                pair = (source, target)
                waiting = links.get(pair)
                links[pair] = ((number, envelope),) if waiting is None else (*waiting, (number, envelope))
            else:
                world.lose_packet(envelope)
            number += 1

    def offer_timer(self, process: ProcessId, name: str, ticket: int, low_ns: int, high_ns: int) -> None:
        if self.tick_ns:
            self.timers[(process, name)] = (ticket, self.world.now + low_ns, self.world.now + high_ns)
        else:
            self.timers[(process, name)] = (ticket, 0, 0)

    def offer_write(self, process: ProcessId) -> None:
        """Does nothing: a disk with a pending write is busy."""

    def link_cut(self, source: ProcessId, target: ProcessId) -> None:
        for _, envelope in self.links.pop((source, target), ()):
            self.world.lose_packet(envelope)

    # Faults

    def resume(self, process: ProcessId) -> None:
        """Does nothing: packets to a paused process are still in flight."""

    def heal_links(self) -> None:
        """Does nothing: packets on a blocked link are still in flight."""

    def set_loss(self, loss: float) -> None:
        self.loss = loss

    # What could happen now

    def is_open(self, pair: Pair) -> bool:
        """Whether a packet could arrive over this link now."""
        world = self.world
        return pair[1] not in world.paused and pair not in world.blocked

    def count_places(self, pair: Pair) -> int:
        """How many of the packets in flight could arrive next: one on a FIFO link, all on others."""
        link = self.links[pair]
        if self.link_kind == "fifo" or type(link[0][1][2]) is Hello:
            return 1
        return len(link)

    def can_lose(self, pair: Pair, place: int) -> bool:
        """Whether a packet may be lost or duplicated: not on the way to its own sender, and never a Hello."""
        link = self.links.get(pair, ())
        return (
            self.link_kind == "raw"
            and pair[0] != pair[1]
            and place < len(link)
            and type(link[place][1][2]) is not Hello
        )

    def list_timers(self) -> list[tuple[ProcessId, str]]:
        """Timers that are still set; forgets the others."""
        timers = self.world.timers
        gone = [key for key, (ticket, _, _) in self.timers.items() if timers[key[0]].get(key[1]) != ticket]
        for key in gone:
            del self.timers[key]
        return [key for key in self.timers if key[0] not in self.world.paused]

    def apply(self, action: AnyAction) -> bool:
        """Applies an action; False if it cannot happen now, and then nothing changes."""
        self.world.now += self.tick_ns
        happened = self._apply(action)
        if not happened:
            self.world.now -= self.tick_ns
        return happened

    def _apply(self, action: AnyAction) -> bool:
        if isinstance(action, Arrive):  # nearly all actions are arrivals
            return self._arrive(action.target, action.packets)
        match action:
            case Multicast(sender, message, destinations, size):
                return self._submit(Message(message, sender, destinations, bytes(size)))
            case Fire(process, timer):
                return self._fire(process, timer)
            case Sync(process, count):
                if not self.world.disks[process].busy:
                    return False
                self.world.complete_writes(process, count)
                return True
            case Drop(source, target, place):
                return self._drop((source, target), place)
            case Repeat(source, target, place):
                return self._repeat((source, target), place)
            case _:
                return perform_fault(self.world, self, action)

    def _submit(self, message: Message) -> bool:
        sender = message.sender
        if sender not in self.world.processes or sender in self.world.paused or message.id in self.multicasts:
            return False
        self.multicasts[message.id] = message
        self.world.submit(sender, message)
        return True

    def _arrive(self, target: ProcessId, packets: tuple[tuple[ProcessId, int], ...]) -> bool:
        world, links = self.world, self.links
        if target in world.paused:
            return False
        taken = []
        for source, place in packets:
            pair = (source, target)
            if pair in links and pair not in world.blocked and (place == 0 or place < self.count_places(pair)):
                taken.append(self.remove_packet(pair, place))
        if len(taken) == 1:
            world.arrive(*taken[0])
        elif taken:
            world.arrive_together(target, taken)
        return bool(taken)

    def _fire(self, process: ProcessId, timer: str) -> bool:
        known = self.timers.get((process, timer))
        if known is None or process in self.world.paused or self.world.timers[process].get(timer) != known[0]:
            return False
        del self.timers[(process, timer)]
        self.world.now = max(self.world.now, known[1])
        self.world.fire(process, timer, known[0])
        return True

    def _drop(self, pair: Pair, place: int) -> bool:
        if not self.can_lose(pair, place):
            return False
        self.world.lose_packet(self.remove_packet(pair, place)[1])
        return True

    def _repeat(self, pair: Pair, place: int) -> bool:
        if not self.can_lose(pair, place):
            return False
        self.add_packet(*self.links[pair][place])
        return True

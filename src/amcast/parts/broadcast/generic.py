"""Generic broadcast to all processes, where only changes conflict: with each other and with everything else.

Source: Pedone and Schiper, "Handling message semantics with generic broadcast protocols" (2002), for the conflict
relation of paper 001, section 3.2. Items (there: bundles) do not conflict with each other: they may be delivered in any
order, as long as everybody delivers the same ones between the same two changes.

    owner of the stream      all processes
      |--Item----------------->|              without conflict: two delays
      |<-----------Ack---------|------------> everybody to everybody
    deliver                  deliver          once a majority holds it

    somebody                 all processes
      |--Frozen, with change-->|              with conflict: whoever hears it acknowledges nothing more in this epoch
      |<---------Frozen--------|------------> and says what it acknowledged, and what it holds by now
      |        Paxos among all processes      decides what belongs to the epoch, and the changes behind it

A majority must not crash. An item that anybody delivered was acknowledged by a majority, so any majority that reports
has acknowledged no less. A decision ends the epoch at numbers that (1) a majority holds, so that whoever lacks an item
can ask, and (2) no member of some majority that reported has acknowledged more than, so that nothing behind them is
delivered, ever. Items that a single survivor holds are handed on by it until (1) is true of them, and what only the
dead hold keeps nobody: they are not needed for the majority of (2).

The paper asks for n - f with f < n/3, as generic broadcast does where any two messages may conflict and yet be fast.
Here one kind conflicts with nothing of its own, and the other always goes through consensus: majorities do.

Every group has one stream of items, numbered 1, 2, 3 ..., which are acknowledged in order: an acknowledgement is one
number per stream. Changes open and shut streams. A stream that is opened again goes on behind what all open streams
have completed; what it had said in between belongs to no epoch and is delivered by nobody.

Processes do not come back from a crash: nothing here is durable.
"""

from collections.abc import Iterable
from operator import le
from typing import Final

from amcast.kernel.effects import About
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.process import Process
from amcast.parts.broadcast.messages import (
    CLOSE,
    OPEN,
    TOP,
    Ack,
    Change,
    Frozen,
    GenericState,
    GlobalPaxos,
    Item,
    ItemRequest,
    Tops,
)
from amcast.parts.consensus.messages import Entry, PaxosConfig, Value
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.consensus.quorum import MAX_MEMBERS, majority

PAXOS_TIMER: Final = "far"
ITEMS_PER_REQUEST: Final = 64
"""How many items are told again at a time."""

Event = tuple[GroupId, int] | tuple[Change, ...]
"""What the owner must do next: take the item of this stream and number, or the changes that end an epoch."""


Report = tuple[int, Tops, Tops]
"""Epoch, what its sender acknowledged in it, what it holds by now."""


def faults_tolerated(processes: int) -> int:
    """How many may crash so that a majority remains."""
    return processes - majority(processes)


class WrappedSender(Process):
    """How Paxos among all processes speaks through its owner: wrapped, about no message, nothing durable."""

    def __init__(self, owner: Process) -> None:
        super().__init__(owner.me, owner.topology)
        self._owner = owner

    def send(self, target: ProcessId, body: Body, about: About = None) -> None:
        self._owner.send(target, GlobalPaxos(body))  # type: ignore[arg-type]

    def send_all(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        self._owner.send_all(targets, GlobalPaxos(body))  # type: ignore[arg-type]

    def set_timer(self, name: str, after: tuple[int, int]) -> None:
        self._owner.set_timer(PAXOS_TIMER, after)

    def cancel_timer(self, name: str) -> None:
        self._owner.cancel_timer(PAXOS_TIMER)

    def persist(self, record: Record, replaces: bool = False, ends: bool = False) -> None:
        """Processes do not come back."""

    def note(self, name: str, message: int | None = None, value: float | None = None) -> None:
        self._owner.note(f"far-{name}", message, value)

    def on_request(self, message: Message) -> None:
        raise AssertionError("a voice hears nothing")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError("a voice hears nothing")

    def snapshot(self) -> State:
        raise AssertionError("a voice knows nothing")

    def restore(self, state: State) -> None:
        raise AssertionError("a voice knows nothing")


class GenericBroadcast:
    """One process' share in a generic broadcast."""

    def __init__(self, owner: Process, retry_ns: tuple[int, int]) -> None:
        self.owner = owner
        self.streams = owner.topology.groups
        self.members = owner.topology.servers
        self.others = tuple(member for member in self.members if member != owner.me)
        count = len(self.members)
        if count > MAX_MEMBERS:
            raise UsageError(f"topology: {count} servers in all; generic broadcast expects at most {MAX_MEMBERS}")
        self.quorum = majority(count)
        self.paxos = Paxos(WrappedSender(owner), self.members, PaxosConfig(retry_ns=retry_ns, keep=1_000_000))
        self.epoch = 0
        """How many times the open streams were changed."""
        self.open: tuple[GroupId, ...] = self.streams
        self.base: dict[GroupId, int] = dict.fromkeys(self.streams, 0)
        """The last number of each stream that belongs to an earlier epoch (or to none)."""
        self.delivered: dict[GroupId, int] = dict.fromkeys(self.streams, 0)
        """The last number of each stream that was handed up, or passed over."""
        self.floor = 0
        """Numbers up to this one need not be held in order to be handed up: the owner is past them."""
        self.installed_progress: tuple[int, Tops] = (0, (0,) * len(self.streams))
        """An epoch, and up to where somebody whom I believe has handed up its streams: as good as held."""
        self.items: dict[GroupId, dict[int, tuple[Message, ...]]] = {stream: {} for stream in self.streams}
        self.newest: dict[GroupId, int] = dict.fromkeys(self.streams, 0)
        """The highest number of each stream that I ever held."""
        self._dropped = 0
        """Numbers up to this one are forgotten."""
        self._acks: dict[ProcessId, tuple[int, Tops]] = {}
        """The latest of each process: epoch and tops. Mine is in it as soon as I decide to send it."""
        self._frozen: dict[ProcessId, Report] = {}
        """The latest report of each process, mine among them."""
        self.requested_changes: set[Change] = set()
        self.is_frozen = False
        """I acknowledge nothing more in this epoch."""
        self._decided: list[Value] = []
        """Decisions for this epoch and later ones."""
        self._news = False
        """My acknowledgement, or my report, has changed in this step."""

    # What the owner calls

    def begin(self) -> None:
        self.paxos.begin((), 0)

    def add_item(self, stream: GroupId, number: int, messages: tuple[Message, ...]) -> bool:
        """An item is here; False if it was before, or is no longer needed."""
        if number <= self.floor or number in self.items[stream]:
            return False
        self.items[stream][number] = messages
        self.newest[stream] = max(self.newest[stream], number)
        return True

    def request_change(self, change: Change) -> None:
        """Ask for a change of the open streams, if it would be one."""
        if self._sensible(change) and change not in self.requested_changes:
            self.requested_changes.add(change)
            self._freeze()

    def receive(self, sender: ProcessId, body: Body) -> bool:
        """Handle a body of `bodies.generic.BODIES`; False for others."""
        match body:
            case Item(stream, number, messages):
                self.add_item(stream, number, messages)
            case Ack(epoch, tops):
                self._acks[sender] = max(self._acks.get(sender, (0, ())), (epoch, tops))
                self._compare(sender, epoch)
            case Frozen(epoch, tops, held, wanted):
                self._hear_frozen(sender, (epoch, tops, held), wanted)
            case ItemRequest(stream, number):
                self._answer(sender, stream, number)
            case GlobalPaxos(inner):
                self._decided += [value for _, value in self.paxos.receive(sender, inner)]  # type: ignore[misc]
            case _:
                return False
        return True

    def collect_events(self) -> list[Event]:
        """Acknowledge what is here; what can be handed up now, in order."""
        events: list[Event] = []
        while True:
            self._acknowledge()
            limits = self._limits()
            for stream in self.open:
                while self.delivered[stream] < limits[stream] and self._holds(stream, self.delivered[stream] + 1):
                    self.delivered[stream] += 1
                    events.append((stream, self.delivered[stream]))
            if not self._decided or any(self.delivered[stream] < limits[stream] for stream in self.open):
                return events
            events.append(self._end_epoch(self._decided.pop(0)))

    def flush(self) -> None:
        """At the end of every step."""
        if self.is_frozen and self.paxos.can_propose() and self.paxos.next_instance == self.epoch and not self._decided:
            self._propose()
        if self._news:
            self._news = False
            self._report(self.others)
        self.paxos.flush()

    def set_leading(self, leads: bool) -> None:
        """Whether I should lead the Paxos among all processes."""
        me = self.owner.me
        if self.others and leads != (self.paxos.suggested_leader == me):
            self.paxos.handle_leader(me if leads else self.others[0])

    def handle_link_reset(self, peer: ProcessId) -> None:
        """A link begins anew."""
        self.paxos.handle_link_reset(peer)
        if peer in self.others:
            self._report((peer,))

    def request_missing(self) -> None:
        """Nothing has moved for long: say again what I know, ask for what I lack."""
        self._report(self.others)
        limits = self._limits()
        held = self._tops()
        for place, stream in enumerate(self.streams):
            next = max(self.delivered[stream], held[place]) + 1
            needed = max(limits.get(stream, 0), self._reported(place))
            if stream in self.open and next <= needed and not self._holds(stream, next):
                self.owner.send_all(self.others, ItemRequest(stream, next))

    def find_late_streams(self, number: int) -> tuple[GroupId, ...]:
        """Open streams that hold up this number because their next item has not come."""
        if self.is_frozen:
            return ()
        given = self.delivered
        return tuple(s for s in self.open if given[s] < number and not self._holds(s, given[s] + 1))

    def drop_below(self, floor: int, keep: int) -> None:
        """The owner is past `floor`; what is `keep` numbers older is forgotten."""
        self.floor = max(self.floor, floor)
        for number in range(self._dropped + 1, self.floor - keep + 1):
            self._dropped = number
            for items in self.items.values():
                items.pop(number, None)

    def get_progress(self) -> tuple[int, Tops]:
        """For a fellow that takes over my state."""
        return (self.epoch, tuple(self.delivered.values()))

    def install_progress(self, epoch: int, tops: Tops) -> None:
        """A fellow's state was taken over, which had handed up this much. To acknowledge on the strength of being
        past a number would be wrong: the epoch may have ended without it."""
        self.installed_progress = max(self.installed_progress, (epoch, tops))

    # Acknowledging

    def _holds(self, stream: GroupId, number: int) -> bool:
        return number <= self.floor or number in self.items[stream]

    def _tops(self) -> Tops:
        known = self._acks.get(self.owner.me, (-1, ()))
        tops = []
        for place, stream in enumerate(self.streams):
            top = known[1][place] if known[0] == self.epoch else self.base[stream]
            if stream in self.open:
                if self.installed_progress[0] == self.epoch:
                    top = max(top, self.installed_progress[1][place])
                while top + 1 in self.items[stream]:
                    top += 1
            tops.append(top)
        return tuple(tops)

    def _acknowledge(self) -> None:
        """Say what I hold: as an acknowledgement, or where I acknowledge nothing more, for others to know."""
        me = self.owner.me
        mine = (self.epoch, self._tops())
        if self.is_frozen:
            report = (*self._acks[me], mine[1])
            self._news = self._news or self._frozen.get(me) != report
            self._frozen[me] = report
        elif self._acks.get(me) != mine:
            self._acks[me] = mine
            self._news = True

    def _limits(self) -> dict[GroupId, int]:
        """Up to where each stream may be handed up in this epoch."""
        if self._decided:
            return {entry.group: entry.timestamp for entry in self._decided[0] if entry.kind == TOP}
        current = [tops for epoch, tops in self._acks.values() if epoch == self.epoch]
        return {stream: self._ranked(current, place, self.quorum) for place, stream in enumerate(self.streams)}

    def _ranked(self, tops: Iterable[Tops], place: int, rank: int) -> int:
        """What at least `rank` processes hold of the stream in this place."""
        heights = sorted((top[place] for top in tops), reverse=True)
        return heights[rank - 1] if len(heights) >= rank else self.base[self.streams[place]]

    def _reported(self, place: int) -> int:
        """The highest number of the stream in this place that anybody says to hold in this epoch."""
        acked = [tops[place] for epoch, tops in self._acks.values() if epoch == self.epoch]
        held = [held[place] for epoch, _, held in self._frozen.values() if epoch == self.epoch]
        return max(acked + held, default=0)

    def _compare(self, peer: ProcessId, epoch: int) -> None:
        """Whoever is epochs behind is taught what was decided."""
        if epoch != self.paxos.log.decided_until:
            self.paxos.log.handle_status(peer, epoch)

    def _report(self, targets: tuple[ProcessId, ...]) -> None:
        epoch, tops = self._acks.get(self.owner.me, (self.epoch, self._tops()))
        if self.is_frozen:
            self.owner.send_all(targets, Frozen(epoch, tops, self._tops(), tuple(sorted(self.requested_changes))))
        else:
            self.owner.send_all(targets, Ack(epoch, tops))

    def _answer(self, sender: ProcessId, stream: GroupId, number: int) -> None:
        items = self.items[stream]
        for later in [held for held in sorted(items) if held >= number][:ITEMS_PER_REQUEST]:
            self.owner.send(sender, Item(stream, later, items[later]), tuple(m.id for m in items[later]) or None)

    # Changing

    def _sensible(self, change: Change) -> bool:
        kind, stream = change
        return (kind == CLOSE) == (stream in self.open)

    def _freeze(self) -> None:
        self._acknowledge()
        self.is_frozen = True
        self._news = True
        self._acknowledge()

    def _hear_frozen(self, sender: ProcessId, report: Report, wanted: tuple[Change, ...]) -> None:
        epoch, tops, held = report
        self._acks[sender] = max(self._acks.get(sender, (0, ())), (epoch, tops))
        self._frozen[sender] = max(self._frozen.get(sender, (0, (), ())), report)
        self._compare(sender, epoch)
        if epoch == self.epoch and not self._decided:
            self.requested_changes.update(change for change in wanted if self._sensible(change))
            if self.requested_changes and not self.is_frozen:
                self._freeze()
            self._fetch(sender, held)

    def _fetch(self, holder: ProcessId, held: Tops) -> None:
        """Items of a stream that is to be shut may not be on their way to me: who said them is probably lost."""
        for place, top in enumerate(self._tops()):
            stream = self.streams[place]
            if held[place] > top and (CLOSE, stream) in self.requested_changes:
                self.owner.send(holder, ItemRequest(stream, top + 1))

    def _propose(self) -> None:
        ends = self._ends([(tops, held) for epoch, tops, held in self._frozen.values() if epoch == self.epoch])
        if ends is not None:
            pairs = zip(self.streams, ends, strict=True)
            value = [Entry(TOP, 0, stream, end) for stream, end in pairs if stream in self.open]
            value += [Entry(kind, 0, stream) for kind, stream in sorted(self.requested_changes)]
            self.paxos.propose(tuple(value))

    def _ends(self, reports: list[tuple[Tops, Tops]]) -> Tops | None:
        """Where the epoch can end: up to where a majority holds each stream, once a majority acknowledged no more."""
        holding = [held for _, held in reports]
        ends = tuple(self._ranked(holding, place, self.quorum) for place in range(len(self.streams)))
        within = sum(all(map(le, tops, ends)) for tops, _ in reports)
        return ends if within >= self.quorum else None

    def _end_epoch(self, decision: Value) -> tuple[Change, ...]:
        for entry in decision:
            if entry.kind == TOP:
                assert self.delivered[entry.group] == entry.timestamp, (
                    f"epoch {self.epoch} ends at {entry.timestamp} of stream {entry.group}, of which process"
                    f" {self.owner.me} has handed up {self.delivered[entry.group]}"
                )
                self.base[entry.group] = entry.timestamp
        completed = min(self.base[stream] for stream in self.open)
        done: list[Change] = []
        for entry in decision:
            stream = entry.group
            if entry.kind == CLOSE and len(self.open) > 1 and stream in self.open:
                self.open = tuple(other for other in self.open if other != stream)
                done.append((CLOSE, stream))
            elif entry.kind == OPEN and stream not in self.open:
                self.open = tuple(other for other in self.streams if other in self.open or other == stream)
                self.base[stream] = self.delivered[stream] = max(completed, self.base[stream])
                done.append((OPEN, stream))
        self.epoch += 1
        self.is_frozen = False
        self.requested_changes = set()
        return tuple(done)

    # Snapshots

    def snapshot(self) -> GenericState:
        return GenericState(
            self.epoch,
            self.open,
            tuple(self.base.values()),
            tuple(self.delivered.values()),
            self.floor,
            self.installed_progress,
            tuple((stream, tuple(sorted(items.items()))) for stream, items in self.items.items()),
            tuple(self.newest.values()),
            self._dropped,
            tuple(sorted(self._acks.items())),
            tuple(sorted(self._frozen.items())),
            tuple(sorted(self.requested_changes)),
            self.is_frozen,
            tuple(self._decided),
            self.paxos.snapshot(),
        )

    def restore(self, state: GenericState) -> None:
        self.epoch = state.epoch
        self.open = state.open
        self.base = dict(zip(self.streams, state.base, strict=True))
        self.delivered = dict(zip(self.streams, state.given, strict=True))
        self.floor = state.floor
        self.installed_progress = state.vouched
        self.items = {stream: dict(items) for stream, items in state.items}
        self.newest = dict(zip(self.streams, state.newest, strict=True))
        self._dropped = state.dropped
        self._acks = dict(state.acks)
        self._frozen = dict(state.frozen)
        self.requested_changes = set(state.wanted)
        self.is_frozen = state.closing
        self._decided = list(state.decided)
        self.paxos.restore(state.paxos)

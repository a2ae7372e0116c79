"""Generic broadcast to all processes, where only changes conflict: with each other and with every item.

Source: Pedone and Schiper, "Handling message semantics with generic broadcast protocols" (2002), for the conflict
relation of paper 001, section 3.2. Items (in the paper: bundles) do not conflict with each other: processes may deliver
them in any order, as long as all deliver the same items between the same two changes.

    owner of the stream      all processes
      |--Item----------------->|              without conflict: two delays
      |<-----------Ack---------|------------> from every process to every process
    deliver                  deliver          once a majority holds it

    any process              all processes
      |--Frozen, with change-->|              with conflict: a receiver acknowledges nothing more in this epoch,
      |<---------Frozen--------|------------> and reports what it acknowledged, and what it holds by now
      |        Paxos among all processes      decides where the epoch ends, and the changes after it

A majority must not crash. A delivered item was acknowledged by a majority, so any majority of reports contains an
acknowledgement of it. A decision ends the epoch at numbers (1) that a majority holds, so that a process that lacks an
item can request it, and (2) above which the members of some majority have reported no acknowledgement, so that nothing
above them is ever delivered. Items that a single survivor holds are sent by it until (1) holds for them; items that
only crashed processes hold do not block the decision, because those are not needed for the majority of (2).

The paper requires n - f with f < n/3, because there any two messages may conflict and yet be fast. Here items never
conflict with items, and changes always go through consensus, so majorities suffice.

Every group has one stream of items, numbered 1, 2, 3 ..., which are acknowledged in order: an acknowledgement is one
number per stream. Changes open and close streams. A stream that is opened again continues after what all open streams
have completed; items that it sent in between belong to no epoch and are never delivered.

Processes do not recover from a crash: nothing here is durable.
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

PAXOS_TIMER: Final = "global-paxos"
ITEMS_PER_REQUEST: Final = 64
"""The most items that one request is answered with."""

Event = tuple[GroupId, int] | tuple[Change, ...]
"""What the owner applies next: the item of this stream and number, or the changes that end an epoch."""


Report = tuple[int, Tops, Tops]
"""Epoch, what the sender acknowledged in it, and what it holds by now."""


def faults_tolerated(processes: int) -> int:
    """The number of processes that may crash so that a majority remains."""
    return processes - majority(processes)


class WrappedSender(Process):
    """The owner of the Paxos among all processes: sends wrapped bodies through the real owner, and persists nothing."""

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
        """Nothing: processes do not recover."""

    def note(self, name: str, message: int | None = None, value: float | None = None) -> None:
        self._owner.note(f"global-{name}", message, value)

    def on_request(self, message: Message) -> None:
        raise AssertionError("this process only sends")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError("this process only sends")

    def snapshot(self) -> State:
        raise AssertionError("this process has no state")

    def restore(self, state: State) -> None:
        raise AssertionError("this process has no state")


class GenericBroadcast:
    """One process's part in a generic broadcast."""

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
        """The number of decided changes of the open streams."""
        self.open: tuple[GroupId, ...] = self.streams
        self.base: dict[GroupId, int] = dict.fromkeys(self.streams, 0)
        """By stream: the last number that belongs to an earlier epoch, or to none."""
        self.delivered: dict[GroupId, int] = dict.fromkeys(self.streams, 0)
        """By stream: the last number that was returned to the owner, or skipped."""
        self.floor = 0
        """Items up to this number need not be held to be delivered: the owner has passed them."""
        self.installed_progress: tuple[int, Tops] = (0, (0,) * len(self.streams))
        """An epoch, and the numbers delivered in it by the member whose state was installed: they count as held."""
        self.items: dict[GroupId, dict[int, tuple[Message, ...]]] = {stream: {} for stream in self.streams}
        self.newest: dict[GroupId, int] = dict.fromkeys(self.streams, 0)
        """By stream: the highest number ever held."""
        self._dropped = 0
        """Items up to this number were dropped."""
        self._acks: dict[ProcessId, tuple[int, Tops]] = {}
        """The latest acknowledgement of each process, this one included: epoch and numbers."""
        self._reports: dict[ProcessId, Report] = {}
        """The latest report of each process, this one included."""
        self.requested_changes: set[Change] = set()
        self.is_frozen = False
        """Whether this process acknowledges nothing more in this epoch."""
        self._decided: list[Value] = []
        """Decisions for this epoch and later ones."""
        self._report_changed = False
        """Whether the own acknowledgement or report has changed in this step."""

    # Called by the owner

    def begin(self) -> None:
        self.paxos.begin((), 0)

    def add_item(self, stream: GroupId, number: int, messages: tuple[Message, ...]) -> bool:
        """Adds an item; False if it is held already, or no longer needed."""
        if number <= self.floor or number in self.items[stream]:
            return False
        self.items[stream][number] = messages
        self.newest[stream] = max(self.newest[stream], number)
        return True

    def request_change(self, change: Change) -> None:
        """Requests a change of the open streams, unless it has no effect."""
        if self._has_effect(change) and change not in self.requested_changes:
            self.requested_changes.add(change)
            self._freeze()

    def receive(self, sender: ProcessId, body: Body) -> bool:
        """Handles a body of GENERIC_BODIES; False for others."""
        match body:
            case Item(stream, number, messages):
                self.add_item(stream, number, messages)
            case Ack(epoch, tops):
                self._acks[sender] = max(self._acks.get(sender, (0, ())), (epoch, tops))
                self._check_epoch(sender, epoch)
            case Frozen(epoch, tops, held, changes):
                self._handle_frozen(sender, (epoch, tops, held), changes)
            case ItemRequest(stream, number):
                self._handle_item_request(sender, stream, number)
            case GlobalPaxos(inner):
                self._decided += [value for _, value in self.paxos.receive(sender, inner)]  # type: ignore[misc]
            case _:
                return False
        return True

    def collect_events(self) -> list[Event]:
        """Acknowledges held items, and returns what the owner can apply now, in order."""
        events: list[Event] = []
        while True:
            self._acknowledge()
            limits = self._find_limits()
            for stream in self.open:
                while self.delivered[stream] < limits[stream] and self._holds(stream, self.delivered[stream] + 1):
                    self.delivered[stream] += 1
                    events.append((stream, self.delivered[stream]))
            if not self._decided or any(self.delivered[stream] < limits[stream] for stream in self.open):
                return events
            events.append(self._end_epoch(self._decided.pop(0)))

    def flush(self) -> None:
        """Ends a step: proposes the end of the epoch, sends the own report, flushes Paxos."""
        if self.is_frozen and self.paxos.can_propose() and self.paxos.next_instance == self.epoch and not self._decided:
            self._propose()
        if self._report_changed:
            self._report_changed = False
            self._send_report(self.others)
        self.paxos.flush()

    def set_leading(self, is_leader: bool) -> None:
        """Sets whether this process leads the Paxos among all processes."""
        me = self.owner.me
        if self.others and is_leader != (self.paxos.suggested_leader == me):
            self.paxos.handle_leader(me if is_leader else self.others[0])

    def handle_link_reset(self, peer: ProcessId) -> None:
        """Sends a peer again what the old link may have lost."""
        self.paxos.handle_link_reset(peer)
        if peer in self.others:
            self._send_report((peer,))

    def request_missing(self) -> None:
        """Sends the own report again, and requests missing items; called after a long time without progress."""
        self._send_report(self.others)
        limits = self._find_limits()
        held = self._held_tops()
        for place, stream in enumerate(self.streams):
            first = max(self.delivered[stream], held[place]) + 1
            needed = max(limits.get(stream, 0), self._highest_reported(place))
            if stream in self.open and first <= needed and not self._holds(stream, first):
                self.owner.send_all(self.others, ItemRequest(stream, first))

    def find_late_streams(self, number: int) -> tuple[GroupId, ...]:
        """Open streams that block this number because their next item has not arrived."""
        if self.is_frozen:
            return ()
        delivered = self.delivered
        return tuple(s for s in self.open if delivered[s] < number and not self._holds(s, delivered[s] + 1))

    def drop_below(self, floor: int, keep: int) -> None:
        """Records that the owner has passed `floor`, and drops items that are `keep` numbers older."""
        self.floor = max(self.floor, floor)
        for number in range(self._dropped + 1, self.floor - keep + 1):
            self._dropped = number
            for items in self.items.values():
                items.pop(number, None)

    def get_progress(self) -> tuple[int, Tops]:
        """The progress that goes with the owner's state to another member."""
        return (self.epoch, tuple(self.delivered.values()))

    def install_progress(self, epoch: int, tops: Tops) -> None:
        """Installs the progress that came with another member's state. The owner's position alone does not permit to
        acknowledge the numbers before it: the epoch may have ended without them."""
        self.installed_progress = max(self.installed_progress, (epoch, tops))

    # Acknowledging

    def _holds(self, stream: GroupId, number: int) -> bool:
        return number <= self.floor or number in self.items[stream]

    def _held_tops(self) -> Tops:
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
        """Updates the own acknowledgement; while frozen, the report of what is held."""
        me = self.owner.me
        own = (self.epoch, self._held_tops())
        if self.is_frozen:
            report = (*self._acks[me], own[1])
            self._report_changed = self._report_changed or self._reports.get(me) != report
            self._reports[me] = report
        elif self._acks.get(me) != own:
            self._acks[me] = own
            self._report_changed = True

    def _find_limits(self) -> dict[GroupId, int]:
        """By stream: the last number that may be delivered in this epoch."""
        if self._decided:
            return {entry.group: entry.timestamp for entry in self._decided[0] if entry.kind == TOP}
        current = [tops for epoch, tops in self._acks.values() if epoch == self.epoch]
        quorum = self.quorum
        if len(current) < quorum:
            return {stream: self.base[stream] for stream in self.streams}
        held = (sorted(numbers)[-quorum] for numbers in zip(*current, strict=True))
        return dict(zip(self.streams, held, strict=True))

    def _held_by(self, tops: Iterable[Tops], place: int, count: int) -> int:
        """The highest number of the stream in this place that at least `count` processes hold."""
        numbers = sorted((top[place] for top in tops), reverse=True)
        return numbers[count - 1] if len(numbers) >= count else self.base[self.streams[place]]

    def _highest_reported(self, place: int) -> int:
        """The highest number of the stream in this place that any process reports to hold in this epoch."""
        acked = [tops[place] for epoch, tops in self._acks.values() if epoch == self.epoch]
        held = [held[place] for epoch, _, held in self._reports.values() if epoch == self.epoch]
        return max(acked + held, default=0)

    def _check_epoch(self, peer: ProcessId, epoch: int) -> None:
        """Exchanges decisions with a peer that is in another epoch."""
        if epoch != self.paxos.log.decided_until:
            self.paxos.log.handle_status(peer, epoch)

    def _send_report(self, targets: tuple[ProcessId, ...]) -> None:
        epoch, tops = self._acks.get(self.owner.me, (self.epoch, self._held_tops()))
        if self.is_frozen:
            self.owner.send_all(targets, Frozen(epoch, tops, self._held_tops(), tuple(sorted(self.requested_changes))))
        else:
            self.owner.send_all(targets, Ack(epoch, tops))

    def _handle_item_request(self, sender: ProcessId, stream: GroupId, number: int) -> None:
        items = self.items[stream]
        for later in [held for held in sorted(items) if held >= number][:ITEMS_PER_REQUEST]:
            self.owner.send(sender, Item(stream, later, items[later]), tuple(m.id for m in items[later]) or None)

    # Changing

    def _has_effect(self, change: Change) -> bool:
        kind, stream = change
        return (kind == CLOSE) == (stream in self.open)

    def _freeze(self) -> None:
        self._acknowledge()
        self.is_frozen = True
        self._report_changed = True
        self._acknowledge()

    def _handle_frozen(self, sender: ProcessId, report: Report, changes: tuple[Change, ...]) -> None:
        epoch, tops, held = report
        self._acks[sender] = max(self._acks.get(sender, (0, ())), (epoch, tops))
        self._reports[sender] = max(self._reports.get(sender, (0, (), ())), report)
        self._check_epoch(sender, epoch)
        if epoch == self.epoch and not self._decided:
            self.requested_changes.update(change for change in changes if self._has_effect(change))
            if self.requested_changes and not self.is_frozen:
                self._freeze()
            self._request_items(sender, held)

    def _request_items(self, holder: ProcessId, held: Tops) -> None:
        """Requests items of a stream that is to be closed: its owner is probably lost and will not send them."""
        for place, top in enumerate(self._held_tops()):
            stream = self.streams[place]
            if held[place] > top and (CLOSE, stream) in self.requested_changes:
                self.owner.send(holder, ItemRequest(stream, top + 1))

    def _propose(self) -> None:
        ends = self._find_ends([(tops, held) for epoch, tops, held in self._reports.values() if epoch == self.epoch])
        if ends is not None:
            pairs = zip(self.streams, ends, strict=True)
            value = [Entry(TOP, 0, stream, end) for stream, end in pairs if stream in self.open]
            value += [Entry(kind, 0, stream) for kind, stream in sorted(self.requested_changes)]
            self.paxos.propose(tuple(value))

    def _find_ends(self, reports: list[tuple[Tops, Tops]]) -> Tops | None:
        """Where the epoch can end: a majority holds each stream so far, and a majority has acknowledged no more."""
        holding = [held for _, held in reports]
        ends = tuple(self._held_by(holding, place, self.quorum) for place in range(len(self.streams)))
        within = sum(all(map(le, tops, ends)) for tops, _ in reports)
        return ends if within >= self.quorum else None

    def _end_epoch(self, decision: Value) -> tuple[Change, ...]:
        for entry in decision:
            if entry.kind == TOP:
                assert self.delivered[entry.group] == entry.timestamp, (
                    f"epoch {self.epoch} ends at {entry.timestamp} of stream {entry.group}, of which process"
                    f" {self.owner.me} has delivered {self.delivered[entry.group]}"
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
            tuple(sorted(self._reports.items())),
            tuple(sorted(self.requested_changes)),
            self.is_frozen,
            tuple(self._decided),
            self.paxos.snapshot(),
        )

    def restore(self, state: GenericState) -> None:
        self.epoch = state.epoch
        self.open = state.open
        self.base = dict(zip(self.streams, state.base, strict=True))
        self.delivered = dict(zip(self.streams, state.delivered, strict=True))
        self.floor = state.floor
        self.installed_progress = state.installed_progress
        self.items = {stream: dict(items) for stream, items in state.items}
        self.newest = dict(zip(self.streams, state.newest, strict=True))
        self._dropped = state.dropped
        self._acks = dict(state.acks)
        self._reports = dict(state.reports)
        self.requested_changes = set(state.requested_changes)
        self.is_frozen = state.is_frozen
        self._decided = list(state.decided)
        self.paxos.restore(state.paxos)

"""PrimCast when the primary changes, and when a member has lost its memory (002, algorithm 3).

    candidate            fellows
       |----NewEpoch------>|        to all members, itself among them
       |<---Promise--------|        epoch and log held, clock; nothing lower is accepted from now on
       |----NewState------>|        the longest log of the highest epoch, the highest clock, of a majority
       |<---Ack----------->|        everybody to everybody: "I hold it", with the clock; a majority establishes it
    primary

A member without memory may have voted for what it no longer knows. It has no vote until (a) so many fellows have
said Welcome that every majority it was part of has one of them, and (b) the primary of an epoch at least as high as any
that they had promised then has sent it that epoch's log. (b) restores every entry that its lost acknowledgements may
have helped to decide; the Welcomes restore its clock. Its lost promises and its lost clock no longer count: who said
Welcome tells, with every promise and acknowledgement, in which life that member lost its memory (`births`), and what
a member said before that life is discarded.
"""

from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.topology import Topology
from amcast.parts.quorum import next_ballot
from amcast.protocols.bodies.primcast import (
    Ack,
    Entry,
    Join,
    Nack,
    NewEpoch,
    NewState,
    PrimCastConfig,
    Promise,
    Propose,
    Sync,
    Welcome,
)
from amcast.protocols.primcast_order import Order
from amcast.protocols.primcast_views import Item, about


class Epochs(Order):
    """A member that can change epochs."""

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config)
        self._fellows = tuple(member for member in self._members if member != me)
        self._life = 0
        self._oracle = self._members[0]
        """Whom the oracle named last."""
        self._heard_epoch = 0
        """The highest epoch that anybody of my group spoke of."""
        self._promises: dict[int, Promise] = {}
        self._state: NewState | None = None
        """What I, a candidate, chose from the promises and sent."""
        self._later: dict[int, Ack] = {}
        """By place: the last word of fellows in epochs that I have not reached."""
        self._welcomes: dict[int, Welcome] = {}
        self._turn = 0
        """Whom to ask next."""
        self._letters: list[tuple[tuple[ProcessId, ...], Body, About]] = []
        """Bodies of this step that must not leave before what changed is durable."""
        self._checkpoint_due = False

    def _write(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        self._letters.append((targets, body, about))

    # A candidate

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group != self.home or leader not in self._members:
            return
        self._oracle = leader
        if leader == self.me and self._role != "joining":
            if self._role == "member":
                self._campaign()
            else:
                self._write(self._fellows, Sync(self._epoch, self._length, self.position, False))

    def _campaign(self) -> None:
        self._role = "candidate"
        self._promised = next_ballot(max(self._promised, self._heard_epoch), self._life, self._place)
        self._promises = {}
        self._state = None
        self._write(self._members, NewEpoch(self._promised))

    def _hear_nack(self, epoch: int) -> None:
        """I am refused. If the oracle still means me, I go above; else whoever it means will."""
        self._heard_epoch = max(self._heard_epoch, epoch)
        if epoch > self._promised and self._role in ("primary", "candidate") and self._oracle == self.me:
            self.note("nack")
            self._campaign()

    def _hear_new_epoch(self, sender: ProcessId, epoch: int) -> None:
        self._heard_epoch = max(self._heard_epoch, epoch)
        if self._role == "joining":
            return
        if epoch < self._promised:
            self._write((sender,), Nack(self._promised))
        elif epoch > self._epoch:
            if epoch > self._promised:
                self._promised = epoch
                self._role = "member"
            self._write((sender,), self._promise())

    def _promise(self) -> Promise:
        return Promise(
            self._promised, self._epoch, self._clock, self._base, self._floor, self._entries(self._base), self._births
        )

    def _entries(self, first: int) -> tuple[Entry, ...]:
        entries = []
        for index in range(first, self._length):
            item = self._log[index]
            assert item.message is not None
            entries.append(Entry(item.message, item.timestamp))
        return tuple(entries)

    def _hear_promise(self, sender: ProcessId, body: Promise) -> None:
        if self._role != "candidate" or body.epoch != self._promised or self._state is not None:
            return
        self._hear_births(body.births)
        self._promises[self._view.places[sender]] = body
        valid = [p for place, p in sorted(self._promises.items()) if p.births[place] == self._births[place]]
        if len(valid) < self._view.quorum:
            return
        longest = max(valid, key=lambda promise: (promise.current, promise.base + len(promise.entries)))
        clock = max(promise.clock for promise in valid)
        self._state = NewState(self._promised, clock, longest.base, longest.floor, longest.entries, self._births)
        self._write(self._members, self._state)

    # A follower

    def _hear_state(self, sender: ProcessId, body: NewState) -> None:
        assert sender == self._leader(body.epoch), f"process {sender} sent the state of epoch {body.epoch}"
        self._heard_epoch = max(self._heard_epoch, body.epoch)
        if self._role == "joining":
            if not self._admits(body):
                return
            self._role = "member"
            self._welcomes = {}
            self.note("admitted")
            self._adopt(body)
        elif body.epoch < self._promised:
            self._write((sender,), Nack(self._promised))
        elif body.epoch > self._epoch:
            self._adopt(body)
        elif sender != self.me:
            self._extend(body)

    def _adopt(self, body: NewState) -> None:
        """Hold another log from now on."""
        self._hear_births(body.births)
        if body.epoch > self._promised or self._leader(body.epoch) != self.me:
            self._role = "member"
        self._epoch = self._promised = body.epoch
        self._established = False
        self._leader_clock = 0
        self._said = (0, 0)
        self._replace(body)
        self._clock = max(self._clock, body.clock)
        self._due = True
        self._checkpoint_due = True
        self.note("adopted", value=float(body.epoch))
        for place, ack in sorted(self._later.items()):
            if ack.epoch <= self._epoch:
                del self._later[place]
                self._hear_fellow(self._members[place], ack)
        if self._leader(self._epoch) != self.me:
            self._tell_others(self._open(), None)

    def _extend(self, body: NewState) -> None:
        """The same log, of which I missed something."""
        end = body.base + len(body.entries)
        if end > self._length:
            self.note("extended")
            if body.base > self._length:
                self._replace(body)
                self._checkpoint_due = True
                self._due = True
                self._tell_others(self._open(), None)
            else:
                self._stream.clear()
                for entry in body.entries[self._length - body.base :]:
                    self._append(self._held(entry), entry.timestamp)
        if self._said[0] <= self._length and self._said[1] > self._leader_clock:
            self._leader_clock = self._said[1]

    def _replace(self, body: NewState) -> None:
        """Put the log of a state in the place of mine; what it lacks has no timestamp of my group any more."""
        for item in self._items.values():
            item.index = -1
            item.timestamp = 0
            item.bound = max(item.decided.values(), default=0)
            if item.message is not None:
                self._unproposed[item.id] = item
        self._log = {}
        self._queue = []
        self._stream.clear()
        self._fresh = []
        self._base = self._length = self._decided = body.base
        self._floor = max(self._floor, body.floor)
        for entry in body.entries:
            self._place_in_log(self._held(entry), entry.timestamp)
        for item in self._items.values():
            assert item.index >= 0 or self.home not in item.decided or self.position < self._floor, (
                f"process {self.me}: epoch {body.epoch} lost message {item.id}, whose timestamp was decided"
            )

    def _held(self, entry: Entry) -> Item:
        if entry.message.id in self._seen:
            return self._buried(entry.message)
        item = self._item(entry.message.id)
        item.message = entry.message
        self._commit(item)
        return item

    def _open(self) -> list[Item]:
        """What has a place in the log and is not delivered, in the log's order."""
        return [item for index in range(self._base, self._length) if (item := self._log[index]).delivered_at < 0]

    def _tell_others(self, items: list[Item], only: ProcessId | None) -> None:
        """Say again to other groups (or to one process of theirs) how my group's log stands for what is open."""
        for group, mine in self._by_group(items):
            targets = self.topology.members(group)
            if only is None:
                self._write(targets, self._said_of(mine), about(mine))
            elif only in targets:
                self._write((only,), self._said_of(mine), about(mine))

    def _hear_later(self, place: int, ack: Ack) -> None:
        """A fellow is in an epoch that I have not reached: its state is on its way, or lost."""
        self._heard_epoch = max(self._heard_epoch, ack.epoch)
        self._later[place] = ack
        self._lag = True

    def _establish(self) -> None:
        if self._role == "candidate" and self._leader(self._epoch) == self.me and self._active():
            self._role = "primary"
            self._promises = {}
            self._state = None
            self.note("epoch", value=float(self._epoch))
            for item in self._unproposed.values():
                self.note("reproposed", item.id)
            self._tell_others(self._open(), None)

    # Lost memory

    def _join(self) -> None:
        self._role = "joining"
        self._established = False
        births = list(self._births)
        births[self._place] = self._life
        self._births = tuple(births)
        self._ask_to_join(-1)

    def _ask_to_join(self, helper: ProcessId) -> None:
        self._write(self._fellows, Join(self._life, helper))

    def _hear_births(self, births: tuple[int, ...]) -> None:
        """What a member said before it lost its memory no longer counts."""
        if births == self._births:
            return
        merged = list(self._births)
        for place, birth in enumerate(births):
            if birth > merged[place]:
                merged[place] = birth
                self._clocks.forget(place)
                self._later.pop(place, None)
        self._births = tuple(merged)

    def _hear_join(self, sender: ProcessId, body: Join) -> None:
        if self._role == "joining":
            return
        births = list(self._births)
        place = self._view.places[sender]
        births[place] = max(births[place], body.birth)
        self._hear_births(tuple(births))
        self._write((sender,), Welcome(body.birth, self._promised, self._clock))
        if body.helper == self.me:
            self.note("helped")
            self._campaign()
        elif self._role == "primary" and self._active():
            self._write((sender,), self._whole_state())

    def _whole_state(self) -> NewState:
        return NewState(self._epoch, self._clock, self._base, self._floor, self._entries(self._base), self._births)

    def _hear_welcome(self, sender: ProcessId, body: Welcome) -> None:
        if self._role != "joining" or body.birth != self._life:
            return
        before = self._welcomed()
        self._welcomes[self._view.places[sender]] = body
        self._clock = max(self._clock, body.clock)
        if self._welcomed() and not before:
            self._seek_admission()

    def _welcomed(self) -> bool:
        """Every majority that I was part of contains one of those who answered."""
        return len(self._welcomes) > len(self._members) - self._view.quorum

    def _lowest_epoch(self) -> int:
        return max(welcome.promised for welcome in self._welcomes.values())

    def _seek_admission(self) -> None:
        """Ask the primary for the log, or, if it was I, the next fellow to become primary."""
        leader = self._leader(max(self._lowest_epoch(), self._heard_epoch))
        if leader == self.me or self._turn > 1:
            self._ask_to_join(self._fellows[self._turn % len(self._fellows)])
        else:
            self._write((leader,), Sync(-1, 0, self.position, True))
        self._turn += 1

    def _admits(self, body: NewState) -> bool:
        """Its primary must know of my lost memory, and tell it with its clock from now on."""
        return self._welcomed() and body.epoch >= self._lowest_epoch() and body.births[self._place] == self._life

    def _refuse(self, sender: ProcessId, body: Propose) -> None:
        """A primary of an epoch that I left must hear of it."""
        if self._role != "joining" and self._leader(body.ack.epoch) == sender:
            self._write((sender,), Nack(self._promised))

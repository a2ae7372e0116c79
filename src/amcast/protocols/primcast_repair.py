"""PrimCast when something was missed: lost links, restarts, laggards.

Links lose what was in flight when they begin anew, and a restarted process has only its records. Inside a group both
ends say where they are (Sync) and the one that is ahead sends the rest: entries of the log if it is the primary, past
deliveries, or the bare position if those are gone. Between groups nothing is numbered per link: who still waits for a
message after a while asks the other destinations for the message or for their group's timestamp (Query, Decided). A
group answers for a delivered message until a majority of each other destination has delivered it too.
"""

from collections.abc import Sequence
from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.kernel.topology import Topology
from amcast.parts.bundle import is_bundle, parts_of
from amcast.protocols.bodies.primcast import (
    CatchUp,
    Checkpoint,
    Decided,
    Fact,
    Handed,
    Install,
    Nack,
    NewEpoch,
    NewState,
    Past,
    PrimCastConfig,
    Progress,
    Query,
    Start,
    Sync,
)
from amcast.protocols.primcast_epochs import Epochs
from amcast.protocols.primcast_views import Item

REPAIR: Final = "repair"
MAX_QUERIES: Final = 64
"""Messages asked for at a time, oldest first."""


class Repair(Epochs):
    """A member that catches up and helps others to."""

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config)
        self._armed = False
        self._durable_promised = -1
        self._durable_clock = 0
        self._durable_length = 0
        self._durable_births = self._births
        self._records = 0
        """Since the last checkpoint."""

    # A life begins

    def on_start(self, records: Sequence[Record], life: int) -> None:
        self._life = life
        for record in records:
            match record:
                case Checkpoint():
                    self._recall(record)
                case Progress():
                    self._replay(record)
        if life == 0:
            self._persist_progress()  # so that an empty disk means lost memory
            return
        if not records:
            self._join()
            return
        self._undurable = []
        self._note_durable()
        self._records = len(records)
        self._role = "member"
        self._established = False
        self._due = True
        self._lag = True
        self._write(self._fellows, Sync(self._epoch, self._length, self.position, True))
        if self._active():
            self._tell_others(self._open(), None)

    def _recall(self, kept: Checkpoint) -> None:
        self._restore_kept(kept)
        if kept.first > kept.handed:
            self._jumped(kept.past[0].place if kept.past else kept.served)
        for past in kept.past[max(0, kept.handed - kept.first) :]:
            self._emit(past, parts_of(past.message) if is_bundle(past.message.id) else [], None)

    def _restore_kept(self, kept: Checkpoint) -> None:
        """Everything durable, as it was."""
        self._promised = kept.promised
        self._epoch = kept.epoch
        self._clock = kept.clock
        self._births = kept.births
        self._seen.restore(kept.seen)
        self._mark = (kept.time, kept.tie)
        self._handed = kept.handed
        self._first = kept.first
        self._past = {past.message.id: past for past in kept.past}
        self._facts = {}
        self._owed = {}
        for fact in kept.facts:
            self._owe(fact.id, fact.timestamp, fact.final, fact.groups)
        self.position = kept.first + len(kept.past)
        self._served = kept.served
        self._replace(NewState(kept.epoch, kept.clock, kept.base, kept.floor, kept.entries, kept.births))

    def _replay(self, record: Progress) -> None:
        self._promised = record.promised
        self._clock = max(self._clock, record.clock)
        self._births = record.births
        gap = record.first > self._length
        if gap:
            # What lay between was delivered and trimmed before it was durable: its places are taken for good.
            for index in range(self._base, self._length):
                del self._log[index]
            self._base = self._length = self._decided = record.first
        for place, entry in enumerate(record.entries, record.first):
            if place == self._length:
                self._place_in_log(self._held(entry), entry.timestamp)
        for handed in record.delivered:
            message = handed.message or self.text(handed.id)
            assert message is not None, f"process {self.me}: no record has the text of message {handed.id}"
            self._hand_over(message, handed.timestamp, handed.final, None)
        if gap:
            self._floor = max(self._floor, self.position)

    # Records

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._promised,
            self._epoch,
            self._clock,
            self._births,
            self._base,
            self._floor,
            self._entries(self._base),
            self._handed,
            self._first,
            tuple(self._past.values()),
            *self._mark,
            self._seen.snapshot(),
            self._known_facts(),
            self._served,
        )

    def _known_facts(self) -> tuple[Fact, ...]:
        return tuple(
            Fact(id, timestamp, final, tuple(sorted(groups))) for id, (timestamp, final, groups) in self._facts.items()
        )

    def _make_durable(self) -> None:
        """Before anything is said: promises, clock, accepted entries, deliveries, in one record."""
        if self._role == "joining":
            return
        if self._checkpoint_due or self._records >= self._config.keep:
            self.persist(self._checkpoint(), replaces=True)
            self._checkpoint_due = False
            self._records = 0
            self._note_durable()
        elif (
            self._length > self._durable_length
            or self._clock > self._durable_clock
            or self._undurable
            or self._promised > self._durable_promised
            or self._births != self._durable_births
        ):
            self._persist_progress()

    def _persist_progress(self) -> None:
        first = max(self._durable_length, self._base)
        delivered = tuple([self._handed_record(past, index, first) for past, index in self._undurable])
        self.persist(Progress(self._promised, self._clock, self._births, first, self._entries(first), delivered))
        self._records += 1
        self._note_durable()

    def _handed_record(self, past: Past, index: int, first: int) -> Handed:
        """With the text, unless it was an entry of an earlier record or is one of this, which begins at `first`."""
        told = 0 <= index < self._durable_length or index >= first
        return Handed(past.message.id, past.timestamp, past.final, None if told else past.message)

    def _note_durable(self) -> None:
        self._durable_promised = self._promised
        self._durable_clock = self._clock
        self._durable_length = self._length
        self._durable_births = self._births
        self._undurable = []

    # Inside the group

    def on_peer(self, peer: ProcessId, life: int) -> None:
        if peer in self._fellows:
            if self._role == "joining":
                self._ask_to_join(-1)
            else:
                self._write((peer,), Sync(self._epoch, self._length, self.position, True))
                if self._role == "candidate":
                    self._write((peer,), self._state or NewEpoch(self._promised))
        elif self.topology.group_of(peer) is not None and self._active():
            self._tell_others(self._open(), peer)
            group = self.topology.group_of(peer)
            for item in [item for item in self._items.values() if item.message is not None]:
                assert item.message is not None
                if group in item.message.destinations and group not in item.decided:
                    self._write((peer,), Query(item.id, item.message), item.id)

    def _hear_sync(self, sender: ProcessId, body: Sync) -> None:
        if body.epoch > self._epoch:
            self._heard_epoch = max(self._heard_epoch, body.epoch)
            self._lag = True
        if self._role != "joining":
            if body.epoch < self._promised and body.epoch >= 0 and self._leader(body.epoch) == sender:
                self._write((sender,), Nack(self._promised))
            if self._active():
                if self._leader(self._epoch) == self.me:
                    self._send_log(sender, body)
                self._write((sender,), self._ack())
        if body.full and body.position < self.position:
            self._help(sender, body.position)
        elif body.position > self.position:
            self._lag = True

    def _send_log(self, sender: ProcessId, body: Sync) -> None:
        if body.epoch != self._epoch or body.length < self._base:
            self._write((sender,), self._whole_state())
        elif body.length < self._length:
            entries = self._entries(body.length)
            self._write((sender,), NewState(self._epoch, self._clock, body.length, self._floor, entries, self._births))

    def _help(self, sender: ProcessId, position: int) -> None:
        if position >= self._first:
            past = tuple(self._past.values())[position - self._first :]
            self._write((sender,), CatchUp(position, past))
        else:
            told = Install(self.position, *self._mark, self._seen.snapshot(), self._known_facts(), self._served)
            self._write((sender,), told)

    def _catch_up(self, body: CatchUp) -> None:
        for past in body.past[max(0, self.position - body.first) :] if body.first <= self.position else ():
            self.note("caught-up", past.message.id)
            self._hand_over(past.message, past.timestamp, past.final, None)

    def _install(self, body: Install) -> None:
        if body.position <= self.position:
            return
        self.position = body.position
        self._served = body.served
        self._jumped(body.served)
        self._seen.restore(body.seen)
        self._mark = (body.time, body.tie)
        for id in [id for id in self._items if id in self._seen]:
            self._items.pop(id).delivered_at = body.position - 1
            self._unproposed.pop(id, None)
        self._past = {}
        self._first = body.position
        self._undurable = []
        self._facts = {}
        self._owed = {}
        for fact in body.facts:
            self._owe(fact.id, fact.timestamp, fact.final, fact.groups)
        self._clock = max(self._clock, body.time)
        self._due = True
        self._checkpoint_due = True

    # Between groups

    def _answer(self, sender: ProcessId, body: Query) -> None:
        if body.message is not None:
            self.on_submit(body.message)
        fact = self._facts.get(body.id)
        item = self._items.get(body.id)
        if fact is not None:
            self._write((sender,), Decided(body.id, self.home, fact[0]), body.id)
        elif item is not None and self.home in item.decided:
            self._write((sender,), Decided(body.id, self.home, item.decided[self.home]), body.id)
        if body.message is None:
            message = self.text(body.id)
            if message is not None:
                self._write((sender,), Start(message), body.id)

    def _hear_decided(self, body: Decided) -> None:
        if body.id not in self._seen:
            item = self._item(body.id)
            self._hear_time(item, body.group, body.timestamp)
            self._decide(item, body.group, body.timestamp)

    # The timer

    def on_timer(self, name: str) -> None:
        assert name == REPAIR, f"process {self.me} has no timer {name}"
        self._armed = False
        if self._role == "joining":
            if self._welcomed():
                self._seek_admission()
            self._ask_to_join(-1)
        elif self._role == "candidate":
            self._write(self._members, self._state or NewEpoch(self._promised))
        elif self._role == "member" and self._oracle == self.me:
            self._campaign()
        old = [item for item in self._items.values() if item.old]
        if (old or self._lag) and self._fellows:
            self._ask_fellows()
        for item in old[:MAX_QUERIES]:
            self._ask_about(item)
        for item in self._items.values():
            item.old = True

    def _ask_fellows(self) -> None:
        self._lag = False
        self._turn += 1
        helper = self._fellows[self._turn % len(self._fellows)]
        for fellow in self._fellows:
            full = fellow == helper or fellow == self._leader(self._promised)
            if self._role != "joining":
                self._write((fellow,), Sync(self._epoch, self._length, self.position, full))
            elif full:
                self._write((fellow,), Sync(-1, 0, self.position, True))

    def _ask_about(self, item: Item) -> None:
        """Whatever is missing of an open message, from whoever should have it."""
        self.note("asked", item.id)
        if item.message is None:
            for group in sorted(item.heard):
                others = tuple(member for member in self.topology.members(group) if member != self.me)
                self._write(others, Query(item.id, None), item.id)
            return
        if item.index < 0:
            self._write(self._fellows, Start(item.message), item.id)
        for group in item.message.destinations:
            if group != self.home and group not in item.decided:
                self._write(self.topology.members(group), Query(item.id, item.message), item.id)

    def _watch(self) -> None:
        """The timer runs while something is open. It is not cancelled: most messages come and go within one run."""
        if self._armed:
            return
        waits = (
            bool(self._items)
            or self._lag
            or self._role in ("joining", "candidate")
            or (self._role == "member" and self._oracle == self.me)
        )
        if waits:
            self._armed = True
            self.set_timer(REPAIR, self._config.repair_ns)

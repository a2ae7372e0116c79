"""White-Box when something was missed: lost links, restarts, laggards, and what must survive a restart."""

from collections.abc import Sequence
from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Record
from amcast.kernel.topology import Topology
from amcast.protocols.bodies.whitebox import (
    CatchUp,
    Checkpoint,
    Decided,
    Entry,
    Mark,
    Nack,
    NewLeader,
    Progress,
    Retry,
    Sync,
    WhiteBoxConfig,
)
from amcast.protocols.whitebox_ballots import Ballots
from amcast.protocols.whitebox_order import Item

REPAIR: Final = "repair"
MAX_RETRIES: Final = 64
"""Messages asked for at a time, oldest first."""


class Repair(Ballots):
    """A member that catches up and helps others to."""

    def __init__(self, me: ProcessId, topology: Topology, config: WhiteBoxConfig) -> None:
        super().__init__(me, topology, config)
        self._armed = False
        self._durable_promised = -1
        self._durable_clock = 0
        self._durable_births = self._births[self.home]
        self._records = 0
        """Since the last checkpoint."""
        self._marked = False
        """A Mark is on its way to me."""

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
        self._note_durable()
        self._records = len(records)
        self._role = "member"
        self._lag = True
        self._write(self._fellows, Sync(self._ballot, self.position))

    def _recall(self, kept: Checkpoint) -> None:
        self._restore_kept(kept)
        self.position = kept.handed
        if kept.first > kept.handed:
            self.installed(kept.first)
        for past in kept.past[self.position - kept.first :]:
            self.deliver(past.message, past.final, past.message.id)

    def _restore_kept(self, kept: Checkpoint) -> None:
        """Everything durable, as it was."""
        self._promised = kept.promised
        self._ballot = kept.ballot
        self._clock = kept.clock
        self._births[self.home] = kept.births
        self._items = {}
        for entry in kept.accepted:
            self._item(entry.message).local = entry.timestamp
        self._handed = kept.handed
        self._first = kept.first
        self._past = {past.message.id: past for past in kept.past}
        self.position = kept.first + len(kept.past)
        self._mark = (kept.time, kept.tie)
        self._seen.restore(kept.seen)
        self._facts = {}
        self._owed = {}
        for fact in kept.facts:
            self._owe(fact.id, fact.final, fact.groups)

    def _replay(self, record: Progress) -> None:
        self._promised = record.promised
        self._clock = max(self._clock, record.clock)
        self._births[self.home] = record.births
        for entry in record.accepted:
            if entry.message.id not in self._seen:
                self._item(entry.message).local = entry.timestamp
        for past in record.delivered:
            self._hand_over(past, None)

    # Records

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._promised,
            self._ballot,
            self._clock,
            self._births[self.home],
            tuple(Entry(item.message, item.local) for item in self._sorted() if item.local),
            self._handed,
            self._first,
            tuple(self._past.values()),
            *self._mark,
            self._seen.snapshot(),
            self._known_facts(),
        )

    def _make_durable(self) -> None:
        """Before anything is said: promises, clock, accepted messages, deliveries, in one record."""
        if self._role == "joining":
            return
        if self._checkpoint_due:
            self.persist(self._checkpoint(), replaces=True)
            self._checkpoint_due = False
            self._records = 0
            self._note_durable()
        elif (
            self._accepted
            or self._undurable
            or self._clock > self._durable_clock
            or self._promised > self._durable_promised
            or self._births[self.home] != self._durable_births
        ):
            self._persist_progress()

    def _persist_progress(self) -> None:
        accepted = tuple(Entry(item.message, item.local) for item in dict.fromkeys(self._accepted))
        self.persist(Progress(self._promised, self._clock, self._births[self.home], accepted, tuple(self._undurable)))
        self._records += 1
        self._note_durable()
        if self._records >= self._config.keep and not self._marked:
            self._marked = True
            self._write((self.me,), Mark(self.position))

    def _note_durable(self) -> None:
        self._durable_promised = self._promised
        self._durable_clock = self._clock
        self._durable_births = self._births[self.home]
        self._undurable = []

    def _hear_mark(self, position: int) -> None:
        """Deliveries up to here have left this process: a checkpoint need not keep them."""
        self._marked = False
        self._handed = max(self._handed, position)
        self._checkpoint_due = True
        while len(self._past) > self._config.keep and self._first < self._handed:
            del self._past[next(iter(self._past))]
            self._first += 1

    # Whoever may have missed something

    def on_peer(self, peer: ProcessId, life: int) -> None:
        if peer in self._fellows:
            if self._role == "joining":
                self._ask_to_join(-1)
                return
            self._write((peer,), Sync(self._ballot, self.position))
            if self._role == "candidate":
                self._resume_campaign((peer,))
        if self._leading() and self.topology.group_of(peer) is not None:
            self._repeat_stamps(peer)

    def _resume_campaign(self, members: tuple[ProcessId, ...]) -> None:
        if self._chosen is None:
            self._write(members, NewLeader(self._promised, self.position))
        else:
            for member in members:
                known = self._promises.get(self._places[member])
                self._send_state(member, self._first if known is None else known.position)

    def _hear_sync(self, sender: ProcessId, body: Sync) -> None:
        if body.ballot > self._ballot:
            self._heard_ballot = max(self._heard_ballot, body.ballot)
            self._lag = True
        self._positions[self._places[sender]] = body.position
        if self._role != "joining" and 0 <= body.ballot < self._promised and self._leader(body.ballot) == sender:
            self._write((sender,), Nack(self._promised))
        if body.ballot < self._ballot and (self._leading() or self._chosen is not None):
            self._send_state(sender, body.position)
        elif body.position < self.position:
            self._write((sender,), CatchUp(self._story(body.position)))
        elif body.position > self.position:
            self._lag = True
        if body.ballot == self._ballot and self._leading():
            self._repeat_stamps(sender)

    def _retry(self, message: Message) -> Body:
        return Retry(message)

    def _hear_retry(self, sender: ProcessId, message: Message) -> None:
        """Somebody misses my group's stamp; if the message is delivered here, its final timestamp is all it needs."""
        if not self._take_up(message):
            final = self._final(message.id)
            if final is not None:
                self._write((sender,), Decided(message.id, final), message.id)

    # The timer

    def on_timer(self, name: str) -> None:
        assert name == REPAIR, f"process {self.me} has no timer {name}"
        self._armed = False
        if self._role == "joining":
            if self._welcomed():
                self._seek_admission()
            self._ask_to_join(-1)
        elif self._role == "candidate":
            self._resume_campaign(self._members)
        elif self._role == "member" and self._oracle == self.me:
            self._campaign()
        old = [item for item in self._items.values() if item.old]
        if (old or self._lag) and self._fellows:
            self._ask_fellows()
        for item in old[:MAX_RETRIES]:
            self._ask_about(item)
        for item in self._items.values():
            item.old = True

    def _ask_fellows(self) -> None:
        self._lag = False
        self._turn += 1
        helper = self._fellows[self._turn % len(self._fellows)]
        ballot = -1 if self._role == "joining" else self._ballot
        for fellow in dict.fromkeys((helper, self._leader(self._promised))):
            if fellow != self.me:
                self._write((fellow,), Sync(ballot, self.position))
        if self._role == "leader":
            self._write(tuple(f for f in self._fellows if f != helper), Sync(ballot, self.position))

    def _ask_about(self, item: Item) -> None:
        """A leader repeats its stamp, and asks for those of other groups; a member reminds its fellows."""
        self.note("asked", item.id)
        if not self._leading():
            self._write(self._fellows, Retry(item.message), item.id)
            return
        if item.final >= 0:
            return
        self._stamped.append(item)
        for group in item.message.destinations:
            if group != self.home:
                self._write(self.topology.members(group), Retry(item.message), item.id)

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

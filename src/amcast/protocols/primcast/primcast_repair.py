"""PrimCast when something was missed: lost links, restarts, laggards.

Links lose what was in flight when they begin anew, and a restarted process has only its records. Inside a group both
ends say where they are (Sync) and the one that is ahead sends the rest: entries of the log if it is the primary, past
deliveries, or the bare position if those are gone. Between groups nothing is numbered per link: who still waits for a
message after a while asks the other destinations for the message or for their group's timestamp (Query, Decided). A
group answers for a delivered message until a majority of each other destination has delivered it too.
"""

from collections.abc import Sequence

from amcast.kernel.bundle import bundle_headers, is_bundle
from amcast.kernel.effects import Note
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.kernel.topology import Topology
from amcast.parts.ordering.obligations import Obligations
from amcast.protocols.primcast.messages import (
    CatchUp,
    Checkpoint,
    Decided,
    DeliveredMessage,
    DeliveryRecord,
    Install,
    NewState,
    OwedTimestamp,
    PrimCastConfig,
    Progress,
    Query,
    Start,
    Sync,
)
from amcast.protocols.primcast.primcast_epochs import Epochs
from amcast.protocols.primcast.progress import Item


class Repair(Epochs):
    """A member that catches up and helps others to."""

    __slots__ = ("_durable_length",)

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config)
        self._durable_length = 0

    # An incarnation begins

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        for record in records:
            match record:
                case Checkpoint():
                    self._reopen(record)
                case Progress():
                    self._replay(record)
        super().on_start(records, incarnation)
        if records and incarnation > 0:
            self._durable_length, self._undurable = self._length, []
            self._established = False
            self._due = True
            if self._is_active():
                self._tell_others(self._open(), None)

    def _reopen(self, kept: Checkpoint) -> None:
        self._restore_kept(kept)
        if kept.first > kept.handed:
            self._jumped(kept.past[0].place if kept.past else kept.served)
        for past in kept.past[max(0, kept.handed - kept.first) :]:
            bundle = is_bundle(past.message.id)
            self._emit(past, len(bundle_headers(past.message)) - len(past.repeats) if bundle else -1, None)

    def _restore_kept(self, kept: Checkpoint) -> None:
        """Everything durable, as it was."""
        self._promised = kept.promised
        self._epoch = kept.epoch
        self._clock = kept.clock
        self._memory_losses = kept.memory_losses
        self._delivered.restore(kept.seen)
        self._last_delivered_rank = (kept.time, kept.tie)
        self._delivered_until = kept.handed
        self._history_start = kept.first
        self._past = {past.message.id: past for past in kept.past}
        self._obligations = Obligations()
        for fact in kept.facts:
            self._obligations.add(fact.id, fact.timestamp, fact.final, fact.groups)
        self.position = kept.first + len(kept.past)
        self._served = kept.served
        self._replace(NewState(kept.epoch, kept.clock, kept.base, kept.floor, kept.entries, kept.memory_losses))

    def _replay(self, record: Progress) -> None:
        self._promised = record.promised
        self._clock = max(self._clock, record.clock)
        self._memory_losses = record.memory_losses
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
            message = handed.message or self.stored_message(handed.id)
            assert message is not None, f"process {self.me}: no record has the text of message {handed.id}"
            self._hand_over(message, handed.timestamp, handed.final, None)
        if gap:
            self._floor = max(self._floor, self.position)

    # Records

    def _build_checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._promised,
            self._epoch,
            self._clock,
            self._memory_losses,
            self._base,
            self._floor,
            self._entries(self._base),
            self._delivered_until,
            self._history_start,
            tuple(self._past.values()),
            *self._last_delivered_rank,
            self._delivered.snapshot(),
            self._known_facts(),
            self._served,
        )

    def _known_facts(self) -> tuple[OwedTimestamp, ...]:
        return tuple([OwedTimestamp(*debt) for debt in self._obligations.listed()])

    def _make_durable(self) -> None:
        """Before anything is said: promises, clock, accepted entries, deliveries, in one record."""
        if not self._recorded:
            self._undurable = []
            return
        if self._role == "joining":
            return
        if self._checkpoint_due or self._records_since_checkpoint >= self._config.keep:
            self._persist_checkpoint(self._build_checkpoint())
            self._durable_length, self._undurable = self._length, []
        elif (
            self._length > self._durable_length
            or self._clock > self._durable_clock
            or self._undurable
            or self._promised > self._durable_promised
            or self._memory_losses != self._durable_memory_losses
        ):
            self._persist_progress()

    def _persist_progress(self) -> None:
        if not self._recorded:
            return
        first = self._durable_length if self._durable_length > self._base else self._base
        entries = self._entries(first) if first < self._length else ()
        undurable = self._undurable
        delivered = tuple([self._handed_record(past, index, first) for past, index in undurable]) if undurable else ()
        promised, clock, memory_losses = self._promised, self._clock, self._memory_losses
        self.persist(Progress(promised, clock, memory_losses, first, entries, delivered))
        self._records_since_checkpoint += 1
        self._durable_promised, self._durable_clock, self._durable_memory_losses = promised, clock, memory_losses
        self._durable_length = self._length
        if undurable:
            self._undurable = []

    def _handed_record(self, past: DeliveredMessage, index: int, first: int) -> DeliveryRecord:
        """With the text, unless it was an entry of an earlier record or is one of this, which begins at `first`."""
        told = 0 <= index < self._durable_length or index >= first
        return DeliveryRecord(past.message.id, past.timestamp, past.final, None if told else past.message)

    # Inside the group

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        if peer in self._other_members:
            self._resync_member(peer)
        elif self.topology.group_of(peer) is not None and self._is_active():
            self._tell_others(self._open(), peer)
            group = self.topology.group_of(peer)
            for item in [item for item in self._pending.values() if item.message is not None]:
                assert item.message is not None
                if group in item.message.destinations and group not in item.decided:
                    self._send_after_persist((peer,), Query(item.id, item.message), item.id)

    def _hear_sync(self, sender: ProcessId, body: Sync) -> None:
        self._observe_epoch(body.epoch)
        self._reject_stale_leader(sender, body.epoch)
        if self._is_active():
            if self._leader_of(self._epoch) == self.me:
                self._send_log(sender, body)
            self._send_after_persist((sender,), self._ack())
        if body.full and body.position < self.position:
            self._help(sender, body.position)
        elif body.position > self.position:
            self._is_lagging = True

    def _send_log(self, sender: ProcessId, body: Sync) -> None:
        if body.epoch != self._epoch or body.length < self._base:
            self._send_after_persist((sender,), self._whole_state())
        elif body.length < self._length:
            entries = self._entries(body.length)
            self._send_after_persist(
                (sender,), NewState(self._epoch, self._clock, body.length, self._floor, entries, self._memory_losses)
            )

    def _help(self, sender: ProcessId, position: int) -> None:
        """Tell a fellow what it has not delivered. Who does not have that any more gives it the outcome only, if one of
        the two leads: followers are a little behind, each by its own time, and their leader lets them deliver."""
        if position >= self._history_start:
            past = tuple(self._past.values())[position - self._history_start :]
            self._send_after_persist((sender,), CatchUp(position, past))
        elif self._leader_of(self._epoch) in (self.me, sender) or self._leader_of(self._promised) == sender:
            told = Install(
                self.position, *self._last_delivered_rank, self._delivered.snapshot(), self._known_facts(), self._served
            )
            self._send_after_persist((sender,), told)

    def _catch_up(self, body: CatchUp) -> None:
        for past in body.past[max(0, self.position - body.first) :] if body.first <= self.position else ():
            self.note("caught-up", past.message.id)
            self._hand_over(past.message, past.timestamp, past.final, None)

    def _install(self, body: Install) -> None:
        if body.position <= self.position:
            return
        self._install_position(body.position, (body.time, body.tie), body.seen)
        self._served = body.served
        self._jumped(body.served)
        for id in [id for id in self._pending if id in self._delivered]:
            item = self._pending.pop(id)
            item.delivered_at = body.position - 1
            self._finals -= item.final >= 0
            self._unproposed.pop(id, None)
        self._past = {}
        self._undurable = []
        for fact in body.facts:
            self._obligations.add(fact.id, fact.timestamp, fact.final, fact.groups)
        self._due = True

    def _jumped(self, served: int) -> None:
        """A snapshot of another member was taken over: what it delivered counts as delivered here."""
        self._outbox.append(Note("installed", None, float(served)))

    def _trim(self) -> None:
        """Forget what a majority delivered from the log, and what everybody delivered from the past."""
        base, decided = self._base, self._decided
        if base < decided:
            log = self._log
            delivered = sorted(self._positions)[self._view.rank]
            while base < decided and 0 <= (at := log[base].delivered_at) < delivered:
                if at >= self._floor:
                    self._floor = at + 1
                del log[base]
                base += 1
            self._base = base
        past, first = self._past, self._history_start
        if past and first < self._delivered_until:
            keep = self._config.keep
            everybody = min(self._positions)
            while past and first < self._delivered_until and (first < everybody or len(past) > keep):
                del past[next(iter(past))]
                first += 1
            self._history_start = first

    # Between groups

    def _answer(self, sender: ProcessId, body: Query) -> None:
        if body.message is not None:
            self.on_request(body.message)
        answer = self._obligations.answer(body.id)
        item = self._pending.get(body.id)
        if answer is not None:
            self._send_after_persist((sender,), Decided(body.id, self.home, answer), body.id)
        elif item is not None and self.home in item.decided:
            self._send_after_persist((sender,), Decided(body.id, self.home, item.decided[self.home]), body.id)
        if body.message is None:
            message = self.stored_message(body.id)
            if message is not None:
                self._send_after_persist((sender,), Start(message), body.id)

    def _hear_decided(self, body: Decided) -> None:
        if body.id not in self._delivered:
            item = self._item(body.id)
            self._hear_time(item, body.group, body.timestamp)
            self._decide(item, body.group, body.timestamp)

    # What the timer asks for

    def _request_missing(self, helper: ProcessId | None, overdue: list[Item]) -> None:
        if helper is not None:
            self._request_catch_up(helper)
        for item in overdue:
            self._request_message(item)

    def _request_catch_up(self, helper: ProcessId) -> None:
        for fellow in self._other_members:
            full = fellow == helper or fellow == self._leader_of(self._promised)
            if full or self._role != "joining":
                self._send_after_persist((fellow,), self._sync_request(full))

    def _request_message(self, item: Item) -> None:
        self.note("asked", item.id)
        if item.message is None:
            for group in sorted(item.heard):
                others = tuple(member for member in self.topology.members(group) if member != self.me)
                self._send_after_persist(others, Query(item.id, None), item.id)
            return
        if item.index < 0:
            self._send_after_persist(self._other_members, Start(item.message), item.id)
        for group in item.message.destinations:
            if group != self.home and group not in item.decided:
                self._send_after_persist(self.topology.members(group), Query(item.id, item.message), item.id)

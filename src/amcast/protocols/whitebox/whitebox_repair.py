"""White-Box when something was missed: lost links, restarts, laggards, and what must survive a restart."""

from collections.abc import Sequence

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Record
from amcast.kernel.topology import Topology
from amcast.parts.groups.messages import Entry
from amcast.parts.ordering.obligations import Obligations
from amcast.protocols.whitebox.messages import (
    CatchUp,
    Checkpoint,
    Decided,
    Mark,
    Progress,
    Retry,
    Sync,
    WhiteBoxConfig,
)
from amcast.protocols.whitebox.whitebox_ballots import Ballots
from amcast.protocols.whitebox.whitebox_order import Item


class Repair(Ballots):
    """A member that catches up and helps others to."""

    def __init__(self, me: ProcessId, topology: Topology, config: WhiteBoxConfig) -> None:
        super().__init__(me, topology, config)
        self._marked = False
        """A Mark is on its way to me."""

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
            self._undurable = []

    def _reopen(self, kept: Checkpoint) -> None:
        self._restore_kept(kept)
        self.position = kept.handed
        if kept.first > kept.handed:
            self.install_position(kept.first)
        for past in kept.past[self.position - kept.first :]:
            self.deliver(past.message, past.final, past.message.id)

    def _restore_kept(self, kept: Checkpoint) -> None:
        """Everything durable, as it was."""
        self._promised = kept.promised
        self._epoch = kept.ballot
        self._clock = kept.clock
        self._memory_losses = kept.memory_losses
        self._pending = {}
        for entry in kept.accepted:
            self._item(entry.message).local = entry.timestamp
        self._delivered_until = kept.handed
        self._history_start = kept.first
        self._past = {past.message.id: past for past in kept.past}
        self.position = kept.first + len(kept.past)
        self._last_delivered_rank = (kept.time, kept.tie)
        self._delivered.restore(kept.seen)
        self._obligations = Obligations()
        for fact in kept.facts:
            self._owe(fact.id, fact.final, fact.groups)

    def _replay(self, record: Progress) -> None:
        self._promised = record.promised
        self._clock = max(self._clock, record.clock)
        self._memory_losses = record.memory_losses
        for entry in record.accepted:
            if entry.message.id not in self._delivered:
                self._item(entry.message).local = entry.timestamp
        for past in record.delivered:
            self._hand_over(past, None)

    # Records

    def _build_checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._promised,
            self._epoch,
            self._clock,
            self._memory_losses,
            self._entries(),
            self._delivered_until,
            self._history_start,
            tuple(self._past.values()),
            *self._last_delivered_rank,
            self._delivered.snapshot(),
            self._known_facts(),
        )

    def _make_durable(self) -> None:
        """Before anything is said: promises, clock, accepted messages, deliveries, in one record."""
        if self._role == "joining":
            return
        if self._checkpoint_due:
            self._persist_checkpoint(self._build_checkpoint())
            self._undurable = []
        elif (
            self._accepted
            or self._undurable
            or self._clock > self._durable_clock
            or self._promised > self._durable_promised
            or self._memory_losses != self._durable_memory_losses
        ):
            self._persist_progress()

    def _persist_progress(self) -> None:
        accepted = tuple(Entry(item.message, item.local) for item in dict.fromkeys(self._accepted))
        self.persist(Progress(self._promised, self._clock, self._memory_losses, accepted, tuple(self._undurable)))
        self._records_since_checkpoint += 1
        self._set_durable()
        self._undurable = []
        if self._records_since_checkpoint >= self._config.keep and not self._marked:
            self._marked = True
            self._send_after_persist((self.me,), Mark(self.position))

    def _hear_mark(self, position: int) -> None:
        """Deliveries up to here have left this process: a checkpoint need not keep them."""
        self._marked = False
        self._delivered_until = max(self._delivered_until, position)
        self._checkpoint_due = True
        while len(self._past) > self._config.keep and self._history_start < self._delivered_until:
            del self._past[next(iter(self._past))]
            self._history_start += 1

    # Whoever may have missed something

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        if peer in self._other_members:
            self._resync_member(peer)
        if self._leading() and self.topology.group_of(peer) is not None:
            self._repeat_stamps(peer)

    def _hear_sync(self, sender: ProcessId, body: Sync) -> None:
        self._observe_epoch(body.ballot)
        self._positions[self._places[sender]] = body.position
        self._reject_stale_leader(sender, body.ballot)
        if body.ballot < self._epoch and (self._leading() or self._chosen is not None):
            self._send_state(sender, body.position)
        elif body.position < self.position:
            self._send_after_persist((sender,), CatchUp(self._story(body.position)))
        elif body.position > self.position:
            self._is_lagging = True
        if body.ballot == self._epoch and self._leading():
            self._repeat_stamps(sender)

    def _retry(self, message: Message) -> Body:
        return Retry(message)

    def _hear_retry(self, sender: ProcessId, message: Message) -> None:
        """Somebody misses my group's stamp; if the message is delivered here, its final timestamp is all it needs."""
        if not self._take_up(message):
            final = self._final(message.id)
            if final is not None:
                self._send_after_persist((sender,), Decided(message.id, final), message.id)

    # What the timer asks for

    def _request_missing(self, helper: ProcessId | None, overdue: list[Item]) -> None:
        if helper is not None:
            self._request_catch_up(helper)
        for item in overdue:
            self._request_message(item)

    def _request_catch_up(self, helper: ProcessId) -> None:
        for fellow in dict.fromkeys((helper, self._leader_of(self._promised))):
            if fellow != self.me:
                self._send_after_persist((fellow,), self._sync_request(True))
        if self._role == "leader":
            self._send_after_persist(tuple(f for f in self._other_members if f != helper), self._sync_request(True))

    def _request_message(self, item: Item) -> None:
        """A leader repeats its stamp, and asks for those of other groups; a member reminds its fellows."""
        self.note("asked", item.id)
        if not self._leading():
            self._send_after_persist(self._other_members, Retry(item.message), item.id)
            return
        if item.final >= 0:
            return
        self._stamped.append(item)
        for group in item.message.destinations:
            if group != self.home:
                self._send_after_persist(self.topology.members(group), Retry(item.message), item.id)

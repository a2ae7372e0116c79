"""Groups that agree on timestamps: what BaseCast, FastCast and A_ge share.

Each group is a replicated log (`parts/consensus/paxos.py`). The log gives every message a timestamp of the group (SET);
groups tell each other theirs (Stamp); the highest is final, and messages are delivered in the order of (final
timestamp, id). A message may be delivered when its final timestamp is known, the group's clock has reached it, so that
the log will stamp nothing lower any more, and no message that was stamped before can end below it. How a process comes
to know the final timestamp, and what the log must hold for that, is what the protocols differ in.

Nothing is lost with a leader, a member or a link:
- a message that reached anybody in time is forwarded to the leader, and with the stamp to groups that never got it;
- a new leader tells again the stamps of everything that is not final;
- who waits too long asks again. A group therefore remembers its stamp of a message until every other destination has
  the final timestamp in its log and said so (Settled), many at a time.
A protocol that delivers ahead of its log writes what it delivered into the log later, many at a time (FINAL); members
that missed a stamp meanwhile ask each other (Ask, Told).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import msgspec

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import Accepted, Entry
from amcast.parts.groups.messages import (
    FINAL,
    SET,
    FinalQuery,
    FinalReply,
    FinalStored,
    GroupTimestamp,
    TimestampCore,
)
from amcast.parts.groups.stamps_insight import StampInsight
from amcast.parts.groups.stamps_memory import TimestampPending
from amcast.parts.ordering.delivered_set import DeliveredSet

RETRY: Final = "retry"
AT_ONCE: Final = 64
"""How many messages are asked about at a time."""
IN_ALL: Final = 8
"""However many groups a group speaks with, it keeps no more than so many times `settle` confirmations to itself: what
is remembered and written with every snapshot must not grow with the number of groups."""


class TimestampedGroup(StampInsight):
    """A member of a group that stamps. Subclasses say what the log must hold before a timestamp is final."""

    delivers_ahead = False
    """Whether members may know final timestamps that their log does not have."""

    # What protocols say

    @abstractmethod
    def _ordering(self, id: MessageId, entry: TimestampPending) -> list[Entry]:
        """What a leader proposes once every destination's timestamp was heard and the final one is not known."""

    def _all_heard(self, id: MessageId, entry: TimestampPending) -> None:
        """Every destination's timestamp was heard."""

    def _speaks(self) -> bool:
        """Whether I tell my group's stamps to the others: the leader does."""
        return self._paxos.role == "leading"

    def has_delivered(self, message: MessageId) -> bool:
        entry = self._pending.get(message)
        return message in self._seen if entry is None else entry.delivered

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        delivered = DeliveredSet()
        delivered.restore(self._seen.snapshot())
        for id, entry in self._pending.items():
            if not entry.delivered:
                delivered.forget(id)
        return delivered.snapshot()

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._apply(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        assert self.group in message.destinations, f"process {self.me} is no destination of message {message.id}"
        if message.id not in self._waiting and message.id not in self._seen:
            self._waiting[message.id] = message
            self._starting.append(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if type(body) is Accepted:  # by far the most frequent
            self._apply(self._paxos.receive(sender, body))
            return
        match body:
            case GroupTimestamp(message, group, timestamp, ask):
                self._hear(message, group, timestamp, ask)
            case FinalStored(messages):
                self._confirmed(self.topology.group_of(sender) or 0, messages)
            case FinalQuery(messages):
                known = [(m, e.final) for m in messages if (e := self._pending.get(m)) is not None and e.final]
                if known:
                    self.send(sender, FinalReply(tuple(known)), tuple(m for m, _ in known))
            case FinalReply(finals):
                for message, final in finals:
                    entry = self._pending.get(message)
                    if entry is not None and not entry.final:
                        self._finish(message, entry, final)
                self._deliver_ready()
            case _:
                self._apply(self._paxos.receive(sender, body))

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group == self.group and leader in self._paxos.members:
            self._paxos.hear_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.meet(peer)
        group = self.topology.group_of(peer)
        if group is not None and self._speaks():
            for id, entry in self._pending.items():
                if not entry.settled and group in entry.message.destinations and peer != self.me:
                    self.send(peer, GroupTimestamp(id, self.home, entry.own), id)

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.tick()
            return
        self._armed = False
        self._forward()
        self._ask_again()

    def on_step_end(self) -> None:
        if self._paxos.ready():
            self._lead()
        elif self._starting or self._fresh:
            self._follow()
        self._paxos.flush()
        if self._paxos.wants_mark():
            self._paxos.mark(msgspec.msgpack.encode(self._core()))
        if not self._armed and (self._waiting or len(self._queue)):
            self._armed = True  # and never cancelled: the next message comes long before it runs out
            self.set_timer(RETRY, self._config.retry_ns)

    # Leading

    def _lead(self) -> None:
        """Propose everything new, as one value."""
        if self._led != self._paxos.ballot:
            self._led = self._paxos.ballot
            self._take_over()
        if self._has_news():
            entries = self._proposals()
            if entries:
                self._paxos.propose(tuple(entries))

    def _follow(self) -> None:
        """Somebody else proposes; should I ever lead, I shall look for everything anew."""
        self._starting = []
        self._fresh = []

    def _has_news(self) -> bool:
        return bool(self._starting) or bool(self._fresh) or len(self._ahead) >= self._config.confirmation_batch

    def _take_over(self) -> None:
        self._starting = list(self._waiting)
        self._fresh = []
        self._ahead = {id: None for id, entry in self._pending.items() if entry.final and not entry.settled}
        for id, entry in self._pending.items():
            if not entry.settled and len(entry.message.destinations) > 1:
                self._tell(id, entry)
                if not entry.final and len(entry.heard) == len(entry.message.destinations):
                    self._fresh.append(id)

    def _proposals(self) -> list[Entry]:
        starting, self._starting = self._starting, []
        fresh, self._fresh = self._fresh, []
        entries = [Entry(SET, id, message=self._waiting[id]) for id in starting if id in self._waiting]
        ballot = self._paxos.ballot
        for id in fresh:
            entry = self._pending.get(id)
            if entry is not None and not entry.final and entry.proposed != ballot:
                entry.proposed = ballot
                entries += self._ordering(id, entry)
        if len(self._ahead) >= self._config.confirmation_batch:
            entries += [Entry(FINAL, id, timestamp=self._pending[id].final) for id in self._ahead]
            self._ahead = {}
        return entries

    def _tell(self, id: MessageId, entry: TimestampPending) -> None:
        self.send_all(
            self.topology.processes_of(entry.message.destinations), GroupTimestamp(id, self.home, entry.own), id
        )

    # The log

    def _apply(self, decided: Decided) -> None:
        for _, value in decided:
            if type(value) is bytes:
                self._install(msgspec.msgpack.decode(value, type=TimestampCore))
                self._deliver_ready()
            else:
                for entry in value:
                    self._order(entry)  # type: ignore[arg-type]
                self._deliver_ready()

    def _order(self, entry: Entry) -> None:
        """One entry of the log, in order: the same at every member."""
        match entry.kind:
            case 0:
                assert entry.message is not None
                self._set(entry.message)
            case 1:
                self._sync(entry.id, entry.group, entry.timestamp)
            case 3:
                self._settle_at(entry.id, entry.timestamp)
            case _:
                raise AssertionError(f"no log of stamps holds {entry!r}")

    def _set(self, message: Message) -> None:
        id = message.id
        self._waiting.pop(id, None)
        if not self._seen.add(id):
            self.note("repeated", id)
            return
        self._clock += 1
        entry = self._pending[id] = TimestampPending(message, self._clock)
        self._queue.add(self._clock, id)
        if len(message.destinations) == 1:
            entry.settled = True
            self._finish(id, entry, self._clock)
            return
        entry.heard = self._early.pop(id, {})
        entry.heard[self.home] = self._clock
        if self._speaks():
            self._tell(id, entry)
        self._check_heard(id, entry)

    def _sync(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        self._raise_clock(timestamp)
        entry = self._pending.get(id)
        if entry is None or entry.settled:
            return
        entry.synced[group] = timestamp
        if len(entry.synced) == len(entry.message.destinations):
            self._settle(id, entry, max(entry.synced.values()))

    def _settle_at(self, id: MessageId, timestamp: int) -> None:
        self._raise_clock(timestamp)
        entry = self._pending.get(id)
        if entry is not None and not entry.settled:
            self._settle(id, entry, timestamp)

    def _raise_clock(self, timestamp: int) -> None:
        if timestamp > self._clock:
            self._clock = timestamp

    # Stamps

    def _hear(self, id: MessageId, group: GroupId, timestamp: int, ask: bool) -> None:
        entry = self._pending.get(id)
        if entry is not None:
            if group not in entry.heard:
                entry.heard[group] = timestamp
                self._check_heard(id, entry)
                self._deliver_ready()
        elif id not in self._seen:
            self.note("early", id)
            self._early.setdefault(id, {})[group] = timestamp
            return
        if ask and self._paxos.role == "leading":
            self._answer(id, entry, group)

    def _answer(self, id: MessageId, entry: TimestampPending | None, group: GroupId) -> None:
        """A group asks for our stamp: it has none, or wonders whether we are done with its own."""
        own = self._kept.get(group, {}).get(id) if entry is None else entry.own
        targets = self.topology.members(group)
        if own is not None:
            self.send_all(targets, GroupTimestamp(id, self.home, own), id)
        if entry is None or entry.settled:
            self.send_all(targets, FinalStored((id,)), id)

    def _check_heard(self, id: MessageId, entry: TimestampPending) -> None:
        if len(entry.heard) < len(entry.message.destinations) or entry.final:
            return
        self._all_heard(id, entry)
        if not entry.final:
            self._fresh.append(id)

    # Final timestamps

    def _settle(self, id: MessageId, entry: TimestampPending, final: int) -> None:
        """The final timestamp is in the log."""
        entry.settled = True
        self._ahead.pop(id, None)
        if not entry.final:
            self._finish(id, entry, final)
        assert entry.final == final, f"message {id}: final timestamps {entry.final} and {final}"
        for group in entry.message.destinations:
            if group != self.home:
                self._confirm(id, entry, group)
        if entry.delivered:
            del self._pending[id]

    def _confirm(self, id: MessageId, entry: TimestampPending, group: GroupId) -> None:
        kept = self._kept.setdefault(group, {})
        if group not in entry.confirmed:
            kept[id] = entry.own
        confirming = self._confirming.setdefault(group, [])
        confirming.append(id)
        self._unconfirmed += 1
        size = self._config.confirmation_batch
        if len(confirming) >= size:
            self._tell_settled((group,))
        elif self._unconfirmed >= IN_ALL * size:
            self._tell_settled(tuple(sorted(self._confirming)))
        if self._paxos.role == "leading" and len(kept) >= 4 * size and len(kept) % size == 0:
            # Confirmations were lost with a leader or a link: ask for them.
            for late, own in list(kept.items())[:size]:
                self.send_all(self.topology.members(group), GroupTimestamp(late, self.home, own, ask=True), late)

    def _tell_settled(self, groups: tuple[GroupId, ...]) -> None:
        for group in groups:
            settled = tuple(self._confirming.pop(group))
            self._unconfirmed -= len(settled)
            if self._paxos.role == "leading":
                self.send_all(self.topology.members(group), FinalStored(settled), settled)

    def _confirmed(self, group: GroupId, messages: tuple[MessageId, ...]) -> None:
        kept = self._kept.get(group, {})
        for id in messages:
            kept.pop(id, None)
            entry = self._pending.get(id)
            if entry is not None and not entry.settled:
                entry.confirmed.add(group)

    def _deliver_ready(self) -> None:
        while (id := self._queue.first(self._reached())) is not None:
            entry = self._pending[id]
            entry.delivered = True
            self._last = (entry.final, id)
            if entry.committed_ns < self.now:
                self.note("waited", id)
            if entry.settled:
                del self._pending[id]
            self.deliver(entry.message, entry.final, id, entry.committed_ns)

    def _reached(self) -> int:
        """Nothing that the log stamps from now on ends at or below."""
        return self._clock

    # Asking again

    def _forward(self) -> None:
        leader = self._paxos.believed
        if leader != self.me:
            for id in [id for id in self._waiting if id in self._old][:AT_ONCE]:
                self.send(leader, Request(self._waiting[id]), id)
        self._old = set(self._waiting)

    def _ask_again(self) -> None:
        stuck = [id for id, entry in self._pending.items() if entry.old and not entry.delivered][:AT_ONCE]
        unknown = tuple(id for id in stuck if not self._pending[id].final)
        if self._paxos.role == "leading":
            for id in unknown:
                self._ask_groups(id, self._pending[id])
        if unknown and self.delivers_ahead and self._fellows:
            self.send_all(self._fellows, FinalQuery(unknown), unknown)
        for entry in self._pending.values():
            entry.old = True

    def _ask_groups(self, id: MessageId, entry: TimestampPending) -> None:
        """Groups that did not stamp a message may never have got it."""
        missing = tuple(group for group in entry.message.destinations if group not in entry.heard)
        if missing:
            self.note("asked", id)
            targets = self.topology.processes_of(missing)
            self.send_all(targets, Request(entry.message), id)
            self.send_all(targets, GroupTimestamp(id, self.home, entry.own, ask=True), id)

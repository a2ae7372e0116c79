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

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import Accepted, Entry
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.consensus.ring_paxos import RingPaxos
from amcast.parts.groups.messages import (
    FINAL,
    SET,
    FinalQuery,
    FinalReply,
    FinalStored,
    GroupTimestamp,
    TimestampCheckpoint,
    TimestampConfig,
    TimestampPendingState,
    TimestampState,
)
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.delivery_queue import DeliveryQueue

RETRY: Final = "retry"
QUERY_BATCH: Final = 64
"""How many messages are asked about at a time."""
CONFIRMATION_BATCHES: Final = 8
"""However many groups a group speaks with, it keeps no more than so many times `settle` confirmations to itself: what
is remembered and written with every snapshot must not grow with the number of groups."""


class TimestampPending:
    """What is known of a message that the log stamped, until it is delivered and settled."""

    __slots__ = (
        "committed_ns", "confirmed", "delivered", "final", "heard", "message", "old", "own", "proposed", "settled",
        "soft", "synced",
    )  # fmt: skip

    def __init__(self, message: Message, own: int) -> None:
        self.message = message
        self.own = own
        """My group's timestamp; the final one is never lower."""
        self.heard: dict[GroupId, int] = {}
        """Timestamps that groups told me: facts, but not everybody here may know them."""
        self.synced: dict[GroupId, int] = {}
        """Timestamps in the log."""
        self.soft: dict[GroupId, int] = {}
        """Guesses in the log."""
        self.final = 0
        """0 while unknown."""
        self.settled = False
        """The final timestamp follows from the log alone."""
        self.delivered = False
        self.confirmed: set[GroupId] = set()
        """Groups that settled it before this one did."""
        self.committed_ns = -1
        self.old = False
        """It was pending already when the timer was set."""
        self.proposed = -1
        """The ballot in which I, leading, proposed what `_ordering` said."""


class TimestampedGroup(Process):
    """A member of a group that stamps. Subclasses say what the log must hold before a timestamp is final."""

    delivers_ahead = False
    """Whether members may know final timestamps that their log does not have."""

    def __init__(self, me: ProcessId, topology: Topology, config: TimestampConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is in no group"
        self.home: GroupId = self.group
        self._config = config
        self._fellows = tuple(member for member in topology.members(self.home) if member != me)
        consensus = RingPaxos if config.consensus == "ring" else Paxos
        self._paxos = consensus(self, topology.members(self.home), config)
        self._clock = 0
        """The highest timestamp the log has given or heard of; what it stamps next is higher."""
        self._pending: dict[MessageId, TimestampPending] = {}
        self._queue = DeliveryQueue()
        """What is stamped and not delivered, by a lower bound of its final (timestamp, id)."""
        self._last: tuple[int, MessageId] = (0, 0)
        """The rank of what was delivered last."""
        self._seen = DeliveredSet()
        """What the log has stamped."""
        self._waiting: dict[MessageId, Message] = {}
        """What was asked for and is not stamped yet."""
        self._old: set[MessageId] = set()
        """Those that waited already when the timer was set."""
        self._early: dict[MessageId, dict[GroupId, int]] = {}
        """Stamps of other groups for what is not stamped here yet."""
        self._kept: dict[GroupId, dict[MessageId, int]] = {}
        """My group's stamps of settled messages, by the groups that have not confirmed them."""
        self._confirming: dict[GroupId, list[MessageId]] = {}
        """Settled here, and that group is not told yet."""
        self._unconfirmed = 0
        """How many those are in all."""
        self._ahead: dict[MessageId, None] = {}
        """Final here, but not by the log alone, and not proposed to it by me in this ballot."""
        self._starting: list[MessageId] = []
        """Waiting, and not proposed by me in this ballot."""
        self._fresh: list[MessageId] = []
        """Pending, with something for me to propose."""
        self._led = 0
        """The ballot for which I took over."""
        self._armed = False

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
            self._paxos.handle_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.handle_link_reset(peer)
        group = self.topology.group_of(peer)
        if group is not None and self._speaks():
            for id, entry in self._pending.items():
                if not entry.settled and group in entry.message.destinations and peer != self.me:
                    self.send(peer, GroupTimestamp(id, self.home, entry.own), id)

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
            return
        self._armed = False
        self._forward()
        self._ask_again()

    def on_step_end(self) -> None:
        if self._paxos.can_propose():
            self._lead()
        elif self._starting or self._fresh:
            self._follow()
        self._paxos.flush()
        if self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._core()))
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
                self._install(msgspec.msgpack.decode(value, type=TimestampCheckpoint))
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

    def _finish(self, id: MessageId, entry: TimestampPending, final: int) -> None:
        """The final timestamp is known here."""
        assert entry.own <= final, f"message {id}: final {final} is below the group's own {entry.own}"
        entry.final = final
        entry.committed_ns = self.now
        self.end_blocking(entry.message)
        self._queue.fix(id, final)
        if not entry.settled:
            self._ahead[id] = None

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
        elif self._unconfirmed >= CONFIRMATION_BATCHES * size:
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
        leader = self._paxos.suggested_leader
        if leader != self.me:
            for id in [id for id in self._waiting if id in self._old][:QUERY_BATCH]:
                self.send(leader, Request(self._waiting[id]), id)
        self._old = set(self._waiting)

    def _ask_again(self) -> None:
        stuck = [id for id, entry in self._pending.items() if entry.old and not entry.delivered][:QUERY_BATCH]
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

    # For operators

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._paxos.role,
            "pending": len(self._waiting) + sum(not entry.delivered for entry in self._pending.values()),
            "clock": self._clock,
            "joined": int(self._paxos.has_joined()),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if self.has_delivered(message):
            return [Phase("delivered", True, f"process {self.me} has delivered it")]
        entry = self._pending.get(message)
        if entry is not None:
            groups = list(entry.message.destinations)
            return [
                Phase("text", True, f"the message is here, for groups {groups}"),
                Phase("ordered", True, f"the log of group {self.home} has stamped it {entry.own}"),
                *self._told_stamps(entry),
                self._told_first(message, entry),
            ]
        if message in self._waiting:
            return [
                Phase("text", True, f"the message is here, for groups {list(self._waiting[message].destinations)}"),
                Phase("ordered", False, f"the log of group {self.home} has not stamped it", self._fellows),
            ]
        stamped = sorted(self._early.get(message, ()))
        if stamped:
            return [Phase("text", False, f"groups {stamped} have stamped it; the message itself has not come")]
        return [Phase("text", False, f"process {self.me} has never heard of it")]

    def _told_stamps(self, entry: TimestampPending) -> list[Phase]:
        if entry.final:
            return [Phase("stamped", True, "every group has"), Phase("final", True, f"it is {entry.final}")]
        missing = [group for group in entry.message.destinations if group not in entry.heard]
        if missing:
            late = tuple(member for group in missing for member in self.topology.members(group))
            return [Phase("stamped", False, f"no stamp has come from groups {missing}", late)]
        said = f"the log of group {self.home} does not have every stamp"
        return [Phase("stamped", True, "every group has"), Phase("final", False, said, self._fellows)]

    def _told_first(self, message: MessageId, entry: TimestampPending) -> Phase:
        rank = (entry.final or entry.own, message)
        older = sorted(
            id
            for id, other in self._pending.items()
            if id != message and not other.delivered and (other.final or other.own, id) < rank
        )
        if not older:
            return Phase("first", True, "nothing that is known comes before it")
        some = ", ".join(str(id) for id in older[:5])
        return Phase("first", False, f"{len(older)} messages may come before it and are not delivered: {some}")

    # Snapshots

    def _core(self) -> TimestampCheckpoint:
        return TimestampCheckpoint(
            self.position,
            self._clock,
            self._last,
            tuple(
                TimestampPendingState(
                    e.message,
                    e.own,
                    tuple(sorted(e.heard.items())),
                    tuple(sorted(e.synced.items())),
                    tuple(sorted(e.soft.items())),
                    e.final,
                    e.settled,
                    e.delivered,
                    tuple(sorted(e.confirmed)),
                    e.committed_ns,
                    e.old,
                    e.proposed,
                )
                for _, e in sorted(self._pending.items())
            ),
            self._seen.snapshot(),
            tuple((group, tuple(kept.items())) for group, kept in sorted(self._kept.items())),
            tuple((group, tuple(ids)) for group, ids in sorted(self._confirming.items())),
        )

    def _become(self, core: TimestampCheckpoint) -> None:
        self._clock = core.clock
        self._last = core.last
        self._seen.restore(core.seen)
        self._kept = {group: dict(kept) for group, kept in core.kept}
        self._confirming = {group: list(ids) for group, ids in core.confirming}
        self._unconfirmed = sum(len(ids) for _, ids in core.confirming)
        self._pending = {}
        self._queue = DeliveryQueue()
        self._ahead = {}
        for kept in core.pending:
            id = kept.message.id
            entry = self._pending[id] = TimestampPending(kept.message, kept.own)
            entry.heard = dict(kept.heard)
            entry.synced = dict(kept.synced)
            entry.soft = dict(kept.soft)
            entry.final = kept.final
            entry.settled = kept.settled
            entry.delivered = kept.delivered
            entry.confirmed = set(kept.confirmed)
            entry.committed_ns = kept.committed_ns
            entry.old = kept.old
            entry.proposed = kept.proposed
            if not entry.delivered:
                self._queue.add(entry.own, id)
                if entry.final:
                    self._queue.fix(id, entry.final)
            if entry.final and not entry.settled:
                self._ahead[id] = None

    def _install(self, core: TimestampCheckpoint) -> None:
        """Go on from a fellow's state (or my own of an earlier incarnation). What I delivered ahead of the log stays
        so."""
        position, last, mine = self.position, self._last, self._pending
        self._become(core)
        for id, entry in list(self._pending.items()):
            known = mine.get(id)
            if known is not None:
                entry.heard = {**known.heard, **entry.heard}
                if known.final and not entry.final:
                    self._finish(id, entry, known.final)
            entry.proposed = -1
            if entry.final and (entry.final, id) <= last and not entry.delivered:
                entry.delivered = True
                self._queue.drop(id)
                if entry.settled:
                    del self._pending[id]
        self._waiting = {id: message for id, message in self._waiting.items() if id not in self._seen}
        self._early = {id: heard for id, heard in self._early.items() if id not in self._seen}
        self._last = max(last, core.last)
        self._led = -1  # should I lead, what to propose must be looked for anew
        if core.position > position:
            self.install_position(core.position)

    def snapshot(self) -> State:
        return TimestampState(
            self._core(),
            self._paxos.snapshot(),
            tuple(self._waiting.values()),
            tuple(sorted(self._old)),
            tuple((id, tuple(sorted(heard.items()))) for id, heard in sorted(self._early.items())),
            tuple(self._starting),
            tuple(self._fresh),
            tuple(self._ahead),
            self._led,
            self._armed,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, TimestampState)
        self._become(state.core)
        self.position = state.core.position
        self._paxos.restore(state.paxos)
        self._waiting = {message.id: message for message in state.waiting}
        self._old = set(state.old)
        self._early = {id: dict(heard) for id, heard in state.early}
        self._starting = list(state.starting)
        self._fresh = list(state.fresh)
        self._ahead = dict.fromkeys(state.ahead)
        self._led = state.led
        self._armed = state.armed

"""Groups that agree on timestamps: the common part of BaseCast, FastCast and A_ge.

Each group is a replicated log (`parts/consensus/paxos.py`). The log gives every message a timestamp of the group (SET);
groups send each other theirs (GroupTimestamp); the highest is final, and messages are delivered in the order of (final
timestamp, id). A message may be delivered when its final timestamp is known, the group's clock has reached it, so that
the log will assign nothing lower, and no message with an earlier group timestamp can end below it. The protocols differ
in how a member comes to know the final timestamp, and in what the log must contain for that.

Nothing is lost with a leader, a member or a link:
- a message that has arrived at any member is forwarded to the leader, and with the timestamp to groups that lack it;
- a new leader sends again the timestamps of every message that is not final in the log;
- a leader that waits too long asks again. A group therefore remembers its timestamp of a message until every other
  destination has confirmed that it has the final one (FinalStored; `parts/groups/timestamp_confirmations.py`).
A protocol that delivers ahead of its log writes final timestamps to the log later, in batches (FINAL); members that
missed a timestamp ask each other (FinalQuery, FinalReply).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import msgspec

from amcast.kernel.diagnostics import Phase, ProcessStatus, explain_delivered
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import Accepted, Entry
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.consensus.ring_paxos import RingPaxos
from amcast.parts.groups.pending_timestamps import (
    TimestampPending,
    explain_order,
    explain_text,
    explain_timestamps,
    restore_pending,
)
from amcast.parts.groups.timestamp_confirmations import Confirmations
from amcast.parts.groups.timestamped_messages import (
    FINAL,
    SET,
    SYNC,
    FinalQuery,
    FinalReply,
    FinalStored,
    GroupTimestamp,
    TimestampCheckpoint,
    TimestampConfig,
    TimestampState,
)
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.delivery_queue import DeliveryQueue

RETRY: Final = "retry"
PACE: Final = "pace"
QUERY_BATCH: Final = 64
"""The most messages that are forwarded, or asked about, at a time."""


class TimestampedGroup(Process):
    """A member of a group that agrees on timestamps. Subclasses define what the log must contain before a timestamp is
    final."""

    delivers_ahead = False
    """Whether members may know final timestamps that their log does not have."""

    def __init__(self, me: ProcessId, topology: Topology, config: TimestampConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is in no group"
        self.home: GroupId = self.group
        self._config = config
        self._other_members = tuple(member for member in topology.members(self.home) if member != me)
        consensus = RingPaxos if config.consensus == "ring" else Paxos
        self._paxos = consensus(self, topology.members(self.home), config)
        self._clock = 0
        """The highest timestamp that the log has assigned or contains; it assigns higher ones from now on."""
        self._pending: dict[MessageId, TimestampPending] = {}
        self._queue = DeliveryQueue()
        """Messages with a timestamp that are not delivered, by a lower bound of their final (timestamp, id)."""
        self._last_delivered: tuple[int, MessageId] = (0, 0)
        """The rank of the last delivery."""
        self._ordered = DeliveredSet()
        """Messages to which the log has given a timestamp."""
        self._confirmations = Confirmations(config.confirmation_batch)
        self._requests: dict[MessageId, Message] = {}
        """Messages that have arrived and are not in the log."""
        self._overdue_requests: set[MessageId] = set()
        """Requests that waited already when the timer was set."""
        self._early_timestamps: dict[MessageId, dict[GroupId, int]] = {}
        """Timestamps of other groups for messages that are not in the log here."""
        self._unproposed_requests: list[MessageId] = []
        """Requests that this member has not proposed in its ballot."""
        self._unproposed_timestamps: list[MessageId] = []
        """Pending messages whose timestamps this member has not proposed in its ballot."""
        self._unproposed_finals: dict[MessageId, None] = {}
        """Messages with a final timestamp that does not follow from the log alone, and that this member has not
        proposed in its ballot."""
        self._led_ballot = 0
        """The ballot for which `_start_leading` ran."""
        self._timer_set = False
        self._is_pacing = False
        """Whether the last proposal is too recent for another one; a timer ends this."""

    # Decisions of the protocols

    @abstractmethod
    def _make_timestamp_entries(self, id: MessageId, pending: TimestampPending) -> list[Entry]:
        """The entries that a leader proposes once every destination's timestamp has arrived and the final one is not
        known."""

    def _handle_all_timestamps(self, id: MessageId, pending: TimestampPending) -> None:
        """Called when every destination's timestamp has arrived."""

    def _sends_timestamps(self) -> bool:
        """Whether this member sends the group's timestamps to other groups."""
        return self._config.stamps == "all" or self._paxos.role == "leading"

    def has_delivered(self, message: MessageId) -> bool:
        pending = self._pending.get(message)
        return message in self._ordered if pending is None else pending.is_delivered

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        delivered = DeliveredSet()
        delivered.restore(self._ordered.snapshot())
        for id, pending in self._pending.items():
            if not pending.is_delivered:
                delivered.forget(id)
        return delivered.snapshot()

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._apply(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        assert self.group in message.destinations, f"process {self.me} is no destination of message {message.id}"
        if message.id not in self._requests and message.id not in self._ordered:
            self._requests[message.id] = message
            self._unproposed_requests.append(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if type(body) is Accepted:  # by far the most frequent
            self._apply(self._paxos.receive(sender, body))
            return
        match body:
            case GroupTimestamp(message, group, timestamp, ask):
                self._handle_timestamp(message, group, timestamp, ask)
            case FinalStored(messages):
                self._handle_confirmation(self.topology.group_of(sender) or 0, messages)
            case FinalQuery(messages):
                known = [(m, p.final) for m in messages if (p := self._pending.get(m)) is not None and p.final]
                if known:
                    self.send(sender, FinalReply(tuple(known)), tuple(m for m, _ in known))
            case FinalReply(finals):
                for message, final in finals:
                    pending = self._pending.get(message)
                    if pending is not None and not pending.final:
                        self._set_final(message, pending, final)
                self._deliver_ready()
            case _:
                self._apply(self._paxos.receive(sender, body))

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group == self.group and leader in self._paxos.members:
            self._paxos.handle_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.handle_link_reset(peer)
        group = self.topology.group_of(peer)
        if group is not None and self._sends_timestamps():
            for id, pending in self._pending.items():
                if not pending.is_final_logged and group in pending.message.destinations and peer != self.me:
                    self.send(peer, GroupTimestamp(id, self.home, pending.own), id)

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
            return
        if name == PACE:
            self._is_pacing = False
            return
        self._timer_set = False
        self._forward_requests()
        self._query_overdue()

    def on_step_end(self) -> None:
        if self._paxos.can_propose():
            self._propose()
        elif self._unproposed_requests or self._unproposed_timestamps:
            self._drop_proposals()
        self._paxos.flush()
        if self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._make_checkpoint()))
        if not self._timer_set and (self._requests or len(self._queue)):
            self._timer_set = True  # and never cancelled: under load the next message comes long before it runs out
            self.set_timer(RETRY, self._config.retry_ns)

    # Leading

    def _propose(self) -> None:
        """Proposes everything new as one value."""
        if self._led_ballot != self._paxos.ballot:
            self._led_ballot = self._paxos.ballot
            self._start_leading()
        if self._has_proposals() and not self._is_pacing:
            entries = self._make_proposals()
            if entries:
                self._paxos.propose(tuple(entries))
                self._start_pacing()

    def _start_pacing(self) -> None:
        """Makes the next proposal wait. A timer ends that, not the clock, which stands still after it was put back."""
        pace_ns = self._config.pace_ns
        if pace_ns:
            self._is_pacing = True
            self.set_timer(PACE, (pace_ns, pace_ns))

    def _drop_proposals(self) -> None:
        """Another member leads. `_start_leading` computes the proposals again if this member ever does."""
        self._unproposed_requests = []
        self._unproposed_timestamps = []

    def _has_proposals(self) -> bool:
        return (
            bool(self._unproposed_requests)
            or bool(self._unproposed_timestamps)
            or len(self._unproposed_finals) >= self._config.confirmation_batch
        )

    def _start_leading(self) -> None:
        """Computes the proposals of a new ballot, and sends again timestamps that the last leader may not have sent."""
        self._unproposed_requests = list(self._requests)
        self._unproposed_timestamps = []
        self._unproposed_finals = {id: None for id, p in self._pending.items() if p.final and not p.is_final_logged}
        for id, pending in self._pending.items():
            if not pending.is_final_logged and len(pending.message.destinations) > 1:
                self._send_timestamp(id, pending)
                if not pending.final and len(pending.received) == len(pending.message.destinations):
                    self._unproposed_timestamps.append(id)

    def _make_proposals(self) -> list[Entry]:
        requests, self._unproposed_requests = self._unproposed_requests, []
        timestamps, self._unproposed_timestamps = self._unproposed_timestamps, []
        entries = [Entry(SET, id, message=self._requests[id]) for id in requests if id in self._requests]
        ballot = self._paxos.ballot
        for id in timestamps:
            pending = self._pending.get(id)
            if pending is not None and not pending.final and pending.proposed_ballot != ballot:
                pending.proposed_ballot = ballot
                entries += self._make_timestamp_entries(id, pending)
        if len(self._unproposed_finals) >= self._config.confirmation_batch:
            entries += [Entry(FINAL, id, timestamp=self._pending[id].final) for id in self._unproposed_finals]
            self._unproposed_finals = {}
        return entries

    def _send_timestamp(self, id: MessageId, pending: TimestampPending) -> None:
        targets = self.topology.processes_of(pending.message.destinations)
        self.send_all(targets, GroupTimestamp(id, self.home, pending.own), id)

    # The log

    def _apply(self, decided: Decided) -> None:
        for _, value in decided:
            if type(value) is bytes:
                self._install_checkpoint(msgspec.msgpack.decode(value, type=TimestampCheckpoint))
                self._deliver_ready()
            else:
                for entry in value:
                    self._apply_entry(entry)  # type: ignore[arg-type]
                self._deliver_ready()

    def _apply_entry(self, entry: Entry) -> None:
        """Applies one entry of the log, in the same order at every member."""
        if entry.kind == SET:
            assert entry.message is not None
            self._apply_set(entry.message)
        elif entry.kind == SYNC:
            self._apply_sync(entry.id, entry.group, entry.timestamp)
        elif entry.kind == FINAL:
            self._apply_final(entry.id, entry.timestamp)
        else:
            raise AssertionError(f"{entry!r} is no entry of a log of timestamps")

    def _apply_set(self, message: Message) -> None:
        id = message.id
        self._requests.pop(id, None)
        if not self._ordered.add(id):
            self.note("repeated", id)
            return
        self._clock += 1
        pending = self._pending[id] = TimestampPending(message, self._clock)
        self._queue.add(self._clock, id)
        if len(message.destinations) == 1:
            pending.is_final_logged = True
            self._set_final(id, pending, self._clock)
            return
        pending.received = self._early_timestamps.pop(id, {})
        pending.received[self.home] = self._clock
        if self._sends_timestamps():
            self._send_timestamp(id, pending)
        self._check_all_received(id, pending)

    def _apply_sync(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        self._raise_clock(timestamp)
        pending = self._pending.get(id)
        if pending is None or pending.is_final_logged:
            return
        pending.logged[group] = timestamp
        if len(pending.logged) == len(pending.message.destinations):
            self._set_final_logged(id, pending, max(pending.logged.values()))

    def _apply_final(self, id: MessageId, timestamp: int) -> None:
        self._raise_clock(timestamp)
        pending = self._pending.get(id)
        if pending is not None and not pending.is_final_logged:
            self._set_final_logged(id, pending, timestamp)

    def _raise_clock(self, timestamp: int) -> None:
        if timestamp > self._clock:
            self._clock = timestamp

    # Timestamps of groups

    def _handle_timestamp(self, id: MessageId, group: GroupId, timestamp: int, ask: bool) -> None:
        pending = self._pending.get(id)
        if pending is not None:
            if group not in pending.received:
                pending.received[group] = timestamp
                self._check_all_received(id, pending)
                self._deliver_ready()
        elif id not in self._ordered:
            self.note("early", id)
            self._early_timestamps.setdefault(id, {})[group] = timestamp
            return
        if ask and self._paxos.role == "leading":
            self._answer_query(id, pending, group)

    def _answer_query(self, id: MessageId, pending: TimestampPending | None, group: GroupId) -> None:
        """Answers a group that lacks this group's timestamp, or its confirmation."""
        own = self._confirmations.get_timestamp(group, id) if pending is None else pending.own
        targets = self.topology.members(group)
        if own is not None:
            self.send_all(targets, GroupTimestamp(id, self.home, own), id)
        if pending is None or pending.is_final_logged:
            self.send_all(targets, FinalStored((id,)), id)

    def _check_all_received(self, id: MessageId, pending: TimestampPending) -> None:
        if len(pending.received) < len(pending.message.destinations) or pending.final:
            return
        self._handle_all_timestamps(id, pending)
        if not pending.final:
            self._unproposed_timestamps.append(id)

    # Final timestamps

    def _set_final(self, id: MessageId, pending: TimestampPending, final: int) -> None:
        """Sets the final timestamp as soon as this member knows it."""
        assert pending.own <= final, f"message {id}: final {final} is below the group's own {pending.own}"
        pending.final = final
        pending.committed_ns = self.now
        self.end_blocking(pending.message)
        self._queue.fix(id, final)
        if not pending.is_final_logged:
            self._unproposed_finals[id] = None

    def _set_final_logged(self, id: MessageId, pending: TimestampPending, final: int) -> None:
        """Sets the final timestamp once it follows from the log."""
        pending.is_final_logged = True
        self._unproposed_finals.pop(id, None)
        if not pending.final:
            self._set_final(id, pending, final)
        assert pending.final == final, f"message {id}: final timestamps {pending.final} and {final}"
        for group in pending.message.destinations:
            if group != self.home:
                self._confirm(id, pending, group)
        if pending.is_delivered:
            del self._pending[id]

    def _confirm(self, id: MessageId, pending: TimestampPending, group: GroupId) -> None:
        """Confirms in batches that the final timestamp is in the log, and asks a group for overdue confirmations."""
        leads = self._paxos.role == "leading"
        own = None if group in pending.confirmed_by else pending.own
        for other in self._confirmations.add(group, id, own):
            batch = self._confirmations.pop_batch(other)
            if leads:
                self._send_confirmation(other, batch)
        if leads:
            for late, timestamp in self._confirmations.list_overdue(group):
                query = GroupTimestamp(late, self.home, timestamp, ask=True)
                self.send_all(self.topology.members(group), query, late)

    def _send_confirmation(self, group: GroupId, batch: tuple[MessageId, ...]) -> None:
        self.send_all(self.topology.members(group), FinalStored(batch), batch)

    def _handle_confirmation(self, group: GroupId, messages: tuple[MessageId, ...]) -> None:
        for id in messages:
            self._confirmations.confirm(group, id)
            pending = self._pending.get(id)
            if pending is not None and not pending.is_final_logged:
                pending.confirmed_by.add(group)

    def _deliver_ready(self) -> None:
        while (id := self._queue.pop_first(self._delivery_limit())) is not None:
            pending = self._pending[id]
            pending.is_delivered = True
            self._last_delivered = (pending.final, id)
            if pending.committed_ns < self.now:
                self.note("waited", id)
            if pending.is_final_logged:
                del self._pending[id]
            self.deliver(pending.message, pending.final, id, pending.committed_ns)

    def _delivery_limit(self) -> int:
        """The highest timestamp at or below which no message that the log orders from now on can end."""
        return self._clock

    # Retries

    def _forward_requests(self) -> None:
        leader = self._paxos.suggested_leader
        if leader != self.me:
            for id in [id for id in self._requests if id in self._overdue_requests][:QUERY_BATCH]:
                self.send(leader, Request(self._requests[id]), id)
        self._overdue_requests = set(self._requests)

    def _query_overdue(self) -> None:
        overdue = [id for id, p in self._pending.items() if p.is_overdue and not p.is_delivered][:QUERY_BATCH]
        unknown = tuple(id for id in overdue if not self._pending[id].final)
        if self._paxos.role == "leading":
            for id in unknown:
                self._query_groups(id, self._pending[id])
        if unknown and self.delivers_ahead and self._other_members:
            self.send_all(self._other_members, FinalQuery(unknown), unknown)
        for pending in self._pending.values():
            pending.is_overdue = True

    def _query_groups(self, id: MessageId, pending: TimestampPending) -> None:
        """Asks groups for their timestamps. They may never have received the message, so it is sent again."""
        missing = tuple(group for group in pending.message.destinations if group not in pending.received)
        if missing:
            self.note("asked", id)
            targets = self.topology.processes_of(missing)
            self.send_all(targets, Request(pending.message), id)
            self.send_all(targets, GroupTimestamp(id, self.home, pending.own, ask=True), id)

    # For operators

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._paxos.role,
            "pending": len(self._requests) + sum(not pending.is_delivered for pending in self._pending.values()),
            "clock": self._clock,
            "joined": int(self._paxos.has_joined()),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if self.has_delivered(message):
            return [explain_delivered(self.me)]
        pending = self._pending.get(message)
        if pending is not None:
            return [
                explain_text(pending.message),
                *explain_timestamps(pending, self.topology, self.home, self._other_members),
                explain_order(message, self._pending),
            ]
        if message in self._requests:
            description = f"the log of group {self.home} has not given it a timestamp"
            return [
                explain_text(self._requests[message]),
                Phase("ordered", False, description, self._other_members),
            ]
        groups = sorted(self._early_timestamps.get(message, ()))
        if groups:
            return [Phase("text", False, f"groups {groups} have sent timestamps; the message has not arrived")]
        return [Phase("text", False, f"process {self.me} has not received it")]

    # Snapshots

    def _make_checkpoint(self) -> TimestampCheckpoint:
        confirmations = self._confirmations
        return TimestampCheckpoint(
            self.position,
            self._clock,
            self._last_delivered,
            tuple(pending.snapshot() for _, pending in sorted(self._pending.items())),
            self._ordered.snapshot(),
            tuple((group, tuple(pairs.items())) for group, pairs in sorted(confirmations.timestamps.items())),
            tuple((group, tuple(ids)) for group, ids in sorted(confirmations.unsent.items())),
        )

    def _load_checkpoint(self, checkpoint: TimestampCheckpoint) -> None:
        self._clock = checkpoint.clock
        self._last_delivered = checkpoint.last_delivered
        self._ordered.restore(checkpoint.ordered)
        self._confirmations.restore(checkpoint.unconfirmed, checkpoint.unsent_confirmations)
        self._pending = {}
        self._queue = DeliveryQueue()
        self._unproposed_finals = {}
        for state in checkpoint.pending:
            id = state.message.id
            pending = self._pending[id] = restore_pending(state)
            if not pending.is_delivered:
                self._queue.add(pending.own, id)
                if pending.final:
                    self._queue.fix(id, pending.final)
            if pending.final and not pending.is_final_logged:
                self._unproposed_finals[id] = None

    def _install_checkpoint(self, checkpoint: TimestampCheckpoint) -> None:
        """Continues from the checkpoint of another member, or of an earlier incarnation. Messages that this member has
        delivered ahead of the log stay delivered."""
        position, last_delivered, before = self.position, self._last_delivered, self._pending
        self._load_checkpoint(checkpoint)
        for id, pending in list(self._pending.items()):
            known = before.get(id)
            if known is not None:
                pending.received = {**known.received, **pending.received}
                if known.final and not pending.final:
                    self._set_final(id, pending, known.final)
            pending.proposed_ballot = -1
            if pending.final and (pending.final, id) <= last_delivered and not pending.is_delivered:
                pending.is_delivered = True
                self._queue.drop(id)
                if pending.is_final_logged:
                    del self._pending[id]
        self._requests = {id: message for id, message in self._requests.items() if id not in self._ordered}
        self._early_timestamps = {id: early for id, early in self._early_timestamps.items() if id not in self._ordered}
        self._last_delivered = max(last_delivered, checkpoint.last_delivered)
        self._led_ballot = -1  # a leader must compute its proposals again
        if checkpoint.position > position:
            self.install_position(checkpoint.position)

    def snapshot(self) -> State:
        return TimestampState(
            self._make_checkpoint(),
            self._paxos.snapshot(),
            tuple(self._requests.values()),
            tuple(sorted(self._overdue_requests)),
            tuple((id, tuple(sorted(early.items()))) for id, early in sorted(self._early_timestamps.items())),
            tuple(self._unproposed_requests),
            tuple(self._unproposed_timestamps),
            tuple(self._unproposed_finals),
            self._led_ballot,
            self._timer_set,
            self._is_pacing,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, TimestampState)
        self._load_checkpoint(state.checkpoint)
        self.position = state.checkpoint.position
        self._paxos.restore(state.paxos)
        self._requests = {message.id: message for message in state.requests}
        self._overdue_requests = set(state.overdue_requests)
        self._early_timestamps = {id: dict(early) for id, early in state.early_timestamps}
        self._unproposed_requests = list(state.unproposed_requests)
        self._unproposed_timestamps = list(state.unproposed_timestamps)
        self._unproposed_finals = dict.fromkeys(state.unproposed_finals)
        self._led_ballot = state.led_ballot
        self._timer_set = state.timer_set
        self._is_pacing = state.is_pacing

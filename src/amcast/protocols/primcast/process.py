"""PrimCast: primaries propose timestamps, every member acknowledges to every destination; three message delays.

Source: Pacheco, Coelho, Pedone, "PrimCast: A Latency-Efficient Atomic Multicast" (2023), paper 002.

    client     primary of g   members of g   primary of h   members of h
      |--Request-->|------------>|------------->|------------->|     to every member of every destination
      |            |--Propose--->|------------->|------------->|     clock + 1, to all destinations (h's primary alike)
      |            |             |--Ack-------->|------------->|     from every member to all destinations
      |         deliver       deliver        deliver        deliver

A message's final timestamp is the highest of its groups' timestamps; each is decided when a majority of the group has
acknowledged it in one epoch. A process delivers in the order of (final timestamp, message id), once its primary's
clock and a majority's clocks have passed it. PrimCast-HC: a primary also never proposes below its local time.

The sets of the paper are specifications. Here M is the pending messages (`PendingMulticast`) and, per group, how far
each member has acknowledged its group's log (`GroupProgress`); T is the `GroupLog`; D is the `DeliveredSet`. An
acknowledgement is cumulative, so the timestamp of a remote group is decided when a majority has acknowledged, in one
epoch, a longer log than the index of the proposal.

Epoch changes (algorithm 3):

    candidate          other members
       |----NewEpoch------>|        to all members, the candidate included
       |<---Promise--------|        epoch and log held, clock; lower epochs are rejected from now on
       |----NewState------>|        the longest log of the highest epoch, the highest clock, of a majority
       |<---Ack----------->|        every member to every member: the log is held, with the clock; a majority
    primary                         establishes the epoch

Urgency. One acknowledgement (or proposal) leaves at the end of a step for all that the step appended to the log, to all
members of all destinations, as in the paper. Only primaries and the gateway that made a bundle have somebody waiting
for their delivery; other members may deliver some milliseconds later, as followers do in most replicated systems, so
their copy may wait for later traffic (`Send.deferrable`): half of the 36 frames for one message to two groups of three.

- An acknowledgement is urgent for the primaries of the destinations and for the gateway.
- A proposal is urgent for the own group, which must acknowledge it, for primaries and for the gateway; for other
  members of remote groups only if it raises their clocks. It does not if the proposal of every other destination is
  known and one of them is as high: that proposal raises the clocks.

A small bundle is more thrifty. Two members of a group of three are a majority, so it is urgent for primaries and for as
many followers as make one with them; the rest receives it later, or when no majority answers soon
(`protocols/primcast/thrift.py`).

Followers deliver what their primary has delivered (`delivery_notices.py`), and need the deferred acknowledgements only
if it fails; a new primary is sent at once what was deferred for it as a follower.

Repair. A link loses what was in flight when it is reset, and a restarted process has only its records. Within a group
both ends exchange their progress (Sync) and the one ahead sends the rest: log entries if it is the primary, deliveries,
or the bare position if it no longer has these. Between groups nothing is numbered per link: a process that waits for a
message for long asks the other destinations for it or for their timestamp (Query, Decided). A group answers for a
delivered message until a majority of each other destination has delivered it. A member that lost its memory is admitted
again as `parts/groups/leader_group.py` describes; an epoch's state is its log.

Claims: genuine; three delays everywhere; k(n + kn^2) packets for k groups of n, requests and self-sends included, and
BUMPs only where a group's timestamp was below another's; minorities may crash, restart, lose their memory. Deviations
from the paper, each with its reason, are in docs/protocols/primcast.md.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from amcast.kernel.bundle import bundle_headers, bundle_messages, gateway_process, is_bundle
from amcast.kernel.diagnostics import Phase, ProcessStatus, explain_delivered, explain_unknown
from amcast.kernel.effects import About, Deliver, Note, Send
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.process import Accepted
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import MAX_MEMBERS, place_of
from amcast.parts.groups.claims import LEADER_RECOVERY_GOALS, MAJORITY_CLAIMS
from amcast.parts.groups.leader_group import LeaderGroupMember
from amcast.parts.groups.leader_group_messages import AdmissionVote, Entry, JoinRequest, LeaderGroupState, Nack
from amcast.parts.ordering.clocks import QuorumClock, next_hybrid, next_logical
from amcast.protocols.primcast.delivery_notices import DeliveryNotices
from amcast.protocols.primcast.explain import (
    Destination,
    explain_clocks,
    explain_order,
    explain_text,
    explain_timestamps,
    find_bundle,
)
from amcast.protocols.primcast.log import GroupLog
from amcast.protocols.primcast.messages import (
    BODIES,
    RECORDS,
    Ack,
    CatchUp,
    Checkpoint,
    Decided,
    DeliveredMessage,
    DeliveryNotice,
    DeliveryNoticesState,
    DeliveryRecord,
    GroupProgressState,
    Install,
    NewEpoch,
    NewState,
    Offer,
    PendingMulticastState,
    PrimCastConfig,
    PrimCastState,
    Progress,
    Promise,
    Proposal,
    Propose,
    Query,
    Start,
    Sync,
    ThriftState,
)
from amcast.protocols.primcast.progress import GroupProgress, PendingMulticast, about_messages
from amcast.protocols.primcast.statements import build_statement_table
from amcast.protocols.primcast.thrift import HURRY_NS, HURRY_TIMER, Thrift, gateway_of, take_overdue

NOTICE_TIMER: Final = "notices"
NO_TIMESTAMPS: Final[Mapping[GroupId, int]] = {}
MAX_CACHED: Final = 256
"""Entries of a cache of target lists, which is then cleared."""


class PrimCast(LeaderGroupMember[PendingMulticast]):
    """One member of one group, whose leader is called primary."""

    __slots__ = (
        "_acks_changed",
        "_appended",
        "_clock_due",
        "_clocks",
        "_deferrable",
        "_deferred_acks",
        "_delivery_heap",
        "_final_count",
        "_has_records",
        "_is_established",
        "_log",
        "_message_count",
        "_next_timestamp",
        "_notices",
        "_primary_clock",
        "_primary_position",
        "_progress",
        "_promises",
        "_proposes_early",
        "_published_clock",
        "_recent_deliveries",
        "_remote_destinations",
        "_remote_epoch_changes",
        "_remote_members",
        "_remote_progress",
        "_sent_state",
        "_targets_without_me",
        "_thrift",
        "_undurable",
        "_unproposed",
        "_waiting_proposals",
    )

    fast_body = Ack

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config, "primary")
        self._next_timestamp = next_hybrid if config.hybrid else next_logical
        self._has_records = config.records
        """Whether durable state is persisted before anything that depends on it is sent."""
        self._proposes_early = config.records and config.proposes_early

        # The own group
        self._log = GroupLog()
        self._progress = GroupProgress(self.home, topology)
        self._acks_changed = True
        """Whether entries may have been decided since `_decide_own_timestamps` ran last."""
        self._is_established = True
        """Whether a majority is known to hold the log of `_epoch`, so that no earlier epoch can be resumed."""
        self._waiting_proposals: deque[Proposal] = deque()
        """The primary's proposals for the next indexes of the log, the first of which waits for its message."""
        self._primary_position = (0, 0)
        """Log length and clock in the primary's last acknowledgement. The clock counts once the log is as long."""
        self._primary_clock = 0
        """The primary will propose nothing at or below it that is not in the log here."""
        self._published_clock = 0
        """The clock that the other members were sent last."""
        self._clocks = QuorumClock(len(self._members))
        """The members' clocks, as sent in epochs up to `_epoch`."""

        # Other groups
        self._remote_progress: dict[GroupId, GroupProgress] = {}
        """By group, once something of it has arrived."""
        self._remote_members: dict[ProcessId, tuple[GroupProgress, int]] = {}
        """Their members that have sent something: the group's progress, and the member's place in it."""
        self._remote_epoch_changes = 0
        """How many primary changes of other groups were observed."""

        # Messages
        self._unproposed: dict[MessageId, PendingMulticast] = {}
        """Pending messages that have arrived and are not in the log."""
        self._delivery_heap: list[tuple[int, MessageId]] = []
        """Heap over the pending messages in the log: a lower bound of each one's rank."""
        self._final_count = 0
        """How many pending messages have a final timestamp. While it is 0, nothing can be delivered."""
        self._message_count = 0
        """How many clients' messages were delivered. `position` counts a bundle once, `_delivered` has it and its
        messages."""
        self._recent_deliveries: dict[MessageId, DeliveredMessage] = {}
        """The deliveries from `_history_start` on, in order, for members that lag."""
        self._remote_destinations: dict[tuple[GroupId, ...], tuple[GroupId, ...]] = {}
        """Cache: for the destinations of a message, those that are not the own group."""

        # The end of a step
        self._appended: list[PendingMulticast] = []
        """Entries that this step added to the log: to be proposed or acknowledged at its end."""
        self._clock_due = False
        """Whether the other members must be sent the clock at the end of this step."""
        self._undurable: list[tuple[DeliveredMessage, int]] = []
        """Deliveries that are in no record, each with its index in the log (-1 if it has none)."""
        self._notices = DeliveryNotices()
        self._deferrable: dict[tuple[tuple[GroupId, ...], ProcessId, int, int, bool], tuple[ProcessId, ...]] = {}
        """Cache: the targets for which a body is not urgent, by destinations, sender, `_epoch`,
        `_remote_epoch_changes`, and whether the body is a proposal."""
        self._thrift = Thrift(me, self._members, config.small_bundle_bytes)
        self._targets_without_me: dict[tuple[ProcessId, ...], tuple[ProcessId, ...]] = {}
        """Cache: targets without this process."""

        # Epoch changes
        self._promises: dict[int, Promise] = {}
        """At a candidate: the promises received, by place."""
        self._sent_state: NewState | None = None
        """At a candidate: the state it chose from the promises and sent."""
        self._deferred_acks: dict[int, Ack] = {}
        """By place: the last acknowledgement of members in an epoch above `_epoch`."""

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Propose():
                self._handle_propose(sender, body)
            case Offer():
                self._handle_offer(sender, body)
            case Start(message):
                self.on_request(message)
            case Query():
                self._handle_query(sender, body)
            case Decided():
                self._handle_decided(body)
            case Sync():
                self._handle_sync(sender, body)
            case CatchUp():
                self._handle_catch_up(body)
            case Install():
                self._handle_install(body)
            case NewEpoch(epoch):
                if self._promise_candidate(sender, epoch):
                    self._send_after_persist((sender,), self._build_promise())
            case Promise():
                self._handle_promise(sender, body)
            case NewState():
                self._handle_new_state(sender, body)
            case Nack(ballot):
                self._handle_nack(ballot)
            case JoinRequest():
                if self._handle_join_request(sender, body):
                    self._send_epoch_state(sender)
            case AdmissionVote():
                self._handle_admission_vote(sender, body)
            case Ack():
                self.fast_receive(sender, body)
            case _:
                raise AssertionError(f"process {self.me} received {body!r}, which is no body of PrimCast")

    def on_step_end(self) -> None:
        """Proposes and delivers what is possible, and then sends, once the records of this step are persisted."""
        if self._unproposed:
            self._propose()
        log, notices = self._log, self._notices
        while True:
            if self._acks_changed and log.decided < log.length:
                self._decide_own_timestamps()
            if notices.announced and self._is_active():
                self._deliver_announced()
            if self._final_count:
                self._deliver_ready()
            if len(notices.unannounced) > notices.checked and self._role == "primary":
                self._notify_gateways()
            if self._committed:
                self._committed.clear()
            if not (self._sends_after_persist or self._appended or self._clock_due):
                break
            self._trim()
            is_proposed = self._proposes_early and bool(self._appended) and self._propose_early()
            self._persist_changes()
            for targets, body, about in self._sends_after_persist:
                self.send_all(targets, body, about)
            self._sends_after_persist = []
            self._send_acknowledgements(is_proposed)
            if self._has_records:
                break  # this process' own acknowledgement arrives when it is durable
        if notices.unannounced:
            self._schedule_notices()
        if self._thrift.is_timer_due:
            self._thrift.is_timer_due = False
            self._thrift.is_timer_armed = True
            self.set_timer(HURRY_TIMER, (HURRY_NS, HURRY_NS))
        if not self._repair_armed:
            self._arm_repair_timer()

    def accepted(self) -> Accepted | None:
        """The log: a message is decided when a majority has acknowledged it, and what is acknowledged is in the log or,
        below its floor, delivered. A member that has promised a later epoch still holds what it acknowledged."""
        if self._role == "joining":
            return None
        undelivered = tuple([pending.id for pending in self._log.list_undelivered()])
        return Accepted(self.topology.configuration, max(self.position, self._log.floor), undelivered, self.position)

    # Requests and proposals

    def on_request(self, message: Message) -> None:
        id = message.id
        pending = self._pending.get(id)
        if pending is None:
            if id in self._delivered:
                return
            pending = self._pending[id] = PendingMulticast(id)
        assert self.home in message.destinations, f"process {self.me} is no destination of message {id}"
        if pending.message is None:
            pending.message = message
            if gateway_of(message) == self.me and self._thrift.is_small(message):
                self._thrift.start_waiting(pending)
            if pending.index < 0:
                self._unproposed[id] = pending
                if self._role == "primary":
                    # At once: another group's proposal, next in this burst, would raise this one above it.
                    self._propose()
            if pending.decided:
                self._commit(pending)
            if self._waiting_proposals and self._waiting_proposals[0][1] == id:
                self._append_waiting_proposals()

    def _propose(self) -> None:
        """Appends every unproposed message to the log. A primary that has not delivered everything below the base of
        its log waits, because it could take a delivered message for a new one."""
        if self._role != "primary" or self._promised != self._epoch or self.position < self._log.floor:
            return
        for pending in list(self._unproposed.values()):
            self._append(pending, self._next_timestamp(self._clock, self.now))

    def _append(self, pending: PendingMulticast, timestamp: int) -> None:
        """Adds an entry to the log and acknowledges it at the end of the step. Only a message that has arrived can be
        acknowledged: a majority that acknowledged a message lost with its sender could never deliver it."""
        assert pending.message is not None
        self._add_entry(pending, timestamp)
        self._appended.append(pending)

    def _add_entry(self, pending: PendingMulticast, timestamp: int) -> None:
        index = self._log.append(pending, timestamp)
        if max(self._progress.lengths) > index:
            self._acks_changed = True
        if timestamp > self._clock:
            self._clock = timestamp
        if pending.delivered_at < 0:
            id = pending.id
            self._unproposed.pop(id, None)
            if pending.decided:
                known = pending.decided.get(self.home)
                assert known is None or known == timestamp, (
                    f"process {self.me}: message {id} has timestamp {timestamp} after {known} was decided"
                )
            if timestamp > pending.bound:
                pending.bound = timestamp
            heappush(self._delivery_heap, (pending.bound, id))

    def _ensure_pending(self, id: MessageId) -> PendingMulticast:
        pending = self._pending.get(id)
        if pending is None:
            pending = self._pending[id] = PendingMulticast(id)
        return pending

    def _handle_propose(self, sender: ProcessId, body: Propose) -> None:
        ack = body.ack
        if sender in self._places:
            self._handle_own_proposals(sender, ack.epoch, body.proposals, body.notices)
            self.fast_receive(sender, ack)
        else:
            self._handle_remote_proposals(sender, ack.epoch, body.proposals)
            self._handle_remote_ack(sender, ack)

    def _handle_offer(self, sender: ProcessId, body: Offer) -> None:
        if sender not in self._places:
            self._handle_remote_proposals(sender, body.epoch, body.proposals)
            return
        self._handle_own_proposals(sender, body.epoch, body.proposals, body.notices)
        if body.epoch == self._epoch and body.clock > self._clock:
            self._follow_primary_clock(body.clock)

    def _handle_own_proposals(
        self, sender: ProcessId, epoch: int, proposals: tuple[Proposal, ...], notices: tuple[DeliveryNotice, ...]
    ) -> None:
        if epoch < self._promised:
            self._reject_stale_leader(sender, epoch)
        if epoch == self._epoch and self._is_active():
            self._accept_proposals(proposals)
            if notices:
                self._handle_notices(notices)

    def _handle_remote_proposals(self, sender: ProcessId, epoch: int, proposals: tuple[Proposal, ...]) -> None:
        progress = (self._remote_members.get(sender) or self._add_remote_member(sender))[0]
        if epoch > progress.epoch:
            progress.epoch = epoch
            progress.undecided = []
            self._remote_epoch_changes += 1
            self._acknowledge_new_primary(sender, proposals)
        if epoch == progress.epoch:
            for proposal in proposals:
                id = proposal[1]
                pending = self._pending.get(id)
                if pending is None:
                    if id in self._delivered:
                        continue
                    pending = self._pending[id] = PendingMulticast(id)
                heappush(progress.undecided, proposal)
                self._observe_timestamp(pending, progress.group, proposal[2])

    def _accept_proposals(self, proposals: tuple[Proposal, ...]) -> None:
        """Handles the own primary's proposals in order. One that repeats an index or leaves a gap is dropped; repair
        fetches it if it is missing."""
        for proposal in proposals:
            if proposal[0] == self._log.length + len(self._waiting_proposals):
                self._waiting_proposals.append(proposal)
        self._append_waiting_proposals()

    def _append_waiting_proposals(self) -> None:
        """Appends the primary's proposals up to the first whose message has not arrived."""
        waiting = self._waiting_proposals
        while waiting:
            _, id, timestamp = waiting[0]
            pending = self._pending.get(id)
            if pending is None and id in self._delivered:
                if id not in self._recent_deliveries:
                    self._is_lagging = True  # only the primary still has the message
                    break
                pending = self._build_delivered_placeholder(self._recent_deliveries[id].message)
            elif pending is None or pending.message is None:
                self._ensure_pending(id).proposing_groups.add(self.home)
                self.note("early", id)
                break
            waiting.popleft()
            self._append(pending, timestamp)
        length, clock = self._primary_position
        if length <= self._log.length and clock > self._primary_clock:
            self._primary_clock = clock

    def _build_delivered_placeholder(self, message: Message) -> PendingMulticast:
        """A log entry for a message that is delivered already."""
        pending = PendingMulticast(message.id)
        pending.message = message
        pending.delivered_at = max(0, self.position - 1)
        return pending

    def _acknowledge_new_primary(self, primary: ProcessId, proposals: tuple[Proposal, ...]) -> None:
        """Acknowledges at once to the new primary of another group, which also releases what was deferred for it."""
        if self._is_active():
            self._send_after_persist((primary,), self._build_ack(), tuple([id for _, id, _ in proposals]))

    # Acknowledgements and deciding

    def fast_receive(self, sender: ProcessId, body: Ack) -> None:
        """Handles an acknowledgement. Every process receives one from every other for every message, so this method
        calls others only where something changes."""
        place = self._places.get(sender)
        if place is None:
            self._handle_remote_ack(sender, body)
            return
        if body.memory_losses != self._memory_losses:
            self._merge_memory_losses(body.memory_losses)
        self._positions[place] = body.position
        if sender == self.me and body.position > self._delivered_until:
            self._delivered_until = body.position
        epoch = body.epoch
        clock = body.clock
        if epoch != self._epoch:
            if epoch > self._epoch:
                self._defer_ack(place, body)
            else:
                self._clocks.update(place, clock)
            return
        clocks = self._clocks.values
        if clock > clocks[place]:
            clocks[place] = clock
        progress = self._progress
        length = body.length
        if length > progress.lengths[place] or epoch != progress.epochs[place]:
            progress.epochs[place] = epoch
            progress.lengths[place] = length
            self._acks_changed = True
        if place == epoch % MAX_MEMBERS:
            self._update_primary_position(length, clock)
            if clock > self._clock:
                self._follow_primary_clock(clock)
        if not self._is_established and progress.has_quorum(epoch):
            self._is_established = True
            self._start_leading()

    def _defer_ack(self, place: int, ack: Ack) -> None:
        """Stores a member's acknowledgement of an epoch whose state has not arrived, or is lost."""
        self._observe_epoch(ack.epoch)
        self._deferred_acks[place] = ack

    def _update_primary_position(self, length: int, clock: int) -> None:
        last = self._primary_position
        if length >= last[0] and clock >= last[1]:
            self._primary_position = (length, clock)
            if length <= self._log.length and clock > self._primary_clock:
                self._primary_clock = clock

    def _follow_primary_clock(self, clock: int) -> None:
        """Raises the clock to that of the own primary, which may know timestamps that this member is sent later."""
        self._clock = clock
        if clock > self._published_clock:
            self._clock_due = True

    def _handle_remote_ack(self, sender: ProcessId, ack: Ack) -> None:
        progress, place = self._remote_members.get(sender) or self._add_remote_member(sender)
        epoch, length, at = ack.epoch, ack.length, progress.epochs[place]
        if epoch == at:
            if length > progress.lengths[place]:
                progress.lengths[place] = length
        elif epoch > at:
            progress.epochs[place] = epoch
            progress.lengths[place] = length
        undecided = progress.undecided
        if undecided and length > undecided[0][0] and epoch == progress.epoch:
            acknowledged = progress.acknowledged_length(epoch)
            while undecided and undecided[0][0] < acknowledged:
                _, id, timestamp = heappop(undecided)
                pending = self._pending.get(id)
                if pending is not None:
                    self._decide(pending, progress.group, timestamp)
        rank = (ack.time, ack.tie)
        if rank > progress.delivered_ranks[place]:
            progress.delivered_ranks[place] = rank
            owed = self._obligations.by_group.get(progress.group)
            if owed and owed[0] <= rank:
                self._obligations.resolve(progress.group, progress.majority_rank())

    def _add_remote_member(self, sender: ProcessId) -> tuple[GroupProgress, int]:
        group = self.topology.group_of(sender)
        assert group is not None
        progress = self._progress_of(group)
        self._remote_members[sender] = added = (progress, progress.places[sender])
        return added

    def _progress_of(self, group: GroupId) -> GroupProgress:
        """The progress of another group."""
        progress = self._remote_progress.get(group)
        if progress is None:
            progress = self._remote_progress[group] = GroupProgress(group, self.topology)
        return progress

    def _observe_timestamp(self, pending: PendingMulticast, group: GroupId, timestamp: int) -> None:
        """Raises the clock to another group's timestamp. The other members learn the clock with the acknowledgement of
        the same message, or at the end of this step if that is sent already."""
        pending.proposing_groups.add(group)
        if timestamp > pending.highest_proposal:
            pending.highest_proposal = timestamp
        if timestamp > self._clock:
            self._clock = timestamp
        if pending.index >= 0 and timestamp > self._published_clock:
            self._clock_due = True

    def _decide(self, pending: PendingMulticast, group: GroupId, timestamp: int) -> None:
        """Records that a majority of a group has acknowledged its timestamp."""
        known = pending.decided.get(group)
        if known is not None:
            assert known == timestamp, (
                f"process {self.me}: group {group} decided {timestamp} for message {pending.id} after {known}"
            )
            return
        pending.decided[group] = timestamp
        if timestamp > pending.bound:
            pending.bound = timestamp
        self._commit(pending)

    def _decide_own_timestamps(self) -> None:
        self._acks_changed = False
        log = self._log
        decided, acknowledged = log.decided, self._progress.acknowledged_length(self._epoch)
        while decided < acknowledged and decided < log.length:
            pending = log.entries[decided]
            if pending.delivered_at < 0:
                self._decide(pending, self.home, pending.timestamp)
            decided += 1
        log.decided = decided

    def _commit(self, pending: PendingMulticast) -> None:
        """Fixes the final timestamp, if the message has arrived and the timestamp of every destination is decided."""
        message = pending.message
        if message is not None and len(pending.decided) == len(message.destinations) and pending.final < 0:
            pending.final = pending.bound
            pending.committed_ns = self.now
            self.end_blocking(message)
            self._committed.add(pending.id)
            self._final_count += 1

    # Delivering

    def _stable_timestamp(self) -> int:
        """No message outside the log will get a timestamp at or below it: not from the primary, whose own clock is
        needed, nor from the primary of a later epoch, which has a promise from a member of every majority."""
        return self._clocks.delivery_limit(self._primary_clock)

    def _deliver_ready(self) -> None:
        heap = self._delivery_heap
        if not heap or not self._is_established or self._promised != self._epoch or self.position < self._log.floor:
            return
        stable = -1
        while heap:
            bound, id = heap[0]
            pending = self._pending.get(id)
            if pending is None:
                heappop(heap)  # delivered otherwise: by a notice or by catching up
            elif pending.bound > bound:
                heapreplace(heap, (pending.bound, id))
            elif pending.final < 0:
                break
            else:
                if stable < 0:
                    stable = self._stable_timestamp()
                if pending.final > stable:
                    break
                heappop(heap)
                assert pending.message is not None
                if id not in self._committed:
                    self.note("waited", id)
                is_ahead = self._role != "primary"
                self._deliver(
                    pending.message, pending.timestamp, pending.final, pending.committed_ns, pending.decided, is_ahead
                )

    def _deliver(
        self,
        message: Message,
        timestamp: int,
        final: int,
        committed_ns: int | None,
        decided: Mapping[GroupId, int] = NO_TIMESTAMPS,
        is_ahead: bool = False,
    ) -> None:
        """Delivers a message, and records what other members and groups may ask for later."""
        id = message.id
        messages_before = self._message_count
        count = -1
        duplicates: tuple[int, ...] = ()
        if is_bundle(id):
            headers = bundle_headers(message)
            duplicates = self._delivered.add_all(headers)
            count = len(headers) - len(duplicates)
        delivery = DeliveredMessage(message, timestamp, final, messages_before, duplicates)
        index = -1
        pending = self._pending.pop(id, None)
        if pending is not None:
            pending.delivered_at = self.position
            index = pending.index
            self._final_count -= pending.final >= 0
        if index < 0:
            self._unproposed.pop(id, None)
        self._recent_deliveries[id] = delivery
        self._delivered.add(id)
        self._last_delivered_rank = (final, id)
        remote = self._remote_destinations.get(message.destinations)
        if remote is None:
            remote = tuple([group for group in message.destinations if group != self.home])
            self._remote_destinations[message.destinations] = remote
        self._obligations.add(id, timestamp, final, remote)
        self._undurable.append((delivery, index))
        if final > self._clock:
            self._clock = final
        if final > self._published_clock:
            self._clock_due = True
        ordered_elsewhere = remote
        for group in remote:
            if decided.get(group) != final:
                ordered_elsewhere = tuple([other for other in remote if decided.get(other) == final])
                break
        if count >= 0 and self._role == "primary":
            self._notices.unannounced.append((self.position, id, final))
        self._emit_delivery(delivery, count, committed_ns, ordered_elsewhere, is_ahead)
        self._message_count = messages_before + (1 if count < 0 else count)
        self.position += 1

    def _emit_delivery(
        self,
        delivery: DeliveredMessage,
        count: int,
        committed_ns: int | None,
        ordered_elsewhere: tuple[GroupId, ...] = (),
        is_ahead: bool = False,
    ) -> None:
        """Emits the effect. A group whose decided timestamp is the final one gives every later message a higher one:
        `ordered_elsewhere` are the groups of which this process knows that, `ordered_here` is for its own group."""
        message, duplicates = delivery.message, delivery.duplicate_places
        if duplicates:
            self.note("repeated", message.id, float(len(duplicates)))
        self._outbox.append(
            Deliver(
                message,
                delivery.messages_before,
                delivery.final,
                message.id,
                committed_ns,
                count,
                duplicates,
                ordered_elsewhere,
                delivery.timestamp == delivery.final,
                is_ahead,
            )
        )
        self.note_convoy(message, committed_ns)

    # Sending proposals and acknowledgements

    def _send_acknowledgements(self, is_proposed: bool) -> None:
        """Sends one acknowledgement (or proposal) per group for all entries that this step appended; if there are none,
        the clock, if it is due. Entries that `_propose_early` has proposed are acknowledged."""
        appended = self._appended
        clock_due = self._clock_due
        if appended:
            self._appended = []
        self._clock_due = False
        if not (appended or clock_due) or not self._is_active():
            return
        self._published_clock = self._clock
        ack = self._build_ack()
        if appended:
            self._send_entries(appended, ack, self._role == "primary" and not is_proposed)
        else:
            self.note("bump")
            self._send_deferrable(self._members, ack, None, ())
        if not self._has_records:
            self.fast_receive(self.me, ack)

    def _propose_early(self) -> bool:
        """Proposes the entries of this step before they are durable; False if this is no primary. A proposal binds
        nobody until it is acknowledged, and a primary that crashes before never leads the same epoch again, so nobody
        sees two proposals for one index."""
        if self._role != "primary" or not self._is_active():
            return False
        self.note("early-proposal")
        self._send_entries(self._appended, None, True)
        return True

    def _send_entries(self, entries: list[PendingMulticast], ack: Ack | None, proposes: bool) -> None:
        """Sends an acknowledgement, or proposals with one or before it, to the destinations of some entries."""
        notices: tuple[DeliveryNotice, ...] = ()
        if proposes:
            notices = self._notices.take_with_proposal(self.now)
            for pending in entries:
                if pending.message is not None and self._thrift.is_small(pending.message):
                    self._forward(pending, pending.message)
        if len(entries) == 1:
            pending = entries[0]
            message = pending.message
            assert message is not None
            body = self._build_proposals(entries, ack, notices) if proposes else ack
            deferrable = self._list_deferrable(pending, message, proposes)
            if notices:
                # They let the other members deliver, which would lag behind as long as this is deferred.
                deferrable = tuple([one for one in deferrable if one not in self._places])
            self._send_deferrable(self.topology.processes_of(message.destinations), body, pending.id, deferrable)
            return
        for group, listed in [(self.home, entries), *self._group_by_destination(entries)]:
            deferrable = () if notices and group == self.home else self._list_deferrable_in(group, listed, proposes)
            body = self._build_proposals(listed, ack, notices if group == self.home else ()) if proposes else ack
            self._send_deferrable(self.topology.members(group), body, about_messages(listed), deferrable)

    def _send_deferrable(
        self, targets: tuple[ProcessId, ...], body: Body | None, about: About, deferrable: tuple[ProcessId, ...]
    ) -> None:
        """Sends to all targets; to this process only an acknowledgement that must wait until it is durable."""
        assert body is not None
        if not self._has_records or type(body) is Offer:
            others = self._targets_without_me.get(targets)
            if others is None:
                if len(self._targets_without_me) >= MAX_CACHED:
                    self._targets_without_me.clear()
                others = self._targets_without_me[targets] = tuple([one for one in targets if one != self.me])
            targets = others
        if targets:
            self._outbox.append(Send(targets, body, about, deferrable))

    def _build_proposals(
        self, entries: list[PendingMulticast], ack: Ack | None, notices: tuple[DeliveryNotice, ...] = ()
    ) -> Propose | Offer:
        proposals = tuple([(one.index, one.id, one.timestamp) for one in entries])
        return Offer(self._epoch, proposals, self._clock, notices) if ack is None else Propose(proposals, ack, notices)

    def _build_propose_or_ack(self, entries: list[PendingMulticast]) -> Body:
        ack = self._build_ack()
        return self._build_proposals(entries, ack) if self._role == "primary" else ack

    def _build_ack(self) -> Ack:
        time, tie = self._last_delivered_rank
        return Ack(self._epoch, self._log.length, self._clock, self.position, time, tie, self._memory_losses)

    def _group_by_destination(self, entries: list[PendingMulticast]) -> list[tuple[GroupId, list[PendingMulticast]]]:
        """The other destination groups of some entries, each with its entries."""
        groups: dict[GroupId, list[PendingMulticast]] = {}
        for pending in entries:
            assert pending.message is not None
            for group in pending.message.destinations:
                if group != self.home:
                    groups.setdefault(group, []).append(pending)
        return sorted(groups.items())

    def _forward(self, pending: PendingMulticast, message: Message) -> None:
        """Sends a small bundle, of which the gateway has notified primaries only, to the followers."""
        self._thrift.start_waiting(pending)
        gateway = gateway_of(message)
        followers = tuple([member for member in self._other_members if member != gateway])
        if followers:
            spares = self._thrift.spares(self._progress, self._epoch, {gateway})
            self._outbox.append(Send(followers, Start(message), message.id, spares))

    def _list_deferrable(self, pending: PendingMulticast, message: Message, proposes: bool) -> tuple[ProcessId, ...]:
        """The targets for which the proposal or acknowledgement of a message is not urgent."""
        groups = message.destinations
        if proposes:
            if self._thrift.is_small(message):
                gateways = {gateway_of(message)}
                deferrable = self._thrift.spares(self._progress, self._epoch, gateways)
                if len(groups) > 1 and not self._raises_clocks(pending, message):
                    for group in groups:
                        if group != self.home:
                            deferrable += self._list_followers(group, gateways)
                return deferrable
            if pending.highest_proposal < pending.timestamp or len(pending.proposing_groups) < len(groups) - 1:
                return ()
        key = (groups, message.sender, self._epoch, self._remote_epoch_changes, proposes)
        deferrable = self._deferrable.get(key, ())
        if not deferrable:
            if len(self._deferrable) >= MAX_CACHED:
                self._deferrable.clear()
            for group in groups:
                if group != self.home or not proposes:
                    deferrable += self._list_followers(group, {gateway_of(message)})
            self._deferrable[key] = deferrable
        return deferrable

    def _raises_clocks(self, pending: PendingMulticast, message: Message) -> bool:
        """Whether the own timestamp of a small bundle is known to be higher than those of all other destinations. If
        some have not proposed yet, their primaries will follow this clock, and their followers them."""
        is_known = len(pending.proposing_groups) >= len(message.destinations) - 1
        return is_known and pending.highest_proposal < pending.timestamp

    def _list_deferrable_in(
        self, group: GroupId, entries: list[PendingMulticast], proposes: bool
    ) -> tuple[ProcessId, ...]:
        """The same for several messages and one group. Proposals are urgent for every member if a message is large."""
        messages = [one.message for one in entries if one.message is not None]
        gateways = set(map(gateway_of, messages))
        if proposes:
            if not all(map(self._thrift.is_small, messages)):
                return ()
            if group == self.home:
                return self._thrift.spares(self._progress, self._epoch, gateways)
            if any(map(self._raises_clocks, entries, messages)):
                return ()
        return self._list_followers(group, gateways)

    def bundle_contacts(self, bundle: Message) -> tuple[ProcessId, ...]:
        """A small bundle goes to the primaries, which forward it with their proposals. A primary that is down has a
        successor that nobody knows yet."""
        if self.home not in bundle.destinations or not self._thrift.is_small(bundle) or not self._is_active():
            return ()
        first = [self.me]
        for group in bundle.destinations:
            primary = self._leader_of(self._epoch)
            if group != self.home:
                progress = self._progress_of(group)
                primary = progress.members[place_of(progress.epoch)]
            if primary in self._thrift.down:
                return ()
            if primary != self.me:
                first.append(primary)
        return tuple(first)

    def on_peer_down(self, peer: ProcessId) -> None:
        """A primary or a voter may be gone: other members need what it was sent alone."""
        if self._thrift.record_down(peer):
            self._send_overdue([one for one in self._pending.values() if one.patience > 0])

    def _send_overdue(self, overdue: list[PendingMulticast]) -> None:
        """Sends small bundles to all members of their destinations, and with them everything that was deferred."""
        for pending in overdue:
            pending.patience = 0
            message = pending.message
            if message is not None:
                self.note("spread", message.id)
                others = tuple([one for one in self.topology.processes_of(message.destinations) if one != self.me])
                self._send_after_persist(others, Start(message), message.id)

    def _list_followers(self, group: GroupId, gateways: set[ProcessId]) -> tuple[ProcessId, ...]:
        """Members of a group, without its primary, some gateways and this process."""
        if group == self.home:
            members, epoch = self._members, self._epoch
        else:
            progress = self._progress_of(group)
            members, epoch = progress.members, progress.epoch
        primary = members[place_of(epoch)]
        return tuple(m for m in members if m not in (primary, self.me) and m not in gateways)

    # Delivery notices

    def _notify_gateways(self) -> None:
        for gateway, notices in self._notices.collect_for_gateways(self.me, self._places):
            self._send_after_persist((gateway,), Propose((), self._build_ack(), notices))

    def _schedule_notices(self) -> None:
        """Arms the timer for unannounced deliveries; a process that is no primary with followers drops them."""
        if self._role != "primary" or not self._other_members:
            self._notices.take_all()
            return
        after_ns = self._notices.arm_timer(self.now)
        if after_ns is not None:
            self.set_timer(NOTICE_TIMER, (after_ns, after_ns))

    def on_timer(self, name: str) -> None:
        if name == HURRY_TIMER:
            overdue, self._thrift.is_timer_due = take_overdue(self._pending.values())
            self._thrift.is_timer_armed = False
            self._send_overdue(overdue)
            return
        if name != NOTICE_TIMER:
            helper, overdue = self._repair_membership(name)
            if helper is not None:
                self._request_catch_up(helper)
            for pending in overdue:
                self._request_message(pending)
            return
        notices = self._notices
        notices.is_timer_armed = False
        if notices.is_overdue(self.now) and self._role == "primary" and self._is_active():
            self._send_after_persist(self._other_members, Propose((), self._build_ack(), notices.take_all()))

    def _handle_notices(self, notices: tuple[DeliveryNotice, ...]) -> None:
        self._notices.receive(notices, self.position)
        self._deliver_announced()

    def _deliver_announced(self) -> None:
        """Delivers what the primary of this epoch has delivered, at the same positions: a group has one order. The
        message must have arrived and be in the log; else it is waited for. The gateway that made a bundle also waits
        for its final timestamp, because its clients' replies depend on what it knows of other groups."""
        announced = self._notices.announced
        while self._is_established and self.position >= self._log.floor and self.position in announced:
            id, final = announced[self.position]
            pending = self._pending.get(id)
            if pending is None or pending.message is None or pending.index < 0:
                break
            committed_ns = pending.committed_ns
            if pending.final < 0:
                if gateway_process(pending.message.sender) == self.me:
                    break
                committed_ns = self.now
                self.end_blocking(pending.message)
            assert pending.final in (-1, final), (
                f"process {self.me}: the final timestamp of message {id} is {pending.final}; its primary has {final}"
            )
            del announced[self.position]
            self._deliver(pending.message, pending.timestamp, final, committed_ns, pending.decided)

    # Epoch changes

    def _campaign(self) -> None:
        self._promises = {}
        self._sent_state = None
        super()._campaign()

    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        self._send_after_persist(members, self._sent_state or NewEpoch(self._promised))

    def _build_promise(self) -> Promise:
        log = self._log
        return Promise(
            self._promised,
            self._epoch,
            self._clock,
            log.base,
            log.floor,
            log.list_entries(log.base),
            self._memory_losses,
        )

    def _handle_promise(self, sender: ProcessId, body: Promise) -> None:
        if self._role != "candidate" or body.epoch != self._promised or self._sent_state is not None:
            return
        valid = self._add_promise(self._promises, sender, body)
        if not valid:
            return
        longest = max(valid, key=lambda promise: (promise.current, promise.base + len(promise.entries)))
        clock = max(promise.clock for promise in valid)
        self._sent_state = NewState(
            self._promised, clock, longest.base, longest.floor, longest.entries, self._memory_losses
        )
        self._send_after_persist(self._members, self._sent_state)

    def _handle_new_state(self, sender: ProcessId, body: NewState) -> None:
        assert sender == self._leader_of(body.epoch), (
            f"process {sender} sent the state of epoch {body.epoch}, which process {self._leader_of(body.epoch)} leads"
        )
        self._highest_epoch = max(self._highest_epoch, body.epoch)
        if self._role == "joining":
            if self._may_admit(body.epoch, body.memory_losses):
                self._complete_admission()
                self._adopt_state(body)
        elif body.epoch < self._promised:
            self._send_after_persist((sender,), Nack(self._promised))
        elif body.epoch > self._epoch:
            self._adopt_state(body)
        elif sender != self.me:
            self._extend_log(body)

    def _adopt_state(self, body: NewState) -> None:
        """Enters an epoch with the log of its primary."""
        self._enter_epoch(body.epoch, body.clock, body.memory_losses)
        self._is_established = False
        self._primary_clock = 0
        self._primary_position = (0, 0)
        self._replace_log(body)
        self._clock_due = True
        for place, ack in sorted(self._deferred_acks.items()):
            if ack.epoch <= self._epoch:
                del self._deferred_acks[place]
                self.fast_receive(self._members[place], ack)
        if self._leader_of(self._epoch) != self.me:
            self._resend_to_groups(self._log.list_undelivered())

    def _extend_log(self, body: NewState) -> None:
        """Adds the entries of the current epoch's log that are missing here."""
        log = self._log
        if body.base + len(body.entries) > log.length:
            self.note("extended")
            if body.base > log.length:
                self._replace_log(body)
                self._checkpoint_due = True
                self._clock_due = True
                self._resend_to_groups(log.list_undelivered())
            else:
                self._waiting_proposals.clear()
                for entry in body.entries[log.length - body.base :]:
                    self._append(self._pending_of_entry(entry), entry.timestamp)
        if self._primary_position[0] <= log.length and self._primary_position[1] > self._primary_clock:
            self._primary_clock = self._primary_position[1]

    def _replace_log(self, body: NewState) -> None:
        """Replaces the log. Messages outside the new one have no timestamp of this group any more."""
        for pending in self._pending.values():
            pending.index = -1
            pending.timestamp = 0
            pending.bound = max(pending.decided.values(), default=0)
            if pending.message is not None:
                self._unproposed[pending.id] = pending
        self._log.clear(body.base, body.floor)
        self._is_lagging = self._is_lagging or self.position < body.floor
        self._delivery_heap = []
        self._waiting_proposals.clear()
        self._appended = []
        for entry in body.entries:
            self._add_entry(self._pending_of_entry(entry), entry.timestamp)
        for pending in self._pending.values():
            assert pending.index >= 0 or self.home not in pending.decided or self.position < self._log.floor, (
                f"process {self.me}: the log of epoch {body.epoch} lacks message {pending.id}, which was decided"
            )

    def _pending_of_entry(self, entry: Entry) -> PendingMulticast:
        if entry.message.id in self._delivered:
            return self._build_delivered_placeholder(entry.message)
        pending = self._ensure_pending(entry.message.id)
        pending.message = entry.message
        self._commit(pending)
        return pending

    def _resend_to_groups(self, entries: list[PendingMulticast], only: ProcessId | None = None) -> None:
        """Sends proposals or acknowledgements of some entries again to the other destinations, or to one process."""
        for group, listed in self._group_by_destination(entries):
            targets = self.topology.members(group)
            if only is None:
                self._send_after_persist(targets, self._build_propose_or_ack(listed), about_messages(listed))
            elif only in targets:
                self._send_after_persist((only,), self._build_propose_or_ack(listed), about_messages(listed))

    def _start_leading(self) -> None:
        """Makes a candidate whose epoch is established its primary."""
        if self._role == "candidate" and self._leader_of(self._epoch) == self.me and self._is_active():
            self._role = "primary"
            self._promises = {}
            self._sent_state = None
            self.note("epoch", value=float(self._epoch))
            for pending in self._unproposed.values():
                self.note("reproposed", pending.id)
            self._resend_to_groups(self._log.list_undelivered())

    def _start_joining(self) -> None:
        super()._start_joining()
        self._is_established = False

    def _discard_votes(self, place: int) -> None:
        self._clocks.forget(place)
        self._deferred_acks.pop(place, None)

    def _send_epoch_state(self, member: ProcessId) -> None:
        if self._role == "primary" and self._is_active():
            self._send_after_persist((member,), self._build_new_state(self._log.base))

    def _build_new_state(self, first: int) -> NewState:
        """The log from an index on."""
        log = self._log
        return NewState(self._epoch, self._clock, first, log.floor, log.list_entries(first), self._memory_losses)

    # Records and recovery

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        for record in records:
            if isinstance(record, Checkpoint):
                self._load_checkpoint(record)
            elif isinstance(record, Progress):
                self._replay_progress(record)
        super().on_start(records, incarnation)
        if incarnation == 0:
            self._persist_progress()
        elif records:
            self._log.durable_length, self._undurable = self._log.length, []
            self._is_established = False
            self._clock_due = True
            if self._is_active():
                self._resend_to_groups(self._log.list_undelivered())

    def _load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Restores the durable state and emits again the deliveries that may not have left the process."""
        self._restore_durable_state(checkpoint)
        first = checkpoint.history_start
        repeated = checkpoint.deliveries[max(0, checkpoint.delivered_until - first) :]
        message_count = repeated[0].messages_before if repeated else checkpoint.message_count
        if first > checkpoint.delivered_until:
            self._note_installed(message_count)
        elif message_count > 0:
            self.resume_position(message_count)
        for delivery in repeated:
            count = -1
            if is_bundle(delivery.message.id):
                count = len(bundle_headers(delivery.message)) - len(delivery.duplicate_places)
            self._emit_delivery(delivery, count, None)

    def _restore_durable_state(self, checkpoint: Checkpoint) -> None:
        self._restore_member_checkpoint(checkpoint)
        self._recent_deliveries = {delivery.message.id: delivery for delivery in checkpoint.deliveries}
        self.position = checkpoint.history_start + len(checkpoint.deliveries)
        self._message_count = checkpoint.message_count
        self._replace_log(
            NewState(
                checkpoint.epoch,
                checkpoint.clock,
                checkpoint.base,
                checkpoint.floor,
                checkpoint.entries,
                checkpoint.memory_losses,
            )
        )

    def _replay_progress(self, record: Progress) -> None:
        log = self._log
        self._replay_member_progress(record)
        has_gap = record.first > log.length
        if has_gap:
            log.skip_to(record.first)  # the entries between were delivered and trimmed before they were durable
        for index, entry in enumerate(record.entries, record.first):
            if index == log.length:
                self._add_entry(self._pending_of_entry(entry), entry.timestamp)
        for delivery in record.delivered:
            message = delivery.message or self.stored_message(delivery.id)
            assert message is not None, f"process {self.me}: no record has message {delivery.id}, which it delivered"
            self._deliver(message, delivery.timestamp, delivery.final, None)
        if has_gap:
            log.floor = max(log.floor, self.position)

    def _build_checkpoint(self) -> Checkpoint:
        log = self._log
        return Checkpoint(
            self._promised,
            self._epoch,
            self._clock,
            self._memory_losses,
            log.list_entries(log.base),
            self._delivered_until,
            self._history_start,
            self._delivered_prefix(),
            log.base,
            log.floor,
            tuple(self._recent_deliveries.values()),
            self._message_count,
        )

    def _persist_changes(self) -> None:
        """Persists promise, clock, log entries and deliveries in one record, before anything is sent."""
        if not self._has_records:
            self._undurable = []
            return
        if self._role == "joining":
            return
        log = self._log
        if self._checkpoint_due or self._records_since_checkpoint >= self._config.keep:
            self._persist_checkpoint(self._build_checkpoint())
            log.durable_length, self._undurable = log.length, []
        elif log.length > log.durable_length or self._undurable or self._has_undurable_state():
            self._persist_progress()

    def _persist_progress(self) -> None:
        if not self._has_records:
            return
        log = self._log
        first = log.durable_length if log.durable_length > log.base else log.base
        entries = log.list_entries(first) if first < log.length else ()
        undurable = self._undurable
        delivered = (
            tuple([self._build_delivery_record(delivery, index, first) for delivery, index in undurable])
            if undurable
            else ()
        )
        self._persist_record(Progress(self._promised, self._clock, self._memory_losses, first, entries, delivered))
        log.durable_length = log.length
        if undurable:
            self._undurable = []

    def _build_delivery_record(self, delivery: DeliveredMessage, index: int, first: int) -> DeliveryRecord:
        """A delivery for a record whose entries begin at `first`; without the message if that is an entry of this or
        an earlier record."""
        is_recorded = 0 <= index < self._log.durable_length or index >= first
        message = delivery.message
        return DeliveryRecord(message.id, delivery.timestamp, delivery.final, None if is_recorded else message)

    def _trim(self) -> None:
        """Drops log entries that a majority has delivered, and recent deliveries that every member has made or that
        exceed `keep`."""
        log = self._log
        if log.base < log.decided:
            log.trim(sorted(self._positions)[self._progress.quorum_index])
        recent, first = self._recent_deliveries, self._history_start
        if recent and first < self._delivered_until:
            keep = self._config.keep
            everywhere = min(self._positions)
            while recent and first < self._delivered_until and (first < everywhere or len(recent) > keep):
                del recent[next(iter(recent))]
                first += 1
            self._history_start = first

    # Repair within the group

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._thrift.down.discard(peer)
        if peer in self._other_members:
            self._resync_member(peer)
        elif self.topology.group_of(peer) is not None and self._is_active():
            self._resend_to_groups(self._log.list_undelivered(), peer)
            group = self.topology.group_of(peer)
            for pending in self._pending.values():
                message = pending.message
                if message is not None and group in message.destinations and group not in pending.decided:
                    self._send_after_persist((peer,), Query(pending.id, message), pending.id)

    def _sync_request(self, full: bool) -> Sync:
        if self._role == "joining":
            return Sync(-1, 0, self.position, True)
        return Sync(self._epoch, self._log.length, self.position, full)

    def _handle_sync(self, sender: ProcessId, body: Sync) -> None:
        self._observe_epoch(body.epoch)
        self._reject_stale_leader(sender, body.epoch)
        if self._is_active():
            if self._leader_of(self._epoch) == self.me:
                self._send_missing_entries(sender, body)
            self._send_after_persist((sender,), self._build_ack())
        if body.full and body.position < self.position:
            self._send_missing_deliveries(sender, body.position)
        elif body.position > self.position:
            self._is_lagging = True

    def _send_missing_entries(self, member: ProcessId, sync: Sync) -> None:
        log = self._log
        if sync.epoch != self._epoch or sync.length < log.base:
            self._send_after_persist((member,), self._build_new_state(log.base))
        elif sync.length < log.length:
            self._send_after_persist((member,), self._build_new_state(sync.length))

    def _send_missing_deliveries(self, member: ProcessId, position: int) -> None:
        """Sends a member the deliveries from its position on. If they are no longer here, it gets the bare position,
        but only from or to the primary: followers lag slightly and differently, and their primary's notices let them
        deliver."""
        if position >= self._history_start:
            deliveries = tuple(self._recent_deliveries.values())[position - self._history_start :]
            self._send_after_persist((member,), CatchUp(position, deliveries))
        elif self._leader_of(self._epoch) in (self.me, member) or self._leader_of(self._promised) == member:
            install = Install(self.position, self._delivered_prefix(), self._message_count)
            self._send_after_persist((member,), install)

    def _handle_catch_up(self, body: CatchUp) -> None:
        if body.first > self.position:
            return
        for delivery in body.deliveries[self.position - body.first :]:
            self.note("caught-up", delivery.message.id)
            self._deliver(delivery.message, delivery.timestamp, delivery.final, None)

    def _handle_install(self, body: Install) -> None:
        if body.position <= self.position:
            return
        self._adopt_prefix(body.position, body.prefix)
        self._message_count = body.message_count
        self._note_installed(body.message_count)
        for id in [id for id in self._pending if id in self._delivered]:
            pending = self._pending.pop(id)
            pending.delivered_at = body.position - 1
            self._final_count -= pending.final >= 0
            self._unproposed.pop(id, None)
        self._recent_deliveries = {}
        self._undurable = []
        self._clock_due = True

    def _note_installed(self, message_count: int) -> None:
        """Notes that this process counts this many messages as delivered without emitting them."""
        self._outbox.append(Note("installed", None, float(message_count)))

    # Repair between groups, and requests of the repair timer

    def _handle_query(self, sender: ProcessId, body: Query) -> None:
        if body.message is not None:
            self.on_request(body.message)
        timestamp = self._obligations.answer(body.id)
        pending = self._pending.get(body.id)
        if timestamp is None and pending is not None:
            timestamp = pending.decided.get(self.home)
        if timestamp is not None:
            self._send_after_persist((sender,), Decided(body.id, self.home, timestamp), body.id)
        if body.message is None:
            message = self.stored_message(body.id)
            if message is not None:
                self._send_after_persist((sender,), Start(message), body.id)

    def _handle_decided(self, body: Decided) -> None:
        if body.id not in self._delivered:
            pending = self._ensure_pending(body.id)
            self._observe_timestamp(pending, body.group, body.timestamp)
            self._decide(pending, body.group, body.timestamp)

    def _request_catch_up(self, helper: ProcessId) -> None:
        """Sends the own progress to the other members; the helper and the primary shall send deliveries too."""
        for member in self._other_members:
            full = member == helper or member == self._leader_of(self._promised)
            if full or self._role != "joining":
                self._send_after_persist((member,), self._sync_request(full))

    def _request_message(self, pending: PendingMulticast) -> None:
        """Asks for what is missing of a pending message: its content, or timestamps."""
        self.note("asked", pending.id)
        if pending.message is None:
            for group in sorted(pending.proposing_groups):
                others = tuple(member for member in self.topology.members(group) if member != self.me)
                self._send_after_persist(others, Query(pending.id, None), pending.id)
            return
        if pending.index < 0:
            self._send_after_persist(self._other_members, Start(pending.message), pending.id)
        for group in pending.message.destinations:
            if group != self.home and group not in pending.decided:
                query = Query(pending.id, pending.message)
                self._send_after_persist(self.topology.members(group), query, pending.id)

    def stored_message(self, message: MessageId) -> Message | None:
        pending = self._pending.get(message)
        if pending is not None:
            return pending.message
        delivery = self._recent_deliveries.get(message)
        return None if delivery is None else delivery.message

    # Operators

    def status(self) -> ProcessStatus:
        log, status = self._log, super().status()
        if self.position < log.floor:
            # Others may have dropped the deliveries that it lacks: it must not be relied on for them.
            status["joined"] = 0
        return {**status, "log": log.length - log.base, "undecided": log.length - log.decided}

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._delivered:
            return [explain_delivered(self.me)]
        pending = self._pending.get(message) or find_bundle(self._pending.values(), message)
        if pending is None:
            return [explain_unknown(self.me)]
        phases = explain_text(pending, message)
        if pending.message is None:
            return phases
        destinations = [self._describe_destination(group, pending) for group in pending.message.destinations]
        phases += explain_timestamps(pending, destinations)
        if pending.final >= 0:
            phases.append(explain_clocks(pending.final, self._stable_timestamp(), self._list_slow(pending.final)))
            if not self._is_established or self._promised != self._epoch:
                waits = f"epoch {self._promised} is not established; this member delivers nothing before"
                phases.append(Phase("epoch", False, waits))
            phases.append(explain_order(pending, self._pending.values()))
        return phases

    def _describe_destination(self, group: GroupId, pending: PendingMulticast) -> Destination:
        has_proposed = group in pending.proposing_groups or group in pending.decided
        if group == self.home:
            return Destination(self._progress, self._epoch, pending.index, has_proposed or pending.index >= 0)
        progress = self._progress_of(group)
        index = next((index for index, id, _ in progress.undecided if id == pending.id), -1)
        return Destination(progress, progress.epoch, index, has_proposed)

    def _list_slow(self, timestamp: int) -> tuple[ProcessId, ...]:
        """Members whose clocks are below a timestamp, the primary first."""
        slow = [
            member for member, clock in zip(self._members, self._clocks.snapshot(), strict=True) if clock < timestamp
        ]
        if self._primary_clock < timestamp:
            slow.insert(0, self._leader_of(self._epoch))
        return tuple(dict.fromkeys(slow))

    # Snapshots

    def snapshot(self) -> PrimCastState:
        remote = [self._remote_progress[group] for group in sorted(self._remote_progress)]
        return PrimCastState(
            self._build_checkpoint(),
            self._snapshot_member(),
            self._is_established,
            self._published_clock,
            self._primary_clock,
            self._primary_position,
            tuple(self._waiting_proposals),
            self._log.list_delivered_positions(),
            tuple([pending.snapshot() for _, pending in sorted(self._pending.items())]),
            tuple(self._unproposed),
            tuple([progress.snapshot() for progress in (self._progress, *remote)]),
            self._clocks.snapshot(),
            tuple(sorted(self._deferred_acks.items())),
            tuple(sorted(self._promises.items())),
            self._sent_state,
            self._log.durable_length,
            self._log.decided,
            tuple(self._undurable),
            self._notices.snapshot(),
            self._thrift.snapshot(),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, PrimCastState)
        self._pending = {}
        self._unproposed = {}
        self._restore_durable_state(state.checkpoint)
        self._restore_member(state.member)
        self._is_established = state.is_established
        self._published_clock = state.published_clock
        self._primary_clock = state.primary_clock
        self._primary_position = state.primary_position
        self._waiting_proposals = deque(state.waiting_proposals)
        self._log.restore_delivered_positions(state.delivered_positions)
        for pending in state.pending:
            self._ensure_pending(pending.id).restore(pending)
        self._final_count = sum(pending.final >= 0 for pending in self._pending.values())
        self._delivery_heap = [(pending.bound, pending.id) for pending in self._pending.values() if pending.index >= 0]
        heapify(self._delivery_heap)
        self._unproposed = {id: self._pending[id] for id in state.unproposed}
        self._progress, *remote = [GroupProgress.from_state(one, self.topology) for one in state.progress]
        self._remote_progress = {progress.group: progress for progress in remote}
        self._remote_members = {}
        self._deferrable = {}
        self._acks_changed = True
        self._clocks.restore(state.clocks)
        self._deferred_acks = dict(state.deferred_acks)
        self._promises = dict(state.promises)
        self._sent_state = state.sent_state
        self._log.durable_length = state.durable_length
        self._log.decided = state.decided
        self._undurable = list(state.undurable)
        self._notices.restore(state.notices)
        self._thrift.restore(state.thrift)


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Three; fewer where a follower's own acknowledgement and its primary's are a majority, or a group has one
    process."""
    if replicas == 1:
        return 2 if destinations > 1 else 1
    return 2 if role == "member" and destinations == 1 and replicas <= 3 else 3


SPEC = Spec(
    name="primcast",
    summary="primaries propose timestamps, members acknowledge to all destinations: three delays everywhere",
    source="paper 002: Pacheco, Coelho, Pedone 2023",
    process=PrimCast,
    config=PrimCastConfig,
    bodies=BODIES,
    records=RECORDS,
    states=(
        PrimCastState,
        LeaderGroupState,
        PendingMulticastState,
        GroupProgressState,
        DeliveryNoticesState,
        ThriftState,
    ),
    claims=replace(
        MAJORITY_CLAIMS,
        delays=_delays,
        bound=lambda role, skew: 5,
        packets=lambda destinations, replicas: destinations * (replicas + destinations * replicas * replicas),
    ),
    role_of=lambda topology, process: (
        "primary" if process in (topology.members(group)[0] for group in topology.groups) else "member"
    ),
    open_bundle=bundle_messages,
    states_accepted=True,
    goals=("waited", "early", "bump", "epoch", "reproposed", "asked", "caught-up", "extended", "nack", "admitted"),
    statements=build_statement_table,
    recovery_goals=LEADER_RECOVERY_GOALS,
)

HYBRID = replace(
    SPEC,
    name="primcast-hc",
    summary="PrimCast whose primaries propose at least their local time, against the convoy effect",
    source="paper 002, section 6",
    claims=replace(SPEC.claims, bound=lambda role, skew: min(5, 4 + 2 * skew)),
    options={"hybrid": True},
)

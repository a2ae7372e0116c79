"""White-Box: leaders propose timestamps, members accept once every leader has proposed, leaders commit and deliver.

Source: Gotsman, Lefort, Chockler, "White-Box Atomic Multicast" (2019), as described in paper 002, section 4.2.

    client    leader of g   members of g   leader of h   members of h
      |--Request-->|             |              |             |      to the leaders alone
      |------------------------------Request--->|             |
      |            |--Accept---->|------------->|------------>|      clock + 1 with the message, to all destinations
      |            |<-AcceptAck--|------------->|             |      from every member to every leader, once all
      |         deliver       (and of h)     deliver          |      timestamps are here
      |            |--Delivery-->|              |--Delivery-->|
      |                       deliver                      deliver

A leader commits a message at the highest of its timestamps when a majority of every destination accepted it under the
same ballots, and delivers in the order of (final timestamp, message id) once no timestamp that it proposed is lower.
A leader that learns the final timestamp from a process that has delivered the message proposes it to its own group, and
commits when a majority of that group has accepted it under its ballot.

Leader change:

    candidate             members
       |----NewLeader------->|      with the candidate's position
       |<---NewLeaderAck-----|      ballot and clock, accepted messages, deliveries beyond the candidate's
       |----NewState-------->|      of a majority: deliveries, messages accepted under the highest ballot, clock
       |<---NewStateAck------|      the member holds the state and has delivered all that the candidate had
    leader                          proposes accepted messages again, with the same timestamps, and then the others

A member that lost its memory is admitted again as `parts/groups/leader_group.py` describes. The state that it receives
holds everything that its lost acceptances may have helped to commit, because the leader proposed it. Its earlier
acceptances are discarded, in other groups too.

Claims: genuine; three delays at leaders, four at followers; k(1 + 2kn + n) packets for k groups of n, requests and
self-sends included; minorities may crash, restart, lose their memory.

Deviations from the paper, each with its reason, are in docs/protocols/whitebox.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush, heapreplace

from amcast.kernel.diagnostics import Phase, explain_delivered, explain_unknown
from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import LEADER_RECOVERY_GOALS, MAJORITY_CLAIMS
from amcast.parts.groups.leader_group import LeaderGroupMember, find_new_losses
from amcast.parts.groups.leader_group_messages import (
    AdmissionVote,
    DeliveredPrefix,
    Entry,
    JoinRequest,
    LeaderGroupState,
    Nack,
)
from amcast.parts.ordering.obligations import Rank
from amcast.protocols.whitebox.explain import explain_commit, explain_follower, explain_timestamps
from amcast.protocols.whitebox.messages import (
    BODIES,
    RECORDS,
    Accept,
    AcceptAck,
    CatchUp,
    Checkpoint,
    Decided,
    DeliveredMessage,
    DeliveredUntil,
    Delivery,
    DeliveryHistory,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    PendingState,
    Progress,
    Retry,
    Sync,
    WhiteBoxConfig,
    WhiteBoxState,
)
from amcast.protocols.whitebox.pending_multicast import PendingMulticast, restore_pending
from amcast.protocols.whitebox.statements import build_statement_table


class WhiteBox(LeaderGroupMember[PendingMulticast]):
    """One member of one group."""

    def __init__(self, me: ProcessId, topology: Topology, config: WhiteBoxConfig) -> None:
        super().__init__(me, topology, config, "leader")
        self._queue: list[Rank] = []
        """A leader's heap over the messages that it proposed: a lower bound of each one's rank."""
        self._next_position = 0
        """The position of the next delivery that this process, as a leader, orders."""
        self._history: dict[MessageId, DeliveredMessage] = {}
        """The retained deliveries, in order, for members that lag."""
        self._stable_ranks: dict[GroupId, Rank] = {}
        """By other group: a majority has delivered everything up to this rank."""
        self._member_ranks: list[Rank] = [(0, 0)] * len(self._members)
        """By place: the rank up to which the member has delivered, as it reported to its leader."""
        self._remote_memory_losses: dict[GroupId, tuple[int, ...]] = {}
        """By other group, then by place: the incarnation in which the member lost its memory."""

        self._proposals: list[PendingMulticast] = []
        """Messages whose proposal is sent at the end of this step."""
        self._accepted: list[PendingMulticast] = []
        """Messages whose acceptance is persisted and sent at the end of this step."""
        self._confirmed: list[MessageId] = []
        """Messages whose final timestamp the leader told, accepted or delivered here: the same for them."""
        self._ordered: list[tuple[MessageId, int]] = []
        """Deliveries that are ordered at the end of this step, message and final timestamp each."""
        self._undurable: list[DeliveredMessage] = []
        """Deliveries that are in no record yet."""
        self._awaits_delivered_until = False
        """A DeliveredUntil is on its way to this process."""

        self._promises: dict[int, NewLeaderAck] = {}
        """By place: replies to this candidate."""
        self._new_state: NewState | None = None
        """The initial state of this candidate's ballot, once a majority has promised."""
        self._holders = 0
        """The members that hold it, as bits by place."""

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return contact(self.topology, message)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Accept():
                self._handle_accept(sender, body)
            case AcceptAck():
                self._handle_accept_ack(sender, body)
            case Delivery():
                self._handle_delivery(body)
            case Retry(message):
                self._handle_retry(sender, message)
            case Decided():
                self._handle_decided(body)
            case Sync():
                self._handle_sync(sender, body)
            case CatchUp(history):
                self._apply_history(history)
            case NewLeader():
                self._handle_new_leader(sender, body)
            case NewLeaderAck():
                self._handle_new_leader_ack(sender, body)
            case NewState():
                self._handle_new_state(sender, body)
            case NewStateAck(ballot):
                self._handle_new_state_ack(sender, ballot)
            case Nack(ballot):
                self._handle_nack(ballot)
            case DeliveredUntil(position):
                self._handle_delivered_until(position)
            case JoinRequest():
                if self._handle_join_request(sender, body) and self._is_leading():
                    self._send_state(sender, 0)
            case AdmissionVote():
                self._handle_admission_vote(sender, body)
            case _:
                raise AssertionError(f"White-Box has no body {body!r}")

    def on_step_end(self) -> None:
        """Orders deliveries, then persists what changed, then sends."""
        if self._queue and self._is_leading():
            self._order_committed()
        self._committed.clear()
        if not self._is_active():
            self._clear_step_bodies()
        if (
            self._sends_after_persist
            or self._proposals
            or self._accepted
            or self._confirmed
            or self._ordered
            or self._checkpoint_due
        ):
            self._persist_changes()
            for targets, body, about in self._sends_after_persist:
                self.send_all(targets, body, about)
            self._sends_after_persist = []
            self._send_step_bodies()
        self._arm_repair_timer()

    def _is_leading(self) -> bool:
        return self._role == "leader" and self._promised == self._epoch

    def _add_pending(self, message: Message) -> PendingMulticast:
        """The pending state of a message, new if the message was unknown."""
        pending = self._pending.get(message.id)
        if pending is None:
            pending = self._pending[message.id] = PendingMulticast(message)
        return pending

    def _sorted_pending(self) -> list[PendingMulticast]:
        return [pending for _, pending in sorted(self._pending.items())]

    # Proposals

    def on_request(self, message: Message) -> None:
        """Proposes a client's message. A follower that did not know the message forwards it to its leader. The first
        request for a message that another leader's Accept made known asks for nothing new: later ones are retries."""
        known = self._pending.get(message.id)
        is_new = known is None
        if known is not None and known.proposed and not known.is_requested and self._is_leading():
            known.is_requested = True
            return
        if self._propose(message) and is_new and not self._is_leading() and self._leader_of(self._promised) != self.me:
            self.note("forwarded", message.id)
            self._send_after_persist((self._leader_of(self._promised),), Retry(message), message.id)
        if message.id in self._pending:
            self._pending[message.id].is_requested = True

    def _propose(self, message: Message) -> bool:
        """Proposes a timestamp, or repeats the proposal, if this process leads. Returns False if the message is
        delivered."""
        if message.id in self._delivered:
            return False
        assert self.home in message.destinations, f"process {self.me} is no destination of message {message.id}"
        pending = self._add_pending(message)
        if self._is_leading():
            if pending.proposed:
                self._proposals.append(pending)
            else:
                self._assign_timestamp(pending)
        return True

    def _assign_timestamp(self, pending: PendingMulticast) -> None:
        self._clock += 1
        pending.proposed = self._clock
        heappush(self._queue, (self._clock, pending.id))
        self._proposals.append(pending)

    # Acceptance

    def _handle_accept(self, sender: ProcessId, body: Accept) -> None:
        group = self.topology.group_of(sender)
        assert group is not None
        if group == self.home:
            self._merge_memory_losses(body.memory_losses)
            if body.ballot < self._promised:
                self._reject_stale_leader(sender, body.ballot)
            if body.ballot > self._epoch:
                self._is_lagging = True
            if body.ballot != self._epoch or not self._is_active():
                return
        else:
            self._merge_remote_memory_losses(group, body.memory_losses)
            self._update_stable_rank(group, (body.time, body.tie))
        finals = dict(body.finals) if group == self.home else {}
        for entry in body.entries:
            final = finals.get(entry.message.id)
            if final is None:
                self._handle_timestamp(sender, group, body.ballot, entry)
            else:
                self._handle_final(sender, body.ballot, entry, final)

    def _handle_timestamp(self, sender: ProcessId, group: GroupId, ballot: int, entry: Entry) -> None:
        id = entry.message.id
        if id in self._delivered:
            self._send_decided(sender, id)
            return
        pending = self._add_pending(entry.message)
        known = pending.accepts.get(group)
        if known is not None and known[0] > ballot:
            return
        pending.accepts[group] = (ballot, entry.timestamp)
        if not pending.proposed and self._is_leading():
            self._assign_timestamp(pending)  # the client's request reached the other leaders only
        self._try_accept(pending)

    def _try_accept(self, pending: PendingMulticast) -> None:
        """Accepts a message that every leader has proposed: from now on the clock is past all its timestamps."""
        if not self._is_active() or not pending.has_all_timestamps():
            return
        ballot, timestamp = pending.accepts[self.home]
        if ballot != self._epoch:
            return
        pending.accepted = timestamp
        self._clock = max(self._clock, pending.highest_timestamp())
        self._accepted.append(pending)
        self._try_commit(pending)

    def _handle_final(self, sender: ProcessId, ballot: int, entry: Entry, final: int) -> None:
        """Accepts a message whose final timestamp its leader knows: the clock is past it from now on."""
        self._confirmed.append(entry.message.id)
        if entry.message.id not in self._delivered:
            self._handle_timestamp(sender, self.home, ballot, entry)
            pending = self._pending[entry.message.id]
            pending.accepted = entry.timestamp
            self._clock = max(self._clock, final)
            self._learn_final(pending, final)

    # Commit

    def _handle_accept_ack(self, sender: ProcessId, body: AcceptAck) -> None:
        group = self.topology.group_of(sender)
        assert group is not None
        if group == self.home:
            self._merge_memory_losses(body.memory_losses)
            place = self._places[sender]
            self._positions[place] = body.position
            self._member_ranks[place] = (body.time, body.tie)
        else:
            self._merge_remote_memory_losses(group, body.memory_losses)
        bit = 1 << self.topology.members(group).index(sender)
        for id, ballots in body.acks:
            pending = self._pending.get(id)
            if pending is not None:
                pending.add_ack(ballots, group, bit)
                self._try_commit(pending)

    def _try_commit(self, pending: PendingMulticast) -> None:
        """Commits a message that a majority of every destination accepted under the ballots known here, or whose final
        timestamp is known and a majority of the own group accepted under its ballot."""
        if pending.is_committed or not self._is_leading():
            return
        if pending.final >= 0 and pending.has_home_quorum(self._epoch, self.home, self._quorum):
            self._commit(pending, pending.final)
        elif (
            pending.has_all_timestamps()
            and pending.accepts[self.home][0] == self._epoch
            and pending.has_ack_quorums(self.topology)
        ):
            self._commit(pending, pending.highest_timestamp())

    def _commit(self, pending: PendingMulticast, final: int) -> None:
        self._learn_final(pending, final)
        pending.is_committed = True
        pending.committed_ns = self.now
        self.end_blocking(pending.message)
        self._committed.add(pending.id)

    def _learn_final(self, pending: PendingMulticast, final: int) -> None:
        assert pending.final in (-1, final), (
            f"process {self.me}: message {pending.id} has final timestamps {final} and {pending.final}"
        )
        pending.final = final

    def _handle_decided(self, body: Decided) -> None:
        """Learns a final timestamp. That is true whoever tells it; but only a majority of the own group can tell this
        leader that no other one has ordered messages before it, so the leader proposes the final timestamp to them."""
        pending = self._pending.get(body.id)
        if pending is not None and pending.final < 0:
            self._clock = max(self._clock, body.final)
            self._learn_final(pending, body.final)
            if self._is_leading():
                self._propose(pending.message)

    def _order_committed(self) -> None:
        """A leader orders the delivery of committed messages before which no message that it proposed can come."""
        queue = self._queue
        while queue:
            bound, id = queue[0]
            pending = self._pending.get(id)
            if pending is None or pending.is_ordered:
                heappop(queue)
            elif not pending.is_committed:
                break
            elif pending.final > bound:
                heapreplace(queue, (pending.final, id))
            else:
                heappop(queue)
                pending.is_ordered = True
                self._ordered.append((id, pending.final))
                if id not in self._committed:
                    self.note("waited", id)

    # Delivery

    def _handle_delivery(self, body: Delivery) -> None:
        if body.ballot > self._epoch:
            self._is_lagging = True
        if body.ballot != self._epoch or not self._is_active():
            return
        for position, (id, final) in enumerate(body.deliveries, body.first):
            if position < self.position:
                continue
            pending = self._pending.get(id)
            if position > self.position or pending is None:
                self._is_lagging = True
                break
            if pending.committed_ns >= 0:
                self._deliver_next(DeliveredMessage(pending.message, final), pending.committed_ns)
            else:
                waited = body.waits[position - body.first] if body.waits else 0
                self._deliver_next(DeliveredMessage(pending.message, final), None, waited)

    def _deliver_next(self, delivered: DeliveredMessage, committed_ns: int | None, held_ns: int = 0) -> None:
        message = delivered.message
        id = message.id
        rank = (delivered.final, id)
        self._pending.pop(id, None)
        self._history[id] = delivered
        assert self._last_delivered_rank < rank, (
            f"process {self.me} delivers {id} at {delivered.final} after {self._last_delivered_rank}"
        )
        self._delivered.add(id)
        self._last_delivered_rank = rank
        behind = tuple(
            group
            for group in message.destinations
            if group != self.home and self._stable_ranks.get(group, (0, 0)) < rank
        )
        self._obligations.add(id, delivered.final, delivered.final, behind)
        self._undurable.append(delivered)
        self._clock = max(self._clock, delivered.final)
        self.deliver(message, delivered.final, id, committed_ns, held_ns)
        self._trim_history()

    def _trim_history(self) -> None:
        """Drops retained deliveries that have left the process and exceed the limit."""
        while len(self._history) > self._config.keep and self._history_start < self._delivered_until:
            del self._history[next(iter(self._history))]
            self._history_start += 1

    def _convoy_wait_ns(self, id: MessageId) -> int:
        """How long a committed local message waited for global ones."""
        pending = self._pending.get(id)
        if pending is None or len(pending.message.destinations) > 1:
            return 0
        return max(0, self.last_global_ns - pending.committed_ns)

    def _final_timestamp(self, id: MessageId) -> int | None:
        """The final timestamp of a delivered message, if it is still known."""
        final = self._obligations.answer(id)
        if final is None and id in self._history:
            final = self._history[id].final
        return final

    def _update_stable_rank(self, group: GroupId, rank: Rank) -> None:
        """A majority of another group has delivered up to this rank: its members no longer need answers from here."""
        if rank > self._stable_ranks.get(group, (0, 0)):
            self._stable_ranks[group] = rank
            self._obligations.resolve(group, rank)

    # Lost memory

    def _merge_remote_memory_losses(self, group: GroupId, memory_losses: tuple[int, ...]) -> None:
        """As `_merge_memory_losses`, for another group."""
        known = self._remote_memory_losses.get(group)
        if memory_losses != known:
            if known is None:
                known = (0,) * len(memory_losses)
            self._remote_memory_losses[group] = tuple(map(max, known, memory_losses))
            for place in find_new_losses(known, memory_losses):
                self._discard_acks(group, place)

    def _discard_votes(self, place: int) -> None:
        self._discard_acks(self.home, place)

    def _discard_acks(self, group: GroupId, place: int) -> None:
        for pending in self._pending.values():
            pending.discard_acks(group, place)

    # Sends at the end of a step

    def _send_step_bodies(self) -> None:
        """Sends proposals by destinations, acceptances by the leaders they go to, deliveries to the group."""
        for destinations, proposed in _group_by_destinations(self._proposals):
            targets = self.topology.processes_of(destinations)
            self.send_all(targets, self._build_accept(proposed), _about([pending.id for pending in proposed]))
        by_leaders: dict[tuple[ProcessId, ...], list[PendingMulticast]] = {}
        for pending in dict.fromkeys(self._accepted):
            by_leaders.setdefault(pending.leaders(self.topology), []).append(pending)
        for leaders, accepted in by_leaders.items():
            acks = tuple((pending.id, pending.ballots()) for pending in accepted)
            body = AcceptAck(acks, self.position, *self._last_delivered_rank, self._memory_losses)
            self.send_all(leaders, body, _about([pending.id for pending in accepted]))
        if self._confirmed:
            self._send_confirmed()
        if self._ordered:
            self._send_deliveries()
        self._clear_step_bodies()

    def _clear_step_bodies(self) -> None:
        self._proposals, self._accepted, self._confirmed, self._ordered = [], [], [], []

    def _send_confirmed(self) -> None:
        ids = list(dict.fromkeys(self._confirmed))
        acks = tuple([(id, (self._epoch,)) for id in ids])
        body = AcceptAck(acks, self.position, *self._last_delivered_rank, self._memory_losses)
        self.send(self._leader_of(self._epoch), body, _about(ids))

    def _send_deliveries(self) -> None:
        # Deliveries that an earlier leader ordered may have come from other members since.
        self._next_position = max(self._next_position, self.position)
        ids = [id for id, _ in self._ordered]
        waits = tuple([self._convoy_wait_ns(id) for id in ids])
        delivery = Delivery(self._epoch, self._next_position, tuple(self._ordered), waits if any(waits) else ())
        self.send_all(self._members, delivery, _about(ids))
        self._next_position += len(self._ordered)

    def _build_accept(self, proposed: list[PendingMulticast]) -> Accept:
        entries = tuple(Entry(pending.message, pending.proposed) for pending in proposed)
        stable = sorted(self._member_ranks)[len(self._member_ranks) - self._quorum]
        finals = tuple([(pending.id, pending.final) for pending in proposed if pending.final >= 0])
        return Accept(self._epoch, entries, *stable, self._memory_losses, finals)

    # Leader change: the candidate

    def _campaign(self) -> None:
        self._promises = {}
        self._new_state = None
        self._holders = 0
        super()._campaign()

    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        if self._new_state is None:
            self._send_after_persist(members, NewLeader(self._promised, self.position))
        else:
            for member in members:
                promise = self._promises.get(self._places[member])
                self._send_state(member, self._history_start if promise is None else promise.position)

    def _handle_new_leader(self, sender: ProcessId, body: NewLeader) -> None:
        if self._promise_candidate(sender, body.ballot):
            promise = NewLeaderAck(
                body.ballot,
                self._epoch,
                self._clock,
                self.position,
                self._accepted_entries(),
                self._collect_history(body.position),
                self._memory_losses,
            )
            self._send_after_persist((sender,), promise)

    def _accepted_entries(self) -> tuple[Entry, ...]:
        return tuple(Entry(pending.message, pending.accepted) for pending in self._sorted_pending() if pending.accepted)

    def _handle_new_leader_ack(self, sender: ProcessId, body: NewLeaderAck) -> None:
        if self._role != "candidate" or body.ballot != self._promised or self._new_state is not None:
            return
        valid = self._add_promise(self._promises, sender, body)
        if valid:
            self._choose_state(valid)

    def _choose_state(self, promises: list[NewLeaderAck]) -> None:
        """Merges the promises of a majority into the initial state of the ballot."""
        for promise in promises:
            self._apply_history(promise.history)
        entries = self._merge_entries(promises)
        clock = max(promise.clock for promise in promises)
        self._new_state = NewState(
            self._promised, clock, self.position, entries, DeliveryHistory(self.position, ()), self._memory_losses
        )
        self._send_candidacy(self._members)

    def _merge_entries(self, promises: list[NewLeaderAck]) -> tuple[Entry, ...]:
        """Messages that any promise accepted under the highest ballot among them, without delivered ones."""
        current = max(promise.current for promise in promises)
        merged: dict[MessageId, Entry] = {}
        for promise in promises:
            if promise.current == current:
                for entry in promise.entries:
                    id = entry.message.id
                    if id not in self._delivered:
                        known = merged.setdefault(id, entry)
                        assert known.timestamp == entry.timestamp, (
                            f"process {self.me}: message {id} was accepted at {known.timestamp} and {entry.timestamp}"
                        )
        return tuple(entry for _, entry in sorted(merged.items()))

    def _send_state(self, member: ProcessId, position: int) -> None:
        """Sends the state of the ballot that this process leads or stands for, with deliveries from `position` on."""
        state = self._new_state
        if state is not None:
            ballot, clock, entries = state.ballot, state.clock, state.entries
            delivered, memory_losses = state.position, state.memory_losses
        elif self._is_leading():
            ballot, clock, delivered, memory_losses = self._epoch, self._clock, self.position, self._memory_losses
            entries = tuple(Entry(item.message, item.proposed) for item in self._sorted_pending() if item.proposed)
        else:
            return
        history = self._collect_history(position)
        self._send_after_persist((member,), NewState(ballot, clock, delivered, entries, history, memory_losses))

    def _handle_new_state_ack(self, sender: ProcessId, ballot: int) -> None:
        """A majority of holders makes a candidate the leader; a later holder lacks the proposals made since."""
        if ballot != self._promised or ballot != self._epoch:
            return
        self._holders |= 1 << self._places[sender]
        if self._is_leading():
            self._resend_proposals(sender)
        elif self._role == "candidate" and self._holders.bit_count() >= self._quorum:
            self._become_leader()

    def _become_leader(self) -> None:
        """Proposes accepted messages with the same timestamps, then the other pending messages with new ones."""
        self._role = "leader"
        self._promises = {}
        self._new_state = None
        self._next_position = self.position
        self._queue = []
        self.note("epoch", value=float(self._epoch))
        others = []
        for pending in self._sorted_pending():
            if pending.accepted:
                pending.proposed = pending.accepted
                self._clock = max(self._clock, pending.accepted)
                self._queue.append((pending.accepted, pending.id))
                self._proposals.append(pending)
            else:
                others.append(pending)
        self._queue.sort()
        for pending in others:
            self.note("reproposed", pending.id)
            self._assign_timestamp(pending)

    def _resend_proposals(self, target: ProcessId) -> None:
        """Sends the proposals of all pending messages that concern the target's group."""
        group = self.topology.group_of(target)
        proposed = [
            pending for pending in self._sorted_pending() if pending.proposed and group in pending.message.destinations
        ]
        if proposed:
            body = self._build_accept(proposed)
            self._send_after_persist((target,), body, _about([pending.id for pending in proposed]))

    # Leader change: the followers

    def _handle_new_state(self, sender: ProcessId, body: NewState) -> None:
        assert sender == self._leader_of(body.ballot), f"process {sender} sent the state of ballot {body.ballot}"
        self._highest_epoch = max(self._highest_epoch, body.ballot)
        if self._role == "joining":
            if not self._may_admit(body.ballot, body.memory_losses):
                return
        elif body.ballot < self._promised:
            self._send_after_persist((sender,), Nack(self._promised))
            return
        self._apply_history(body.history)
        if self.position < body.position:
            self._send_after_persist((sender,), Sync(-1, self.position))
            return
        if self._role == "joining":
            self._complete_admission()
            self._adopt_state(body)
        elif body.ballot > self._epoch:
            self._adopt_state(body)
        self._send_after_persist((sender,), NewStateAck(body.ballot))

    def _adopt_state(self, body: NewState) -> None:
        self._enter_epoch(body.ballot, body.clock, body.memory_losses)
        for pending in self._pending.values():
            pending.reset_epoch(self.home)
        for entry in body.entries:
            if entry.message.id not in self._delivered:
                self._add_pending(entry.message).accepted = entry.timestamp
        self._clear_step_bodies()

    # Delivery history

    def _collect_history(self, position: int) -> DeliveryHistory:
        """The deliveries from a position on, or their prefix if they are no longer retained."""
        if position >= self._history_start:
            return DeliveryHistory(position, tuple(self._history.values())[position - self._history_start :])
        return DeliveryHistory(self.position, (), self._delivered_prefix())

    def _apply_history(self, history: DeliveryHistory) -> None:
        if history.prefix is not None and history.first > self.position:
            self._install_prefix(history.first, history.prefix)
        if history.first <= self.position:
            for delivered in history.deliveries[self.position - history.first :]:
                self.note("caught-up", delivered.message.id)
                self._deliver_next(delivered, None)

    def _install_prefix(self, position: int, prefix: DeliveredPrefix) -> None:
        self.install_position(position)
        self._adopt_prefix(position, prefix)
        for group, rank in self._stable_ranks.items():
            self._obligations.resolve(group, rank)
        self._pending = {id: pending for id, pending in self._pending.items() if id not in self._delivered}
        self._history = {}
        self._undurable = []

    # Synchronisation and repair

    def _sync_request(self, full: bool) -> Sync:
        return Sync(-1 if self._role == "joining" else self._epoch, self.position)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        if peer in self._other_members:
            self._resync_member(peer)
        if self._is_leading() and self.topology.group_of(peer) is not None:
            self._resend_proposals(peer)

    def _handle_sync(self, sender: ProcessId, body: Sync) -> None:
        self._observe_epoch(body.ballot)
        self._positions[self._places[sender]] = body.position
        self._reject_stale_leader(sender, body.ballot)
        if body.ballot < self._epoch and (self._is_leading() or self._new_state is not None):
            self._send_state(sender, body.position)
        elif body.position < self.position:
            self._send_after_persist((sender,), CatchUp(self._collect_history(body.position)))
        elif body.position > self.position:
            self._is_lagging = True
        if body.ballot == self._epoch and self._is_leading():
            self._resend_proposals(sender)

    def _handle_retry(self, sender: ProcessId, message: Message) -> None:
        """Proposes a message for a sender that lacks this group's timestamp, or sends the final timestamp."""
        if not self._propose(message):
            self._send_decided(sender, message.id)

    def _send_decided(self, target: ProcessId, id: MessageId) -> None:
        final = self._final_timestamp(id)
        if final is not None:
            self._send_after_persist((target,), Decided(id, final), id)

    def on_timer(self, name: str) -> None:
        helper, overdue = self._repair_membership(name)
        if helper is not None:
            for member in dict.fromkeys((helper, self._leader_of(self._promised))):
                if member != self.me:
                    self._send_after_persist((member,), self._sync_request(True))
            if self._role == "leader":
                others = tuple(member for member in self._other_members if member != helper)
                self._send_after_persist(others, self._sync_request(True))
        for pending in overdue:
            self._request_message(pending)

    def _request_message(self, pending: PendingMulticast) -> None:
        """A leader repeats its proposal and requests those of other groups; a follower reminds its group."""
        self.note("asked", pending.id)
        if not self._is_leading():
            self._send_after_persist(self._other_members, Retry(pending.message), pending.id)
            return
        if pending.is_committed:
            return
        self._proposals.append(pending)
        if pending.final >= 0:
            return
        for group in pending.message.destinations:
            if group != self.home:
                self._send_after_persist(self.topology.members(group), Retry(pending.message), pending.id)

    # Records

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        for record in records:
            if isinstance(record, Checkpoint):
                self._load_checkpoint(record)
            elif isinstance(record, Progress):
                self._replay_progress(record)
        self._undurable = []
        super().on_start(records, incarnation)
        if incarnation == 0:
            self._persist_progress()

    def _load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Restores the durable state and repeats the deliveries that may not have left the process."""
        self._restore_checkpoint(checkpoint)
        self.position = checkpoint.delivered_until
        if checkpoint.history_start > checkpoint.delivered_until:
            self.install_position(checkpoint.history_start)
        elif self.position > 0:
            self.resume_position(self.position)
        for delivered in checkpoint.history[self.position - checkpoint.history_start :]:
            self.deliver(delivered.message, delivered.final, delivered.message.id)

    def _restore_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._restore_member_checkpoint(checkpoint)
        self._pending = {}
        for entry in checkpoint.entries:
            self._add_pending(entry.message).accepted = entry.timestamp
        self._history = {delivered.message.id: delivered for delivered in checkpoint.history}
        self.position = checkpoint.history_start + len(checkpoint.history)

    def _replay_progress(self, record: Progress) -> None:
        self._replay_member_progress(record)
        for entry in record.accepted:
            if entry.message.id not in self._delivered:
                self._add_pending(entry.message).accepted = entry.timestamp
        for delivered in record.delivered:
            self._deliver_next(delivered, None)

    def _build_checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._promised,
            self._epoch,
            self._clock,
            self._memory_losses,
            self._accepted_entries(),
            self._delivered_until,
            self._history_start,
            self._delivered_prefix(),
            tuple(self._history.values()),
        )

    def _persist_changes(self) -> None:
        """Persists promise, clock, accepted messages and deliveries in one record, if any of them changed."""
        if self._role == "joining":
            return
        if self._checkpoint_due:
            self._persist_checkpoint(self._build_checkpoint())
            self._undurable = []
        elif self._accepted or self._confirmed or self._undurable or self._has_undurable_state():
            self._persist_progress()

    def _persist_progress(self) -> None:
        confirmed = [self._pending[id] for id in self._confirmed if id in self._pending]
        accepted = tuple(
            Entry(pending.message, pending.accepted) for pending in dict.fromkeys([*self._accepted, *confirmed])
        )
        undurable, self._undurable = tuple(self._undurable), []
        self._persist_record(Progress(self._promised, self._clock, self._memory_losses, accepted, undurable))
        if self._records_since_checkpoint >= self._config.keep and not self._awaits_delivered_until:
            self._awaits_delivered_until = True
            self._send_after_persist((self.me,), DeliveredUntil(self.position))

    def _handle_delivered_until(self, position: int) -> None:
        """Earlier deliveries have left this process: a checkpoint need not hold them."""
        self._awaits_delivered_until = False
        self._delivered_until = max(self._delivered_until, position)
        self._checkpoint_due = True
        self._trim_history()

    # Snapshots

    def snapshot(self) -> WhiteBoxState:
        return WhiteBoxState(
            self._build_checkpoint(),
            self._snapshot_member(),
            self._next_position,
            tuple(pending.snapshot() for pending in self._pending.values()),
            tuple(self._member_ranks),
            tuple(sorted(self._stable_ranks.items())),
            tuple(sorted(self._remote_memory_losses.items())),
            tuple(sorted(self._promises.items())),
            self._holders,
            self._new_state,
            tuple(self._undurable),
            self._awaits_delivered_until,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, WhiteBoxState)
        self._restore_checkpoint(state.checkpoint)
        self._restore_member(state.member)
        self._next_position = state.next_position
        self._pending = {pending.message.id: restore_pending(pending) for pending in state.pending}
        self._queue = sorted((pending.proposed, pending.id) for pending in self._pending.values() if pending.proposed)
        self._member_ranks = list(state.member_ranks)
        self._stable_ranks = dict(state.stable_ranks)
        self._remote_memory_losses = dict(state.remote_memory_losses)
        self._promises = dict(state.promises)
        self._holders = state.holders
        self._new_state = state.new_state
        self._undurable = list(state.undurable)
        self._awaits_delivered_until = state.awaits_delivered_until

    # Diagnostics

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._delivered:
            return [explain_delivered(self.me)]
        pending = self._pending.get(message)
        if pending is None:
            return [explain_unknown(self.me)]
        phases = explain_timestamps(pending, self.topology)
        if not pending.has_all_timestamps():
            return phases
        if not self._is_leading():
            return [*phases, explain_follower(self._leader_of(self._promised))]
        queue = [(bound, id) for bound, id in self._queue if id in self._pending]
        return [*phases, *explain_commit(pending, self.topology, queue)]


def contact(topology: Topology, message: Message) -> tuple[ProcessId, ...]:
    """The destinations' leaders as far as a client can know: the first member of each group."""
    return tuple(topology.members(group)[0] for group in message.destinations)


def _about(ids: list[MessageId]) -> About:
    return ids[0] if len(ids) == 1 else tuple(ids)


def _group_by_destinations(
    messages: Iterable[PendingMulticast],
) -> list[tuple[tuple[GroupId, ...], list[PendingMulticast]]]:
    """Messages without repetition, by their destinations, in the order of the first of each."""
    groups: dict[tuple[GroupId, ...], list[PendingMulticast]] = {}
    for pending in dict.fromkeys(messages):
        groups.setdefault(pending.message.destinations, []).append(pending)
    return list(groups.items())


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Three at leaders, one more at followers; a group of one process has no followers to wait for."""
    if replicas == 1:
        return 1 if destinations == 1 else 3
    return 3 if role == "leader" else 4


SPEC = Spec(
    name="whitebox",
    summary="leaders stamp and commit, followers accept: three delays at leaders, four at followers",
    source="paper 002 section 4.2: Gotsman, Lefort, Chockler 2019",
    process=WhiteBox,
    config=WhiteBoxConfig,
    bodies=BODIES,
    records=RECORDS,
    states=(WhiteBoxState, LeaderGroupState, PendingState),
    claims=replace(
        MAJORITY_CLAIMS,
        delays=_delays,
        bound=lambda role, skew: 5 if role == "leader" else 6,
        packets=lambda destinations, replicas: destinations * (1 + 2 * destinations * replicas + replicas),
    ),
    contacts=contact,
    role_of=role_of,
    goals=("waited", "epoch", "reproposed", "asked", "caught-up", "nack", "admitted", "forwarded"),
    statements=build_statement_table,
    recovery_goals=LEADER_RECOVERY_GOALS,
)

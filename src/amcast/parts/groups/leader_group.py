"""Leader-based group membership: leader change, link failures, restarts and lost disks.

PrimCast and White-Box differ in how a leader orders messages and who acknowledges it. `LeaderGroupMember` holds the
rest; a protocol adds its order and the bodies that carry it. It is a base class and no component, because its state is
read in every step.

    campaign    The process that the leader oracle suggests chooses a ballot above every ballot it has seen. The time
                under one ballot is an epoch. A member that has promised a higher ballot rejects the candidate (Nack),
                which tries again if the oracle still suggests it.
    sends       A body that depends on a state change waits until the change is being persisted:
                `_send_after_persist` collects such bodies, and the protocol's `on_step_end` sends them.
    records     A record holds what changed since the last one; from time to time a checkpoint replaces all of them.
                The first incarnation starts with a record, so that an empty disk means lost memory.
    repair      One timer runs while anything is pending. What is still pending when it fires is requested.
    admission   A member that lost its memory has no vote until it is admitted again, as follows.

A member without memory may have voted for values that it no longer knows. It gets its vote back when (a) so many other
members have sent an AdmissionVote that every majority the member was part of contains one of them, and (b) the leader
of an epoch at least as high as any that these voters had promised has sent it the state of that epoch. (b) restores
what the lost votes may have helped to decide; the admission votes restore its clock. Its lost promises no longer count:
each voter reports, with everything it sends, the incarnation in which that member lost its memory
(`_memory_losses`), and each receiver discards what the member sent before.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from amcast.kernel.diagnostics import ProcessStatus
from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Record, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import next_ballot, place_of, round_of
from amcast.parts.groups.leader_group_messages import (
    AdmissionVote,
    DeliveredPrefix,
    JoinRequest,
    LeaderGroupCheckpoint,
    LeaderGroupConfig,
    LeaderGroupProgress,
    LeaderGroupState,
    Nack,
    OwedTimestamp,
)
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.obligations import Obligations, Rank

REPAIR_TIMER: Final = "repair"
MAX_REQUESTS: Final = 64
"""Pending messages requested per repair, oldest first."""


class PendingMessage:
    """A known message that is not delivered; each protocol adds what it knows of it."""

    __slots__ = ("is_overdue",)

    is_overdue: bool
    """The message was pending already when the repair timer was set."""


class GivenPromise(Protocol):
    """A member's reply to a candidate, as far as the protocols agree on it."""

    @property
    def memory_losses(self) -> tuple[int, ...]: ...


I = TypeVar("I", bound=PendingMessage)  # noqa: E741
P = TypeVar("P", bound=GivenPromise)


class LeaderGroupMember(Process, Generic[I]):
    """One member of one group. `_role` is "candidate", "member", "joining" or the protocol's name of a leader.

    A protocol implements `_sync_request`, `_send_candidacy` and `_discard_votes`. Everything else it calls itself, in
    its own `on_start`, `on_receive`, `on_timer` and `on_step_end`.
    """

    # fmt: off
    __slots__ = (
        "_admission_votes",
        "_checkpoint_due",
        "_clock",
        "_committed",
        "_config",
        "_delivered",
        "_delivered_until",
        "_durable_clock",
        "_durable_memory_losses",
        "_durable_promised",
        "_epoch",
        "_highest_epoch",
        "_history_start",
        "_incarnation",
        "_is_lagging",
        "_last_delivered_rank",
        "_members",
        "_memory_losses",
        "_next_helper",
        "_obligations",
        "_other_members",
        "_pending",
        "_place",
        "_places",
        "_positions",
        "_promised",
        "_quorum",
        "_records_since_checkpoint",
        "_repair_armed",
        "_role",
        "_sends_after_persist",
        "_suggested_leader",
        "home",
    )
    # fmt: on

    def __init__(self, me: ProcessId, topology: Topology, config: LeaderGroupConfig, leading: str) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is a client"
        self.home: GroupId = self.group
        self._config = config
        self._members = topology.members(self.home)
        self._other_members = tuple(member for member in self._members if member != me)
        self._places = {member: place for place, member in enumerate(self._members)}
        self._place = self._places[me]
        self._quorum = topology.quorum(self.home)
        self._incarnation = 0

        self._epoch = 0
        """The ballot whose state this member holds."""
        self._promised = 0
        """The member takes no part in lower ballots; at least `_epoch`."""
        self._role = leading if self._place == 0 else "member"
        self._suggested_leader = self._members[0]
        """The oracle's last suggestion."""
        self._highest_epoch = 0
        """The highest ballot seen in the group."""
        self._memory_losses: tuple[int, ...] = (0,) * len(self._members)
        """By place in the group: the incarnation in which the member lost its memory; 0 if it never did."""
        self._admission_votes: dict[int, AdmissionVote] = {}
        self._next_helper = 0
        """Selects, modulo the group's size, the member asked next for help."""

        self._clock = 0
        self._pending: dict[MessageId, I] = {}
        """Messages that are known and not delivered."""
        self._delivered = DeliveredSet()
        self._last_delivered_rank: Rank = (0, 0)
        """The rank of the last delivery."""
        self._history_start = 0
        """The position of the first retained delivery."""
        self._delivered_until = 0
        """Deliveries before this position have left the process."""
        self._obligations = Obligations()
        self._positions = [0] * len(self._members)
        """By place: how many messages the member has delivered, as far as known."""
        self._committed: set[MessageId] = set()
        """Messages whose final timestamp became known in this step."""

        self._sends_after_persist: list[tuple[tuple[ProcessId, ...], Body, About]] = []
        """Sends of this step that wait until its records are durable."""
        self._is_lagging = False
        """The member knows that it missed something and requests it when the repair timer fires."""
        self._repair_armed = False
        self._checkpoint_due = False
        self._durable_promised = -1
        self._durable_clock = 0
        self._durable_memory_losses = self._memory_losses
        self._records_since_checkpoint = 0

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._delivered

    def has_delivered_any(self, messages: Sequence[MessageId]) -> bool:
        return self._delivered.has_any(messages)

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        return self._delivered.snapshot()

    def _is_active(self) -> bool:
        """Whether this member holds the state of the epoch that it promised, and votes."""
        return self._promised == self._epoch and self._role != "joining"

    def _leader_of(self, ballot: int) -> ProcessId:
        return self._members[place_of(ballot)]

    def _send_after_persist(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        self._sends_after_persist.append((targets, body, about))

    # Start of an incarnation

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        """Starts an incarnation. A protocol replays the records before, and persists a first record in the first
        incarnation, so that an empty disk means lost memory."""
        self._incarnation = incarnation
        if incarnation == 0:
            return
        if not records:
            self._start_joining()
        else:
            self._set_durable()
            self._records_since_checkpoint = len(records)
            self.note("replayed", value=float(len(records)))
            self._role = "member"
            self._is_lagging = True
            self._send_after_persist(self._other_members, self._sync_request(True))

    @abstractmethod
    def _sync_request(self, full: bool) -> Body:
        """Reports this member's epoch and position, so that the receiver sends what it lacks: if `full`, deliveries
        too. A joining member holds no epoch."""

    # Records

    def _has_undurable_state(self) -> bool:
        """Whether clock, promise or known memory losses changed since the last record."""
        return (
            self._clock > self._durable_clock
            or self._promised > self._durable_promised
            or self._memory_losses != self._durable_memory_losses
        )

    def _persist_record(self, record: LeaderGroupProgress) -> None:
        self.persist(record)
        self._records_since_checkpoint += 1
        self._set_durable()

    def _replay_member_progress(self, record: LeaderGroupProgress) -> None:
        self._promised = record.promised
        self._clock = max(self._clock, record.clock)
        self._memory_losses = record.memory_losses

    def _persist_checkpoint(self, checkpoint: Record) -> None:
        self.persist(checkpoint, replaces=True)
        self.note("trimmed" if self._history_start else "checkpointed", value=float(self._records_since_checkpoint))
        self._checkpoint_due = False
        self._records_since_checkpoint = 0
        self._set_durable()

    def _set_durable(self) -> None:
        self._durable_promised = self._promised
        self._durable_clock = self._clock
        self._durable_memory_losses = self._memory_losses

    # Leader change

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group != self.home or leader not in self._members:
            return
        self._suggested_leader = leader
        if leader == self.me and self._role != "joining":
            if self._role == "member":
                self._campaign()
            else:
                self._send_after_persist(self._other_members, self._sync_request(False))

    def _campaign(self) -> None:
        self._role = "candidate"
        self._promised = next_ballot(max(self._promised, self._highest_epoch), self._incarnation, self._place)
        self._send_candidacy(self._members)

    @abstractmethod
    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        """Sends what a candidate needs answered next: its request for promises, or the state of its epoch."""

    def _promise_candidate(self, sender: ProcessId, ballot: int) -> bool:
        """Promises a candidate's ballot, or rejects it for a higher promise. Returns whether the candidate needs this
        member's state."""
        self._highest_epoch = max(self._highest_epoch, ballot)
        if self._role == "joining":
            return False
        if ballot < self._promised:
            self._send_after_persist((sender,), Nack(self._promised))
            return False
        if ballot > self._promised:
            self._promised = ballot
            self._role = "member"
        return ballot > self._epoch

    def _add_promise(self, promises: dict[int, P], sender: ProcessId, promise: P) -> list[P]:
        """Adds a promise to those of a candidate, by place. Returns the valid ones if they are a majority, else none: a
        promise that a member gave before it lost its memory is not valid."""
        self._merge_memory_losses(promise.memory_losses)
        promises[self._places[sender]] = promise
        losses = self._memory_losses
        valid = [one for place, one in sorted(promises.items()) if one.memory_losses[place] == losses[place]]
        return valid if len(valid) >= self._quorum else []

    def _handle_nack(self, ballot: int) -> None:
        """A candidate or leader was rejected. It campaigns above that ballot if the oracle still suggests it."""
        self._highest_epoch = max(self._highest_epoch, ballot)
        if ballot > self._promised and self._role not in ("member", "joining") and self._suggested_leader == self.me:
            self.note("nack")
            self._campaign()

    def _reject_stale_leader(self, sender: ProcessId, ballot: int) -> None:
        """Sends the leader of an epoch a Nack, because this member has left that epoch."""
        if self._role != "joining" and 0 <= ballot < self._promised and self._leader_of(ballot) == sender:
            self._send_after_persist((sender,), Nack(self._promised))

    def _enter_epoch(self, ballot: int, clock: int, memory_losses: tuple[int, ...]) -> None:
        """Makes another epoch the current one."""
        self._merge_memory_losses(memory_losses)
        if ballot > self._promised or self._leader_of(ballot) != self.me:
            self._role = "member"
        self._epoch = self._promised = ballot
        self._clock = max(self._clock, clock)
        self._checkpoint_due = True
        self.note("adopted", value=float(ballot))

    # Admission after lost memory

    def _start_joining(self) -> None:
        self._role = "joining"
        memory_losses = list(self._memory_losses)
        memory_losses[self._place] = self._incarnation
        self._memory_losses = tuple(memory_losses)
        self._request_join(-1)

    def _request_join(self, helper: ProcessId) -> None:
        self._send_after_persist(self._other_members, JoinRequest(self._incarnation, helper))

    def _handle_join_request(self, sender: ProcessId, body: JoinRequest) -> bool:
        """Votes for the admission of a member that lost its memory. Returns whether a leader sends it the state of its
        epoch now."""
        if self._role == "joining":
            return False
        memory_losses = list(self._memory_losses)
        place = self._places[sender]
        memory_losses[place] = max(memory_losses[place], body.memory_loss)
        self._merge_memory_losses(tuple(memory_losses))
        self._send_after_persist((sender,), AdmissionVote(body.memory_loss, self._promised, self._clock))
        if body.helper == self.me:
            self.note("helped")
            self._campaign()
            return False
        return True

    def _merge_memory_losses(self, memory_losses: tuple[int, ...]) -> None:
        """Learns of lost memory; what such a member sent before no longer counts."""
        known = self._memory_losses
        if memory_losses != known:
            self._memory_losses = tuple(map(max, known, memory_losses))
            for place in find_new_losses(known, memory_losses):
                self._discard_votes(place)

    @abstractmethod
    def _discard_votes(self, place: int) -> None:
        """Discards what the member at this place sent in its earlier incarnations."""

    def _handle_admission_vote(self, sender: ProcessId, body: AdmissionVote) -> None:
        if self._role != "joining" or body.memory_loss != self._incarnation:
            return
        before = self._has_admission_quorum()
        self._admission_votes[self._places[sender]] = body
        self._clock = max(self._clock, body.clock)
        if self._has_admission_quorum() and not before:
            self._request_state()

    def _has_admission_quorum(self) -> bool:
        """Whether every majority that this member was part of contains one of the voters."""
        return len(self._admission_votes) > len(self._members) - self._quorum

    def _min_admission_epoch(self) -> int:
        return max(vote.promised for vote in self._admission_votes.values())

    def _request_state(self) -> None:
        """Requests the leader's state; if this member was the leader, or the leader is silent, asks the next member to
        become leader."""
        leader = self._leader_of(max(self._min_admission_epoch(), self._highest_epoch))
        if leader == self.me or self._next_helper > 1:
            self._request_join(self._other_members[self._next_helper % len(self._other_members)])
        else:
            self._send_after_persist((leader,), self._sync_request(True))
        self._next_helper += 1

    def _may_admit(self, ballot: int, memory_losses: tuple[int, ...]) -> bool:
        """Whether an epoch's state may admit this member: its leader knows of the lost memory and reports it from now
        on."""
        return (
            self._has_admission_quorum()
            and ballot >= self._min_admission_epoch()
            and memory_losses[self._place] == self._incarnation
        )

    def _complete_admission(self) -> None:
        self._role = "member"
        self._admission_votes = {}
        self.note("admitted")

    # Synchronisation

    def _resync_member(self, member: ProcessId) -> None:
        """Exchanges positions with a member to which the link was reset."""
        if self._role == "joining":
            self._request_join(-1)
            return
        self._send_after_persist((member,), self._sync_request(True))
        if self._role == "candidate":
            self._send_candidacy((member,))

    def _observe_epoch(self, ballot: int) -> None:
        """Another member is in this epoch. If it is a later one, its state is on its way to this member, or lost."""
        if ballot > self._epoch:
            self._highest_epoch = max(self._highest_epoch, ballot)
            self._is_lagging = True

    def _adopt_prefix(self, position: int, prefix: DeliveredPrefix) -> None:
        """Moves to a later position of the group without the deliveries in between."""
        self.position = self._history_start = position
        self._restore_prefix(prefix)
        self._clock = max(self._clock, prefix.time)
        self._checkpoint_due = True

    def _delivered_prefix(self) -> DeliveredPrefix:
        time, tie = self._last_delivered_rank
        owed = tuple([OwedTimestamp(*obligation) for obligation in self._obligations.list_all()])
        return DeliveredPrefix(time, tie, self._delivered.snapshot(), owed)

    def _restore_prefix(self, prefix: DeliveredPrefix) -> None:
        self._last_delivered_rank = (prefix.time, prefix.tie)
        self._delivered.restore(prefix.delivered)
        self._obligations = Obligations()
        for owed in prefix.owed:
            self._obligations.add(owed.id, owed.timestamp, owed.final, owed.groups)

    # Repair timer

    def _repair_membership(self, name: str) -> tuple[ProcessId | None, list[I]]:
        """Repeats what a joining member or a candidate waits for. Returns what the protocol requests next: later
        deliveries and state from the helper, if there is one, and each overdue message from the processes that should
        have it."""
        assert name == REPAIR_TIMER, f"process {self.me} has no timer {name}"
        self._repair_armed = False
        if self._role == "joining":
            if self._has_admission_quorum():
                self._request_state()
            self._request_join(-1)
        elif self._role == "candidate":
            self._send_candidacy(self._members)
        elif self._role == "member" and self._suggested_leader == self.me:
            self._campaign()
        overdue = [item for item in self._pending.values() if item.is_overdue]
        helper = None
        if (overdue or self._is_lagging) and self._other_members:
            self._is_lagging = False
            self._next_helper += 1
            helper = self._other_members[self._next_helper % len(self._other_members)]
        return helper, overdue[:MAX_REQUESTS]

    def _arm_repair_timer(self) -> None:
        """Runs the timer while something is pending. It is never cancelled: most messages are pending for a fraction of
        its period."""
        if self._repair_armed:
            return
        waits = (
            bool(self._pending)
            or self._is_lagging
            or self._role in ("joining", "candidate")
            or (self._role == "member" and self._suggested_leader == self.me)
        )
        if waits:
            self._repair_armed = True
            for item in self._pending.values():
                item.is_overdue = True
            self.set_timer(REPAIR_TIMER, self._config.repair_ns)

    # Operators

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._role,
            "epoch": round_of(self._epoch),
            "promised": round_of(self._promised),
            "leader": self._leader_of(self._epoch),
            "pending": len(self._pending),
            "clock": self._clock,
            "slowest": min(self._positions),
            "joined": int(self._role != "joining"),
        }

    # Checkpoints and snapshots

    def _restore_member_checkpoint(self, checkpoint: LeaderGroupCheckpoint) -> None:
        """Restores the durable state, but for the accepted entries, the retained deliveries and the position."""
        self._promised = checkpoint.promised
        self._epoch = checkpoint.epoch
        self._clock = checkpoint.clock
        self._memory_losses = checkpoint.memory_losses
        self._delivered_until = checkpoint.delivered_until
        self._history_start = checkpoint.history_start
        self._restore_prefix(checkpoint.prefix)

    def _snapshot_member(self) -> LeaderGroupState:
        return LeaderGroupState(
            self.position,
            self._incarnation,
            self._role,
            tuple(self._positions),
            self._suggested_leader,
            self._highest_epoch,
            tuple(sorted(self._admission_votes.items())),
            self._next_helper,
            self._repair_armed,
            self._is_lagging,
            (self._durable_promised, self._durable_clock),
            self._durable_memory_losses,
            self._records_since_checkpoint,
        )

    def _restore_member(self, state: LeaderGroupState) -> None:
        self.position = state.position
        self._incarnation = state.incarnation
        self._role = state.role
        self._positions = list(state.positions)
        self._suggested_leader = state.suggested_leader
        self._highest_epoch = state.highest_epoch
        self._admission_votes = dict(state.admission_votes)
        self._next_helper = state.next_helper
        self._repair_armed = state.repair_armed
        self._is_lagging = state.is_lagging
        self._durable_promised, self._durable_clock = state.durable
        self._durable_memory_losses = state.durable_memory_losses
        self._records_since_checkpoint = state.records_since_checkpoint


def find_new_losses(known: tuple[int, ...], memory_losses: tuple[int, ...]) -> list[int]:
    """Places of the members that have lost their memory since."""
    return [place for place, (old, new) in enumerate(zip(known, memory_losses, strict=True)) if new > old]

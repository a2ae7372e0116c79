"""A member of a group with a leader, where leaders change, links fail, processes restart and disks are lost.

PrimCast and White-Box disagree on what a leader's word means and who answers it. They agree on everything around it,
which is here; a protocol adds its order, and the bodies that carry it.

    campaigns   whoever the oracle names goes above every ballot it heard of. The reign of one ballot is an epoch. Who
                promised a higher one refuses (Nack), and who is refused tries again, if the oracle still means it.
    letters     what is said because something changed waits until the change is on its way to the disk:
                `_send_after_persist` collects, and the protocol's `on_step_end` sends.
    records     a record tells what changed since the last; now and then a checkpoint replaces them all. The first
    incarnation
                begins with a record, so that an empty disk means lost memory.
    repair      one timer, which runs while anything is open: what is still open when it runs out is asked for.
    lost memory told below.

A member without memory may have voted for what it no longer knows. It has no vote until (a) so many fellows have said
Welcome that every majority it was part of has one of them, and (b) the leader of an epoch at least as high as any that
they had promised then has sent it that epoch's state. (b) restores what its lost votes may have helped to decide; the
Welcomes restore its clock. Its lost promises no longer count: who said Welcome tells, with everything it says, in which
incarnation that member lost its memory (`_memory_losses`), and whoever hears of it discards what the member said
before.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Record, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import next_ballot, place_of
from amcast.parts.groups.messages import AdmissionVote, JoinRequest, LeaderGroupConfig, LeaderGroupState, Nack
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.messages import DeliveredRange
from amcast.parts.ordering.obligations import Obligations, Rank

REPAIR_TIMER: Final = "repair"
MAX_REQUESTS: Final = 64
"""Messages asked for at a time, oldest first."""


class PendingMessage:
    """A message that is heard of and not delivered; heirs say what is known of it."""

    __slots__ = ("is_overdue",)

    is_overdue: bool
    """It was open already when the repair timer was set."""


class GivenPromise(Protocol):
    """What a member answers to a candidate, whatever else it holds."""

    @property
    def memory_losses(self) -> tuple[int, ...]: ...


I = TypeVar("I", bound=PendingMessage)  # noqa: E741
P = TypeVar("P", bound=GivenPromise)


class LeaderGroupMember(Process, Generic[I]):
    """One member of one group. `_role` is "candidate", "member", "joining" or the protocol's word for who leads."""

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
        """The ballot whose state I hold."""
        self._promised = 0
        """I take no part in lower ones; at least `_epoch`."""
        self._role = leading if self._place == 0 else "member"
        self._suggested_leader = self._members[0]
        """Whom the oracle named last."""
        self._highest_epoch = 0
        """The highest that anybody of my group spoke of."""
        self._memory_losses: tuple[int, ...] = (0,) * len(self._members)
        """By place: the incarnation in which a member lost its memory; 0 if it never did."""
        self._admission_votes: dict[int, AdmissionVote] = {}
        self._next_helper = 0
        """Whom to ask next."""

        self._clock = 0
        self._pending: dict[MessageId, I] = {}
        """Everything open: heard of and not delivered."""
        self._delivered = DeliveredSet()
        """Everything delivered."""
        self._last_delivered_rank: Rank = (0, 0)
        """The rank of what was delivered last."""
        self._history_start = 0
        """The position of the first delivery that I still can tell my fellows."""
        self._delivered_until = 0
        """Deliveries before this position have left the process."""
        self._obligations = Obligations()
        self._positions = [0] * len(self._members)
        """How much each fellow has delivered, as far as I know."""
        self._committed: set[MessageId] = set()
        """Whose final timestamp became known in this step."""

        self._sends_after_persist: list[tuple[tuple[ProcessId, ...], Body, About]] = []
        """Bodies of this step that must not leave before what changed is durable."""
        self._is_lagging = False
        """I know that I miss something, and will ask."""
        self._repair_armed = False
        """The repair timer runs."""
        self._checkpoint_due = False
        self._durable_promised = -1
        self._durable_clock = 0
        self._durable_memory_losses = self._memory_losses
        self._records_since_checkpoint = 0
        """Since the last checkpoint."""

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._delivered

    def has_delivered_any(self, messages: Sequence[MessageId]) -> bool:
        return self._delivered.has_any(messages)

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        return self._delivered.snapshot()

    def _is_active(self) -> bool:
        """I hold the state of the epoch that I promised, and vote."""
        return self._promised == self._epoch and self._role != "joining"

    def _leader_of(self, ballot: int) -> ProcessId:
        return self._members[place_of(ballot)]

    def _send_after_persist(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        self._sends_after_persist.append((targets, body, about))

    # An incarnation begins

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._incarnation = incarnation
        if incarnation == 0:
            self._persist_progress()  # so that an empty disk means lost memory
        elif not records:
            self._start_joining()
        else:
            self._set_durable()
            self._records_since_checkpoint = len(records)
            self._role = "member"
            self._is_lagging = True
            self._send_after_persist(self._other_members, self._sync_request(True))

    @abstractmethod
    def _sync_request(self, full: bool) -> Body:
        """Where I am, for a fellow to send me what I lack: if `full`, its deliveries too. A member that is joining
        holds no epoch."""

    # Records

    @abstractmethod
    def _persist_progress(self) -> None:
        """Make durable what changed since the last record."""

    def _persist_checkpoint(self, checkpoint: Record) -> None:
        self.persist(checkpoint, replaces=True)
        self._checkpoint_due = False
        self._records_since_checkpoint = 0
        self._set_durable()

    def _set_durable(self) -> None:
        self._durable_promised = self._promised
        self._durable_clock = self._clock
        self._durable_memory_losses = self._memory_losses

    # Campaigns

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
        """Say again what a candidate said last."""

    def _promise_candidate(self, sender: ProcessId, ballot: int) -> bool:
        """Somebody asks to be followed. Whether I promise; if I had promised more, it hears of it."""
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

    def _handle_nack(self, ballot: int) -> None:
        """I am refused. If the oracle still means me, I go above; else whoever it means will."""
        self._highest_epoch = max(self._highest_epoch, ballot)
        if ballot > self._promised and self._role not in ("member", "joining") and self._suggested_leader == self.me:
            self.note("nack")
            self._campaign()

    def _reject_stale_leader(self, sender: ProcessId, ballot: int) -> None:
        """The leader of an epoch that I left must hear of it."""
        if self._role != "joining" and 0 <= ballot < self._promised and self._leader_of(ballot) == sender:
            self._send_after_persist((sender,), Nack(self._promised))

    def _enter_epoch(self, ballot: int, clock: int, memory_losses: tuple[int, ...]) -> None:
        """Hold another epoch's state from now on."""
        self._merge_memory_losses(memory_losses)
        if ballot > self._promised or self._leader_of(ballot) != self.me:
            self._role = "member"
        self._epoch = self._promised = ballot
        self._clock = max(self._clock, clock)
        self._checkpoint_due = True
        self.note("adopted", value=float(ballot))

    # Lost memory

    def _start_joining(self) -> None:
        self._role = "joining"
        memory_losses = list(self._memory_losses)
        memory_losses[self._place] = self._incarnation
        self._memory_losses = tuple(memory_losses)
        self._request_join(-1)

    def _request_join(self, helper: ProcessId) -> None:
        self._send_after_persist(self._other_members, JoinRequest(self._incarnation, helper))

    def _handle_join_request(self, sender: ProcessId, body: JoinRequest) -> bool:
        """Votes for the admission of a member that lost its memory. Whether a leader shall send it its epoch's state
        now."""
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
        """What a member said before it lost its memory no longer counts."""
        known = self._memory_losses
        if memory_losses != known:
            self._memory_losses = tuple(map(max, known, memory_losses))
            for place in find_new_losses(known, memory_losses):
                self._discard_votes(place)

    @abstractmethod
    def _discard_votes(self, place: int) -> None:
        """Discard what a fellow said in its earlier incarnations."""

    def _handle_admission_vote(self, sender: ProcessId, body: AdmissionVote) -> None:
        if self._role != "joining" or body.memory_loss != self._incarnation:
            return
        before = self._has_admission_quorum()
        self._admission_votes[self._places[sender]] = body
        self._clock = max(self._clock, body.clock)
        if self._has_admission_quorum() and not before:
            self._request_state()

    def _has_admission_quorum(self) -> bool:
        """Every majority that I was part of contains one of those who answered."""
        return len(self._admission_votes) > len(self._members) - self._quorum

    def _min_admission_epoch(self) -> int:
        return max(welcome.promised for welcome in self._admission_votes.values())

    def _request_state(self) -> None:
        """Ask the leader for its state, or, if it was I, the next fellow to become leader."""
        leader = self._leader_of(max(self._min_admission_epoch(), self._highest_epoch))
        if leader == self.me or self._next_helper > 1:
            self._request_join(self._other_members[self._next_helper % len(self._other_members)])
        else:
            self._send_after_persist((leader,), self._sync_request(True))
        self._next_helper += 1

    def _may_admit(self, ballot: int, memory_losses: tuple[int, ...]) -> bool:
        """Its leader must know of my lost memory, and tell it with all that it says from now on."""
        return (
            self._has_admission_quorum()
            and ballot >= self._min_admission_epoch()
            and memory_losses[self._place] == self._incarnation
        )

    def _complete_admission(self) -> None:
        self._role = "member"
        self._admission_votes = {}
        self.note("admitted")

    # Whoever may have missed something

    def _resync_member(self, fellow: ProcessId) -> None:
        """The link to a fellow begins anew."""
        if self._role == "joining":
            self._request_join(-1)
            return
        self._send_after_persist((fellow,), self._sync_request(True))
        if self._role == "candidate":
            self._send_candidacy((fellow,))

    def _observe_epoch(self, ballot: int) -> None:
        """A fellow is in this epoch; if I am not there yet, its state is on its way to me, or lost."""
        if ballot > self._epoch:
            self._highest_epoch = max(self._highest_epoch, ballot)
            self._is_lagging = True

    def _adopt_position(self, position: int, mark: Rank, seen: tuple[DeliveredRange, ...]) -> None:
        """Take over how far my group is, without the deliveries that led there."""
        self.position = self._history_start = position
        self._last_delivered_rank = mark
        self._delivered.restore(seen)
        self._obligations = Obligations()
        self._clock = max(self._clock, mark[0])
        self._checkpoint_due = True

    # The timer

    def on_timer(self, name: str) -> None:
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
        self._request_missing(helper, overdue[:MAX_REQUESTS])
        for item in self._pending.values():
            item.is_overdue = True

    @abstractmethod
    def _request_missing(self, helper: ProcessId | None, overdue: list[I]) -> None:
        """Asks for what this member lacks: the helper, if there is one, for later deliveries and state; whoever should
        have it for each overdue message."""

    def _arm_repair_timer(self) -> None:
        """The timer runs while something is open. It is not cancelled: most messages come and go within one run."""
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
            self.set_timer(REPAIR_TIMER, self._config.repair_ns)

    # Snapshots

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
        self._highest_epoch = state.heard_epoch
        self._admission_votes = dict(state.admission_votes)
        self._next_helper = state.turn
        self._repair_armed = state.armed
        self._is_lagging = state.lag
        self._durable_promised, self._durable_clock = state.durable
        self._durable_memory_losses = state.durable_memory_losses
        self._records_since_checkpoint = state.records


def select_valid_promises(promises: Mapping[int, P], memory_losses: tuple[int, ...]) -> list[P]:
    """Promises by place, without those that a member gave before it lost its memory."""
    return [
        promise for place, promise in sorted(promises.items()) if promise.memory_losses[place] == memory_losses[place]
    ]


def find_new_losses(known: tuple[int, ...], memory_losses: tuple[int, ...]) -> list[int]:
    """The places of those who lost their memory since."""
    return [place for place, (old, new) in enumerate(zip(known, memory_losses, strict=True)) if new > old]

"""Rounds: the common part of A_ng and A_dt. Each group orders its own messages, and groups exchange batches of them.

Source: paper 001, algorithm A_ng (section 4), kappa and eta (section 5).

A group's log is an endless sequence of instances, numbered 1, 2, 3 ...; each decides a set of messages, possibly empty.
Local messages are delivered with their instance. Global ones are collected: instances ((r-1)eta, r*eta] make up the
group's batch of round r. The global messages of a round, which are those of all groups' batches, are delivered at every
destination right after its instance r*eta + kappa, in the order of their ids. So all destinations place a global
message between the same rounds, and all members of a group between the same local messages:

    instance   1    2    3    4    5    6    7 ...     eta = 2, kappa = 3
    batch      `--1--'   `--2--'   `--3--'
    deliver                         1         2        local ones of instance 5, round 1, local ones of instance 6

The wait for the batches of a round stops the later instances only; kappa instances fit between.

When an instance is proposed (in the paper: immediately, forever): a leader proposes when requests wait, when a known
round with messages needs instances to be delivered, or after `idle_ns` without either, so that other groups never wait
for a group without messages; at most every `pace_ns`. A group that learns of a round which it has not reached catches
up at once with empty instances. Nothing is proposed behind a round that is not delivered: this keeps groups within
kappa/eta + 1 rounds of each other, and memory bounded.

Deliveries follow from the log and the batches alone. So a member that restarts replays both; a member that cannot get
old batches any more installs the state of another member that is further.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from amcast.kernel.diagnostics import Phase, ProcessStatus, explain_delivered, explain_unknown
from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import CheckpointReady, Entry, Value
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.groups.contacts import contact_one_group
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.rounds.messages import Messages, RoundsConfig, RoundsCore, RoundsState

ROUND_TIMER: Final = "round"
RETRY_TIMER: Final = "retry"
MAX_RESENDS: Final = 64
"""Messages forwarded, or batches sent again, at a time."""


class RoundGroup(Process):
    """A member of a group. Subclasses define how batches get from group to group."""

    def __init__(self, me: ProcessId, topology: Topology, config: RoundsConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is in no group"
        self.home: GroupId = self.group
        self._config = config
        self._other_members = tuple(member for member in topology.members(self.home) if member != me)
        self._other_groups = tuple(group for group in topology.groups if group != self.home)
        self._paxos = Paxos(self, topology.members(self.home), config)
        self._instance = 0
        """Applied instances of the log."""
        self._round = 0
        """Delivered rounds; never more than the applied instances allow."""
        self._collected: list[Message] = []
        """Global messages of the batch that is being filled."""
        self._own_batches: dict[int, Messages] = {}
        """By round: batches of the own group that some process may still need."""
        self._ordered = DeliveredSet()
        """Messages in the log."""
        self._delivered = DeliveredSet()
        self._queue: deque[tuple[Value, int]] = deque()
        """Decided values that are not applied, each with its time of decision; the first is number `_instance` of the
        log, counted from 0."""
        self._unordered: dict[MessageId, Message] = {}
        """Clients' requests that are not in the log."""
        self._overdue: set[MessageId] = set()
        """Requests that were unordered already when the retry timer last fired."""
        self._unproposed: dict[MessageId, None] = {}
        """Requests that this process has not proposed, in the order of arrival."""
        self._held_since: dict[MessageId, int] = {}
        """By unproposed message that an undelivered round holds back: since when."""
        self._led_ballot = 0
        """The last ballot in which this process started to lead."""
        self._round_timer_fired = False
        """The round timer fired in this step."""
        self._last_proposal_ns = 0
        self._round_timer = ""
        """What the round timer is armed for: "pace", "idle" or nothing."""
        self._overdue_round = (0, 0)
        """The round that was due and incomplete when the retry timer last fired, and how often in a row before."""
        self._retry_armed = False

    # What protocols define

    @abstractmethod
    def _collect_round(self, round: int) -> Iterable[Message] | None:
        """The messages of all batches of a round; None while a batch is missing."""

    @abstractmethod
    def _finish_batch(self, round: int, messages: Messages) -> None:
        """Stores and sends the own group's batch of a round."""

    @abstractmethod
    def _latest_remote_round(self) -> int:
        """The latest round that another group is known to have reached."""

    @abstractmethod
    def _latest_nonempty_round(self) -> int:
        """The latest round that is known to have messages for the own group; 0: none."""

    @abstractmethod
    def _request_batches(self, round: int, times: int) -> None:
        """Requests the missing batches of a round that was due and incomplete at the last `times` retries."""

    @abstractmethod
    def _missing_groups(self, round: int) -> tuple[GroupId, ...]:
        """Groups whose batch of a round is missing here."""

    @abstractmethod
    def _find_round(self, message: MessageId) -> int:
        """The round of a known batch with this message; 0: none."""

    def _on_round_delivered(self, round: int) -> None:
        """Called after the delivery of a round."""

    def _on_leading(self) -> None:
        """Called when this process starts to lead its group."""

    def _is_responsible_for(self, message: Message) -> bool:
        """Whether the own group orders this message for its sender."""
        return self.group == self.topology.group_of(contact_one_group(self.topology, message)[0])

    def _is_new_in_log(self, message: Message) -> bool:
        """Adds a message of the log; returns whether it was new."""
        return self._ordered.add(message.id)

    # Events

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return contact_one_group(self.topology, message)

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._delivered

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        return self._delivered.snapshot()

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._enqueue_decided(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        id = message.id
        if id not in self._unordered and id not in self._ordered and self._is_responsible_for(message):
            self._add_request(message)

    def _add_request(self, message: Message) -> None:
        self._unordered[message.id] = message
        self._unproposed[message.id] = None

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        self._enqueue_decided(self._paxos.receive(sender, body))
        if type(body) is CheckpointReady:
            self._on_durable()

    def _on_durable(self) -> None:
        """Called when a checkpoint of this process is durable."""

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group == self.home and leader in self._paxos.members:
            self._paxos.handle_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.handle_link_reset(peer)

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
        elif name == ROUND_TIMER:
            self._round_timer = ""
            self._round_timer_fired = True
        else:
            self._retry_armed = False
            self._forward_overdue()
            due = self._due_round()
            self._overdue_round = (due, self._overdue_round[1] + 1 if due == self._overdue_round[0] else 0)
            if due and self._overdue_round[1]:
                self.note("asked", value=float(due))
                self._request_batches(due, self._overdue_round[1])

    def on_step_end(self) -> None:
        if self._paxos.can_propose():
            self._propose_due()
        elif self._round_timer:
            self._round_timer = ""
            self.cancel_timer(ROUND_TIMER)
        self._round_timer_fired = False
        self._paxos.flush()
        if self._is_settled() and self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._build_core()))
        waits = bool(self._unordered) or self._due_round() > 0
        if waits != self._retry_armed:
            self._retry_armed = waits
            if waits:
                self.set_timer(RETRY_TIMER, self._config.retry_ns)
            else:
                self.cancel_timer(RETRY_TIMER)

    def _forward_overdue(self) -> None:
        leader = self._paxos.suggested_leader
        if leader != self.me:
            for id in [id for id in self._unordered if id in self._overdue][:MAX_RESENDS]:
                self.send(leader, Request(self._unordered[id]), id)
        self._overdue = set(self._unordered)

    # Proposals

    def _propose_due(self) -> None:
        """Proposes the instances that are due, and arms the timer for the next one."""
        if self._led_ballot != self._paxos.ballot:
            self._led_ballot = self._paxos.ballot
            self._unproposed = dict.fromkeys(self._unordered)
            self._held_since = {}
            self._on_leading()
        self._last_proposal_ns = min(self._last_proposal_ns, self.now)
        while self._may_propose():
            behind = self._paxos.next_instance < self._latest_remote_round() * self._config.eta
            if behind:
                self.note("hurried")
            elif not self._round_timer_fired and not (
                self._has_reason_to_propose() and self.now - self._last_proposal_ns >= self._config.pace_ns
            ):
                break
            self._round_timer_fired = False
            self._propose()
        self._arm_round_timer()

    def _may_propose(self) -> bool:
        """Whether every round that must be delivered before the next instance is delivered here."""
        return self._paxos.next_instance < (self._round + 1) * self._config.eta + self._config.kappa

    def _has_reason_to_propose(self) -> bool:
        if self._unproposed:
            return True
        eta, kappa = self._config.eta, self._config.kappa
        latest = self._instance // eta + 1 if self._collected else self._latest_nonempty_round()
        return latest > 0 and self._paxos.next_instance < latest * eta + kappa

    def _propose(self) -> None:
        value = tuple(Entry(0, id, timestamp=self._held_ns(id), message=self._unordered[id]) for id in self._unproposed)
        self._unproposed = {}
        self._last_proposal_ns = self.now
        self._round_timer = ""
        self._paxos.propose(value)

    def _held_ns(self, id: MessageId) -> int:
        """How long undelivered rounds held this message back; its entry carries that to all members."""
        return max(0, self.last_global_ns - self._held_since.pop(id, self.now))

    def _arm_round_timer(self) -> None:
        if not self._may_propose():
            for id in self._unproposed:
                self._held_since.setdefault(id, self.now)
            if self._round_timer:
                self._round_timer = ""
                self.cancel_timer(ROUND_TIMER)
        elif self._has_reason_to_propose():
            if self._round_timer != "pace":
                self._round_timer = "pace"
                left = max(0, self._last_proposal_ns + self._config.pace_ns - self.now)
                self.set_timer(ROUND_TIMER, (left, left))
        elif not self._round_timer:
            self._round_timer = "idle"
            self.set_timer(ROUND_TIMER, self._config.idle_ns)

    # Log and rounds

    def _enqueue_decided(self, decided: Decided) -> None:
        for instance, value in decided:
            if type(value) is bytes:
                self._install_core(value)
            elif instance >= self._instance + len(self._queue):
                self._queue.append((value, self.now))  # type: ignore[arg-type]
        self._advance()

    def _due_round(self) -> int:
        """The round that must be delivered next; 0: none."""
        next = self._round + 1
        return next if next * self._config.eta + self._config.kappa <= self._instance else 0

    def _is_settled(self) -> bool:
        """Whether everything decided is applied, so that this is the state at the end of the log."""
        return not self._queue and not self._due_round() and self._instance == self._paxos.log.decided_until

    def _advance(self) -> None:
        while True:
            due = self._due_round()
            if due:
                contents = self._collect_round(due)
                if contents is None:
                    return
                self._deliver_round(due, contents)
            elif self._queue:
                self._apply_instance(self._queue.popleft())
            else:
                return

    def _apply_instance(self, decided: tuple[Value, int]) -> None:
        """Applies the next instance of the log."""
        local: list[tuple[Message, int]] = []
        for entry in decided[0]:
            message = entry.message
            assert message is not None
            self._remove_request(message.id)
            if not self._is_new_in_log(message):
                self.note("repeated", message.id)
            elif len(message.destinations) == 1:
                local.append((message, entry.timestamp))
            else:
                self._collected.append(message)
        self._instance += 1
        self._deliver_sorted(local, 2 * self._instance, decided[1])
        if self._instance % self._config.eta == 0:
            batch, self._collected = tuple(self._collected), []
            self._finish_batch(self._instance // self._config.eta, batch)

    def _remove_request(self, id: MessageId) -> None:
        """Removes a request that the log has."""
        if self._unordered.pop(id, None) is not None:
            self._unproposed.pop(id, None)
            self._held_since.pop(id, None)

    def _deliver_round(self, round: int, contents: Iterable[Message]) -> None:
        self._round = round
        mine = [(message, 0) for message in contents if self.home in message.destinations]
        self._deliver_sorted(mine, 2 * (round * self._config.eta + self._config.kappa) + 1)
        self._on_round_delivered(round)

    def _deliver_sorted(self, messages: list[tuple[Message, int]], rank: int, committed_ns: int | None = None) -> None:
        """Delivers messages, each with the time for which it was held back. Even ranks are instances, odd ones the
        rounds after them."""
        for message, held_ns in sorted(messages, key=lambda pair: pair[0].id):
            if self._delivered.add(message.id):
                self.deliver(message, rank, message.id, committed_ns, held_ns)
            else:
                self.note("doubled", message.id)

    # Diagnostics

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._paxos.role,
            "pending": len(self._unordered) + sum(len(value) for value, _ in self._queue) + len(self._collected),
            "round": self._round,
            "instance": self._instance,
            "joined": int(self._paxos.has_joined()),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._delivered:
            return [explain_delivered(self.me)]
        if message in self._unordered:
            text = Phase("text", True, f"the message is here, for groups {list(self._unordered[message].destinations)}")
            return [
                text,
                Phase("ordered", False, f"the log of group {self.home} does not have it", self._other_members),
            ]
        if any(entry.id == message for value, _ in self._queue for entry in value):
            ordered = Phase("ordered", True, f"the log of group {self.home} has it, behind round {self._round + 1}")
            return [ordered, self._explain_rounds(self._round + 1)]
        if any(collected.id == message for collected in self._collected):
            sentence = f"it is for the batch of round {self._instance // self._config.eta + 1}, which is not full"
            return [Phase("batched", False, sentence, self._other_members)]
        round = self._find_round(message)
        if not round:
            return [explain_unknown(self.me)]
        return [Phase("batched", True, f"it is in a batch of round {round}"), self._explain_rounds(round)]

    def _explain_rounds(self, last: int) -> Phase:
        """What the rounds up to `last` wait for."""
        for round in range(self._round + 1, last + 1):
            groups = self._missing_groups(round)
            if groups:
                sentence = f"batches of round {round} are missing, of groups {list(groups)}"
                return Phase("exchanged", False, sentence, self.topology.processes_of(groups))
        after = last * self._config.eta + self._config.kappa
        sentence = f"it is delivered after instance {after}; the log of group {self.home} is at {self._instance}"
        return Phase("reached", False, sentence, self._other_members)

    # Snapshots

    def _build_core(self) -> RoundsCore:
        return RoundsCore(
            self.position,
            self._instance,
            self._round,
            tuple(self._collected),
            tuple(sorted(self._own_batches.items())),
            self._ordered.snapshot(),
            self._delivered.snapshot(),
        )

    def _restore_core(self, core: RoundsCore) -> None:
        self._instance = core.instance
        self._round = core.round
        self._collected = list(core.collected)
        self._own_batches = dict(core.own_batches)
        self._ordered.restore(core.ordered)
        self._delivered.restore(core.delivered)

    def _durable_round(self) -> int:
        """The last round delivered in the checkpoint of the log, from which this process would restart."""
        return max(0, self._paxos.log.checkpoint_end - self._config.kappa) // self._config.eta

    def _install_core(self, state: bytes) -> None:
        """Installs the state of another member, or the own one of an earlier incarnation, if it is further."""
        core = msgspec.msgpack.decode(state, type=RoundsCore)
        if core.instance <= self._instance and core.round <= self._round:
            return
        for _ in range(min(len(self._queue), core.instance - self._instance)):
            self._queue.popleft()
        self._restore_core(core)
        for id in [id for id in self._unordered if id in self._ordered]:
            self._remove_request(id)
        self.install_position(core.position)

    def _snapshot_base(self) -> RoundsState:
        return RoundsState(
            self._build_core(),
            self._paxos.snapshot(),
            tuple(self._queue),
            tuple(self._unordered.values()),
            tuple(sorted(self._overdue)),
            tuple(self._unproposed),
            tuple(sorted(self._held_since.items())),
            self._led_ballot,
            self._last_proposal_ns,
            self._round_timer,
            self._overdue_round,
            self._retry_armed,
        )

    def _restore_base(self, state: RoundsState) -> None:
        self._restore_core(state.core)
        self.position = state.core.position
        self._paxos.restore(state.paxos)
        self._queue = deque(state.queue)
        self._unordered = {message.id: message for message in state.unordered}
        self._overdue = set(state.overdue)
        self._unproposed = dict.fromkeys(state.unproposed)
        self._held_since = dict(state.held_since)
        self._led_ballot = state.led_ballot
        self._last_proposal_ns = state.last_proposal_ns
        self._round_timer = state.round_timer
        self._overdue_round = state.overdue_round
        self._retry_armed = state.retry_armed


def about(messages: Iterable[Message]) -> About:
    """The ids of some messages."""
    ids = tuple(message.id for message in messages)
    return ids[0] if len(ids) == 1 else ids or None

"""MultiPaxos as atomic multicast: one fixed group orders every message, wherever it goes. Not genuine.

Source: paper 003 section 5.1, the non-genuine reference; Paxos itself is `parts/consensus/paxos.py`.

    client      leader of g0    g0 members    all servers     (g0: the ordering group, the first unless configured)
      |--Request---->|              |             |
      |              |--Accept----->|------------>|    phase 2a, with the message
      |              |              |--Accepted-->|    phase 2b, from every member of g0
      |              |              |          deliver, if it is a destination; else only count

Claims: three message delays for every message, local or not; only the ordering group votes, and every server receives
every message. Survives crashes of minorities, recovery from disk, loss of state.

Deviations: the paper does not treat learners that fall behind. Here a learner stores checkpoints and reports them to
the ordering group (CheckpointStored), which truncates its log only below what a majority of every group has stored. A
learner that lost its state gets a checkpoint from its own group, because it contains what the group delivered.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Contacts, Spec, majorities_survive
from amcast.kernel.statements import Domain, Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, CheckpointReady, Entry, Value
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.consensus.statements import build_paxos_table
from amcast.parts.groups.claims import CRASH_FAULTS, PAXOS_RECOVERY_GOALS
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.multipaxos.messages import (
    CheckpointStored,
    MultiPaxosCheckpoint,
    MultiPaxosConfig,
    MultiPaxosState,
)

RETRY: Final = "retry"


class MultiPaxos(Process):
    """A server: a member of the ordering group, or a learner."""

    def __init__(self, me: ProcessId, topology: Topology, config: MultiPaxosConfig) -> None:
        super().__init__(me, topology)
        self._config = config
        self._ordering_group = find_ordering_group(topology, config)
        self._members = topology.members(self._ordering_group)
        self._paxos = Paxos(self, self._members, config, self._list_learners())
        self._ordered_count = 0
        """The number of messages in the log, for any destination: the rank of the next one."""
        self._positions: dict[GroupId, int] = dict.fromkeys(topology.groups, 0)
        """By group: how many of them it delivers."""
        self._ordered_ids = DeliveredSet()
        """The messages in the log."""
        self._step_ids: list[MessageId] = []
        """The messages that the last step applied."""
        self._has_stepped = False
        self._requests: dict[MessageId, Message] = {}
        """Messages that have arrived and are not in the log."""
        self._overdue_requests: set[MessageId] = set()
        """Requests that waited already when the timer was set."""
        self._unproposed: list[MessageId] = []
        """Requests that this member has not proposed in its ballot."""
        self._led_ballot = 0
        """The ballot in which every waiting request was proposed."""
        self._stored_until: dict[ProcessId, int] = {}
        """By learner: the end of its last durable checkpoint."""
        self._timer_set = False

    def _list_learners(self) -> tuple[ProcessId, ...]:
        others = tuple(server for server in self.topology.servers if server not in self._members)
        return (*self._members, *others)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self._members

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._ordered_ids

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        """The messages of the log up to one that this step delivers, those for other groups included."""
        ordered = DeliveredSet()
        ordered.restore(self._ordered_ids.snapshot())
        if until in self._step_ids:
            for id in self._step_ids[self._step_ids.index(until) + 1 :]:
                ordered.forget(id)
        return ordered.snapshot()

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        if len(self.topology.groups) > 1 and self.group == self._ordering_group:
            self._paxos.log.retain_from = 0
        self._apply(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        is_known = message.id in self._ordered_ids or message.id in self._requests
        if self.group == self._ordering_group and not is_known:
            self._requests[message.id] = message
            self._unproposed.append(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if type(body) is CheckpointStored:
            self._update_retention(sender, body.end)
            return
        self._apply(self._paxos.receive(sender, body))
        if type(body) is CheckpointReady and self.group != self._ordering_group:
            self.send_all(self._members, CheckpointStored(self._paxos.log.checkpoint_end))

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group == self._ordering_group and leader in self._members:
            self._paxos.handle_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.handle_link_reset(peer)
        if self.group != self._ordering_group and peer in self._members:
            self.send(peer, CheckpointStored(self._paxos.log.checkpoint_end))

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
            return
        self._timer_set = False
        leader = self._paxos.suggested_leader
        for id in [id for id in self._requests if id in self._overdue_requests]:
            if leader != self.me:
                self.send(leader, Request(self._requests[id]), id)
        self._overdue_requests = set(self._requests)

    def on_step_end(self) -> None:
        self._has_stepped = True
        if self._paxos.can_propose():
            self._propose()
        else:
            self._unproposed = []
        self._paxos.flush()
        if self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._make_checkpoint()))
        if self._requests and not self._timer_set:
            self._timer_set = True
            self.set_timer(RETRY, self._config.retry_ns)

    # Ordering

    def _propose(self) -> None:
        if self._led_ballot != self._paxos.ballot:
            self._led_ballot = self._paxos.ballot
            self._unproposed = list(self._requests)
        if self._unproposed:
            unproposed, self._unproposed = self._unproposed, []
            value = tuple(Entry(0, id, message=self._requests[id]) for id in unproposed if id in self._requests)
            if value:
                self._paxos.propose(value)

    def _apply(self, decided: Decided) -> None:
        if self._has_stepped:
            self._step_ids, self._has_stepped = [], False
        for _, value in decided:
            if type(value) is bytes:
                self._install_checkpoint(msgspec.msgpack.decode(value, type=MultiPaxosCheckpoint))
            else:
                self._apply_value(value)  # type: ignore[arg-type]

    def _apply_value(self, value: Value) -> None:
        for entry in value:
            message = entry.message
            assert message is not None
            self._requests.pop(message.id, None)
            if not self._ordered_ids.add(message.id):
                self.note("repeated", message.id)
                continue
            self._step_ids.append(message.id)
            for group in message.destinations:
                self._positions[group] += 1
            if self.group in message.destinations:
                self.deliver(message, self._ordered_count, message.id)
            self._ordered_count += 1

    # Truncation

    def _update_retention(self, learner: ProcessId, end: int) -> None:
        """Retains every value that a majority of some group has not stored."""
        self._stored_until[learner] = max(end, self._stored_until.get(learner, 0))
        stored = []
        for group in self.topology.groups:
            if group != self._ordering_group:
                ends = [self._stored_until.get(member, 0) for member in self.topology.members(group)]
                stored.append(sorted(ends, reverse=True)[self.topology.quorum(group) - 1])
        self._paxos.log.retain_from = min(stored)

    def _make_checkpoint(self) -> MultiPaxosCheckpoint:
        positions = tuple(sorted(self._positions.items()))
        return MultiPaxosCheckpoint(self._ordered_count, positions, self._ordered_ids.snapshot())

    def _install_checkpoint(self, checkpoint: MultiPaxosCheckpoint) -> None:
        self._ordered_count = checkpoint.ordered_count
        self._positions = dict(checkpoint.positions)
        self._ordered_ids.restore(checkpoint.ordered_ids)
        self._requests = {id: message for id, message in self._requests.items() if id not in self._ordered_ids}
        self._led_ballot = -1
        if self.group is not None:
            self.install_position(self._positions[self.group])

    # For operators

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._paxos.role,
            "pending": len(self._requests),
            "ordered": self._ordered_count,
            "joined": int(self._paxos.has_joined()),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._ordered_ids:
            return [Phase("delivered", True, f"the log of process {self.me} has it")]
        others = tuple(member for member in self._members if member != self.me)
        if message in self._requests:
            groups = list(self._requests[message].destinations)
            return [
                Phase("text", True, f"the message has arrived; its destinations are groups {groups}"),
                Phase("ordered", False, f"group {self._ordering_group} has not ordered it", others),
            ]
        if self.group == self._ordering_group:
            return [Phase("text", False, f"process {self.me} has not received it")]
        return [
            Phase(
                "ordered",
                False,
                f"group {self._ordering_group} orders every message; its log, as known here, does not have it",
                others,
            )
        ]

    def snapshot(self) -> MultiPaxosState:
        return MultiPaxosState(
            self.position,
            self._make_checkpoint(),
            self._paxos.snapshot(),
            tuple(self._requests.values()),
            tuple(sorted(self._overdue_requests)),
            tuple(self._unproposed),
            self._led_ballot,
            tuple(sorted(self._stored_until.items())),
            self._timer_set,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, MultiPaxosState)
        self.position = state.position
        self._ordered_count = state.checkpoint.ordered_count
        self._positions = dict(state.checkpoint.positions)
        self._ordered_ids.restore(state.checkpoint.ordered_ids)
        self._paxos.restore(state.paxos)
        self._requests = {message.id: message for message in state.requests}
        self._overdue_requests = set(state.overdue_requests)
        self._unproposed = list(state.unproposed)
        self._led_ballot = state.led_ballot
        self._stored_until = dict(state.stored_until)
        self._timer_set = state.timer_set


def find_ordering_group(topology: Topology, config: MultiPaxosConfig) -> GroupId:
    """The group that the options name."""
    wanted = config.ordering
    if wanted is None:
        return topology.groups[0]
    for group in topology.groups:
        if wanted == group or (wanted and wanted == topology.names.get(group)):
            return group
    known = ", ".join(
        str(group) + (f" ({topology.names[group]})" if group in topology.names else "") for group in topology.groups
    )
    raise UsageError(f"options of protocol multipaxos: ordering = {wanted!r}; expected one of the groups {known}")


def make_contacts(config: MultiPaxosConfig) -> Contacts:
    """Contacts: the ordering group, whatever the destinations."""
    return lambda topology, message: topology.members(find_ordering_group(topology, config))


def build_statement_table(topology: Topology, config: MultiPaxosConfig) -> StatementTable:
    """Every server speaks of one log, that of the ordering group."""
    group = find_ordering_group(topology, config)
    domain = Domain(f"group {group}", topology.members(group))

    def state_log(listener: Listener, source: ProcessId, state: MultiPaxosState) -> None:
        listener.agree(source, "the state of the log, of length", state.paxos.log.decided_until, state.checkpoint)

    return replace(build_paxos_table(lambda process: domain), states={MultiPaxosState: state_log})


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Three at the leader and outside the ordering group; its followers in groups of three need one less."""
    return 3 if role == "max" and replicas > 1 else None


def _packets(destinations: int, replicas: int) -> int | None:
    """For messages to all groups: requests, 2a to every server, 2b from each member of the ordering group."""
    k, n = destinations, replicas
    return n + k * n + k * n * n


SPEC = Spec(
    name="multipaxos",
    summary="one fixed group orders everything with Paxos",
    source="paper 003 section 5.1; Lamport 1998",
    process=MultiPaxos,
    config=MultiPaxosConfig,
    bodies=(*PAXOS_BODIES, CheckpointStored),
    records=PAXOS_RECORDS,
    statements=build_statement_table,
    states=(MultiPaxosState,),
    claims=Claims(
        genuine="no",
        faults=CRASH_FAULTS,
        tolerates=majorities_survive,
        real_time=True,
        ranked=True,
        delays=_delays,
        packets=_packets,
    ),
    contacts=make_contacts(MultiPaxosConfig()),
    make_contacts=make_contacts,
    goals=("led", "admitted"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)

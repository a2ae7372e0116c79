"""MultiPaxos as atomic multicast: one fixed group orders every message, wherever it goes. Not genuine.

Source: paper 003 section 5.1, the non-genuine reference; Paxos itself is `parts/consensus/paxos.py`.

    client      leader of g0    g0 members    all servers     (g0: the ordering group, the first unless configured)
      |--Request---->|              |             |
      |              |--Accept----->|------------>|    phase 2a, with the message
      |              |              |--Accepted-->|    phase 2b, from every member of g0
      |              |              |          deliver, if addressed; count it, if not

Claims: three message delays for every message, local or not; nobody but the ordering group votes, everybody hears of
everything. Crashes of minorities, recovery from disk, loss of memory.

Deviations: the paper says nothing of learners that fall behind. Here a learner keeps what it delivered on its disk,
tells the ordering group how far (Stored), and the ordering group forgets its log only below what a majority of every
group has stored; a learner that lost everything is helped by its fellows, whose states say what the group delivered.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Contacts, Spec, majorities_survive
from amcast.kernel.topology import Topology
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, CheckpointReady, Entry, Value
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.groups.claims import CRASH_FAULTS
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.multipaxos.messages import (
    CheckpointStored,
    MultiPaxosCheckpoint,
    MultiPaxosConfig,
    MultiPaxosState,
)

RETRY: Final = "retry"


class MultiPaxos(Process):
    """A server: one that orders, if it is a member of the ordering group; one that listens, if not."""

    def __init__(self, me: ProcessId, topology: Topology, config: MultiPaxosConfig) -> None:
        super().__init__(me, topology)
        self._config = config
        self._ordering = find_ordering_group(topology, config)
        self._members = topology.members(self._ordering)
        self._paxos = Paxos(self, self._members, config, self._audience())
        self._ordered = 0
        """How many messages the log has, for any destination: the rank of the next one."""
        self._positions: dict[GroupId, int] = dict.fromkeys(topology.groups, 0)
        """How many of them each group delivers."""
        self._seen = DeliveredSet()
        """What the log has."""
        self._lately: list[MessageId] = []
        """What the last step read in the log."""
        self._stepped = False
        self._waiting: dict[MessageId, Message] = {}
        """What clients asked for and the log does not have yet."""
        self._old: set[MessageId] = set()
        """Those that waited already when the timer was set."""
        self._fresh: list[MessageId] = []
        """Those that I, leading, have not proposed."""
        self._led = 0
        """The ballot for which everything that waits was proposed."""
        self._stored: dict[ProcessId, int] = {}
        self._armed = False

    def _audience(self) -> tuple[ProcessId, ...]:
        others = tuple(server for server in self.topology.servers if server not in self._members)
        return (*self._members, *others)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self._members

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._seen

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        """The log up to a message of this step: what it has for other groups nobody sees delivered here."""
        ordered = DeliveredSet()
        ordered.restore(self._seen.snapshot())
        if until in self._lately:
            for id in self._lately[self._lately.index(until) + 1 :]:
                ordered.forget(id)
        return ordered.snapshot()

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        if len(self.topology.groups) > 1 and self.group == self._ordering:
            self._paxos.log.retain_from = 0
        self._apply(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        if self.group == self._ordering and message.id not in self._seen and message.id not in self._waiting:
            self._waiting[message.id] = message
            self._fresh.append(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if type(body) is CheckpointStored:
            self._hold(sender, body.upto)
            return
        self._apply(self._paxos.receive(sender, body))
        if type(body) is CheckpointReady and self.group != self._ordering:
            self.send_all(self._members, CheckpointStored(self._paxos.log.checkpoint_end))

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group == self._ordering and leader in self._members:
            self._paxos.handle_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.handle_link_reset(peer)
        if self.group != self._ordering and peer in self._members:
            self.send(peer, CheckpointStored(self._paxos.log.checkpoint_end))

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
            return
        self._armed = False
        leader = self._paxos.suggested_leader
        for id in [id for id in self._waiting if id in self._old]:
            if leader != self.me:
                self.send(leader, Request(self._waiting[id]), id)
        self._old = set(self._waiting)

    def on_step_end(self) -> None:
        self._stepped = True
        if self._paxos.can_propose():
            self._propose()
        else:
            self._fresh = []
        self._paxos.flush()
        if self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._core()))
        if self._waiting and not self._armed:
            self._armed = True
            self.set_timer(RETRY, self._config.retry_ns)

    # Ordering

    def _propose(self) -> None:
        if self._led != self._paxos.ballot:
            self._led = self._paxos.ballot
            self._fresh = list(self._waiting)
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            value = tuple(Entry(0, id, message=self._waiting[id]) for id in fresh if id in self._waiting)
            if value:
                self._paxos.propose(value)

    def _apply(self, decided: Decided) -> None:
        if self._stepped:
            self._lately, self._stepped = [], False
        for _, value in decided:
            if type(value) is bytes:
                self._install(msgspec.msgpack.decode(value, type=MultiPaxosCheckpoint))
            else:
                self._order(value)  # type: ignore[arg-type]

    def _order(self, value: Value) -> None:
        for entry in value:
            message = entry.message
            assert message is not None
            self._waiting.pop(message.id, None)
            if not self._seen.add(message.id):
                self.note("repeated", message.id)
                continue
            self._lately.append(message.id)
            for group in message.destinations:
                self._positions[group] += 1
            if self.group in message.destinations:
                self.deliver(message, self._ordered, message.id)
            self._ordered += 1

    # Truncation

    def _hold(self, learner: ProcessId, upto: int) -> None:
        """Nothing goes that a majority of some group has not stored."""
        self._stored[learner] = max(upto, self._stored.get(learner, 0))
        safe = []
        for group in self.topology.groups:
            if group != self._ordering:
                uptos = sorted((self._stored.get(member, 0) for member in self.topology.members(group)), reverse=True)
                safe.append(uptos[self.topology.quorum(group) - 1])
        self._paxos.log.retain_from = min(safe)

    def _core(self) -> MultiPaxosCheckpoint:
        return MultiPaxosCheckpoint(self._ordered, tuple(sorted(self._positions.items())), self._seen.snapshot())

    def _install(self, core: MultiPaxosCheckpoint) -> None:
        self._ordered = core.ordered
        self._positions = dict(core.positions)
        self._seen.restore(core.seen)
        self._waiting = {id: message for id, message in self._waiting.items() if id not in self._seen}
        self._led = -1
        if self.group is not None:
            self.install_position(self._positions[self.group])

    # For operators

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._paxos.role,
            "pending": len(self._waiting),
            "ordered": self._ordered,
            "joined": int(self._paxos.has_joined()),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._seen:
            return [Phase("delivered", True, f"the log of process {self.me} has it, and was carried out so far")]
        others = tuple(member for member in self._members if member != self.me)
        if message in self._waiting:
            return [
                Phase("text", True, f"the message is here, for groups {list(self._waiting[message].destinations)}"),
                Phase("ordered", False, f"group {self._ordering} has not agreed on a place for it", others),
            ]
        if self.group == self._ordering:
            return [Phase("text", False, f"process {self.me} has never heard of it")]
        return [
            Phase(
                "ordered",
                False,
                f"group {self._ordering} orders everything; its log, as known here, ends before",
                others,
            )
        ]

    def snapshot(self) -> MultiPaxosState:
        return MultiPaxosState(
            self.position,
            self._core(),
            self._paxos.snapshot(),
            tuple(self._waiting.values()),
            tuple(sorted(self._old)),
            tuple(self._fresh),
            self._led,
            tuple(sorted(self._stored.items())),
            self._armed,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, MultiPaxosState)
        self.position = state.position
        self._ordered = state.core.ordered
        self._positions = dict(state.core.positions)
        self._seen.restore(state.core.seen)
        self._paxos.restore(state.paxos)
        self._waiting = {message.id: message for message in state.waiting}
        self._old = set(state.old)
        self._fresh = list(state.fresh)
        self._led = state.led
        self._stored = dict(state.stored)
        self._armed = state.armed


def find_ordering_group(topology: Topology, config: MultiPaxosConfig) -> GroupId:
    """The group that a configuration names."""
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
    """The ordering group, whatever the destinations."""
    return lambda topology, message: topology.members(find_ordering_group(topology, config))


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Three at the leader and outside the ordering group; its followers in groups of three are one delay earlier."""
    return 3 if role == "max" and replicas > 1 else None


def _packets(destinations: int, replicas: int) -> int | None:
    """Where every group is addressed: requests, 2a to every server, 2b from each member of the ordering group."""
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
    states=(MultiPaxosState,),
    claims=Claims(
        genuine="no",
        faults=CRASH_FAULTS,
        tolerates=majorities_survive,
        ranked=True,
        delays=_delays,
        packets=_packets,
    ),
    contacts=make_contacts(MultiPaxosConfig()),
    make_contacts=make_contacts,
    goals=("led", "admitted"),
)

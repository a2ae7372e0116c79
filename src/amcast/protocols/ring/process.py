"""The ring: a message visits its destinations one after the other, and each is locked until the last has it.

Source: Delporte-Gallet and Fauconnier, "Fault-tolerant genuine atomic multicast to multiple groups" (2000), as
described in paper 001, section 3.1. It serves as a baseline.

    client       g1           g2           g3           message m to g1, g2 and g3
      |--Request->|            |            |
      |        deliver         |            |
      |           |--Pass----->|            |
      |           |         deliver         |
      |           |            |--Pass----->|
      |           |            |         deliver
      |           |<--End-------------------|
      |           |            |<--End------|           g1 and g2 are locked until here

Claims: genuine; i message delays at the i-th destination, unlocked after k + 1; links in any order; one process per
group (or several, by `parts/groups/replicated.py`). All messages lock groups in the same order, so that no deadlock
arises.

Deviations: none known; the source is a paragraph.
"""

from collections import deque
from collections.abc import Hashable

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Contacts, Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.groups.claims import LINK_FAULTS, PAXOS_RECOVERY_GOALS, adapt_replicated_claims, replicate_claims
from amcast.parts.groups.replicated import replicate
from amcast.parts.groups.replicated_messages import REPLICATED_BODIES, ReplicatedState
from amcast.parts.groups.statements import make_replicated_table
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.overlay import Order, contact_lca, parse_order, rank_delays, rank_role
from amcast.protocols.ring.messages import End, Pass, RingConfig, RingState


class Ring(Process):
    """One group."""

    def __init__(self, me: ProcessId, topology: Topology, config: RingConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is a client"
        self.home: GroupId = self.group
        self.order: Order = parse_order(config.order, topology)
        self._requested = DeliveredSet()
        """Clients' requests; a Pass arrives only once."""
        self._queue: deque[tuple[Message, int]] = deque()
        """Messages to deliver next, each with its arrival time."""
        self._locked: MessageId | None = None
        """The message that was delivered here and not yet at its last destination."""

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self.topology.members(self.order.lca(message.destinations))

    def on_request(self, message: Message) -> None:
        if self.order.lca(message.destinations) == self.home and self._requested.add(message.id):
            self._enqueue(message)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Pass(message):
                self._enqueue(message)
            case End(message_id):
                assert self._locked == message_id, f"group {self.home} is locked by {self._locked}, not {message_id}"
                self._locked = None
                self.last_global_ns = self.now  # only global messages lock
                self._deliver_ready()
            case _:
                raise AssertionError(f"the ring has no body {body!r}")

    def _enqueue(self, message: Message) -> None:
        if self._locked is not None:
            self.note("locked", message.id)
        self._queue.append((message, self.now))
        self._deliver_ready()

    def _deliver_ready(self) -> None:
        while self._queue and self._locked is None:
            message, since_ns = self._queue.popleft()
            path = self.order.sorted(message.destinations)
            place = path.index(self.home)
            self.deliver(message, committed_ns=since_ns)
            if place + 1 < len(path):
                self._locked = message.id
                self.send_all(self.topology.members(path[place + 1]), Pass(message), message.id)
            else:
                for group in path[:-1]:
                    self.send_all(self.topology.members(group), End(message.id), message.id)

    def status(self) -> ProcessStatus:
        return {"position": self.position, "pending": len(self._queue), "locked": int(self._locked is not None)}

    def explain(self, message: MessageId) -> list[Phase]:
        for place, (waiting, _) in enumerate(self._queue):
            if waiting.id == message:
                sentence = f"{place} messages are before it, and group {self.home} is locked by message {self._locked}"
                return [
                    Phase("text", True, f"the message is here, for groups {list(waiting.destinations)}"),
                    Phase("first", False, f"{sentence} until that is at its last destination"),
                ]
        if message == self._locked:
            return [Phase("passed", False, "it is delivered here, and its last destination has not confirmed it")]
        return [Phase("text", False, f"group {self.home} does not know the message, or has delivered it")]

    def snapshot(self) -> RingState:
        return RingState(self.position, self._requested.snapshot(), tuple(self._queue), self._locked)

    def restore(self, state: State) -> None:
        assert isinstance(state, RingState)
        self.position = state.position
        self._requested.restore(state.requested)
        self._queue = deque(state.queue)
        self._locked = state.locked


def make_contacts(config: RingConfig) -> Contacts:
    """Requests go to the first destination, in the order that the settings name."""
    return contact_lca(lambda topology: parse_order(config.order, topology))


def _packets(destinations: int, replicas: int) -> int:
    """The request, one Pass to each further destination, one End to each earlier one."""
    return 1 + 2 * (destinations - 1)


def _describe_state(state: RingState) -> Hashable:
    """What follows from the log: all but the times at which messages were committed."""
    return (state.position, state.requested, tuple([message for message, _ in state.queue]), state.locked)


UNREPLICATED = Claims(genuine="strict", links="reordering", faults=LINK_FAULTS, delays=rank_delays, packets=_packets)

SPEC = Spec(
    name="ring",
    summary="a message visits its destinations one by one; each is locked until the last has it",
    source="Delporte-Gallet and Fauconnier 2000, described in paper 001 section 3.1",
    process=replicate(Ring, (Pass, End), RingState),
    config=RingConfig,
    bodies=(Pass, End, *REPLICATED_BODIES, *PAXOS_BODIES),
    records=PAXOS_RECORDS,
    statements=make_replicated_table(RingState, _describe_state),
    adapt_claims=adapt_replicated_claims,
    states=(RingState, ReplicatedState),
    claims=replicate_claims(UNREPLICATED),
    unreplicated=UNREPLICATED,
    role_of=rank_role,
    contacts=make_contacts(RingConfig()),
    make_contacts=make_contacts,
    goals=("locked",),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)

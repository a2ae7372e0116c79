"""Skeen's protocol: every destination proposes a timestamp, the highest wins.

Source: D. Skeen, unpublished, described by Birman and Joseph (1987); here after papers 000 (section 3) and 002 (3.1).

    client      p0          p1
      |--Request->|           |
      |--Request------------->|
      |           |--Propose->|      each destination proposes its clock + 1
      |           |<-Propose--|      to all destinations, itself included
      |        deliver     deliver   at max(proposals), once no message can get a lower one

Claims: genuine; two message delays; reliable links in any order; groups of one correct process. Groups of several
processes, a minority of which may crash, run it by `parts/groups/replicated.py`: six message delays.
Deviations: ties are broken by message id, as (timestamp, id) pairs; a proposal may arrive before its message.
"""

from heapq import heappop, heappush, heapreplace

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.groups.claims import LINK_FAULTS, PAXOS_RECOVERY_GOALS, adapt_replicated_claims, replicate_claims
from amcast.parts.groups.replicated import replicate
from amcast.parts.groups.replicated_messages import REPLICATED_BODIES, ReplicatedState
from amcast.parts.groups.statements import make_replicated_table
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.skeen.messages import Propose, SkeenConfig, SkeenPending, SkeenState


class _Pending:
    """A message that is not delivered."""

    __slots__ = ("committed_ns", "highest", "message", "proposed", "proposers")

    def __init__(self) -> None:
        self.message: Message | None = None
        self.proposed = 0
        """This process's proposal; 0 before the message arrived. The final timestamp is never lower."""
        self.highest = 0
        """The highest proposal; the final timestamp once every destination has proposed."""
        self.proposers: set[GroupId] = set()
        self.committed_ns = -1
        """When the final timestamp became known here; -1 before."""


class Skeen(Process):
    """The only process of a group."""

    def __init__(self, me: ProcessId, topology: Topology, config: SkeenConfig) -> None:
        super().__init__(me, topology)
        self._clock = 0
        """Later proposals are higher."""
        self._pending: dict[MessageId, _Pending] = {}
        self._queue: list[tuple[int, MessageId]] = []
        """Heap over the pending messages with a proposal of this process: a lower bound of each one's final (timestamp,
        id)."""
        self._requested = DeliveredSet()
        """Messages that were given a proposal. A request that is repeated, even in the step that delivers its message,
        gets no second one."""

    def on_request(self, message: Message) -> None:
        assert self.group in message.destinations, f"process {self.me} is no destination of message {message.id}"
        id = message.id
        if not self._requested.add(id):
            return
        entry = self._pending.get(id) or self._add_pending(id)
        self._clock = clock = self._clock + 1
        entry.message = message
        entry.proposed = clock
        heappush(self._queue, (clock, id))
        self.send_all(self.topology.processes_of(message.destinations), Propose(id, self.group, clock), id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        assert type(body) is Propose, f"Skeen has no body {body!r}"
        self._handle_propose(body.message, body.group, body.timestamp)

    def _add_pending(self, message: MessageId) -> _Pending:
        entry = self._pending[message] = _Pending()
        return entry

    def _handle_propose(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(message) or self._add_pending(message)
        entry.proposers.add(group)
        if timestamp > entry.highest:
            entry.highest = timestamp
        if entry.message is None:
            self.note("early", message)
        elif len(entry.proposers) == len(entry.message.destinations):
            # The own proposal comes over a link too, so that all proposals imply the message.
            entry.committed_ns = self.now
            self.end_blocking(entry.message)
            if entry.highest > self._clock:
                self._clock = entry.highest
            self._deliver_ready(message)

    def _deliver_ready(self, committed: MessageId) -> None:
        queue = self._queue
        while queue:
            bound, message = queue[0]
            entry = self._pending[message]
            if entry.committed_ns < 0:
                break
            if entry.highest > bound:
                heapreplace(queue, (entry.highest, message))
                continue
            heappop(queue)
            del self._pending[message]
            assert entry.message is not None
            if message != committed:
                self.note("waited", message)
            self.deliver(entry.message, entry.highest, message, entry.committed_ns)

    def status(self) -> ProcessStatus:
        return {"position": self.position, "pending": len(self._queue), "clock": self._clock}

    def explain(self, message: MessageId) -> list[Phase]:
        entry = self._pending.get(message)
        if entry is None:
            return [Phase("text", False, f"process {self.me} does not know the message, or has delivered it")]
        if entry.message is None:
            return [
                Phase("text", False, f"groups {sorted(entry.proposers)} have proposed; the message has not arrived")
            ]
        groups = entry.message.destinations
        phases = [Phase("text", True, f"the message is here, for groups {list(groups)}; proposed: {entry.proposed}")]
        missing = [group for group in groups if group not in entry.proposers]
        if missing:
            late = self.topology.processes_of(tuple(missing))
            return [*phases, Phase("proposed", False, f"no proposal has arrived from groups {missing}", late)]
        first = self._queue[0][1]
        sentence = f"its timestamp is {entry.highest}; message {first}, which may be earlier, is not delivered"
        return [*phases, Phase("proposed", True, "every group has proposed"), Phase("first", False, sentence)]

    def snapshot(self) -> SkeenState:
        return SkeenState(
            self.position,
            self._clock,
            tuple(
                SkeenPending(id, e.message, e.proposed, e.highest, tuple(sorted(e.proposers)), e.committed_ns)
                for id, e in sorted(self._pending.items())
            ),
            self._requested.snapshot(),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, SkeenState)
        self.position = state.position
        self._clock = state.clock
        self._requested.restore(state.requested)
        self._pending = {}
        self._queue = []
        for saved in state.pending:
            entry = self._pending[saved.id] = _Pending()
            entry.message = saved.message
            entry.proposed = saved.proposed
            entry.highest = saved.highest
            entry.proposers = set(saved.proposers)
            entry.committed_ns = saved.committed_ns
            if saved.message is not None:
                heappush(self._queue, (saved.proposed, saved.id))


UNREPLICATED = Claims(
    genuine="strict",
    links="reordering",
    faults=LINK_FAULTS,
    ranked=True,
    delays=lambda role, destinations, replicas: 2 if destinations > 1 else 1,
    packets=lambda destinations, replicas: destinations + destinations * destinations,
)

SPEC = Spec(
    name="skeen",
    summary="every destination proposes a timestamp, the highest wins",
    source="Skeen, described by Birman and Joseph 1987; papers 000 section 3, 002 section 3.1",
    process=replicate(Skeen, (Propose,), SkeenState),
    config=SkeenConfig,
    bodies=(Propose, *REPLICATED_BODIES, *PAXOS_BODIES),
    records=PAXOS_RECORDS,
    statements=make_replicated_table(SkeenState),
    adapt_claims=adapt_replicated_claims,
    states=(SkeenState, SkeenPending, ReplicatedState),
    claims=replicate_claims(UNREPLICATED),
    unreplicated=UNREPLICATED,
    goals=("waited", "early"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)

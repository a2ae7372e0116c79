"""TreeCast: messages enter a tree of groups at the lowest common ancestor of their destinations and descend in order.

Source: paper 004 (thesis), section 3.2, algorithm 2, and 4.1.2; ByzCast (Coelho et al., 2018) without Byzantine groups.

    client        A            B            C           A above B and C; message m to B and C
      |--Request->|            |            |
      |           |--Forward-->|            |           A orders m, and delivers it only if it is a destination
      |           |--Forward--------------->|
      |           |         deliver      deliver
      |           |<-Confirm---|            |
      |           |<-Confirm----------------|
      |<--Reply---|                                     once for every destination

Every group orders what arrives from clients and from its parent in one sequence; children preserve their parent's
order, because links are FIFO. The highest group that handles two messages orders them for all.

Claims: d + 1 message delays at a destination d levels below the lowest common ancestor; not genuine, but for messages
to one group; FIFO links; one process per group (or several, by `parts/groups/replicated.py`).

Deviations: the paper assumes FIFO links without mentioning them; a repeated request is dropped
before it is forwarded, so that copies do not multiply below; the confirmation is one Reply per destination.
"""

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Reply, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Contacts, Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.groups.claims import LINK_FAULTS, PAXOS_RECOVERY_GOALS, adapt_replicated_claims, replicate_claims
from amcast.parts.groups.replicated import replicate
from amcast.parts.groups.replicated_messages import REPLICATED_BODIES, ReplicatedState
from amcast.parts.groups.statements import make_replicated_table
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.overlay import Tree, contact_lca, parse_tree
from amcast.protocols.treecast.messages import Confirm, Forward, TreeCastConfig, TreeCastState, TreeCastWaiting


class _Waiting:
    """A message that was ordered here and that some child has not confirmed."""

    __slots__ = ("destinations", "missing", "sender")

    def __init__(self, sender: ProcessId, destinations: tuple[GroupId, ...], missing: set[GroupId]) -> None:
        self.sender = sender
        self.destinations = destinations
        self.missing = missing


class TreeCast(Process):
    """One group."""

    sends_replies = True

    def __init__(self, me: ProcessId, topology: Topology, config: TreeCastConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is a client"
        self.home: GroupId = self.group
        self.config = config
        self.tree: Tree = parse_tree(config.edges, topology)
        self.parent = self.tree.parent[self.home]
        self._requested = DeliveredSet()
        """Clients' requests to this group; a Forward arrives only once."""
        self._waiting: dict[MessageId, _Waiting] = {}

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self.topology.members(self.tree.lca(message.destinations))

    def on_request(self, message: Message) -> None:
        if self.tree.lca(message.destinations) == self.home and self._requested.add(message.id):
            self._order(message)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Forward(message):
                self._order(message)
            case Confirm(message_id):
                group = self.topology.group_of(sender)
                assert group is not None, f"process {sender} is a client and confirms message {message_id}"
                self._handle_confirm(message_id, group)
            case Reply():
                pass  # this process multicast the message itself
            case _:
                raise AssertionError(f"TreeCast has no body {body!r}")

    def _order(self, message: Message) -> None:
        below = self.tree.children_towards(self.home, message.destinations)
        for child in below:
            self.send_all(self.topology.members(child), Forward(message), message.id)
        if self.home in message.destinations:
            self.deliver(message)
        else:
            self.note("passed", message.id)
        if self.config.confirm:
            self._waiting[message.id] = _Waiting(message.sender, message.destinations, set(below))
            self._try_confirm(message.id)

    def _handle_confirm(self, message: MessageId, child: GroupId) -> None:
        self._waiting[message].missing.discard(child)
        self._try_confirm(message)

    def _try_confirm(self, message: MessageId) -> None:
        """Confirms a message to the parent, or replies to the client, once all children have confirmed."""
        waiting = self._waiting[message]
        if waiting.missing:
            return
        del self._waiting[message]
        if self.tree.lca(waiting.destinations) != self.home:
            assert self.parent is not None, f"the root is below the common ancestor of {waiting.destinations}"
            self.send_all(self.topology.members(self.parent), Confirm(message), message)
            return
        self.note("confirmed", message)
        for group in waiting.destinations:
            self.send(waiting.sender, Reply(message, group), message)

    def status(self) -> ProcessStatus:
        return {"position": self.position, "pending": len(self._waiting)}

    def explain(self, message: MessageId) -> list[Phase]:
        waiting = self._waiting.get(message)
        if waiting is None:
            above = () if self.parent is None else self.topology.members(self.parent)
            sentence = (
                f"group {self.home} does not know the message, or is done with it; it comes from a client or the parent"
            )
            return [Phase("text", False, sentence, above)]
        late = self.topology.processes_of(tuple(sorted(waiting.missing)))
        sentence = f"groups {sorted(waiting.missing)} below have not confirmed it"
        return [
            Phase("text", True, f"the message was ordered here, for groups {list(waiting.destinations)}"),
            Phase("confirmed", False, sentence, late),
        ]

    def snapshot(self) -> TreeCastState:
        return TreeCastState(
            self.position,
            self._requested.snapshot(),
            tuple(
                TreeCastWaiting(id, w.sender, w.destinations, tuple(sorted(w.missing)))
                for id, w in sorted(self._waiting.items())
            ),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, TreeCastState)
        self.position = state.position
        self._requested.restore(state.requested)
        self._waiting = {w.id: _Waiting(w.sender, w.destinations, set(w.missing)) for w in state.waiting}


def make_contacts(config: TreeCastConfig) -> Contacts:
    """Requests go to the lowest common ancestor, in the tree that the settings name."""
    return contact_lca(lambda topology: parse_tree(config.edges, topology))


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Of a lone message to all groups of the default tree, whose root is the lowest common ancestor."""
    depth = (destinations.bit_length() - 1) if role == "max" else int(role.removeprefix("depth-"))
    return depth + 1


def _packets(destinations: int, replicas: int) -> int:
    """The request, down and up along every edge, and a Reply for every destination."""
    return 1 + 2 * (destinations - 1) + destinations


def _role(topology: Topology, process: ProcessId) -> str:
    group = topology.group_of(process)
    return f"depth-{(topology.groups.index(group) + 1).bit_length() - 1}" if group is not None else "client"


UNREPLICATED = Claims(genuine="no", faults=LINK_FAULTS, delays=_delays, packets=_packets)

SPEC = Spec(
    name="treecast",
    summary="a tree of groups; messages descend from the lowest common ancestor of their destinations",
    source="paper 004 sections 3.2 and 4.1.2",
    process=replicate(TreeCast, (Forward, Confirm), TreeCastState),
    config=TreeCastConfig,
    bodies=(Forward, Confirm, *REPLICATED_BODIES, *PAXOS_BODIES),
    records=PAXOS_RECORDS,
    statements=make_replicated_table(TreeCastState),
    adapt_claims=adapt_replicated_claims,
    states=(TreeCastState, ReplicatedState),
    claims=replicate_claims(UNREPLICATED),
    unreplicated=UNREPLICATED,
    role_of=_role,
    contacts=make_contacts(TreeCastConfig()),
    make_contacts=make_contacts,
    goals=("passed", "confirmed"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)

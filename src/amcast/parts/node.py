"""A node: protocol, leader oracle and the server side of sessions, composed into one process.

    Heartbeat, omega timers --> Omega --Leader--+
    Request ---- delivered already? --> Reply   v
            \\--- new ------------------------> protocol --> effects, and for each Deliver a Reply to the sender
    everything else --------------------------->

The protocol inside is the same object that runs bare in the simulator; it does not know that it is inside a node. A
sender is told when its message is delivered here, and told again whenever it asks again: the message itself is ordered
and delivered once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from amcast.kernel.effects import Deliver, Effect, Send
from amcast.kernel.events import Event, Leader, Receive, Started, Submit, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.bodies.node import NodeConfig, NodeState
from amcast.parts.bodies.omega import Heartbeat
from amcast.parts.bodies.session import Hint
from amcast.parts.omega import Omega
from amcast.parts.seen import Seen


class Node(Process):
    """One server of one group."""

    def __init__(self, protocol: Process, config: NodeConfig) -> None:
        super().__init__(protocol.me, protocol.topology)
        assert self.group is not None, f"process {self.me} is a client; nodes are servers"
        self.home: GroupId = self.group
        self.protocol = protocol
        self.config = config
        members = self.topology.members(self.home)
        self.omega = Omega(self, members, config.omega) if config.omega is not None else None
        self.delivered = Seen()
        """What was delivered here in this life; the protocol knows about earlier ones."""
        self._asked: dict[MessageId, set[GroupId]] = {}
        """Messages that this very node multicast, and the groups that have not answered."""
        self._leaders: dict[GroupId, ProcessId] = {g: self.topology.members(g)[0] for g in self.topology.groups}

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        self.now = now
        inside: list[Event] = []
        for event in events:
            if not self._mine(event, inside):
                inside.append(event)
        effects = self.protocol.step(inside, now)
        if self._outbox:
            effects = self._outbox + effects
            self._outbox = []
        return self._answering(effects)

    def _mine(self, event: Event, inside: list[Event]) -> bool:
        """Handle what is not for the protocol; what the oracle says goes inside."""
        if type(event) is Receive:
            return self._my_body(event.sender, event.body, inside)
        match event:
            case Timer(name) if name.startswith("omega"):
                if self.omega is not None:
                    leader = self.omega.tick(name)
                    # Whatever else was suggested meanwhile, the oracle has the last word.
                    told = self._leaders[self.home]
                    self._led_by(self.omega.leader if told != self.omega.leader else leader, inside)
                return True
            case Submit(message):
                self._asked[message.id] = set(message.destinations)
            case Leader(group, leader):
                self._leaders[group] = leader
            case Started(_, life):
                if self.omega is not None:
                    self.omega.begin(life)
        return False

    def _my_body(self, sender: ProcessId, body: Body, inside: list[Event]) -> bool:
        kind = type(body)
        if kind is Heartbeat:
            if self.omega is not None:
                self._led_by(self.omega.hear(sender, body), inside)  # type: ignore[arg-type]
        elif kind is Reply:
            self._answered(body.message, body.group)  # type: ignore[attr-defined]
        elif kind is Request:
            return self._was_delivered(sender, body.message)  # type: ignore[attr-defined]
        else:
            return False
        return True

    def _led_by(self, leader: ProcessId | None, inside: list[Event]) -> None:
        if leader is not None:
            self._leaders[self.home] = leader
            inside.append(Leader(self.home, leader))

    def _answered(self, message: MessageId, group: GroupId) -> None:
        """A group answered a message that this very node multicast."""
        groups = self._asked.get(message)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self._asked[message]
                self.resolve(message)

    def _was_delivered(self, sender: ProcessId, message: Message) -> bool:
        """Answer a sender that asks again."""
        if self.has_delivered(message.id):
            self.send(message.sender, Reply(message.id, self.home), message.id)
            return True
        leader = self._leaders[self.home]
        if sender == message.sender and leader not in (self.me, self.topology.members(self.home)[0]):
            self.send(message.sender, Hint(self.home, leader), message.id)
        return False

    def _answering(self, effects: list[Effect]) -> list[Effect]:
        """Put a Reply behind every Deliver."""
        answers = self.config.replies == "all" or self._leaders[self.home] == self.me
        told: list[Effect] = []
        for effect in effects:
            told.append(effect)
            if type(effect) is Deliver:
                message = effect.message
                self.delivered.add(message.id)
                if answers:
                    told.append(Send((message.sender,), Reply(message.id, self.home), message.id))
        return told

    # A node has no life of its own between its parts

    def has_delivered(self, message: MessageId) -> bool:
        return message in self.delivered or self.protocol.has_delivered(message)

    def on_submit(self, message: Message) -> None:
        raise AssertionError("a node's events go to its parts")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError("a node's events go to its parts")

    def snapshot(self) -> NodeState:
        return NodeState(
            self.protocol.snapshot(),
            None if self.omega is None else self.omega.snapshot(),
            self.delivered.snapshot(),
            tuple((message, tuple(sorted(groups))) for message, groups in sorted(self._asked.items())),
            tuple(sorted(self._leaders.items())),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, NodeState)
        self.protocol.restore(state.protocol)
        if self.omega is not None and state.omega is not None:
            self.omega.restore(state.omega)
        self.delivered.restore(state.delivered)
        self._asked = {message: set(groups) for message, groups in state.asked}
        self._leaders = dict(state.leaders)


def noded(spec: Spec, node: NodeConfig) -> Spec:
    """The same protocol inside nodes: what a cluster runs, and what a simulation with clients that retry runs."""

    def make(me: ProcessId, topology: Topology, config: Any) -> Process:
        return Node(spec.process(me, topology, config), node)

    return replace(spec, process=make, bodies=(*spec.bodies, Heartbeat, Hint), states=(*spec.states, NodeState))

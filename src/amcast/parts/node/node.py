"""A node: protocol, leader oracle, gateway and the server side of sessions, composed into one process.

    Heartbeat, omega timers --> Omega --Leader--+
    Request ---- delivered already? --> Reply   v
            \\--- new ------------------------> protocol --> effects, and for each Deliver a Reply to the sender
            \\--- a client's --> Gateway --bundle--^
    everything else --------------------------->

The protocol inside is the same object that runs bare in the simulator; it does not know that it is inside a node. A
sender is told when its message is delivered here, and told again whenever it asks again (`parts/node/answering.py`).
"""

from collections.abc import Sequence
from typing import Final

from amcast.kernel.bundle import FIRST_BUNDLE, bundle_messages, is_bundle
from amcast.kernel.diagnostics import PHASES_AFTER_DELIVERY, Phase, ProcessStatus
from amcast.kernel.effects import About, Effect, Send
from amcast.kernel.events import Event, Leader, LinkReset, PeerDown, Receive, Requests, Started, Submit, Timer
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Message, Reply, Request, State
from amcast.kernel.process import Process
from amcast.parts.client.messages import Farewell
from amcast.parts.client.session import TIMER as SESSION
from amcast.parts.client.session import Contact
from amcast.parts.membership.reconfigurable import Reconfigurable
from amcast.parts.node.answering import Answering
from amcast.parts.node.gateway import GATHER, REST, Gateway
from amcast.parts.node.leader_oracle import BEAT, Omega
from amcast.parts.node.messages import Heartbeat, NodeConfig, NodeState

_MINE: Final = frozenset({Farewell, Heartbeat, Reply, Request})
"""Bodies that the protocol does not see, or not always."""


class Node(Answering):
    """One server of one group."""

    __slots__ = ("_changing", "_mine_too", "_odd", "_servers", "omega")

    def __init__(self, protocol: Process, config: NodeConfig, contact: Contact | None = None) -> None:
        super().__init__(protocol, config, contact)
        members = self.topology.members(self.home)
        self.omega = Omega(self, members, config.omega) if config.omega is not None else None
        self._servers = frozenset(self.topology.servers)
        self._mine_too = _MINE
        """Bodies that this node looks at."""
        self._changing = protocol if isinstance(protocol, Reconfigurable) else None
        if self._changing is not None and self.omega is not None:
            self._changing.trusts = self.omega.trusts
        if self._changing is not None:
            self._mine_too = _MINE | self._changing.membership_bodies
        self._odd = False
        """Something in this step may concern the numbers of topologies."""

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        self.now = now
        mine = self._mine_too
        for event in events:
            if type(event) is not Receive or type(event.body) in mine:
                events = self._sift(events, now)
                break
        changing = self._changing
        if changing is None:
            protocol = self.protocol
            before = protocol.position
            effects = protocol.step(events, now)
            calm = protocol.position == before
        elif self._odd:
            self._odd = calm = False
            effects = changing.step(events, now)
        else:
            effects = changing.fast_step(events, now)
            calm = changing.is_idle
        if not calm:
            effects = self._end(effects, now)
        if self._outbox:
            effects = self._outbox + effects
            self._outbox = []
        return effects

    def _sift(self, events: Sequence[Event], now: int) -> list[Event]:
        """Take what is not for the protocol; what is left goes inside."""
        mine, servers, gateway = self._mine_too, self._servers, self.gateway
        serves = gateway is not None and self._belongs()
        inside: list[Event] = []
        asked: list[Message] = []
        for event in events:
            if type(event) is Receive:
                body = event.body
                kind = type(body)
                if kind is Request:
                    message: Message = body.message  # type: ignore[attr-defined]
                    if serves and message.id < FIRST_BUNDLE and event.sender not in servers:
                        asked.append(message)
                        continue
                elif kind not in mine:
                    inside.append(event)
                    continue
            elif type(event) is Requests:
                if serves:
                    asked += event.messages
                else:
                    inside += [one for one in event.expand() if not self._concerns_me(one, inside)]
                continue
            if asked:
                self._take_asked(asked)
            if not self._concerns_me(event, inside):
                inside.append(event)
        if asked:
            self._take_asked(asked)
        if gateway is not None and (self._aside or gateway.moved):
            # Bundles leave before the protocol's records: asking need not wait for the disk.
            self._outbox += self._gateway_step(gateway, now)
        return inside

    def _belongs(self) -> bool:
        """I am a member of my group now."""
        return self.group is not None and (self._changing is None or self._changing.configuration >= 0)

    def _concerns_me(self, event: Event, inside: list[Event]) -> bool:
        """Handle an event that is rare, or about more than the protocol; False if the protocol must hear of it."""
        if type(event) is not Receive:
            if self._mine(event, inside):
                return True
            self._odd = True
            return False
        body = event.body
        if type(body) is Request:
            return self._asks(event.sender, body.message)
        return self._my_body(event.sender, body, inside)

    def _end(self, effects: list[Effect], now: int) -> list[Effect]:
        """The protocol may have delivered: senders are answered, and a change of members is followed."""
        effects = self._answering(effects)
        if self.protocol.topology is not self.topology:
            effects += self._turn(now)
        if self._aside and self.gateway is not None:
            effects += self._gateway_step(self.gateway, now)
        return effects

    def _gateway_step(self, gateway: Gateway, now: int) -> list[Effect]:
        aside, self._aside = self._aside, []
        effects = gateway.step(aside, now)
        changing = self._changing
        return effects if changing is None or changing.configuration == 0 else changing.tag_bundles(effects)

    def _turn(self, now: int) -> list[Effect]:
        """The members have changed (`parts/membership/reconfigurable.py`): all parts follow, and ask again for what is
        open."""
        self._follow()
        again: list[Event] = []
        if self.omega is not None:
            if self.group is None:
                self.omega.leave()
            else:
                self.omega.follow(self.topology.members(self.home))
                self._led_by(self.omega.leader, again)
        if self.gateway is not None and self._changing is not None:
            # Those that the topology knows are told anyway.
            clients = self.gateway.follow(self.topology) - set(self.topology.clients)
            if clients:
                self.send_all(tuple(sorted(clients)), self._changing.make_announcement())
        for message, groups in self._asked.values():
            groups.update(message.destinations)
            again.append(Submit(message))
        effects = self._answering(self.protocol.step(again, now))
        if self.gateway is not None and self.gateway.moved:
            effects += self._gateway_step(self.gateway, now)
        return effects

    def _follow(self) -> None:
        self.topology = self.protocol.topology
        self.group = self.protocol.group
        self._servers = frozenset(self.topology.servers)
        self._leaders = {group: self.topology.members(group)[0] for group in self.topology.groups}

    def _mine(self, event: Event, inside: list[Event]) -> bool:
        """Handle what is not for the protocol; what the oracle says goes inside."""
        match event:
            case Timer(name) if name.startswith("omega"):
                if self.omega is not None:
                    leader = self.omega.tick(name)
                    # Whatever else was suggested meanwhile, the oracle has the last word.
                    told = self._leaders[self.home]
                    leader = self.omega.leader if told != self.omega.leader else leader
                    if name == BEAT:
                        self._led_by(leader, inside)
                    else:
                        self._judged(leader, inside)
                return True
            case Submit(message):
                if self.gateway is not None:
                    self.gateway.take(message)
                    return True
                self._asked[message.id] = (message, set(message.destinations))
            case Leader(group, leader):
                self._leaders[group] = leader
                if leader == self.me:
                    self._answer_unsaid()
            case Started(_, incarnation):
                if self.omega is not None:
                    # Whoever joins a running group has run for no time, and does not take the lead.
                    self.omega.begin(incarnation, joins=self.topology.configuration > 0)
                if self.gateway is not None:
                    self.gateway.begin(incarnation)
            case Timer(name) if name == SESSION and self.gateway is not None:
                self._aside.append(event)
                return True
            case Timer(name) if name == GATHER and self.gateway is not None:
                self.gateway.overdue()
                return True
            case Timer(name) if name == REST and self.gateway is not None:
                self.gateway.rested()
                return True
            case LinkReset() if self.gateway is not None:
                self._aside.append(event)
            case PeerDown(peer):
                if self.omega is not None:
                    self._judged(self.omega.suspect(peer), inside)
                return True
        return False

    def _my_body(self, sender: ProcessId, body: Body, inside: list[Event]) -> bool:
        """What the parts of a node and clients tell it, but for requests; False if it is for the protocol, too."""
        kind = type(body)
        if kind is Heartbeat:
            if sender == self._leaders[self.home]:
                self._unsaid.heard()
            if self.omega is not None:
                doubted = not self.omega.trusts(sender)
                leader = self.omega.hear(sender, body)  # type: ignore[arg-type]
                if doubted:
                    self._judged(leader, inside)
                else:
                    self._led_by(leader, inside)
        elif kind is Farewell:
            if self.omega is not None and self.topology.group_of(sender) == self.home:
                self._judged(self.omega.part(sender, body), inside)  # type: ignore[arg-type]
        elif kind is Reply:
            if self.gateway is not None:
                self._aside.append(Receive(sender, body))
            else:
                self._answered(body.message, body.group)  # type: ignore[attr-defined]
        else:
            self._odd = True
            return False  # about numbers
        return True

    def _asks(self, sender: ProcessId, message: Message) -> bool:
        """A gateway (or any client, where there are none) asks the protocol's contacts, or a client one that is no
        member. False if the protocol must hear of it."""
        if self._belongs():
            return self._was_delivered(sender, message)
        self._odd = True
        return self._send_away(sender, message)

    def _send_away(self, sender: ProcessId, message: Message) -> bool:
        """Asked when I am no member any more, or not yet. A client's message that others have in a bundle must not be
        ordered by itself as well: groups that delivered the bundle would never answer for it."""
        if self.gateway is None or sender in self._servers or is_bundle(message.id):
            return False
        if self.group is None and self._changing is not None:
            self.send(sender, self._changing.make_announcement())
        return True

    def _judged(self, leader: ProcessId | None, inside: list[Event]) -> None:
        """A fellow is suspected, or trusted again. It may lead in an old number, where the leader of the group cannot:
        who leads there must be told again, or two would think that they do."""
        if (
            leader is None
            and self.omega is not None
            and self._changing is not None
            and self._changing.has_old_instances()
        ):
            leader = self.omega.leader
        self._led_by(leader, inside)

    def _led_by(self, leader: ProcessId | None, inside: list[Event]) -> None:
        if leader is not None:
            self._odd = True
            self._leaders[self.home] = leader
            inside.append(Leader(self.home, leader))
            if leader == self.me:
                self._answer_unsaid()

    # Bundles and the trace

    def attribute_to_messages(self, effects: list[Effect]) -> list[Effect]:
        if self.gateway is None:
            return effects
        return [
            Send(effect.targets, effect.body, self._named(effect.about), effect.deferrable)
            if type(effect) is Send
            else effect
            for effect in effects
        ]

    def _named(self, about: About) -> About:
        """Messages for bundles. A bundle that is not here (it is being asked for) cannot be told."""
        if about is None or (type(about) is int and not is_bundle(about)):
            return about
        ids: list[MessageId] = []
        for id in about if isinstance(about, tuple) else (about,):
            if is_bundle(id):
                assert self.gateway is not None
                bundle = self.protocol.stored_message(id)
                parts = self.gateway.bundle_content(id) or (bundle_messages(bundle) if bundle is not None else [])
                ids += [part.id for part in parts]
            else:
                ids.append(id)
        return None if not ids else ids[0] if len(ids) == 1 else tuple(dict.fromkeys(ids))

    def client_notice(self) -> Body | None:
        return None if self._changing is None else self._changing.make_announcement()

    # For operators

    def status(self) -> ProcessStatus:
        open_ones = len(self._asked) if self.gateway is None else len(self.gateway.open_bundles())
        return {"leader": self._leaders[self.home], **self.protocol.status(), "asked": open_ones}

    def unanswered_bytes(self) -> int:
        return 0 if self.gateway is None else self.gateway.unordered_bytes

    def explain(self, message: MessageId) -> list[Phase]:
        told: list[Phase] = []
        if self.gateway is not None:
            for bundle, groups in self.gateway.open_bundles().items():
                if any(part.id == message for part in self.gateway.bundle_content(bundle) or ()):
                    said = f"this gateway asked for it in bundle {bundle}; groups {list(groups)} have not answered"
                    told.append(Phase("gateway", not groups, said))
        if self.has_delivered(message):
            owed = [phase for phase in self.protocol.explain(message) if phase.name in PHASES_AFTER_DELIVERY]
            return [*told, Phase("delivered", True, f"process {self.me} has delivered it"), *owed]
        return told + self.protocol.explain(message)

    # A node has no incarnation of its own between its parts

    def on_request(self, message: Message) -> None:
        raise AssertionError("a node's events go to its parts")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError("a node's events go to its parts")

    def snapshot(self) -> NodeState:
        return NodeState(
            self.protocol.snapshot(),
            None if self.omega is None else self.omega.snapshot(),
            self.delivered.snapshot(),
            tuple((message, tuple(sorted(groups))) for _, (message, groups) in sorted(self._asked.items())),
            tuple(sorted(self._leaders.items())),
            None if self.gateway is None else self.gateway.snapshot(),
            self._unsaid.snapshot(),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, NodeState)
        self.protocol.restore(state.protocol)
        if self.protocol.topology is not self.topology:
            self._follow()
            if self.gateway is not None:
                self.gateway.follow(self.topology)
        if self.omega is not None and state.omega is not None:
            self.omega.restore(state.omega)
        self.delivered.restore(state.delivered)
        self._asked = {message.id: (message, set(groups)) for message, groups in state.asked}
        self._leaders = dict(state.leaders)
        self._unsaid.restore(state.unsaid)
        if self.gateway is not None and state.gateway is not None:
            self.gateway.restore(state.gateway)

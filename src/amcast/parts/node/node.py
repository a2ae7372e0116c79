"""A node: a protocol's process together with its leader oracle, its gateway and replies to senders.

    Heartbeat, omega timers --> Omega --Leader--+
    Request ---- already delivered --> Reply    v
            \\--- new ------------------------> protocol --> effects, and a Reply to the sender for each Deliver
            \\--- of a client --> Gateway --bundle--^
    all other events -------------------------->

The protocol is the same object that runs bare in the simulator; it does not know that it is inside a node.

A sender learns that its message is delivered from one member of each destination:

    sender      leader     member
      |--Request->|           |
      |        deliver     deliver
      |<--Reply---|           |        the leader replies (or all members do: `NodeConfig.replies`)
      |           x        becomes leader
      |<--Reply---------------|        a new leader replies for what its predecessor may have left unanswered
      |--Request------------->|
      |<--Reply---------------|        every member that has delivered a message replies to a retry

The Reply for a bundle goes to the gateway that made it, and the gateway answers its clients (`parts/node/gateway.py`).
A gateway that delivers its own bundle needs no Reply from its group. A Reply may be lost, so senders retry until they
have one from each destination (`parts/client/session.py`); the message itself is ordered and delivered once.

In the real-time setting nodes answer when a message is closed (`parts/node/real_time_order.py`). Then one answer is
enough for all destinations: it is a Done, and no Reply is sent, unless destinations are lost.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from amcast.kernel.bundle import FIRST_BUNDLE, bundle_messages, gateway_process, is_bundle
from amcast.kernel.diagnostics import PHASES_AFTER_DELIVERY, Phase, ProcessStatus, explain_delivered
from amcast.kernel.effects import About, Deliver, Effect, Note, Persist, Send
from amcast.kernel.events import (
    Event,
    Leader,
    LinkReset,
    PeerDown,
    Read,
    Receive,
    Requests,
    Started,
    StateTaken,
    Submit,
    Timer,
)
from amcast.kernel.folder import KnownFolder
from amcast.kernel.ids import GroupId, MessageId, ProcessId, sender_of
from amcast.kernel.message import Body, Message, Record, Reply, Request, State
from amcast.kernel.process import Accepted, Process
from amcast.kernel.reconfiguration import decode_topology
from amcast.kernel.spec import Contacts
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import AbsentGroups, Done, Farewell, LeaderHint
from amcast.parts.client.session import TIMER as SESSION_TIMER
from amcast.parts.membership.reconfigurable import Reconfigurable
from amcast.parts.node.admission import GRACE_TIMER, RETRY_TIMER, Admission
from amcast.parts.node.comparison_results import Outcome
from amcast.parts.node.gateway import GATHER_TIMER, PACE_TIMER, Gateway
from amcast.parts.node.leader_oracle import HEARTBEAT_TIMER, Omega
from amcast.parts.node.messages import (
    AcceptedReport,
    AcceptedRequest,
    AdmissionReply,
    AdmissionRequest,
    ChainRecord,
    Heartbeat,
    HeldAnswer,
    NodeConfig,
    NodeState,
    OrderReport,
    OrderRequest,
    RealTimeCheckpoint,
    open_checkpoints,
)
from amcast.parts.node.pending_replies import PendingReplies
from amcast.parts.node.read_index import READ_TIMER, ReadIndex
from amcast.parts.node.real_time_order import ORDER_TIMER, RealTimeOrder
from amcast.parts.node.replica_comparison import ReplicaComparison
from amcast.parts.ordering.delivered_set import DeliveredSet

NODE_BODIES: Final = frozenset(
    {
        AbsentGroups,
        AcceptedReport,
        AcceptedRequest,
        AdmissionReply,
        AdmissionRequest,
        Done,
        Farewell,
        Heartbeat,
        LeaderHint,
        OrderReport,
        OrderRequest,
        Reply,
        Request,
    }
)
"""Types of bodies that the node itself handles, always or at times."""
SMALL_BUNDLE: Final = 4
"""Every member of a group replies for a bundle of at most this many messages. A follower may deliver one message delay
before its leader. In a small bundle few messages share that delay; for larger ones, fewer replies are worth more."""

_id: Final = attrgetter("id")


class Node(Process):
    """One server of one group."""

    __slots__ = (
        "_gateway_events",
        "_leaders",
        "_node_bodies",
        "_outcome",
        "_own_requests",
        "_pending_replies",
        "_reconfigurable",
        "_servers",
        "_touches_membership",
        "admission",
        "comparison",
        "config",
        "delivered",
        "gateway",
        "home",
        "omega",
        "protocol",
        "reads",
        "real_time",
    )

    def __init__(
        self,
        protocol: Process,
        config: NodeConfig,
        contacts: Contacts | None = None,
        checkpoint_type: type[RealTimeCheckpoint] = RealTimeCheckpoint,
        states_accepted: bool = False,
    ) -> None:
        super().__init__(protocol.me, protocol.topology)
        assert self.group is not None, f"process {self.me} is a client; nodes are servers"
        self.home: GroupId = self.group
        self.protocol = protocol
        self.config = config
        self._reconfigurable = protocol if isinstance(protocol, Reconfigurable) else None
        self._node_bodies = NODE_BODIES
        suspected: set[ProcessId] = set()
        if self._reconfigurable is not None:
            self._node_bodies = NODE_BODIES | self._reconfigurable.membership_bodies
            suspected = self._reconfigurable.suspected_members
        self.admission = Admission(self, config.admission)
        members = self.topology.members(self.home)
        self.comparison = ReplicaComparison(self.me, members)
        self._outcome: Outcome = "equal"
        """The outcome of the comparison that this node has acted on."""
        self.omega: Omega | None = None
        if config.omega is not None:
            self.omega = Omega(self, members, config.omega, suspected, self._count_records, self.comparison.make_report)
        self.gateway: Gateway | None = None
        if config.gateway is not None:
            assert contacts is not None, "a gateway needs the protocol's contacts"
            self.gateway = Gateway(self.me, self.topology, contacts, config.gateway, protocol.bundle_contacts)
        self.real_time: RealTimeOrder | None = None
        if config.real_time is not None:
            self.real_time = RealTimeOrder(self, self.home, config.real_time, checkpoint_type, self.has_delivered)
        self.reads: ReadIndex | None = None
        if states_accepted:
            self.reads = ReadIndex(self, config.read_retry_ns, self._state_accepted, self.has_delivered)
        self.delivered = DeliveredSet()
        """The messages delivered in this incarnation; the protocol knows those of earlier ones."""
        self._own_requests: dict[MessageId, tuple[Message, set[GroupId]]] = {}
        """Messages that this node multicast without a gateway, and the groups that have not replied."""
        self._leaders: dict[GroupId, ProcessId] = {g: self.topology.members(g)[0] for g in self.topology.groups}
        self._pending_replies = PendingReplies()
        self._gateway_events: list[Event] = []
        """Events for the gateway's session, taken at the end of the step."""
        self._servers = frozenset(self.topology.servers)
        self._touches_membership = False
        """Whether an event of this step may concern membership, so that `Reconfigurable.fast_step` is not possible."""

    @property
    def is_leader(self) -> bool:
        return self._leaders[self.home] == self.me

    @property
    def is_serving(self) -> bool:
        return self.admission.takes_part and self.comparison.is_sound

    @property
    def states_closings(self) -> bool:  # type: ignore[override]
        return self.real_time is not None and self.group is not None

    @property
    def is_readable(self) -> bool:  # type: ignore[override]
        return self.reads is not None

    @property
    def bundles_requests(self) -> bool:  # type: ignore[override]
        return self.gateway is not None

    @property
    def rest(self) -> tuple[int, str] | None:  # type: ignore[override]
        gateway = self.gateway
        return None if gateway is None or not gateway.rest_until_ns else (gateway.rest_until_ns, PACE_TIMER)

    def _state_accepted(self) -> Accepted | None:
        """What this member states to readers; nothing while it is not one that others may rely on."""
        return self.protocol.accepted() if self.is_serving and self._is_member() else None

    def has_delivered(self, message: MessageId) -> bool:
        return message in self.delivered or self.protocol.has_delivered(message)

    @property
    def work(self) -> int:
        return self.protocol.work

    def stored_message(self, message: MessageId) -> Message | None:
        return self.protocol.stored_message(message)

    # Steps

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        self.now = now
        admission = self.admission
        if not admission.takes_part or (events and type(events[0]) is Started):
            events = self._step_admission(events)
            if not events:
                return self._take_outbox()
            if len(events) > 1:
                # A request that was held may be one that the protocol delivers again when it starts.
                return self.step(events[:1], now) + self.step(events[1:], now)
        node_bodies = self._node_bodies
        for event in events:
            if type(event) is not Receive or type(event.body) in node_bodies:
                events = self._route_events(events, now)
                if admission.ending is not None or not admission.takes_part:
                    return self._take_outbox()
                break
        reconfigurable = self._reconfigurable
        if reconfigurable is None:
            protocol = self.protocol
            before = protocol.position
            effects = protocol.step(events, now)
            is_idle = protocol.position == before
        elif self._touches_membership:
            self._touches_membership = is_idle = False
            effects = reconfigurable.step(events, now)
        else:
            effects = reconfigurable.fast_step(events, now)
            is_idle = reconfigurable.is_idle
        if not is_idle or self.real_time is not None:
            effects = self._finish_step(effects, now)
        elif admission.counts_records:
            for effect in effects:
                if type(effect) is Persist and (effect.replaces or effect.after_deliveries):
                    effects = self._add_replies(effects)
                    break
        if admission.counts_records:
            for effect in effects:
                if type(effect) is Persist:
                    admission.count_persisted(1)
        if self.reads is not None and self.reads.is_active:
            effects += self.reads.finish_step(self.topology.members(self.home), self.topology.quorum(self.home))
        if self._outbox:
            effects = self._outbox + effects
            self._outbox = []
        return effects

    def _take_outbox(self) -> list[Effect]:
        effects, self._outbox = self._outbox, []
        return effects

    # Admission (`parts/node/admission.py`)

    def _count_records(self) -> int:
        return self.admission.records

    def _step_admission(self, events: Sequence[Event]) -> Sequence[Event]:
        """Handles events while the process does not take part. Returns the events for the node and its protocol once
        it does: Started, and what was held."""
        if type(events[0]) is Started and events[0].folder is None:
            return events
        for event in events:
            self._handle_event_before_admission(event)
        started = self.admission.finish_step()
        return () if started is None else (started, *self.admission.take_held())

    def _handle_event_before_admission(self, event: Event) -> None:
        """Lets the admission see an event, or holds it for the protocol. Heartbeats are repeated anyway."""
        admission = self.admission
        match event:
            case Started(records):
                if self._reconfigurable is not None:
                    self._adopt_topology(self._reconfigurable.recorded_topology(open_checkpoints(records)))
                admission.start(event)
            case Timer(name) if name in (RETRY_TIMER, GRACE_TIMER):
                admission.handle_timer(name)
            case Receive(sender, AdmissionRequest() as body):
                admission.handle_request(sender, body)
            case Receive(sender, AdmissionReply() as body):
                self._learn_topology(body.topology)
                admission.handle_reply(sender, body)
            case Receive(_, Heartbeat()) | PeerDown():
                pass
            case LinkReset(peer):
                admission.handle_link_reset(peer)
                admission.hold(event)
            case _:
                admission.hold(event)

    def _learn_topology(self, topology: bytes) -> None:
        """Adopts a newer topology before the protocol has started, which follows by itself once it has."""
        if topology:
            newer = decode_topology(topology)
            if newer.configuration > self.topology.configuration:
                self._adopt_topology(newer)

    def _route_events(self, events: Sequence[Event], now: int) -> list[Event]:
        """Handles the events of the node and its parts, and returns those for the protocol."""
        node_bodies, servers, gateway = self._node_bodies, self._servers, self.gateway
        is_serving = gateway is not None and self._is_member() and self.comparison.is_sound
        for_protocol: list[Event] = []
        requests: list[Message] = []
        for event in events:
            if type(event) is Receive:
                body = event.body
                kind = type(body)
                if kind is Request:
                    message: Message = body.message  # type: ignore[attr-defined]
                    if is_serving and message.id < FIRST_BUNDLE and event.sender not in servers:
                        requests.append(message)
                        continue
                elif kind not in node_bodies:
                    for_protocol.append(event)
                    continue
            elif type(event) is Requests:
                if is_serving:
                    requests += event.messages
                else:
                    for_protocol += [one for one in event.expand() if not self._handle_node_event(one, for_protocol)]
                continue
            if requests:
                self._submit_to_gateway(requests)
            if not self._handle_node_event(event, for_protocol):
                for_protocol.append(event)
        if requests:
            self._submit_to_gateway(requests)
        if gateway is not None and (self._gateway_events or gateway.has_work):
            # Bundles are sent before the protocol's records are persisted: requests need not wait for the disk.
            self._outbox += self._step_gateway(gateway, now)
        return for_protocol

    def _is_member(self) -> bool:
        """Whether this process is a member of its group now."""
        return self.group is not None and (self._reconfigurable is None or self._reconfigurable.configuration >= 0)

    def _finish_step(self, effects: list[Effect], now: int) -> list[Effect]:
        """Adds replies for deliveries, and follows a reconfiguration."""
        effects = self._add_replies(effects) if self.real_time is None else self._add_answers(effects, self.real_time)
        if self.protocol.topology is not self.topology:
            effects += self._follow_reconfiguration(now)
        if self._gateway_events and self.gateway is not None:
            effects += self._step_gateway(self.gateway, now)
        return effects

    def _step_gateway(self, gateway: Gateway, now: int) -> list[Effect]:
        events, self._gateway_events = self._gateway_events, []
        effects = gateway.step(events, now)
        reconfigurable = self._reconfigurable
        if reconfigurable is None or reconfigurable.configuration == 0:
            return effects
        return reconfigurable.tag_bundles(effects)

    # Reconfiguration

    def _follow_reconfiguration(self, now: int) -> list[Effect]:
        """Lets all parts follow the protocol's new topology, and requests again what is not delivered."""
        self._adopt_topology(self.protocol.topology)
        events: list[Event] = []
        if self.omega is not None:
            if self.group is None:
                self.omega.stop()
            else:
                self.omega.follow_members(self.topology.members(self.home))
                self.comparison.follow_members(self.topology.members(self.home))
                self._follow_leader(self.omega.leader, events)
        if self.gateway is not None and self._reconfigurable is not None:
            # Clients in the topology get the announcement of the protocol.
            clients = self.gateway.follow_topology(self.topology) - set(self.topology.clients)
            if clients:
                self.send_all(tuple(sorted(clients)), self._reconfigurable.make_announcement())
        for message, groups in self._own_requests.values():
            groups.update(message.destinations)
            events.append(Submit(message))
        effects = self.protocol.step(events, now)
        effects = self._add_replies(effects) if self.real_time is None else self._add_answers(effects, self.real_time)
        if self.gateway is not None and self.gateway.has_work:
            effects += self._step_gateway(self.gateway, now)
        return effects

    def _adopt_topology(self, topology: Topology) -> None:
        self.topology = topology
        self.group = topology.group_of(self.me)
        self._servers = frozenset(self.topology.servers)
        self._leaders = {group: self.topology.members(group)[0] for group in self.topology.groups}

    # Events of the node and its parts. The handlers return False if the protocol must see the event, too.

    def _handle_node_event(self, event: Event, for_protocol: list[Event]) -> bool:
        """Handles an event that is rare or concerns more than the protocol."""
        if type(event) is not Receive:
            if self._handle_local_event(event, for_protocol):
                return True
            self._touches_membership = True
            return False
        body = event.body
        if type(body) is Request:
            return self._handle_request(event.sender, body.message)
        return self._handle_body(event.sender, body, for_protocol)

    def _handle_local_event(self, event: Event, for_protocol: list[Event]) -> bool:
        """Handles an event other than a body. Leader events for the protocol go to `for_protocol`."""
        match event:
            case Timer(name):
                return self._handle_timer(event, name, for_protocol)
            case Submit(message):
                if self.gateway is not None:
                    self.gateway.add(message)
                    return True
                self._own_requests[message.id] = (message, set(message.destinations))
            case Leader(group, leader):
                self._leaders[group] = leader
                if leader == self.me:
                    self._send_pending_replies()
            case Started(records, incarnation):
                suggested = None
                if self.omega is not None:
                    # A process that joins a running group has run for no time, and does not take the lead.
                    suggested = self.omega.start(incarnation, joins=self.protocol.topology.configuration > 0)
                if self.gateway is not None:
                    self.gateway.start(incarnation)
                if self.real_time is not None:
                    self.real_time.start(records)
                for_protocol.append(Started(self._take_chain(open_checkpoints(records)), incarnation, event.folder))
                self._follow_leader(suggested, for_protocol)
                self._touches_membership = True
                return True
            case StateTaken(position, digest):
                self.comparison.record_state(position, digest)
                self._follow_comparison()
                return True
            case Read(number):
                assert self.reads is not None, f"process {self.me} cannot be read: its protocol states nothing"
                self.reads.add(number)
                return True
            case LinkReset(peer):
                self.admission.handle_link_reset(peer)
                self.comparison.repeat_report()
                if self.gateway is not None:
                    self._gateway_events.append(event)
                if self.real_time is not None:
                    self.real_time.handle_link_reset(peer)
            case PeerDown(peer):
                if self.omega is not None:
                    self._follow_suspicion(self.omega.suspect(peer), for_protocol)
        return False

    def _handle_timer(self, event: Event, name: str, for_protocol: list[Event]) -> bool:
        if name in (RETRY_TIMER, GRACE_TIMER):
            return True
        if name.startswith(HEARTBEAT_TIMER):
            if self.omega is not None:
                self.admission.write_counts()
                leader = self.omega.handle_timer(name)
                # The oracle overrides leaders that others suggested meanwhile.
                if self._leaders[self.home] != self.omega.leader:
                    leader = self.omega.leader
                if name == HEARTBEAT_TIMER:
                    self._follow_leader(leader, for_protocol)
                else:
                    self._follow_suspicion(leader, for_protocol)
            return True
        if name == ORDER_TIMER:
            if self.real_time is not None:
                self.real_time.expire_timer()
            return True
        if name == READ_TIMER:
            if self.reads is not None:
                self.reads.expire_timer()
            return True
        if self.gateway is None:
            return False
        if name == SESSION_TIMER:
            self._gateway_events.append(event)
        elif name == GATHER_TIMER:
            self.gateway.expire_gather_timer()
        elif name == PACE_TIMER:
            self.gateway.expire_pace_timer()
        else:
            return False
        return True

    def _handle_body(self, sender: ProcessId, body: Body, for_protocol: list[Event]) -> bool:
        """Handles a body other than a Request."""
        kind = type(body)
        if kind is Heartbeat:
            if sender == self._leaders[self.home]:
                self._pending_replies.record_heartbeat()
            self.admission.handle_records(sender, body.incarnation, body.records)  # type: ignore[attr-defined]
            if body.comparison is not None:  # type: ignore[attr-defined]
                self.comparison.receive(sender, body.incarnation, body.comparison)  # type: ignore[attr-defined]
            self._follow_comparison()
            if self.omega is not None:
                was_suspected = not self.omega.trusts(sender)
                leader = self.omega.handle_heartbeat(sender, body)  # type: ignore[arg-type]
                if was_suspected:
                    self._follow_suspicion(leader, for_protocol)
                else:
                    self._follow_leader(leader, for_protocol)
        elif kind is Farewell:
            if self.omega is not None and self.topology.group_of(sender) == self.home:
                leader = self.omega.handle_farewell(sender, body)  # type: ignore[arg-type]
                self._follow_suspicion(leader, for_protocol)
        elif kind is AdmissionRequest:
            self.admission.handle_request(sender, body)  # type: ignore[arg-type]
            self.admission.finish_step()
        elif kind is AdmissionReply:
            self.admission.handle_reply(sender, body)  # type: ignore[arg-type]
            self.admission.finish_step()
        elif kind is Reply or kind is Done:
            self._handle_answer(sender, body)
        elif kind is OrderReport:
            if self.real_time is not None:
                self.real_time.handle_report(sender, body)  # type: ignore[arg-type]
        elif kind is OrderRequest:
            if self.real_time is not None:
                self.real_time.handle_request(sender, body)  # type: ignore[arg-type]
        elif kind is LeaderHint or kind is AbsentGroups:
            pass  # for the sender of a message, which is this process if it is in doubt; it asks all members anyway
        elif kind is AcceptedRequest:
            if self.reads is not None:
                self.reads.handle_request(sender, body)  # type: ignore[arg-type]
        elif kind is AcceptedReport:
            if self.reads is not None:
                self.reads.handle_report(sender, body)  # type: ignore[arg-type]
        else:
            self._touches_membership = True
            return False
        return True

    # The comparison of replicas (`parts/node/replica_comparison.py`)

    def _take_chain(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Takes the chain out of the records of earlier incarnations, and returns those of the protocol."""
        chains = [record for record in records if type(record) is ChainRecord]
        if chains:
            self.comparison.start(chains[-1])
        return tuple(record for record in records if type(record) is not ChainRecord)

    def _follow_comparison(self) -> None:
        """Stops, if a majority contradicts this replica: nothing that it has not sent yet leaves, but for its findings,
        which others may not have received. Otherwise it goes on; while no side has a majority, it takes no new
        messages."""
        outcome = self.comparison.outcome
        if outcome == self._outcome:
            return
        self._outcome = outcome
        if outcome == "minority":
            self._outbox.clear()
            self.comparison.repeat_report()
            self.admission.stop(self.comparison.describe())
            if self.omega is not None:
                self.omega.announce_end()
        self.note(f"comparison-{outcome}")

    # Requests

    def _handle_request(self, sender: ProcessId, message: Message) -> bool:
        """Handles a Request to the protocol's contacts, or a client's request to a process that is not a member."""
        if self._is_member():
            return not self.comparison.is_sound or self._reply_if_delivered(sender, message)
        self._touches_membership = True
        return self._redirect_client(sender, message)

    def _redirect_client(self, sender: ProcessId, message: Message) -> bool:
        """Handles a client's request to a gateway that is not a member any more, or not yet. Another gateway may have
        the message in a bundle. It must not be ordered by itself as well: groups that delivered the bundle would never
        reply for it."""
        if self.gateway is None or sender in self._servers or is_bundle(message.id):
            return False
        if self.group is None and self._reconfigurable is not None:
            self.send(sender, self._reconfigurable.make_announcement())
        return True

    def _reply_if_delivered(self, sender: ProcessId, message: Message) -> bool:
        """Replies to a retry of a delivered message. Otherwise sends a client the leader, if it may not know it."""
        if message.id in self.delivered or self.protocol.has_delivered(message.id):
            receiver = gateway_process(message.sender) if is_bundle(message.id) else message.sender
            self._answer_retry(receiver, message.id, message.destinations)
            extra = self.protocol.reply_extra(message)
            if extra is not None:
                self.send(receiver, extra)
            return True
        if self.gateway is None and sender == message.sender and sender not in self._servers:
            leader = self._leaders[self.home]
            if leader not in (self.me, self.topology.members(self.home)[0]):
                self.send(sender, LeaderHint(self.home, leader), message.id)
        return False

    def _submit_to_gateway(self, requests: list[Message]) -> None:
        """Gives clients' requests to the gateway, and replies for those that are delivered. Clears the list."""
        gateway = self.gateway
        assert gateway is not None
        if not self.protocol.has_delivered_any(list(map(_id, requests))):
            gateway.fast_add_all(requests)
        else:
            for message in requests:
                if self.protocol.has_delivered(message.id):
                    self._answer_retry(message.sender, message.id, message.destinations)
                else:
                    gateway.add(message)
        requests.clear()

    def _answer_retry(self, receiver: ProcessId, message: MessageId, destinations: tuple[GroupId, ...]) -> None:
        """Answers a request for a message that was delivered here; in the real-time setting when it is closed."""
        if self.real_time is None:
            self.send(receiver, Reply(message, self.home), message)
        else:
            self.real_time.hold_retry(receiver, message, destinations)

    def _handle_answer(self, sender: ProcessId, body: Body) -> None:
        """Handles a Reply or Done for bundles of this gateway, or for messages that this node multicast itself."""
        if self.gateway is not None:
            self._gateway_events.append(Receive(sender, body))
        elif type(body) is Reply:
            self._finish_own_request(body.message, (body.group,))
        elif type(body) is Done:
            for message in body.messages:
                self._finish_own_request(message, self.topology.groups)

    def _finish_own_request(self, message: MessageId, groups: tuple[GroupId, ...]) -> None:
        request = self._own_requests.get(message)
        if request is not None:
            request[1].difference_update(groups)
            if not request[1]:
                del self._own_requests[message]
                self.resolve(message)

    # Leaders

    def _follow_suspicion(self, leader: ProcessId | None, for_protocol: list[Event]) -> None:
        """Follows the oracle after a member was suspected or trusted again. While an old configuration runs, its leader
        may be another member than the group's: it must be chosen again, or two members would take themselves for it."""
        reconfigurable = self._reconfigurable
        has_old_instances = reconfigurable is not None and reconfigurable.has_old_instances()
        if leader is None and self.omega is not None and has_old_instances:
            leader = self.omega.leader
        self._follow_leader(leader, for_protocol)

    def _follow_leader(self, leader: ProcessId | None, for_protocol: list[Event]) -> None:
        if leader is not None:
            self._touches_membership = True
            self._leaders[self.home] = leader
            for_protocol.append(Leader(self.home, leader))
            if leader == self.me:
                self._send_pending_replies()

    # Replies

    def _add_replies(self, effects: list[Effect]) -> list[Effect]:
        """Puts a Reply behind every Deliver, where this process is to reply, and the chain behind every checkpoint."""
        replies = self.config.replies == "all" or self._leaders[self.home] == self.me
        extended: list[Effect] = []
        for effect in effects:
            extended.append(effect)
            if type(effect) is not Deliver:
                self._follow_effect(effect, extended)
                continue
            self.comparison.record(effect)
            message = effect.message
            if effect.message_count >= 0:
                self._reply_to_gateway(effect, replies, extended)
            else:
                self.delivered.add(message.id)
                if replies:
                    extended.append(Send((message.sender,), Reply(message.id, self.home), message.id))
                else:
                    self._pending_replies.add(message.sender, message.id)
        return extended

    def _follow_effect(self, effect: Effect, extended: list[Effect]) -> None:
        """Lets the chain of deliveries follow an effect other than a delivery."""
        if type(effect) is Persist and (effect.replaces or effect.after_deliveries):
            record = self.comparison.make_record()
            if record is not None:
                extended.append(Persist(record))
        elif type(effect) is Note and effect.name == "installed":
            self.comparison.skip_to(int(effect.value or 0))

    def _reply_to_gateway(self, delivery: Deliver, replies: bool, effects: list[Effect]) -> None:
        """Replies for a bundle, unless its gateway is in this group: then it delivers the bundle itself, and that may
        also show it the order of other groups. A Reply that the gateway need not wait for is deferrable."""
        bundle = delivery.message
        gateway = gateway_process(bundle.sender)
        if gateway == self.me:
            for group in (self.home, *delivery.ordered_elsewhere):
                self._gateway_events.append(Receive(self.me, Reply(bundle.id, group)))
        elif self.topology.group_of(gateway) != self.home:
            is_expected = delivery.ordered_here
            if replies or (not is_expected and delivery.message_count <= SMALL_BUNDLE):
                deferrable = (gateway,) if is_expected else ()
                effects.append(Send((gateway,), Reply(bundle.id, self.home), bundle.id, deferrable))
            else:
                self._pending_replies.add(gateway, bundle.id)

    def _send_pending_replies(self) -> None:
        for receiver, message in self._pending_replies.pop_all():
            reply = Reply(message, self.home) if self.real_time is None else Done((message,))
            self.send(receiver, reply, message)

    # Answers in the real-time setting

    def _add_answers(self, effects: list[Effect], order: RealTimeOrder) -> list[Effect]:
        """Holds the answers of deliveries until these are closed, and adds the answers of what is closed now."""
        extended: list[Effect] = []
        for effect in effects:
            kind = type(effect)
            if kind is Deliver:
                self.comparison.record(effect)  # type: ignore[arg-type]
                self._hold_answer(effect, order)  # type: ignore[arg-type]
                extended.append(effect)
                continue
            if kind is Persist:
                if effect.replaces or effect.after_deliveries:  # type: ignore[attr-defined]
                    effect = order.wrap(effect)  # type: ignore[arg-type]
            elif kind is Note:
                if effect.name == "installed" and effect.value is not None:  # type: ignore[attr-defined]
                    order.install(int(effect.value))  # type: ignore[attr-defined]
            elif kind is Send and type(effect.body) is Reply:  # type: ignore[attr-defined]
                self._hold_reply(effect, order)  # type: ignore[arg-type]
                continue
            extended.append(effect)
            self._follow_effect(effect, extended)
        leads = self.config.replies == "all" or self._leaders[self.home] == self.me
        extended += order.finish_step(leads, self.protocol.lost_groups())
        for answer in order.pop_answers():
            self._send_answer(answer, leads, extended)
        return extended

    def _hold_answer(self, delivery: Deliver, order: RealTimeOrder) -> None:
        message = delivery.message
        if delivery.message_count < 0:
            self.delivered.add(message.id)
            order.deliver(delivery, "delivery", message.sender)
        else:
            gateway = gateway_process(message.sender)
            if gateway == self.me and self.gateway is not None:
                self.gateway.record_delivery(message.id, self.now)
            order.deliver(delivery, "gateway" if gateway == self.me else "delivery", gateway)

    def _hold_reply(self, reply: Send, order: RealTimeOrder) -> None:
        """A reply of the protocol says that its group, or each destination, has delivered: that is not enough. Senders
        are answered for what this process has delivered."""
        body = reply.body
        assert isinstance(body, Reply)
        if self.has_delivered(body.message):
            for receiver in reply.targets:
                order.hold_retry(receiver, body.message, (self.home,))

    def _send_answer(self, answer: HeldAnswer, leads: bool, effects: list[Effect]) -> None:
        """Answers for a closed message. The gateway of a bundle finds it closed itself, if it is in a destination."""
        message, receiver = answer.message, answer.receiver
        if answer.kind == "gateway":
            self._gateway_events.append(Receive(self.me, Done((message,))))
            return
        if answer.kind == "delivery":
            if is_bundle(message) and self.topology.group_of(receiver) in answer.destinations:
                return
            if not leads:
                self._pending_replies.add(receiver, message)
                return
        lost = self.protocol.lost_groups()
        if not lost or set(lost).isdisjoint(answer.destinations):
            effects.append(Send((receiver,), Done((message,)), message))
            return
        for group in answer.destinations:  # the sender's session learns by AbsentGroups for which it need not wait
            if group not in lost:
                effects.append(Send((receiver,), Reply(message, group), message))

    # Bundles and the trace

    def attribute_to_messages(self, effects: list[Effect]) -> list[Effect]:
        if self.gateway is None and self._reconfigurable is None:
            return effects
        return [
            Send(effect.targets, effect.body, self._messages_in(effect.about), effect.deferrable)
            if type(effect) is Send and effect.about is not None
            else effect
            for effect in effects
        ]

    def _messages_in(self, about: About) -> About:
        """Replaces bundles by their messages. A bundle that this process does not hold (it is being fetched) is left
        out, and so are markers of processes without memory: they concern the membership of one group."""
        if self._reconfigurable is not None:
            about = self._leave_out_markers(about)
        if type(about) is int and not is_bundle(about):
            return about
        if about is None or self.gateway is None:
            return about
        ids: list[MessageId] = []
        for id in about if isinstance(about, tuple) else (about,):
            if is_bundle(id):
                bundle = self.protocol.stored_message(id)
                messages = self.gateway.bundle_content(id) or (bundle_messages(bundle) if bundle is not None else [])
                ids += [message.id for message in messages]
            else:
                ids.append(id)
        return None if not ids else ids[0] if len(ids) == 1 else tuple(dict.fromkeys(ids))

    def _leave_out_markers(self, about: About) -> About:
        """Leaves markers out: a server whose members may change multicasts nothing else."""
        assert self._reconfigurable is not None
        is_server = self._reconfigurable.is_server
        if isinstance(about, tuple):
            markers = [id for id in about if is_server(sender_of(id))]
            return tuple([id for id in about if id not in markers]) or None if markers else about
        return None if about is None or is_server(sender_of(about)) else about

    def client_notice(self) -> Body | None:
        return None if self._reconfigurable is None else self._reconfigurable.make_announcement()

    # Diagnostics

    def status(self) -> ProcessStatus:
        open_requests = len(self._own_requests) if self.gateway is None else len(self.gateway.open_bundles())
        return {
            "leader": self._leaders[self.home],
            **self.protocol.status(),
            "open_requests": open_requests,
            **({} if self.real_time is None else self.real_time.status()),
            **self.admission.describe(),
            "compared": self.comparison.describe_compared(),
            "comparison": self.comparison.outcome,
            "divergence": self.comparison.describe() or self.admission.divergence,
        }

    def known_folders(self) -> tuple[KnownFolder, ...]:
        return self.admission.known_folders()

    def unanswered_bytes(self) -> int:
        return 0 if self.gateway is None else self.gateway.unordered_bytes

    def unanswered_bytes_by_client(self) -> dict[ProcessId, int]:
        return {} if self.gateway is None else self.gateway.count_bytes_by_client()

    def explain(self, message: MessageId) -> list[Phase]:
        phases: list[Phase] = []
        if not self.comparison.is_sound:
            phases.append(Phase("comparison", False, self.comparison.describe()))
        if self.gateway is not None:
            for bundle, groups in self.gateway.open_bundles().items():
                if any(part.id == message for part in self.gateway.bundle_content(bundle) or ()):
                    description = f"this gateway sent it in bundle {bundle}; groups {list(groups)} have not replied"
                    phases.append(Phase("gateway", not groups, description))
        if self.has_delivered(message):
            remaining = [phase for phase in self.protocol.explain(message) if phase.name in PHASES_AFTER_DELIVERY]
            if self.real_time is not None:
                remaining += self.real_time.explain()
            return [*phases, explain_delivered(self.me), *remaining]
        return phases + self.protocol.explain(message)

    def on_request(self, message: Message) -> None:
        raise AssertionError("a node's events go to its parts")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError("a node's events go to its parts")

    def snapshot(self) -> NodeState:
        return NodeState(
            self.protocol.snapshot(),
            None if self.omega is None else self.omega.snapshot(),
            self.delivered.snapshot(),
            tuple((message, tuple(sorted(groups))) for _, (message, groups) in sorted(self._own_requests.items())),
            tuple(sorted(self._leaders.items())),
            None if self.gateway is None else self.gateway.snapshot(),
            self._pending_replies.snapshot(),
            self.admission.snapshot(),
            self.comparison.snapshot(),
            None if self.real_time is None else self.real_time.snapshot(),
            None if self.reads is None else self.reads.snapshot(),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, NodeState)
        self.protocol.restore(state.protocol)
        if self.protocol.topology is not self.topology:
            self._adopt_topology(self.protocol.topology)
            if self.gateway is not None:
                self.gateway.follow_topology(self.topology)
        if self.omega is not None and state.omega is not None:
            self.omega.restore(state.omega)
        self.delivered.restore(state.delivered)
        self._own_requests = {message.id: (message, set(groups)) for message, groups in state.own_requests}
        self._leaders = dict(state.leaders)
        self._pending_replies.restore(state.pending_replies)
        if self.gateway is not None and state.gateway is not None:
            self.gateway.restore(state.gateway)
        if state.admission is not None:
            self.admission.restore(state.admission)
            self._learn_topology(state.admission.topology)
        if state.comparison is not None:
            self.comparison.restore(state.comparison)
            self._outcome = self.comparison.outcome
        if self.real_time is not None and state.real_time is not None:
            self.real_time.restore(state.real_time)
        if self.reads is not None and state.reads is not None:
            self.reads.restore(state.reads)

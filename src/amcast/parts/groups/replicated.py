"""State machine replication: a protocol for single, correct processes, run by groups of 2f + 1 that may crash.

    client    leader of g   members of g         leader of h
      |--Request-->|             |                    |
      |            |---Paxos-----|                    |     the group's log orders all input
      |         inner step    inner step              |     every member steps its own copy of the inner protocol
      |            |--GroupMessage(g, n, body)------->|     the leader sends the output, numbered per channel
      |            |                                --Paxos-- ...
      |            |<-GroupMessageAck(h, n + 1)-------|     to all members: they need not retain it any longer

Source: Schneider, "Implementing fault-tolerant services using the state machine approach" (1990); papers 000
(section 4.4) and 004 (3.2) only state that groups do this.

The inner protocol sees a topology in which each group is one process, that of its first member, and links between them
that are FIFO and exactly-once. Both ends of a channel number its bodies: a leader sends the bodies that are not
acknowledged, and again after a leader change, a link reset and a timeout; the log of the receiving group accepts the
n-th body only after the one before it, and only once. So no crash loses, duplicates or reorders bodies.

The inner protocol must be deterministic, set no timers and persist nothing: the log is its durable state.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Union

import msgspec

from amcast.kernel.diagnostics import Phase, ProcessStatus, explain_delivered
from amcast.kernel.effects import About, Deliver, Note, Send
from amcast.kernel.events import Event, Receive
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import Entry
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.consensus.ring_paxos import RingPaxos
from amcast.parts.groups.replicated_messages import (
    GroupMessage,
    GroupMessageAck,
    ReplicatedCheckpoint,
    ReplicatedConfig,
    ReplicatedState,
)
from amcast.parts.ordering.delivered_set import DeliveredSet

ProcessFactory = Callable[[ProcessId, Topology, Any], Process]
Channels = dict[GroupId, dict[int, GroupMessage]]
"""Bodies by the group at the other end, and by their number on the channel."""
SavedChannels = tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]

RETRY: Final = "acknowledgement"
REQUEST: Final = 0
"""Kind of a log entry with a client's message."""
GROUP_MESSAGE: Final = 1
"""Kind of a log entry with a body of another group; its number is in the field `timestamp`."""


def replicate(make: ProcessFactory, bodies: tuple[type[Body], ...], state: type[State]) -> ProcessFactory:
    """Makes a protocol's processes for any topology: bare where every group is a single process, else replicated. Where
    members have changed they are replicated, too: `Reconfigurable` may drop a body that comes early and ask for it
    again, and a bare process sends everything once."""

    def process(me: ProcessId, topology: Topology, config: Any) -> Process:
        if topology.configuration == 0 and all(len(topology.members(group)) == 1 for group in topology.groups):
            return make(me, topology, config)
        return ReplicatedGroup(me, topology, config, make, bodies, state)

    return process


class ReplicatedGroup(Process):
    """One member of one group."""

    sends_replies = True  # if the inner protocol does

    def __init__(
        self,
        me: ProcessId,
        topology: Topology,
        config: ReplicatedConfig,
        make: ProcessFactory,
        bodies: tuple[type[Body], ...],
        state: type[State],
    ) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is a client"
        self.home: GroupId = self.group
        self._config = config
        self._inner_topology = Topology({g: topology.members(g)[:1] for g in topology.groups}, topology.clients)
        self.inner = make(topology.members(self.home)[0], self._inner_topology, config)
        self._state = state
        self._decoder = msgspec.msgpack.Decoder(Union[bodies])  # noqa: UP007
        consensus = RingPaxos if config.consensus == "ring" else Paxos
        self._paxos = consensus(self, topology.members(self.home), config)
        # Equal at every member after the same prefix of the log
        self._ordered = DeliveredSet()
        """Clients' messages in the log."""
        self._delivered = DeliveredSet()
        self._received: dict[GroupId, int] = {}
        """By group: the number of its bodies in the log."""
        self._sent: dict[GroupId, int] = {}
        """By group: the number of bodies that the inner protocol has sent to it."""
        # Specific to each member
        self._unacknowledged: Channels = {}
        """Sent bodies without acknowledgement, by number; only groups with any, so that idle channels cost nothing."""
        self._acknowledged: dict[GroupId, int] = {}
        """By group: it has acknowledged every body below; may be ahead of `_sent` at a member that lags."""
        self._requests: dict[MessageId, Message] = {}
        """Clients' messages that have arrived and are not in the log."""
        self._unproposed: list[MessageId] = []
        """Requests that this member has not proposed in its ballot."""
        self._overdue_requests: set[MessageId] = set()
        """Requests that waited already when the timer was set."""
        self._incoming: Channels = {}
        """Bodies of other groups that have arrived and are not in the log; only groups with any."""
        self._next_proposed: dict[GroupId, int] = {}
        """By group: the first body that this member has not proposed in its ballot."""
        self._overdue_below: dict[GroupId, int] = {}
        """By group: bodies below were sent already when the timer was set."""
        self._led_ballot = -1
        """The ballot for which `_start_leading` ran."""
        self._timer_set = False
        # Of the present step
        self._unsent_acks: dict[GroupId, list[MessageId]] = {}
        """Groups whose bodies the log has ordered, and the messages that these were about."""

    @property
    def work(self) -> int:
        return self.inner.work

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self.topology.processes_of(self._contacted_groups(message))

    def _contacted_groups(self, message: Message) -> tuple[GroupId, ...]:
        groups = (self._inner_topology.group_of(contact) for contact in self.inner.contacts(message))
        return tuple(group for group in groups if group is not None)

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._delivered

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        return self._delivered.snapshot()

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._apply(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        is_known = message.id in self._ordered or message.id in self._requests
        if not is_known and self.home in self._contacted_groups(message):
            self._requests[message.id] = message
            self._unproposed.append(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case GroupMessage(group, number):
                if number < self._received.get(group, 0):
                    self.send(sender, GroupMessageAck(self.home, self._received[group]), body.about)
                else:
                    self._incoming.setdefault(group, {})[number] = body
            case GroupMessageAck(group, upto):
                self._handle_group_ack(group, upto)
            case Reply():
                pass  # this process multicast the message itself
            case _:
                self._apply(self._paxos.receive(sender, body))

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group == self.home and leader in self.topology.members(group):
            self._paxos.handle_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.handle_link_reset(peer)
        group = self.topology.group_of(peer)
        if self._paxos.role == "leading" and group is not None:
            self._resend(group, (peer,), self._sent.get(group, 0))

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
            return
        self._timer_set = False
        if self._paxos.suggested_leader != self.me:
            for id in [id for id in self._requests if id in self._overdue_requests]:
                self.send(self._paxos.suggested_leader, Request(self._requests[id]), id)
        if self._paxos.role == "leading":
            for group, upto in sorted(self._overdue_below.items()):
                self._resend(group, self.topology.members(group), upto)

    def on_step_end(self) -> None:
        if self._paxos.can_propose():
            if self._led_ballot != self._paxos.ballot:
                self._start_leading()
            self._propose()
        if self._paxos.role == "leading":
            for group, ids in sorted(self._unsent_acks.items()):
                about = tuple(dict.fromkeys(ids))
                self.send_all(self.topology.members(group), GroupMessageAck(self.home, self._received[group]), about)
        self._unsent_acks = {}
        self._paxos.flush()
        if self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._make_checkpoint()))
        self._update_timer()

    def _update_timer(self) -> None:
        """Keeps the timer set while a request or an acknowledgement is outstanding."""
        is_waiting = bool(self._requests) or bool(self._unacknowledged)
        if is_waiting != self._timer_set:
            self._timer_set = is_waiting
            if is_waiting:
                self._overdue_requests = set(self._requests)
                self._overdue_below = {group: self._sent[group] for group in self._unacknowledged}
                self.set_timer(RETRY, self._config.retry_ns)
            else:
                self.cancel_timer(RETRY)

    # Input: everything passes through the log

    def _start_leading(self) -> None:
        """Computes the proposals of a new ballot, and sends again bodies that the last leader may not have sent."""
        self._led_ballot = self._paxos.ballot
        self._unproposed = list(self._requests)
        self._next_proposed = {}
        for group in sorted(self._unacknowledged):
            self.note("resent")
            self._resend(group, self.topology.members(group), self._sent[group])

    def _propose(self) -> None:
        value = [Entry(REQUEST, id, message=self._requests[id]) for id in self._unproposed if id in self._requests]
        self._unproposed = []
        for group in sorted(self._incoming):
            incoming = self._incoming[group]
            number = max(self._next_proposed.get(group, 0), self._received.get(group, 0))
            while number in incoming:
                about, body = incoming[number].about, incoming[number].body
                value.append(Entry(GROUP_MESSAGE, about, group, number, Message(about, 0, (), body)))
                number += 1
            self._next_proposed[group] = number
        if value:
            self._paxos.propose(tuple(value))

    def _apply(self, decided: Decided) -> None:
        for _, value in decided:
            if isinstance(value, bytes):
                self._install_checkpoint(msgspec.msgpack.decode(value, type=ReplicatedCheckpoint))
            else:
                for entry in value:
                    self._apply_entry(entry)

    def _apply_entry(self, entry: Entry) -> None:
        message = entry.message
        assert message is not None, f"{entry} has no message"
        if entry.kind == REQUEST:
            self._requests.pop(message.id, None)
            if not self._ordered.add(message.id):
                self.note("repeated", message.id)
            # The inner protocol takes a repeated request once: alone in its group, nobody orders requests for it.
            self._step_inner(Receive(message.sender, Request(message)))
            return
        group, number = entry.group, entry.timestamp
        if number != self._received.get(group, 0):
            # Two leaders proposed it, or the body before it was lost with its leader; then both are proposed again.
            self.note("repeated")
            return
        self._received[group] = number + 1
        incoming = self._incoming.get(group)
        if incoming is not None:
            incoming.pop(number, None)
            if not incoming:
                del self._incoming[group]
        self._unsent_acks.setdefault(group, []).append(entry.id)
        self._step_inner(Receive(self._inner_topology.members(group)[0], self._decoder.decode(message.payload)))

    def _step_inner(self, event: Event) -> None:
        """Steps the inner protocol with an event, and then with the bodies that it sends to itself."""
        inbox: deque[Event] = deque([event])
        while inbox:
            for effect in self.inner.step([inbox.popleft()], self.now):
                match effect:
                    case Send():
                        self._route_send(effect, inbox)
                    case Deliver(message, _, rank_time, rank_tie, committed_ns):
                        self._delivered.add(message.id)
                        # Not by `deliver`: the inner protocol's step has made the notes about this delivery.
                        self._outbox.append(Deliver(message, self.position, rank_time, rank_tie, committed_ns))
                        self.position += 1
                    case Note(name, about, value):
                        self.note(name, about, value)
                    case _:
                        raise AssertionError(f"a replicated protocol may not use the effect {effect!r}")

    # Output: the leader sends

    def _route_send(self, effect: Send, inbox: deque[Event]) -> None:
        encoded = b""
        for target in effect.targets:
            group = self._inner_topology.group_of(target)
            if group is None or type(effect.body) is Reply:
                if self._paxos.role == "leading":
                    self.send(target, effect.body, effect.about)
            elif group == self.home:
                inbox.append(Receive(self.inner.me, effect.body))
            else:
                encoded = encoded or msgspec.msgpack.encode(effect.body)
                self._send_to_group(group, encoded, effect.about)

    def _send_to_group(self, group: GroupId, body: bytes, about: About) -> None:
        assert not isinstance(about, tuple), "a body of a replicated protocol is about one message"
        number = self._sent.get(group, 0)
        self._sent[group] = number + 1
        if number < self._acknowledged.get(group, 0):
            return
        sent = GroupMessage(self.home, number, -1 if about is None else about, body)
        self._unacknowledged.setdefault(group, {})[number] = sent
        if self._paxos.role == "leading":
            members = self.topology.members(group)
            self.send_all(members[:1] if self._config.transfer == "leader" else members, sent, about)

    def _resend(self, group: GroupId, targets: tuple[ProcessId, ...], upto: int) -> None:
        for number, sent in sorted(self._unacknowledged.get(group, {}).items()):
            if number < upto:
                self.send_all(targets, sent, sent.about)

    def _handle_group_ack(self, group: GroupId, upto: int) -> None:
        if upto > self._acknowledged.get(group, 0):
            self._acknowledged[group] = upto
            sent = self._unacknowledged.get(group)
            if sent is not None:
                for number in [number for number in sent if number < upto]:
                    del sent[number]
                if not sent:
                    del self._unacknowledged[group]

    def send(self, target: ProcessId, body: Body, about: About = None) -> None:
        super().send(target, body, _drop_placeholders(about))

    def send_all(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        super().send_all(targets, body, _drop_placeholders(about))

    # For operators

    def status(self) -> ProcessStatus:
        inner = self.inner.status()
        pending = len(self._requests) + int(inner.get("pending", 0))
        role, joined = self._paxos.role, int(self._paxos.has_joined())
        return {**inner, "position": self.position, "role": role, "pending": pending, "joined": joined}

    def explain(self, message: MessageId) -> list[Phase]:
        """The phases of the inner protocol, with groups in place of its processes, and those of the replication."""
        if message in self._delivered:
            return [explain_delivered(self.me), *self._explain_channels(message)]
        other_members = tuple(member for member in self.topology.members(self.home) if member != self.me)
        if message in self._requests:
            groups = list(self._requests[message].destinations)
            return [
                Phase("asked", True, f"the message has arrived; its destinations are groups {groups}"),
                Phase("ordered", False, f"the log of group {self.home} does not have it", other_members),
            ]
        phases = [
            Phase(phase.name, phase.is_done, phase.description, self._members_of_singles(phase.waiting_for))
            for phase in self.inner.explain(message)
        ]
        if any(one.about == message for incoming in self._incoming.values() for one in incoming.values()):
            description = f"other groups have sent bodies about it that the log of group {self.home} does not have"
            phases.append(Phase("ordered", False, description, other_members))
        return phases + self._explain_channels(message)

    def _members_of_singles(self, singles: tuple[ProcessId, ...]) -> tuple[ProcessId, ...]:
        """The members of the groups for which processes of the inner topology stand."""
        groups = (self._inner_topology.group_of(single) for single in singles)
        return self.topology.processes_of(tuple(group for group in groups if group is not None))

    def _explain_channels(self, message: MessageId) -> list[Phase]:
        """The groups that have not acknowledged bodies about a message."""
        groups = [
            group
            for group, unacknowledged in sorted(self._unacknowledged.items())
            if any(sent.about == message for sent in unacknowledged.values())
        ]
        if not groups:
            return []
        description = f"groups {groups} have not acknowledged bodies of group {self.home} about it"
        return [Phase("carried", False, description, self.topology.processes_of(tuple(groups)))]

    # Snapshots

    def _make_checkpoint(self) -> ReplicatedCheckpoint:
        return ReplicatedCheckpoint(
            self.position,
            msgspec.msgpack.encode(self.inner.snapshot()),
            self._ordered.snapshot(),
            self._delivered.snapshot(),
            tuple(sorted(self._received.items())),
            tuple(sorted(self._sent.items())),
            _save_channels(self._unacknowledged),
            tuple(sorted(self._acknowledged.items())),
        )

    def _load_checkpoint(self, checkpoint: ReplicatedCheckpoint) -> None:
        self.inner.restore(msgspec.msgpack.decode(checkpoint.inner, type=self._state))
        self._ordered.restore(checkpoint.ordered)
        self._delivered.restore(checkpoint.delivered)
        self._received = dict(checkpoint.received)
        self._sent = dict(checkpoint.sent)
        self._unacknowledged = _restore_channels(checkpoint.unacknowledged)

    def _install_checkpoint(self, checkpoint: ReplicatedCheckpoint) -> None:
        """Continues from the checkpoint of another member, or of an earlier incarnation."""
        acknowledged = self._acknowledged
        self._load_checkpoint(checkpoint)
        self._acknowledged = {}
        for group, upto in sorted({*checkpoint.acknowledged, *acknowledged.items()}):
            self._handle_group_ack(group, upto)
        self._requests = {id: message for id, message in self._requests.items() if id not in self._ordered}
        for group, incoming in sorted(self._incoming.items()):
            received = self._received.get(group, 0)
            self._incoming[group] = {number: body for number, body in incoming.items() if number >= received}
            if not self._incoming[group]:
                del self._incoming[group]
        self.install_position(checkpoint.position)

    def snapshot(self) -> ReplicatedState:
        return ReplicatedState(
            self._make_checkpoint(),
            self._paxos.snapshot(),
            tuple(self._requests.values()),
            tuple(self._unproposed),
            tuple(sorted(self._overdue_requests)),
            _save_channels(self._incoming),
            tuple(sorted(self._next_proposed.items())),
            tuple(sorted(self._overdue_below.items())),
            self._led_ballot,
            self._timer_set,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ReplicatedState)
        self._load_checkpoint(state.checkpoint)
        self.position = state.checkpoint.position
        self._acknowledged = dict(state.checkpoint.acknowledged)
        self._paxos.restore(state.paxos)
        self._requests = {message.id: message for message in state.requests}
        self._unproposed = list(state.unproposed)
        self._overdue_requests = set(state.overdue_requests)
        self._incoming = _restore_channels(state.incoming)
        self._next_proposed = dict(state.next_proposed)
        self._overdue_below = dict(state.overdue_below)
        self._led_ballot = state.led_ballot
        self._timer_set = state.timer_set


def _save_channels(channels: Channels) -> SavedChannels:
    return tuple(
        (group, tuple(body for _, body in sorted(bodies.items())))
        for group, bodies in sorted(channels.items())
        if bodies
    )


def _restore_channels(saved: SavedChannels) -> Channels:
    return {group: {body.number: body for body in bodies} for group, bodies in saved}


def _drop_placeholders(about: About) -> About:
    """Removes the ids that stand for no message."""
    if isinstance(about, tuple):
        return tuple(message for message in about if message >= 0) or None
    return about if about is not None and about >= 0 else None

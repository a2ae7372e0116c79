"""The replicated-group adapter: a protocol for single, correct processes, run by groups of 2f + 1 that may crash.

    client    leader of g   members of g         leader of h
      |--Request-->|             |                    |
      |            |---Paxos-----|                    |     what comes in is ordered by the group's log
      |         inner step    inner step              |     every member feeds it to its own copy of the protocol
      |            |--Carry(g, n, body)-------------->|     the leader sends what comes out, numbered per channel
      |            |                                --Paxos-- ...
      |            |<-Taken(h, n + 1)-----------------|     to all members: they need not keep it any longer

Source: Schneider, "Implementing fault-tolerant services using the state machine approach" (1990); papers 000
(section 4.4) and 004 (3.2) say no more than that groups do this.

The protocol inside sees a topology in which each group is one process, that of its first member, and links between
them that are FIFO and exactly-once. Both ends of a channel count: whoever leads sends what is not known to be taken,
again after every change of the leader, after a lost link and after a while; the log of the receiving group takes the
n-th body only after the one before it and only once. So nothing is lost, doubled or overtaken, whoever crashes.

The protocol inside must be deterministic, set no timers and keep nothing durable: its log is its memory.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Union

import msgspec

from amcast.kernel.diagnostics import Phase, ProcessStatus
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
from amcast.parts.groups.messages import (
    GroupMessage,
    GroupMessageAck,
    ReplicatedCheckpoint,
    ReplicatedConfig,
    ReplicatedState,
)
from amcast.parts.ordering.delivered_set import DeliveredSet

ProcessFactory = Callable[[ProcessId, Topology, Any], Process]

RETRY: Final = "adapter"
REQUEST: Final = 0
GROUP_MESSAGE: Final = 1


def replicate(make: ProcessFactory, bodies: tuple[type[Body], ...], state: type[State]) -> ProcessFactory:
    """A protocol's process for any topology: itself where groups are single processes, else lifted to groups."""

    def process(me: ProcessId, topology: Topology, config: Any) -> Process:
        if all(len(topology.members(group)) == 1 for group in topology.groups):
            return make(me, topology, config)
        return ReplicatedGroup(me, topology, config, make, bodies, state)

    return process


class ReplicatedGroup(Process):
    """One member of one group."""

    sends_replies = True  # where the protocol inside does

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
        self._single = Topology({g: topology.members(g)[:1] for g in topology.groups}, topology.clients)
        self.inner = make(topology.members(self.home)[0], self._single, config)
        self._state = state
        self._decoder = msgspec.msgpack.Decoder(Union[bodies])  # noqa: UP007
        self._paxos = Paxos(self, topology.members(self.home), config)
        # The same at every member after the same prefix of the log
        self._asked = DeliveredSet()
        """Clients' messages that the log has."""
        self._delivered = DeliveredSet()
        self._taken: dict[GroupId, int] = {}
        """How many bodies of each other group the log has taken."""
        self._sent: dict[GroupId, int] = {}
        """How many bodies were said to each other group."""
        # Each member's own
        self._outgoing: dict[GroupId, dict[int, GroupMessage]] = {}
        """Said and not known to be taken, by number; only groups with any, so that idle ones cost nothing."""
        self._settled: dict[GroupId, int] = {}
        """Known to be taken by each other group; may be ahead of what I know to be said."""
        self._waiting: dict[MessageId, Message] = {}
        """Clients asked for it, the log does not have it."""
        self._fresh: list[MessageId] = []
        """Those that I, leading, have not proposed."""
        self._old: set[MessageId] = set()
        """Those that waited already when the timer was set."""
        self._arrived: dict[GroupId, dict[int, GroupMessage]] = {}
        """Other groups said it, the log has not taken it; only groups with any."""
        self._next: dict[GroupId, int] = {}
        """The first body of each group that I, leading, have not proposed."""
        self._old_sent: dict[GroupId, int] = {}
        """What was said already when the timer was set."""
        self._led = -1
        """The ballot in which I last took over."""
        self._armed = False
        # Of this step
        self._news: dict[GroupId, list[MessageId]] = {}
        """Groups whose bodies were taken, and what these were about."""

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self.topology.processes_of(self._contacted(message))

    def _contacted(self, message: Message) -> tuple[GroupId, ...]:
        groups = (self._single.group_of(contact) for contact in self.inner.contacts(message))
        return tuple(group for group in groups if group is not None)

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._delivered

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        return self._delivered.snapshot()

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._apply(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        if message.id not in self._asked and message.id not in self._waiting and self.home in self._contacted(message):
            self._waiting[message.id] = message
            self._fresh.append(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case GroupMessage(group, number):
                if number < self._taken.get(group, 0):
                    self.send(sender, GroupMessageAck(self.home, self._taken[group]), body.about)
                else:
                    self._arrived.setdefault(group, {})[number] = body
            case GroupMessageAck(group, upto):
                self._hear_taken(group, upto)
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
            self._send_again(group, (peer,), self._sent.get(group, 0))

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
            return
        self._armed = False
        if self._paxos.suggested_leader != self.me:
            for id in [id for id in self._waiting if id in self._old]:
                self.send(self._paxos.suggested_leader, Request(self._waiting[id]), id)
        if self._paxos.role == "leading":
            for group, upto in sorted(self._old_sent.items()):
                self._send_again(group, self.topology.members(group), upto)

    def on_step_end(self) -> None:
        if self._paxos.can_propose():
            if self._led != self._paxos.ballot:
                self._take_over()
            self._propose()
        if self._paxos.role == "leading":
            for group, ids in sorted(self._news.items()):
                about = tuple(dict.fromkeys(ids))
                self.send_all(self.topology.members(group), GroupMessageAck(self.home, self._taken[group]), about)
        self._news = {}
        self._paxos.flush()
        if self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._core()))
        self._watch()

    def _watch(self) -> None:
        """Keep the timer set while something is waited for."""
        waits = bool(self._waiting) or bool(self._outgoing)
        if waits != self._armed:
            self._armed = waits
            if waits:
                self._old = set(self._waiting)
                self._old_sent = {group: self._sent[group] for group in self._outgoing}
                self.set_timer(RETRY, self._config.retry_ns)
            else:
                self.cancel_timer(RETRY)

    # In: everything passes through the log

    def _take_over(self) -> None:
        """I lead, and know all that was ordered before: propose what waits, say again what may be lost."""
        self._led = self._paxos.ballot
        self._fresh = list(self._waiting)
        self._next = {}
        for group in sorted(self._outgoing):
            self.note("resent")
            self._send_again(group, self.topology.members(group), self._sent[group])

    def _propose(self) -> None:
        value = [Entry(REQUEST, id, message=self._waiting[id]) for id in self._fresh if id in self._waiting]
        self._fresh = []
        for group in sorted(self._arrived):
            arrived = self._arrived[group]
            number = max(self._next.get(group, 0), self._taken.get(group, 0))
            while number in arrived:
                carry = arrived[number]
                carried = Message(carry.about, 0, (), carry.body)
                value.append(Entry(GROUP_MESSAGE, carry.about, group, number, carried))
                number += 1
            self._next[group] = number
        if value:
            self._paxos.propose(tuple(value))

    def _apply(self, decided: Decided) -> None:
        for _, value in decided:
            if isinstance(value, bytes):
                self._install(msgspec.msgpack.decode(value, type=ReplicatedCheckpoint))
            else:
                for entry in value:
                    self._enter(entry)

    def _enter(self, entry: Entry) -> None:
        message = entry.message
        assert message is not None, f"{entry} says nothing"
        if entry.kind == REQUEST:
            self._waiting.pop(message.id, None)
            if self._asked.add(message.id):
                self._feed(Receive(message.sender, Request(message)))
            else:
                self.note("repeated", message.id)
            return
        group, number = entry.group, entry.timestamp
        if number != self._taken.get(group, 0):
            # Proposed by two leaders, or the one before it was lost with its leader: then both are proposed again.
            self.note("repeated")
            return
        self._taken[group] = number + 1
        arrived = self._arrived.get(group)
        if arrived is not None:
            arrived.pop(number, None)
            if not arrived:
                del self._arrived[group]
        self._news.setdefault(group, []).append(entry.id)
        self._feed(Receive(self._single.members(group)[0], self._decoder.decode(message.payload)))

    def _feed(self, event: Event) -> None:
        """Let the protocol take one step, and then those that it asks of itself."""
        inbox: deque[Event] = deque([event])
        while inbox:
            for effect in self.inner.step([inbox.popleft()], self.now):
                match effect:
                    case Send():
                        self._put(effect, inbox)
                    case Deliver(message, _, rank_time, rank_tie, committed_ns):
                        self._delivered.add(message.id)
                        # Not by the verb: what is worth noting about this delivery was noted inside.
                        self._outbox.append(Deliver(message, self.position, rank_time, rank_tie, committed_ns))
                        self.position += 1
                    case Note(name, about, value):
                        self.note(name, about, value)
                    case _:
                        raise AssertionError(f"a protocol inside the adapter may not ask for {effect!r}")

    # Out: the leader speaks

    def _put(self, effect: Send, inbox: deque[Event]) -> None:
        encoded = b""
        for target in effect.targets:
            group = self._single.group_of(target)
            if group is None or type(effect.body) is Reply:
                if self._paxos.role == "leading":
                    self.send(target, effect.body, effect.about)
            elif group == self.home:
                inbox.append(Receive(self.inner.me, effect.body))
            else:
                encoded = encoded or msgspec.msgpack.encode(effect.body)
                self._carry(group, encoded, effect.about)

    def _carry(self, group: GroupId, body: bytes, about: About) -> None:
        assert not isinstance(about, tuple), "a body inside the adapter is about one message"
        number = self._sent.get(group, 0)
        self._sent[group] = number + 1
        if number < self._settled.get(group, 0):
            return
        carry = GroupMessage(self.home, number, -1 if about is None else about, body)
        self._outgoing.setdefault(group, {})[number] = carry
        if self._paxos.role == "leading":
            self.send_all(self.topology.members(group), carry, about)

    def _send_again(self, group: GroupId, targets: tuple[ProcessId, ...], upto: int) -> None:
        for number, carry in sorted(self._outgoing.get(group, {}).items()):
            if number < upto:
                self.send_all(targets, carry, carry.about)

    def _hear_taken(self, group: GroupId, upto: int) -> None:
        settled = self._settled.get(group, 0)
        if upto > settled:
            self._settled[group] = upto
            outgoing = self._outgoing.get(group)
            if outgoing is not None:
                for number in [number for number in outgoing if number < upto]:
                    del outgoing[number]
                if not outgoing:
                    del self._outgoing[group]

    def send(self, target: ProcessId, body: Body, about: About = None) -> None:
        super().send(target, body, _real(about))

    def send_all(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        super().send_all(targets, body, _real(about))

    # For operators

    def status(self) -> ProcessStatus:
        inner = self.inner.status()
        pending = len(self._waiting) + int(inner.get("pending", 0))
        role, joined = self._paxos.role, int(self._paxos.has_joined())
        return {**inner, "position": self.position, "role": role, "pending": pending, "joined": joined}

    def explain(self, message: MessageId) -> list[Phase]:
        """What the protocol inside says of it, with groups for processes, between what the group waits for itself."""
        if message in self._delivered:
            return [Phase("delivered", True, f"process {self.me} has delivered it"), *self._untaken(message)]
        fellows = tuple(member for member in self.topology.members(self.home) if member != self.me)
        if message in self._waiting:
            return [
                Phase("asked", True, f"the message is here, for groups {list(self._waiting[message].destinations)}"),
                Phase("ordered", False, f"the log of group {self.home} does not have it", fellows),
            ]
        told = [
            Phase(phase.name, phase.is_done, phase.description, self._all_members(phase.waiting_for))
            for phase in self.inner.explain(message)
        ]
        arrived = any(carry.about == message for carries in self._arrived.values() for carry in carries.values())
        if arrived:
            said = f"other groups said something of it that the log of group {self.home} does not have"
            told.append(Phase("ordered", False, said, fellows))
        return told + self._untaken(message)

    def _all_members(self, singles: tuple[ProcessId, ...]) -> tuple[ProcessId, ...]:
        """The members of groups that the protocol inside takes for processes."""
        groups = (self._single.group_of(single) for single in singles)
        return self.topology.processes_of(tuple(group for group in groups if group is not None))

    def _untaken(self, message: MessageId) -> list[Phase]:
        """Groups that have not taken what this one said to them of a message."""
        groups = [
            group
            for group, carries in sorted(self._outgoing.items())
            if any(carry.about == message for carry in carries.values())
        ]
        said = f"groups {groups} have not taken what group {self.home} said to them"
        return [Phase("carried", False, said, self.topology.processes_of(tuple(groups)))] if groups else []

    # Memory

    def _core(self) -> ReplicatedCheckpoint:
        return ReplicatedCheckpoint(
            self.position,
            msgspec.msgpack.encode(self.inner.snapshot()),
            self._asked.snapshot(),
            self._delivered.snapshot(),
            tuple(sorted(self._taken.items())),
            tuple(sorted(self._sent.items())),
            _carries(self._outgoing),
            tuple(sorted(self._settled.items())),
        )

    def _become(self, core: ReplicatedCheckpoint) -> None:
        self.inner.restore(msgspec.msgpack.decode(core.inner, type=self._state))
        self._asked.restore(core.asked)
        self._delivered.restore(core.delivered)
        self._taken = dict(core.taken)
        self._sent = dict(core.sent)
        self._outgoing = {group: {carry.number: carry for carry in carries} for group, carries in core.outgoing}

    def _install(self, core: ReplicatedCheckpoint) -> None:
        """Become what another member, or I in an earlier incarnation, was."""
        settled = self._settled
        self._become(core)
        self._settled = {}
        for group, upto in sorted({*core.settled, *settled.items()}):
            self._hear_taken(group, upto)
        self._waiting = {id: message for id, message in self._waiting.items() if id not in self._asked}
        for group, arrived in sorted(self._arrived.items()):
            taken = self._taken.get(group, 0)
            self._arrived[group] = {number: carry for number, carry in arrived.items() if number >= taken}
            if not self._arrived[group]:
                del self._arrived[group]
        self.install_position(core.position)

    def snapshot(self) -> ReplicatedState:
        return ReplicatedState(
            self._core(),
            self._paxos.snapshot(),
            tuple(self._waiting.values()),
            tuple(self._fresh),
            tuple(sorted(self._old)),
            _carries(self._arrived),
            tuple(sorted(self._next.items())),
            tuple(sorted(self._old_sent.items())),
            self._led,
            self._armed,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ReplicatedState)
        self._become(state.core)
        self.position = state.core.position
        self._settled = dict(state.core.settled)
        self._paxos.restore(state.paxos)
        self._waiting = {message.id: message for message in state.waiting}
        self._fresh = list(state.fresh)
        self._old = set(state.old)
        self._arrived = {group: {carry.number: carry for carry in carries} for group, carries in state.arrived}
        self._next = dict(state.next)
        self._old_sent = dict(state.old_sent)
        self._led = state.led
        self._armed = state.armed


def _carries(channels: dict[GroupId, dict[int, GroupMessage]]) -> tuple[tuple[GroupId, tuple[GroupMessage, ...]], ...]:
    return tuple(
        (group, tuple(carry for _, carry in sorted(carries.items())))
        for group, carries in sorted(channels.items())
        if carries
    )


def _real(about: About) -> About:
    """Without what stands for no message."""
    if isinstance(about, tuple):
        return tuple(message for message in about if message >= 0) or None
    return about if about is not None and about >= 0 else None

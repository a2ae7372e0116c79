"""A client that does not give up, and the promise that makes retrying safe.

    client                     contacts                 all members
      |--Request------------------>|                        |
      |        (no answer from some group for a while)      |
      |--Request------------------------------------------->|
      |<-Reply (one per destination group is enough)--------|
    resolve

A message is done when every destination group has answered. What was not answered in time is asked for again, from
every member of the destinations and of the groups that the protocol's contacts belong to; groups may see a message
twice, and order it once (`parts/ordering/delivered_set.py`). A client never runs more than WINDOW sequence numbers
ahead of its oldest unanswered message: this is what lets groups forget old sequence numbers.

A protocol that survives the loss of whole groups says which ones it lost (Absent): what everybody was asked for, and
only those have not answered by the time of the next retry, is done too, and they are named. Whom a request may not have
reached is asked once more when its link begins anew: a group that is only out of sight must not miss a message that
nobody else has.

When a group's members change (`parts/membership/reconfigurable.py`), each server tells when it has passed
into the new number, and is asked again for everything open.

Where nodes are gateways (`parts/node/gateway.py`), a client tells one of them instead, which asks in the name of many
and answers for all groups (Done). It is the first member, who is the leader at first, of one of the destinations, the
same one for all clients: the more of them meet at one gateway, the larger its bundles. When an answer is late, a client
goes to the next member, for this and for all later messages.
"""

from collections.abc import Callable

from amcast.kernel.ids import GroupId, MessageId, ProcessId, sequence_of
from amcast.kernel.message import Body, Message, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import decode_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import (
    AbsentGroups,
    ClientSessionState,
    ConfigurationStarted,
    Done,
    Farewell,
    LeaderHint,
    SessionConfig,
)
from amcast.parts.ordering.messages import WINDOW

Contact = Callable[[Topology, Message], tuple[ProcessId, ...]]

TIMER = "session"


class _PendingMessage:
    """A message that some groups have not answered."""

    __slots__ = ("age", "groups", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.groups: set[GroupId] = set(message.destinations)
        self.age = 0
        """How often the timer ran out; 2 and more: everybody was asked."""


class ClientSession(Process):
    """A client of any protocol, for one user or for many."""

    def __init__(self, me: ProcessId, topology: Topology, contact: Contact, config: SessionConfig) -> None:
        super().__init__(me, topology)
        self._contact = contact
        self._config = config
        self._waiting: dict[MessageId, _PendingMessage] = {}
        """Asked and unanswered, oldest first."""
        self._held: list[Message] = []
        """Too far ahead of the oldest; asked when that is answered."""
        self._leaders: dict[GroupId, ProcessId] = {}
        self._armed = False
        self._turn = 0
        """How often an answer was late: where I stand in the row of gateways."""
        self._view: tuple[int, tuple[GroupId, ...]] = (0, ())
        """The groups that servers do not wait for, as of which epoch."""
        self._left: dict[MessageId, Message] = {}
        """Done because all destinations are lost, as far as is known: nobody has answered."""

    def on_submit(self, message: Message) -> None:
        if self._waiting:
            oldest = next(iter(self._waiting))
            if self._held or sequence_of(message.id) - sequence_of(oldest) >= WINDOW:
                self._held.append(message)
                return
        waiting = self._waiting[message.id] = _PendingMessage(message)
        contacts = self.contacts(message)
        if not self._config.gateways and not waiting.groups.isdisjoint(self._view[1]):
            waiting.age = 2
            contacts = self._everybody(message)
        self.send_all(contacts, Request(message), message.id)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        """My gateway; or those of the protocol, but for the leaders that changed."""
        if self._config.gateways:
            groups = message.destinations
            return (self._gateway(groups[sum(groups) % len(groups)]),)
        contacts = self._contact(self.topology, message)
        if not self._leaders:
            return contacts
        homes = [self.topology.group_of(contact) for contact in contacts]
        if len(set(homes)) < len(homes):
            return contacts
        return tuple(
            contact if group is None else self._leaders.get(group, contact)
            for contact, group in zip(contacts, homes, strict=True)
        )

    def _gateway(self, group: GroupId) -> ProcessId:
        """Whom to ask in a group."""
        members = self.topology.members(group)
        return members[self._turn % len(members)]

    def on_request(self, message: Message) -> None:
        raise AssertionError(f"process {self.me} is a client and no contact of message {message.id}")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Reply(message, group):
                self._answered(message, group)
            case Done(messages):
                for message in messages:
                    self._finish(message)
            case LeaderHint(group, leader):
                self._leaders[group] = leader
            case Farewell():
                self.on_peer_down(sender)
            case AbsentGroups(epoch, groups):
                if epoch >= self._view[0]:
                    self._view = (epoch, groups)
            case ConfigurationStarted(number, topology):
                if number > self.topology.configuration:
                    self.topology = decode_topology(topology)
                    self._leaders = {}
                    self._view = (0, ())  # epochs are counted anew under each number
                if number == self.topology.configuration:
                    self._ask(sender)
                    self._move_from(sender)
            case _:
                raise AssertionError(f"nobody tells a client {body!r}")

    def on_peer_down(self, peer: ProcessId) -> None:
        """A gateway says that it leaves, or its address is silent: ask the next one for what it was asked, at once."""
        group = self.topology.group_of(peer)
        self._move_from(peer)
        if not self._config.gateways or group is None or self._gateway(group) != peer:
            return
        moved = [waiting for waiting in self._waiting.values() if peer in self.contacts(waiting.message)]
        self._turn += 1
        for waiting in moved:
            self.send_all(self.contacts(waiting.message), Request(waiting.message), waiting.message.id)

    def _move_from(self, peer: ProcessId) -> None:
        """A gateway that was removed serves nobody: whatever it may have been asked for, its successors are asked."""
        if self._config.gateways and self.topology.group_of(peer) is None:
            for waiting in self._waiting.values():
                self.send_all(self.contacts(waiting.message), Request(waiting.message), waiting.message.id)

    def unanswered_groups(self, message: MessageId) -> tuple[GroupId, ...]:
        """The groups that have not answered a message."""
        waiting = self._waiting.get(message)
        return () if waiting is None else tuple(sorted(waiting.groups))

    def _answered(self, message: MessageId, group: GroupId) -> None:
        epoch, lost = self._view
        if group in lost:  # it is back; should this answer be an old one, a retry is answered with the view
            self._view = (epoch, tuple(other for other in lost if other != group))
        waiting = self._waiting.get(message)
        if waiting is None:
            self._left.pop(message, None)
            return
        waiting.groups.discard(group)
        if not waiting.groups:
            self._finish(message)
        elif self._config.gateways and waiting.age < 2:
            # A gateway answers for its group alone if another, which must have died, asked before: ask in the others.
            waiting.age = 2
            self.send_all(self._again(waiting), Request(waiting.message), waiting.message.id)

    def _finish(self, message: MessageId, absent: tuple[GroupId, ...] = ()) -> None:
        if self._waiting.pop(message, None) is None:
            return
        self.resolve(message, absent)
        if self._held:
            held, self._held = self._held, []
            for later in held:
                self.on_submit(later)

    def _give_up(self) -> None:
        """What only groups that are lost have not answered, for long, is done: the user is told which those are."""
        lost = self._view[1]
        for waiting in [w for w in self._waiting.values() if w.age > 1 and w.groups.issubset(lost)]:
            absent = tuple(sorted(waiting.groups))
            if absent == waiting.message.destinations:
                self._leave(waiting.message)
            for group in absent:
                self.note("absent", waiting.message.id, float(group))
            self._finish(waiting.message.id, absent)

    def _leave(self, message: Message) -> None:
        """What is too old for groups to tell whether they have seen it is not asked for again."""
        self._left[message.id] = message
        for id in [id for id in self._left if sequence_of(message.id) - sequence_of(id) >= WINDOW]:
            del self._left[id]

    def on_timer(self, name: str) -> None:
        self._armed = False
        if self._view[1]:
            self._give_up()
        if any(waiting.age for waiting in self._waiting.values()):
            self._turn += 1
        for waiting in self._waiting.values():
            if waiting.age:
                self.note("retried", waiting.message.id)
                self.send_all(self._again(waiting), Request(waiting.message), waiting.message.id)
            waiting.age = min(waiting.age + 1, 2)

    def _again(self, waiting: _PendingMessage) -> tuple[ProcessId, ...]:
        """Whom to ask for what was not answered: a gateway in every group that is silent, or everybody."""
        if self._config.gateways:
            return tuple(self._gateway(group) for group in sorted(waiting.groups))
        return self._everybody(waiting.message)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._ask(peer)

    def _ask(self, peer: ProcessId) -> None:
        """What I told it before is lost, or it has begun another number since: tell it again."""
        for waiting in self._waiting.values():
            if peer in self.contacts(waiting.message):
                self.send(peer, Request(waiting.message), waiting.message.id)
        for message in self._left.values():
            if self.topology.group_of(peer) in message.destinations:
                self.send(peer, Request(message), message.id)

    def _everybody(self, message: Message) -> tuple[ProcessId, ...]:
        """All members of the contacts' groups, who order, and of the destinations, who answer."""
        groups = set(message.destinations)
        for contact in self._contact(self.topology, message):
            group = self.topology.group_of(contact)
            if group is not None:
                groups.add(group)
        return self.topology.processes_of(tuple(sorted(groups)))

    def on_step_end(self) -> None:
        if self._waiting and not self._armed:
            self._armed = True  # and never cancelled: the next message is asked for long before it runs out
            self.set_timer(TIMER, self._config.retry_ns)

    def snapshot(self) -> ClientSessionState:
        return ClientSessionState(
            tuple((w.message, tuple(sorted(w.groups)), w.age) for w in self._waiting.values()),
            tuple(self._held),
            tuple(sorted(self._leaders.items())),
            self._armed,
            self._turn,
            self._view,
            encode_topology(self.topology) if self.topology.configuration else b"",
            tuple(self._left.values()),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ClientSessionState)
        self._waiting = {}
        for message, groups, age in state.waiting:
            waiting = self._waiting[message.id] = _PendingMessage(message)
            waiting.groups = set(groups)
            waiting.age = age
        self._held = list(state.held)
        self._leaders = dict(state.leaders)
        self._armed = state.armed
        self._turn = state.turn
        self._view = state.view
        self._left = {message.id: message for message in state.left}
        if state.topology:
            self.topology = decode_topology(state.topology)

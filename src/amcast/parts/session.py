"""A client that does not give up, and the promise that makes retrying safe.

    client                     contacts                 all members
      |--Request------------------>|                        |
      |        (no answer from some group for a while)      |
      |--Request------------------------------------------->|
      |<-Reply (one per destination group is enough)--------|
    resolve

A message is done when every destination group has answered. What was not answered in time is asked for again, from
every member of the destinations and of the groups that the protocol's contacts belong to; groups may see a message
twice, and order it once (`parts/seen.py`). A client never runs more than WINDOW sequence numbers ahead of its oldest
unanswered message: this is what lets groups forget old sequence numbers.

A protocol that survives the loss of whole groups says which ones it lost (Absent): what only those have not answered by
the time of a retry is done too, and they are named.

When a group's members change (`parts/changing.py`), each server tells when it has passed
into the new number, and is asked again for everything open.

Where nodes are gateways (`parts/gateway.py`), a client tells one of them instead, which asks in the name of many and
answers for all groups (Done). It is the first member, who is the leader at first, of one of the destinations, the same
one for all clients: the more of them meet at one gateway, the larger its bundles. When an answer is late, a client goes
to the next member, for this and for all later messages.
"""

from collections.abc import Callable

from amcast.kernel.change import decoded, encoded
from amcast.kernel.ids import GroupId, MessageId, ProcessId, sequence_of
from amcast.kernel.message import Body, Message, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.bodies.changing import Turned
from amcast.parts.bodies.gateway import Done
from amcast.parts.bodies.omega import Farewell
from amcast.parts.bodies.session import WINDOW, Absent, ClientState, Hint, SessionConfig

Contact = Callable[[Topology, Message], tuple[ProcessId, ...]]

TIMER = "session"


class _Waiting:
    """A message that some groups have not answered."""

    __slots__ = ("groups", "message", "old")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.groups: set[GroupId] = set(message.destinations)
        self.old = False
        """It was waiting already when the timer was set."""


class Client(Process):
    """A client of any protocol, for one user or for many."""

    def __init__(self, me: ProcessId, topology: Topology, contact: Contact, config: SessionConfig) -> None:
        super().__init__(me, topology)
        self._contact = contact
        self._config = config
        self._waiting: dict[MessageId, _Waiting] = {}
        """Asked and unanswered, oldest first."""
        self._held: list[Message] = []
        """Too far ahead of the oldest; asked when that is answered."""
        self._leaders: dict[GroupId, ProcessId] = {}
        self._armed = False
        self._turn = 0
        """How often an answer was late: where I stand in the row of gateways."""
        self._view: tuple[int, tuple[GroupId, ...]] = (0, ())
        """The groups that servers do not wait for, as of which epoch."""

    def on_multicast(self, message: Message) -> None:
        if self._waiting:
            oldest = next(iter(self._waiting))
            if self._held or sequence_of(message.id) - sequence_of(oldest) >= WINDOW:
                self._held.append(message)
                return
        self._waiting[message.id] = _Waiting(message)
        self.send_all(self.contacts(message), Request(message), message.id)

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

    def on_submit(self, message: Message) -> None:
        raise AssertionError(f"process {self.me} is a client and no contact of message {message.id}")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Reply(message, group):
                self._answered(message, group)
            case Done(messages):
                for message in messages:
                    self._finish(message)
            case Hint(group, leader):
                self._leaders[group] = leader
            case Farewell():
                self.on_gone(sender)
            case Absent(epoch, groups):
                self._view = max(self._view, (epoch, groups))
            case Turned(number, topology):
                if number > self.topology.number:
                    self.topology = decoded(topology)
                    self._leaders = {}
                if number == self.topology.number:
                    self._ask(sender)
                    self._move_from(sender)
            case _:
                raise AssertionError(f"nobody tells a client {body!r}")

    def on_gone(self, peer: ProcessId) -> None:
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

    def unanswered(self, message: MessageId) -> tuple[GroupId, ...]:
        """The groups that have not answered a message."""
        waiting = self._waiting.get(message)
        return () if waiting is None else tuple(sorted(waiting.groups))

    def _answered(self, message: MessageId, group: GroupId) -> None:
        waiting = self._waiting.get(message)
        if waiting is None:
            return
        waiting.groups.discard(group)
        if not waiting.groups:
            self._finish(message)

    def _finish(self, message: MessageId, absent: tuple[GroupId, ...] = ()) -> None:
        if self._waiting.pop(message, None) is None:
            return
        self.resolve(message, absent)
        if self._held:
            held, self._held = self._held, []
            for later in held:
                self.on_multicast(later)

    def _give_up(self) -> None:
        """What only groups that are lost have not answered, for long, is done: the user is told which those are."""
        lost = self._view[1]
        for waiting in [w for w in self._waiting.values() if w.old and w.groups.issubset(lost)]:
            absent = tuple(sorted(waiting.groups))
            for group in absent:
                self.note("absent", waiting.message.id, float(group))
            self._finish(waiting.message.id, absent)

    def on_timer(self, name: str) -> None:
        self._armed = False
        if self._view[1]:
            self._give_up()
        if any(waiting.old for waiting in self._waiting.values()):
            self._turn += 1
        for waiting in self._waiting.values():
            if waiting.old:
                self.note("retried", waiting.message.id)
                self.send_all(self._again(waiting), Request(waiting.message), waiting.message.id)
            waiting.old = True

    def _again(self, waiting: _Waiting) -> tuple[ProcessId, ...]:
        """Whom to ask for what was not answered: a gateway in every group that is silent, or everybody."""
        if self._config.gateways:
            return tuple(self._gateway(group) for group in sorted(waiting.groups))
        return self._everybody(waiting.message)

    def on_peer(self, peer: ProcessId, life: int) -> None:
        self._ask(peer)

    def _ask(self, peer: ProcessId) -> None:
        """What I told it before is lost, or it has begun another number since: tell it again."""
        for waiting in self._waiting.values():
            if peer in self.contacts(waiting.message):
                self.send(peer, Request(waiting.message), waiting.message.id)

    def _everybody(self, message: Message) -> tuple[ProcessId, ...]:
        """All members of the contacts' groups, who order, and of the destinations, who answer."""
        groups = set(message.destinations)
        for contact in self._contact(self.topology, message):
            group = self.topology.group_of(contact)
            if group is not None:
                groups.add(group)
        return self.topology.addressed(tuple(sorted(groups)))

    def on_step_end(self) -> None:
        if self._waiting and not self._armed:
            self._armed = True  # and never cancelled: the next message is asked for long before it runs out
            self.set_timer(TIMER, self._config.retry_ns)

    def snapshot(self) -> ClientState:
        return ClientState(
            tuple((w.message, tuple(sorted(w.groups)), w.old) for w in self._waiting.values()),
            tuple(self._held),
            tuple(sorted(self._leaders.items())),
            self._armed,
            self._turn,
            self._view,
            encoded(self.topology) if self.topology.number else b"",
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ClientState)
        self._waiting = {}
        for message, groups, old in state.waiting:
            waiting = self._waiting[message.id] = _Waiting(message)
            waiting.groups = set(groups)
            waiting.old = old
        self._held = list(state.held)
        self._leaders = dict(state.leaders)
        self._armed = state.armed
        self._turn = state.turn
        self._view = state.view
        if state.topology:
            self.topology = decoded(state.topology)

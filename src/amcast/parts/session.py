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
"""

from collections.abc import Callable

from amcast.kernel.ids import GroupId, MessageId, ProcessId, sequence_of
from amcast.kernel.message import Body, Message, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.bodies.session import WINDOW, ClientState, Hint, SessionConfig

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

    def on_multicast(self, message: Message) -> None:
        if self._waiting:
            oldest = next(iter(self._waiting))
            if self._held or sequence_of(message.id) - sequence_of(oldest) >= WINDOW:
                self._held.append(message)
                return
        self._waiting[message.id] = _Waiting(message)
        self.send_all(self.contacts(message), Request(message), message.id)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        """Those of the protocol, but for the leaders that changed."""
        contacts = self._contact(self.topology, message)
        if not self._leaders:
            return contacts
        groups = [self.topology.group_of(contact) for contact in contacts]
        if len(set(groups)) < len(groups):
            return contacts
        return tuple(
            contact if group is None else self._leaders.get(group, contact)
            for contact, group in zip(contacts, groups, strict=True)
        )

    def on_submit(self, message: Message) -> None:
        raise AssertionError(f"process {self.me} is a client and no contact of message {message.id}")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Reply(message, group):
                self._answered(message, group)
            case Hint(group, leader):
                self._leaders[group] = leader
            case _:
                raise AssertionError(f"nobody tells a client {body!r}")

    def _answered(self, message: MessageId, group: GroupId) -> None:
        waiting = self._waiting.get(message)
        if waiting is None:
            return
        waiting.groups.discard(group)
        if waiting.groups:
            return
        del self._waiting[message]
        self.resolve(message)
        if self._held:
            held, self._held = self._held, []
            for later in held:
                self.on_multicast(later)

    def on_timer(self, name: str) -> None:
        self._armed = False
        for waiting in self._waiting.values():
            if waiting.old:
                self.note("retried", waiting.message.id)
                self.send_all(self._everybody(waiting.message), Request(waiting.message), waiting.message.id)
            waiting.old = True

    def on_peer(self, peer: ProcessId, life: int) -> None:
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
        if bool(self._waiting) == self._armed:
            return
        self._armed = not self._armed
        if self._armed:
            self.set_timer(TIMER, self._config.retry_ns)
        else:
            self.cancel_timer(TIMER)

    def snapshot(self) -> ClientState:
        return ClientState(
            tuple((w.message, tuple(sorted(w.groups)), w.old) for w in self._waiting.values()),
            tuple(self._held),
            tuple(sorted(self._leaders.items())),
            self._armed,
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

"""A process: a pure machine that turns events into effects.

Drivers call `step` and nothing else (plus `snapshot` and `restore`). A protocol overrides the `on_*` methods, which
speak through the verbs `send`, `deliver`, `resolve`, `set_timer`, `cancel_timer`, `persist` and `note`; the verbs fill
an outbox that `step` returns. Nothing here knows a socket, a clock or a random number.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.effects import (
    About,
    CancelTimer,
    Deliver,
    Effect,
    Note,
    Persist,
    Resolve,
    Send,
    SetTimer,
)
from amcast.kernel.events import Event, Leader, LinkReset, PeerDown, Receive, Requests, Started, Submit, Suspect, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.topology import Topology


class Process(ABC):
    """Base of protocols, clients and nodes. Slots, here and in heirs with many attributes: Python is slow with objects
    of more than 30 others. An heir that names no slots has a dictionary, as any object."""

    __slots__ = ("_merges", "_outbox", "group", "last_global_ns", "me", "now", "position", "topology")

    sends_replies: ClassVar[bool] = False
    """It tells senders itself that their messages are delivered (Reply); others leave that to their node."""
    fast_body: ClassVar[type[Body]] = Body
    """The kind of body that most of what arrives is of, if `on_frequent` takes it, and not `on_receive`."""

    def __init__(self, me: ProcessId, topology: Topology) -> None:
        self.me = me
        self.topology = topology
        self.group = topology.group_of(me)
        self.now = 0
        self.position = 0
        """How many messages this process has delivered over all its incarnations: part of every snapshot and recovery.
        """
        self.last_global_ns = -1
        """When a message to several groups last stopped being in the way of others here. It tells the trace about
        convoys and decides nothing, so it is in no snapshot."""
        self._outbox: list[Effect] = []
        self._merges = type(self).on_step_end is not Process.on_step_end
        """Whether there is anything to do at the end of a step: most protocols hold nothing back."""

    # What drivers call

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        """Take a burst of events at the local time `now`, give back what must happen, in order."""
        self.now = now
        frequent = self.fast_body
        for event in events:
            if type(event) is Receive:
                body = event.body
                if type(body) is frequent:
                    self.fast_receive(event.sender, body)
                elif type(body) is Request:
                    self.on_request(body.message)
                else:
                    self.on_receive(event.sender, body)
            elif type(event) is Submit:
                self.on_submit(event.message)
            else:
                self._dispatch(event)
        if self._merges:
            self.on_step_end()
        effects = self._outbox
        self._outbox = []
        return effects

    def _dispatch(self, event: Event) -> None:
        match event:
            case Requests(messages):
                for message in messages:
                    self.on_request(message)
            case Timer(name):
                self.on_timer(name)
            case Leader(group, leader):
                self.on_leader(group, leader)
            case LinkReset(peer, incarnation):
                self.on_link_reset(peer, incarnation)
            case Suspect(group, up):
                self.on_suspect(group, up)
            case PeerDown(peer):
                self.on_peer_down(peer)
            case Started(records, incarnation):
                self.on_start(records, incarnation)
            case _:
                raise AssertionError(f"no process knows the event {event!r}")

    @abstractmethod
    def snapshot(self) -> State:
        """Everything this process knows, canonical: equal knowledge, equal encoding."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Become what `snapshot` described."""

    # What protocols override

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:  # noqa: B027
        """An incarnation begins. Incarnation > 0 without records: memory was lost; learn, do not vote, until re-
        admitted."""

    def on_submit(self, message: Message) -> None:
        """The user of this very process a-multicasts: tell the protocol's contacts, maybe oneself among them."""
        self.send_all(self.contacts(message), Request(message), message.id)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        """Whom a sender must tell. A protocol that needs fewer names the same function in its Spec (`contact`)."""
        return self.topology.processes_of(message.destinations)

    @abstractmethod
    def on_request(self, message: Message) -> None:
        """A client's (or gateway's) message reached this process, which is one of its contacts. May come twice."""

    @abstractmethod
    def on_receive(self, sender: ProcessId, body: Body) -> None:
        """One visible match over this protocol's bodies."""

    def fast_receive(self, sender: ProcessId, body: Any) -> None:  # noqa: B027
        """A body of the kind `frequent`: a short way, for a protocol that wants one."""

    @property
    def is_leader(self) -> bool:
        """Whether its group has made this process its leader, as far as it knows."""
        return False

    def has_delivered(self, message: MessageId) -> bool:
        """Whether this message is known to be delivered here, in this incarnation or an earlier one; False if
        unsure."""
        return False

    def has_delivered_any(self, messages: Sequence[MessageId]) -> bool:
        """The same of some of these: what many clients ask for at once is nearly always new."""
        return any(self.has_delivered(message) for message in messages)

    def reply_extra(self, message: Message) -> Body | None:
        """What a sender that asks again for a message which is delivered here must know beside that; often nothing."""
        return None

    def delivered_set(self, until: MessageId) -> tuple[State, ...] | None:
        """What was delivered here over all incarnations, as `parts/ordering/delivered_set.py` tells it; asked in the
        step that delivered
        `until`, and free to include whatever else was delivered in that step. None if this process does not know:
        it does not outlive its memory."""
        return None

    def stored_message(self, message: MessageId) -> Message | None:
        """A message that this process still holds, delivered or not."""
        return None

    def attribute_to_messages(self, effects: list[Effect]) -> list[Effect]:
        """The same effects for a driver that records packets: what is about a bundle is about the messages in it."""
        return effects

    def client_notice(self) -> Body | None:
        """After the topology has turned: what to tell clients, whom a driver knows and this process does not."""
        return None

    def status(self) -> ProcessStatus:
        """How this process is, for operators."""
        return {"position": self.position}

    def unanswered_bytes(self) -> int:
        """Bytes of clients' messages that this process asked for in their name and that are not answered."""
        return 0

    def explain(self, message: MessageId) -> list[Phase]:
        """What a message waits for here, phase by phase; empty where a protocol cannot tell."""
        return []

    def on_timer(self, name: str) -> None:  # noqa: B027
        """A timer ran out."""

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:  # noqa: B027
        """The oracle spoke; it may be wrong."""

    def on_suspect(self, group: GroupId, up: bool) -> None:  # noqa: B027
        """The same for whole groups."""

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:  # noqa: B027
        """The link begins anew: resynchronise."""

    def on_peer_down(self, peer: ProcessId) -> None:  # noqa: B027
        """A peer seems to have died: whoever waits for it need not wait for its silence to grow long."""

    def on_step_end(self) -> None:  # noqa: B027
        """Emit what was held back to be merged."""

    # The verbs

    def send(self, target: ProcessId, body: Body, about: About = None) -> None:
        self._outbox.append(Send((target,), body, about))

    def send_all(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        self._outbox.append(Send(targets, body, about))

    def deliver(
        self,
        message: Message,
        rank_time: int | None = None,
        rank_tie: int | None = None,
        committed_ns: int | None = None,
        held_ns: int = 0,
    ) -> None:
        """Hand a message up, and tell the trace if it had to wait."""
        self._outbox.append(Deliver(message, self.position, rank_time, rank_tie, committed_ns))
        self.position += 1
        if held_ns or len(message.destinations) == 1:
            self.note_convoy(message, committed_ns, held_ns)
        else:
            self.last_global_ns = self.now

    def note_convoy(self, message: Message, committed_ns: int | None, held_ns: int = 0) -> None:
        """Note how long a local message that is delivered now waited for global ones: after its place in the order
        was known (`committed_ns`), and before it could be given one (`held_ns`)."""
        if len(message.destinations) > 1:
            self.last_global_ns = self.now
        elif committed_ns is not None and committed_ns < self.last_global_ns:
            held_ns += self.last_global_ns - committed_ns
        if held_ns:
            self.note("convoy", message.id, float(held_ns))

    def end_blocking(self, message: Message) -> None:
        """This message has its place in the order: it is no longer in the way of those that turn out to be older."""
        if len(message.destinations) > 1:
            self.last_global_ns = self.now

    def install_position(self, position: int) -> None:
        """A snapshot of another member was taken over: what it delivered counts as delivered here."""
        self.position = position
        self._outbox.append(Note("installed", None, float(position)))

    def resolve(self, message: MessageId, absent: tuple[GroupId, ...] = ()) -> None:
        self._outbox.append(Resolve(message, absent))

    def set_timer(self, name: str, after: tuple[int, int]) -> None:
        assert 0 <= after[0] <= after[1], f"timer {name} of process {self.me}: range {after} is empty"
        self._outbox.append(SetTimer(name, after[0], after[1]))

    def cancel_timer(self, name: str) -> None:
        self._outbox.append(CancelTimer(name))

    def persist(self, record: Record, replaces: bool = False, after_deliveries: bool = False) -> None:
        self._outbox.append(Persist(record, replaces, after_deliveries))

    def note(self, name: str, message: MessageId | None = None, value: float | None = None) -> None:
        self._outbox.append(Note(name, message, value))

"""A process: a deterministic state machine that turns events into effects.

    driver                        process
      |--step(events, now)---------->|  on_start, on_submit, on_request, on_receive, on_timer ... on_step_end
      |<---------------- effects ----|  in the order in which the verbs (send, deliver, persist ...) were called

Drivers call `step`, `snapshot` and `restore`, and may ask the questions of `Diagnostics`. A protocol overrides the
`on_*` methods and calls the verbs, which append effects to an outbox that `step` returns. A process has no access to
sockets, clocks or random numbers: the same events yield the same effects in the simulator and in a live cluster.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from amcast.kernel.diagnostics import Diagnostics
from amcast.kernel.effects import (
    About,
    CancelTimer,
    Deliver,
    Effect,
    Note,
    Persist,
    Remember,
    Resolve,
    Restart,
    Send,
    SetTimer,
)
from amcast.kernel.events import Event, Leader, LinkReset, PeerDown, Receive, Requests, Started, Submit, Suspect, Timer
from amcast.kernel.folder import KnownFolder
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.topology import Topology


class Accepted(NamedTuple):
    """A statement about the order of a group, by one member."""

    configuration: int
    """Members of one configuration understand each other."""
    position: int
    """The group has delivered so many messages, as the protocol counts them."""
    messages: tuple[MessageId, ...]
    """What this member has accepted and not delivered."""
    delivered: int
    """This member has delivered so many itself."""


class Process(Diagnostics, ABC):
    """Base of protocols, clients and nodes.

    It has slots, and so have subclasses with many attributes: CPython is slow with objects of more than 30 attributes
    in a dictionary. A subclass without `__slots__` has a dictionary as usual."""

    __slots__ = ("_has_step_end", "_outbox", "group", "last_global_ns", "me", "now", "position", "topology")

    sends_replies: ClassVar[bool] = False
    """Whether the protocol itself sends a Reply for each delivery; otherwise its node does."""
    awaits_answers: ClassVar[bool] = False
    """Whether the process resolves each message that it multicasts when the message is answered."""
    states_closings: bool = False
    """Whether the process states which deliveries of its group are closed (`Close`)."""
    is_readable: bool = False
    """Whether the process answers `Read` by `ReadReady`."""
    bundles_requests: bool = False
    """Whether the process orders every request of a client inside of a bundle that it makes itself."""
    rest: "tuple[int, str] | None" = None
    """The local time before which nothing more can be done for those who wait, whatever they send, and the timer that
    expires then."""
    fast_body: ClassVar[type[Body]] = Body
    """The most frequent type of body, if `fast_receive` handles it instead of `on_receive`."""

    def __init__(self, me: ProcessId, topology: Topology) -> None:
        self.me = me
        self.topology = topology
        self.group = topology.group_of(me)
        self.now = 0
        """The local time of the current step, in ns."""
        self.position = 0
        """The number of messages delivered over all incarnations; part of every snapshot and recovery."""
        self.last_global_ns = -1
        """When a message to several groups last stopped blocking others here. Only the trace uses it, to measure
        convoys, so it is in no snapshot."""
        self._outbox: list[Effect] = []
        self._has_step_end = type(self).on_step_end is not Process.on_step_end

    # For drivers

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        """Handles a burst of events at the local time `now`, and returns the resulting effects in order."""
        self.now = now
        fast_body = self.fast_body
        for event in events:
            if type(event) is Receive:
                body = event.body
                if type(body) is fast_body:
                    self.fast_receive(event.sender, body)
                elif type(body) is Request:
                    self.on_request(body.message)
                else:
                    self.on_receive(event.sender, body)
            elif type(event) is Submit:
                self.on_submit(event.message)
            else:
                self._dispatch(event)
        if self._has_step_end:
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
                raise AssertionError(f"unknown event {event!r}")

    @abstractmethod
    def snapshot(self) -> State:
        """The complete state of this process, in canonical form: equal states have equal encodings."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Replaces the state of this process by a snapshot."""

    def accepted(self) -> "Accepted | None":
        """What this process has accepted of its group's order; None while it holds no complete state. Whatever any
        process of the cluster has delivered, or was answered for, a majority of the group states here: as delivered, or
        by name. A reader that asks a majority therefore hears of all of it."""
        return None

    # For protocols: handlers

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        """Starts an incarnation. An incarnation above 0 without records has lost its memory: the process must not vote
        until its group has readmitted it."""

    @property
    def work(self) -> int:
        """How much this object has computed that grows with its state, in units that the protocol names; 0: it counts
        nothing. A simulated network charges time for each unit (`network.cpu_work_ns`)."""
        return 0

    def on_submit(self, message: Message) -> None:
        """Multicasts a message of the local user: sends it to its contacts, which may include this process."""
        self.send_all(self.contacts(message), Request(message), message.id)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        """The processes to which a sender must send a message. A protocol that overrides it names the same function in
        its Spec (`Spec.contacts`)."""
        return self.topology.processes_of(message.destinations)

    @abstractmethod
    def on_request(self, message: Message) -> None:
        """Handles a message of a client or gateway; this process is one of its contacts, whereas a message of the local
        user (`on_submit`) may have others. May be called repeatedly for the same message."""

    @abstractmethod
    def on_receive(self, sender: ProcessId, body: Body) -> None:
        """Handles a body of the protocol."""

    def bundle_contacts(self, bundle: Message) -> tuple[ProcessId, ...]:
        """The contacts that are sent a bundle of this process's gateway first, if they forward it to the others; empty
        if all contacts are sent it."""
        return ()

    def fast_receive(self, sender: ProcessId, body: Any) -> None:
        """The fast twin of `on_receive` for bodies of the type `fast_body`: called directly, without a `match`. Nearly
        all bodies that a PrimCast process receives are acknowledgements, dozens for each multicast."""

    def on_timer(self, name: str) -> None:
        """Handles the expiry of a timer."""

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        """Handles a suggestion of the leader oracle, which may be wrong."""

    def on_suspect(self, group: GroupId, up: bool) -> None:
        """Handles the oracle's opinion that a whole group is down, or up again; it may be wrong."""

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        """Resynchronises with a peer whose link starts over."""

    def on_peer_down(self, peer: ProcessId) -> None:
        """Handles the driver's opinion that a peer has crashed, ahead of any timeout."""

    def on_step_end(self) -> None:
        """Ends a step: sends what the protocol held back in order to merge it."""

    # For protocols: verbs

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
        """Delivers a message at the next position, and notes if it had to wait in a convoy."""
        self._outbox.append(Deliver(message, self.position, rank_time, rank_tie, committed_ns))
        self.position += 1
        if held_ns or len(message.destinations) == 1:
            self.note_convoy(message, committed_ns, held_ns)
        else:
            self.last_global_ns = self.now

    def resolve(self, message: MessageId, absent: tuple[GroupId, ...] = ()) -> None:
        self._outbox.append(Resolve(message, absent))

    def set_timer(self, name: str, after: tuple[int, int]) -> None:
        assert 0 <= after[0] <= after[1], f"timer {name} of process {self.me}: range {after} is empty"
        self._outbox.append(SetTimer(name, after[0], after[1]))

    def cancel_timer(self, name: str) -> None:
        self._outbox.append(CancelTimer(name))

    def persist(self, record: Record, replaces: bool = False, after_deliveries: bool = False) -> None:
        self._outbox.append(Persist(record, replaces, after_deliveries))

    def remember(
        self,
        peers: tuple[KnownFolder, ...],
        admitted: bool,
        doubt: str = "",
        lazy: bool = False,
        divergence: str = "",
    ) -> None:
        self._outbox.append(Remember(peers, admitted, doubt, lazy, divergence))

    def restart(self, incarnation: int = 0, records: int = 0) -> None:
        self._outbox.append(Restart(incarnation, records))

    def note(self, name: str, message: MessageId | None = None, value: float | None = None) -> None:
        self._outbox.append(Note(name, message, value))

    def install_position(self, position: int) -> None:
        """Adopts the position of another member's state: what that member delivered counts as delivered here."""
        self.position = position
        self._outbox.append(Note("installed", None, float(position)))

    def resume_position(self, position: int) -> None:
        """Names the position at which a restart continues: all deliveries before it have left this process."""
        self._outbox.append(Note("resumed", None, float(position)))

    def note_convoy(self, message: Message, committed_ns: int | None, held_ns: int = 0) -> None:
        """Notes how long a local message that is delivered now waited for global ones: after its place in the order was
        decided (since `committed_ns`), and before it could be given one (for `held_ns`). It is the one definition of
        the convoy effect (paper 001, section 5) for all protocols; see docs/convoys.md."""
        if len(message.destinations) > 1:
            self.last_global_ns = self.now
        elif committed_ns is not None and committed_ns < self.last_global_ns:
            held_ns += self.last_global_ns - committed_ns
        if held_ns:
            self.note("convoy", message.id, float(held_ns))

    def end_blocking(self, message: Message) -> None:
        """Records, for the measurement of convoys, that a message has its place in the order: it no longer blocks
        messages that turn out to be older."""
        if len(message.destinations) > 1:
            self.last_global_ns = self.now

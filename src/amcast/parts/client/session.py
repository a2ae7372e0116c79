"""A client that retries until every destination group has answered, and the window that makes retrying safe.

    client                     contacts                 all members
      |--Request------------------>|                        |
      |     (no reply from some group before the timeout)   |
      |--Request------------------------------------------->|
      |<-Reply (one per destination group is enough)--------|
    resolve

A message is done when every destination group has replied. A request without reply is sent again, to every member of
the destinations and of the groups of the protocol's contacts; groups may receive a message twice, and order it once
(`parts/ordering/delivered_set.py`). A client never runs more than WINDOW sequence numbers ahead of its oldest
unanswered message, so that groups can forget old sequence numbers.

A protocol that survives the loss of whole groups reports the lost ones (AbsentGroups). A message that every server was
sent, and that only lost groups have not answered by the next retry, is done too, and resolves with those groups. It is
sent once more to a lost group when the link to it is reset: a group that is only unreachable must not miss a message
that no other group has.

When a group's members change (`parts/membership/reconfigurable.py`), each server reports that it has entered the new
configuration (ConfigurationStarted), and is sent every open request again.

Where nodes are gateways (`parts/node/gateway.py`), a client sends to one of them instead, which bundles the requests of
many clients and replies for all groups (Done). It is the first member, the initial leader, of one of the destinations,
in the client's region if there is one, and then the same for all clients of a region: the more clients share a
gateway, the larger its bundles. After a timeout a client moves to
the next member, for this message and all later ones.

A gateway that answers nothing at all for much longer than answers usually take is stopped, cut off or overwhelmed, and
the client moves at once, long before a retry. That may be wrong, and is harmless: a message in two bundles is delivered
once. With each move that brings no answer the client waits twice as long, so that it does not add to an overload.
"""

from collections.abc import Callable
from typing import Final

from amcast.kernel.ids import GroupId, MessageId, ProcessId, sequence_of
from amcast.kernel.message import Body, Message, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import decode_topology, encode_topology
from amcast.kernel.spec import Contacts
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

TIMER: Final = "session"
SILENCE_TIMER: Final = "session-silence"
LATE_ANSWERS: Final = 4
"""A gateway is silent only after this many times the usual answer time, however short `silence_ns` is."""
MAX_DOUBLINGS: Final = 6


class _PendingMessage:
    """A message that some groups have not answered."""

    __slots__ = ("groups", "message", "sent_ns", "timeouts")

    def __init__(self, message: Message, sent_ns: int) -> None:
        self.message = message
        self.groups: set[GroupId] = set(message.destinations)
        self.sent_ns = sent_ns
        """When it was sent, to this gateway if to one."""
        self.timeouts = 0
        """How often the timer ran out, up to 2; from 2 on every possible target was sent the request."""


class ClientSession(Process):
    """A client of any protocol, for one caller or many."""

    awaits_answers = True

    def __init__(
        self,
        me: ProcessId,
        topology: Topology,
        contacts: Contacts,
        config: SessionConfig,
        first_contacts: Callable[[Message], tuple[ProcessId, ...]] | None = None,
    ) -> None:
        super().__init__(me, topology)
        self._protocol_contacts = contacts
        self._first_contacts = first_contacts
        """The contacts that are sent a request first; empty if all are."""
        self._config = config
        self._region = config.region or topology.region(me)
        self._pending: dict[MessageId, _PendingMessage] = {}
        """Sent and unanswered, oldest first."""
        self._blocked: list[Message] = []
        """Messages outside the window; sent when the oldest pending message is done."""
        self._leaders: dict[GroupId, ProcessId] = {}
        self._timer_set = False
        self._gateway_index = 0
        """The number of changes of gateway: the index, modulo the group size, of the member that is the gateway."""
        self._answered_ns: dict[ProcessId, int] = {}
        """When each server answered last."""
        self._answer_ns = 0
        """How long answers usually take; 0 as long as there was none."""
        self._moves = 0
        """How often the client has left a silent gateway since the last answer."""
        self._silence_timer_set = False
        self._absent: tuple[int, tuple[GroupId, ...]] = (0, ())
        """The epoch and the groups of the latest AbsentGroups."""
        self._unacknowledged_lost: dict[MessageId, Message] = {}
        """Messages that are done because all their destinations are lost; no group has answered."""

    def on_submit(self, message: Message) -> None:
        if self._pending:
            oldest = next(iter(self._pending))
            if self._blocked or sequence_of(message.id) - sequence_of(oldest) >= WINDOW:
                self._blocked.append(message)
                return
        pending = self._pending[message.id] = _PendingMessage(message, self.now)
        contacts = self.contacts(message)
        if not self._config.gateways and not pending.groups.isdisjoint(self._absent[1]):
            pending.timeouts = 2
            contacts = self._all_targets(message)
        if self._first_contacts is not None:
            contacts = self._first_contacts(message) or contacts
        self.send_all(contacts, Request(message), message.id)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        """The gateway; or the protocol's contacts, with the leaders that hints named."""
        if self._config.gateways:
            groups = message.destinations
            if self._region and len(groups) > 1:
                near = [group for group in groups if self.topology.region(self._choose_gateway(group)) == self._region]
                groups = tuple(near) or groups
            return (self._choose_gateway(groups[sum(groups) % len(groups)]),)
        contacts = self._protocol_contacts(self.topology, message)
        if not self._leaders:
            return contacts
        homes = [self.topology.group_of(contact) for contact in contacts]
        if len(set(homes)) < len(homes):
            return contacts
        return tuple(
            contact if group is None else self._leaders.get(group, contact)
            for contact, group in zip(contacts, homes, strict=True)
        )

    def _choose_gateway(self, group: GroupId) -> ProcessId:
        """The member of a group that is the gateway."""
        members = self.topology.members(group)
        return members[self._gateway_index % len(members)]

    def on_request(self, message: Message) -> None:
        raise AssertionError(f"process {self.me} is a client and no contact of message {message.id}")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Reply(message, group):
                self._record_answer(sender, message)
                self._handle_reply(message, group)
            case Done(messages):
                self._record_answer(sender, messages[0])
                for message in messages:
                    self._finish(message)
            case LeaderHint(group, leader):
                if self.topology.group_of(leader) == group:  # a late hint may name a member that was removed
                    self._leaders[group] = leader
            case Farewell():
                self.on_peer_down(sender)
            case AbsentGroups(epoch, groups):
                if epoch >= self._absent[0]:
                    self._absent = (epoch, groups)
            case ConfigurationStarted(configuration, topology):
                if configuration > self.topology.configuration:
                    self.topology = decode_topology(topology)
                    self._leaders = {}
                    self._absent = (0, ())  # every configuration counts epochs from 0
                if configuration == self.topology.configuration:
                    self._resend_to(sender)
                    self._leave_removed_gateway(sender)
            case _:
                raise AssertionError(f"{body!r} is no body for a client")

    def _record_answer(self, server: ProcessId, message: MessageId) -> None:
        """Records that a server answered, and how long that took."""
        self._answered_ns[server] = self.now
        self._moves = 0
        pending = self._pending.get(message)
        if pending is not None:
            took_ns = self.now - pending.sent_ns
            self._answer_ns = took_ns if not self._answer_ns else (7 * self._answer_ns + took_ns) // 8

    def on_peer_down(self, peer: ProcessId) -> None:
        """Sends the requests of a gateway that stopped, or does not respond, to the next one at once."""
        group = self.topology.group_of(peer)
        self._leave_removed_gateway(peer)
        if not self._config.gateways or group is None or self._choose_gateway(group) != peer:
            return
        affected = [pending for pending in self._pending.values() if peer in self.contacts(pending.message)]
        self._gateway_index += 1
        for pending in affected:
            pending.sent_ns = self.now
            self.send_all(self.contacts(pending.message), Request(pending.message), pending.message.id)

    def _leave_removed_gateway(self, peer: ProcessId) -> None:
        """Sends every request again if the peer is a gateway that was removed from its group."""
        if self._config.gateways and self.topology.group_of(peer) is None:
            for pending in self._pending.values():
                self.send_all(self.contacts(pending.message), Request(pending.message), pending.message.id)

    def unanswered_groups(self, message: MessageId) -> tuple[GroupId, ...]:
        """The groups that have not answered a message."""
        pending = self._pending.get(message)
        return () if pending is None else tuple(sorted(pending.groups))

    def _handle_reply(self, message: MessageId, group: GroupId) -> None:
        epoch, lost = self._absent
        if group in lost:  # the group is back; if the reply is an old one, the next retry is answered with AbsentGroups
            self._absent = (epoch, tuple(other for other in lost if other != group))
        pending = self._pending.get(message)
        if pending is None:
            self._unacknowledged_lost.pop(message, None)
            return
        pending.groups.discard(group)
        if not pending.groups:
            self._finish(message)
        elif self._config.gateways and pending.timeouts < 2:
            # A gateway replies for its group alone if another gateway, since crashed, sent the request before.
            pending.timeouts = 2
            self.send_all(self._retry_targets(pending), Request(pending.message), pending.message.id)

    def _finish(self, message: MessageId, absent: tuple[GroupId, ...] = ()) -> None:
        if self._pending.pop(message, None) is None:
            return
        self.resolve(message, absent)
        if self._blocked:
            blocked, self._blocked = self._blocked, []
            for later in blocked:
                self.on_submit(later)

    def _resolve_lost(self) -> None:
        """Resolves messages that only lost groups have not answered, with those groups."""
        lost = self._absent[1]
        for pending in [p for p in self._pending.values() if p.timeouts > 1 and p.groups.issubset(lost)]:
            absent = tuple(sorted(pending.groups))
            if absent == pending.message.destinations:
                self._remember_lost(pending.message)
            for group in absent:
                self.note("absent", pending.message.id, float(group))
            self._finish(pending.message.id, absent)

    def _remember_lost(self, message: Message) -> None:
        """Remembers a message of lost groups for a link reset, while it is within the window."""
        self._unacknowledged_lost[message.id] = message
        for id in [id for id in self._unacknowledged_lost if sequence_of(message.id) - sequence_of(id) >= WINDOW]:
            del self._unacknowledged_lost[id]

    def _patience_ns(self) -> int:
        """How long a gateway may be silent."""
        longest_ns = self._config.retry_ns[0]
        if not self._answer_ns:
            return longest_ns
        usual_ns = max(self._config.silence_ns, LATE_ANSWERS * self._answer_ns)
        return min(usual_ns << self._moves, longest_ns)

    def _leave_silent_gateway(self) -> None:
        """Moves away from a gateway that owes an answer for too long and has answered nothing meanwhile."""
        since_ns = self.now - self._patience_ns()
        checked: set[ProcessId] = set()
        for pending in self._pending.values():
            if pending.sent_ns > since_ns:
                break  # later messages were sent later
            for gateway in self.contacts(pending.message):
                if gateway in checked:
                    continue
                checked.add(gateway)
                if self._answered_ns.get(gateway, 0) <= since_ns:
                    self.note("silent", pending.message.id, float(gateway))
                    self._moves = min(self._moves + 1, MAX_DOUBLINGS)
                    self.on_peer_down(gateway)
                    return

    def on_timer(self, name: str) -> None:
        if name == SILENCE_TIMER:
            self._silence_timer_set = False
            self._leave_silent_gateway()
            return
        self._timer_set = False
        if self._absent[1]:
            self._resolve_lost()
        if any(pending.timeouts for pending in self._pending.values()):
            self._gateway_index += 1
        for pending in self._pending.values():
            if pending.timeouts:
                self.note("retried", pending.message.id)
                self.send_all(self._retry_targets(pending), Request(pending.message), pending.message.id)
            pending.timeouts = min(pending.timeouts + 1, 2)

    def _retry_targets(self, pending: _PendingMessage) -> tuple[ProcessId, ...]:
        """The targets of a retry: a gateway in every group that has not replied, or all members."""
        if self._config.gateways:
            return tuple(self._choose_gateway(group) for group in sorted(pending.groups))
        return self._all_targets(pending.message)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._resend_to(peer)

    def _resend_to(self, peer: ProcessId) -> None:
        """Sends requests again to a peer that may have lost them, or has entered another configuration."""
        for pending in self._pending.values():
            if peer in self.contacts(pending.message):
                self.send(peer, Request(pending.message), pending.message.id)
        for message in self._unacknowledged_lost.values():
            if self.topology.group_of(peer) in message.destinations:
                self.send(peer, Request(message), message.id)

    def _all_targets(self, message: Message) -> tuple[ProcessId, ...]:
        """All members of the contacts' groups, which order, and of the destinations, which reply."""
        groups = set(message.destinations)
        for contact in self._protocol_contacts(self.topology, message):
            group = self.topology.group_of(contact)
            if group is not None:
                groups.add(group)
        return self.topology.processes_of(tuple(sorted(groups)))

    def on_step_end(self) -> None:
        if self._pending and not self._timer_set:
            self._timer_set = True  # and never cancelled: under load the next message comes long before it runs out
            self.set_timer(TIMER, self._config.retry_ns)
        if self._pending and self._config.gateways and not self._silence_timer_set:
            self._silence_timer_set = True
            wait_ns = max(self._patience_ns() // 2, 1)
            self.set_timer(SILENCE_TIMER, (wait_ns, wait_ns))

    def snapshot(self) -> ClientSessionState:
        return ClientSessionState(
            tuple((p.message, tuple(sorted(p.groups)), p.timeouts, p.sent_ns) for p in self._pending.values()),
            tuple(self._blocked),
            tuple(sorted(self._leaders.items())),
            self._timer_set,
            self._gateway_index,
            self._absent,
            encode_topology(self.topology) if self.topology.configuration else b"",
            tuple(self._unacknowledged_lost.values()),
            tuple(sorted(self._answered_ns.items())),
            self._answer_ns,
            self._moves,
            self._silence_timer_set,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ClientSessionState)
        self._pending = {}
        for message, groups, timeouts, sent_ns in state.pending:
            pending = self._pending[message.id] = _PendingMessage(message, sent_ns)
            pending.groups = set(groups)
            pending.timeouts = timeouts
        self._blocked = list(state.blocked)
        self._leaders = dict(state.leaders)
        self._timer_set = state.timer_set
        self._gateway_index = state.gateway_index
        self._absent = state.absent
        self._answered_ns = dict(state.answered_ns)
        self._answer_ns, self._moves = state.answer_ns, state.moves
        self._silence_timer_set = state.silence_timer_set
        self._unacknowledged_lost = {message.id: message for message in state.unacknowledged_lost}
        if state.topology:
            self.topology = decode_topology(state.topology)

"""FlexCast: totally ordered groups; the lowest destination orders a message, histories keep the others consistent.

Source: paper 000 (Batista, Coelho, Alchieri, Dotti, Pedone: FlexCast, genuine overlay-based atomic multicast).

    client       A            B            C            message m to A, B and C, which are ranked in this order
      |--Request->|            |            |
      |        deliver         |            |
      |           |--Msg------>|            |           with the predecessors of m at A
      |           |--Msg------------------->|
      |           |         deliver         |
      |           |            |--Ack------>|           with the predecessors of m at B
      |           |            |         deliver

A destination delivers m when (a) every group that may know a predecessor of m has acknowledged m: the lower
destinations, and every group that one of those notified (Notif) because a message of its history went there; and (b) no
predecessor of m that is addressed to this destination is missing.

Claims: i message delays at the i-th destination in rank order; genuine at the level of the run (a Notif may reach a
group that is no destination of m, but is one of an earlier message); FIFO links; one process per group (or several,
by `parts/groups/replicated.py`: three delays for each delay).

Deviations, each with its reason in docs/protocols/flexcast.md: every Notif has a number, and exactly the Ack that
replies to it is awaited; a notified group waits for known predecessors of the message, not for all missing messages; a
Notif is sent only where it can matter, and again only if the history has grown; flushes, requested by groups with long
histories, prune them; there are no queues per ancestor, because the history orders those messages already. With the
option `notify = "next"`, one group is notified at a time, which notifies the next.
"""

from collections import deque

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Contacts, Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.groups.claims import LINK_FAULTS, PAXOS_RECOVERY_GOALS, adapt_replicated_claims, replicate_claims
from amcast.parts.groups.replicated import replicate
from amcast.parts.groups.replicated_messages import REPLICATED_BODIES, ReplicatedState
from amcast.parts.groups.statements import make_replicated_table
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.history import History
from amcast.parts.ordering.overlay import Order, contact_lca, parse_order, rank_delays, rank_role
from amcast.protocols.flexcast.messages import (
    Ack,
    FlexCastConfig,
    FlexCastNotification,
    FlexCastPending,
    FlexCastState,
    FlushRequest,
    Msg,
    Notif,
    Token,
)


class _Pending:
    """A message to this group that is not delivered."""

    __slots__ = ("committed_ns", "message", "outstanding")

    def __init__(self) -> None:
        self.message: Message | None = None
        self.outstanding: set[Token] = set()
        """Tokens that are expected and have not arrived, or have arrived before they were expected: empty when nothing
        is missing. Each token is expected once and arrives once."""
        self.committed_ns = -1
        """When the last token arrived; -1 before."""


class _Notification:
    """Notifications about a message to other groups that are not acknowledged."""

    __slots__ = ("destinations", "tokens")

    def __init__(self, destinations: tuple[GroupId, ...]) -> None:
        self.destinations = destinations
        self.tokens: list[Token] = []


class FlexCast(Process):
    """One group."""

    def __init__(self, me: ProcessId, topology: Topology, config: FlexCastConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is a client"
        self.home: GroupId = self.group
        self.config = config
        self.order: Order = parse_order(config.order, topology)
        self.rank = self.order.rank
        self.descendants = self.order.descendants(self.home)
        self._notifies_next = config.notify == "next"
        self.history = History(self.home, self.descendants)
        self._requested = DeliveredSet()
        """Clients' requests to this group."""
        self._pending: dict[MessageId, _Pending] = {}
        self._notifications: dict[MessageId, _Notification] = {}
        self._blocked: dict[MessageId, list[MessageId]] = {}
        """By missing message: the messages whose delivery or acknowledgement waits for its delivery."""
        self._notified_versions: dict[MessageId, int] = {}
        """By message to other groups: the version of the history at which all concerned groups were notified."""
        self._unchecked: deque[MessageId] = deque()
        """Messages to check again before the step ends."""
        self._notif_count = 0
        """Notifications sent so far; the number of the last one."""
        self._flush_count = 0
        """The number of the last flush delivered here."""
        self._pruned_length = 0
        """The length of the history after that flush."""
        self._has_requested_flush = False
        """This group has requested the next flush."""

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self.topology.members(self.order.lca(message.destinations))

    # Events

    def on_request(self, message: Message) -> None:
        if self.order.lca(message.destinations) != self.home or not self._requested.add(message.id):
            return
        if len(message.destinations) == 1:
            self.deliver(message)  # it orders nothing for other groups, so their histories do not need it
        else:
            self._deliver(message)
            self._run_checks()

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        group = self.topology.group_of(sender)
        assert group is not None, f"process {sender} is a client and sends {body!r}"
        match body:
            case Msg(message, links, notified):
                self.history.learn(links)
                self._handle_msg(group, message, notified)
            case Ack(message_id, tokens, links, notified):
                self.history.learn(links)
                self._handle_ack(group, message_id, tokens, notified)
            case Notif(message_id, destinations, number, links):
                self.history.learn(links)
                self._handle_notif((group, number), message_id, destinations)
            case FlushRequest(flushes):
                if flushes == self._flush_count:
                    self._flush()
            case _:
                raise AssertionError(f"FlexCast has no body {body!r}")
        self._run_checks()

    @property
    def work(self) -> int:
        """Vertices and links of the history that were visited."""
        return self.history.visits

    def on_step_end(self) -> None:
        every = self.config.flush_every
        if every and not self._has_requested_flush and len(self.history) >= self._pruned_length + every:
            self._has_requested_flush = True
            root = self.order.groups[0]
            if root == self.home:
                self._flush()
                self._run_checks()
            else:
                self.send_all(self.topology.members(root), FlushRequest(self._flush_count))

    # Handlers

    def _add_pending(self, message: MessageId) -> _Pending:
        entry = self._pending.get(message)
        if entry is None:
            entry = self._pending[message] = _Pending()
        return entry

    def _handle_msg(self, group: GroupId, message: Message, notified: tuple[int, ...]) -> None:
        entry = self._add_pending(message.id)
        entry.message = message
        mine = self.rank[self.home]
        lowest = self.order.lca(message.destinations)
        entry.outstanding ^= {(g, 0) for g in message.destinations if g != lowest and self.rank[g] < mine}
        entry.outstanding ^= {(group, number) for number in notified}
        self._schedule_checks([message.id])

    def _handle_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        entry = self._add_pending(message)
        if entry.message is None:
            self.note("early", _about(message))
        entry.outstanding ^= set(tokens)
        entry.outstanding ^= {(group, number) for number in notified}
        self._schedule_checks([message])

    def _handle_notif(self, token: Token, message: MessageId, destinations: tuple[GroupId, ...]) -> None:
        notification = self._notifications.get(message)
        if notification is not None:
            notification.tokens.append(token)  # one acknowledgement covers both
            return
        notification = self._notifications[message] = _Notification(destinations)
        notification.tokens.append(token)
        self._schedule_checks([message])

    # Delivery and acknowledgement

    def _schedule_checks(self, messages: list[MessageId]) -> None:
        """Checks these messages again: something that they waited for has happened."""
        self._unchecked += messages

    def _run_checks(self) -> None:
        while self._unchecked:
            self._check(self._unchecked.popleft())

    def _check(self, message: MessageId) -> None:
        """Delivers a message, or acknowledges one to others, unless a missing predecessor blocks it."""
        entry = self._pending.get(message)
        if entry is not None:
            if entry.message is None or entry.outstanding:
                return
            if entry.committed_ns < 0:
                entry.committed_ns = self.now
        blocker = self.history.find_blocker(message)
        if blocker is not None:
            self.note("blocked", _about(message))
            self._blocked.setdefault(blocker, []).append(message)
        elif entry is not None:
            assert entry.message is not None
            del self._pending[message]
            self._deliver(entry.message, entry.committed_ns)
        else:
            self._acknowledge(message, self._notifications.pop(message))

    def _deliver(self, message: Message, committed_ns: int | None = None) -> None:
        id = message.id
        self.history.append(id, message.destinations)
        higher = self._higher_destinations(message.destinations)
        sent = self._notify(id, message.destinations, higher)
        for group in higher:
            links, notified = self.history.take_diff(group), self._select_awaited(sent, group)
            body: Body = Ack(id, ((self.home, 0),), links, notified)
            if committed_ns is None:
                body = Msg(message, links, notified)
            self.send_all(self.topology.members(group), body, _about(id))
            if self._notifies_next:
                sent = []  # the next destination awaits the acknowledgements and forwards what it learns from them
        if id < 0:
            self._prune(-id)
        else:
            self.deliver(message, committed_ns=committed_ns)
        self._schedule_checks(self._blocked.pop(id, []))

    def _acknowledge(self, message: MessageId, notification: _Notification) -> None:
        """Acknowledges a message to its higher destinations, for the groups that sent the notifications."""
        higher = self._higher_destinations(notification.destinations)
        if self._notifies_next:
            higher = higher[:1]
        sent: list[tuple[int, GroupId]] = []
        notified_version = self._notified_versions.get(message, -1)
        if self.history.last_change(message) > notified_version:
            sent = self._notify(message, notification.destinations, higher)
            self._notified_versions[message] = self.history.version
        else:
            self.note("covered", _about(message))
        for group in higher:
            links, notified = self.history.take_diff(group), self._select_awaited(sent, group)
            body = Ack(message, tuple(notification.tokens), links, notified)
            self.send_all(self.topology.members(group), body, _about(message))

    def _higher_destinations(self, destinations: tuple[GroupId, ...]) -> tuple[GroupId, ...]:
        """The destinations higher than this group, lowest first."""
        mine = self.rank[self.home]
        return self.order.sorted(group for group in destinations if self.rank[group] > mine)

    def _notify(
        self, message: MessageId, destinations: tuple[GroupId, ...], higher: tuple[GroupId, ...]
    ) -> list[tuple[int, GroupId]]:
        """Notifies the groups that may know predecessors; returns number and group of each notification."""
        sent: list[tuple[int, GroupId]] = []
        for group in self._groups_to_notify(destinations, higher):
            self._notif_count += 1
            sent.append((self._notif_count, group))
            body = Notif(message, destinations, self._notif_count, self.history.take_diff(group))
            self.note("notified", _about(message))
            self.send_all(self.topology.members(group), body, _about(message))
        return sent

    def _groups_to_notify(self, destinations: tuple[GroupId, ...], higher: tuple[GroupId, ...]) -> list[GroupId]:
        """Groups that receive a message of the history which some destination above them does not receive."""
        if self._notifies_next:
            between = self.order.between(self.home, higher[0]) if higher else ()
            return [group for group in between if self.history.has_message_only_to(group, higher[:1])][:1]
        groups = []
        for group in self.descendants:
            above = [target for target in higher if self.rank[target] > self.rank[group]]
            if group not in destinations and above and self.history.has_message_only_to(group, above):
                groups.append(group)
        return groups

    def _select_awaited(self, sent: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        """The notifications whose acknowledgements a destination receives: those to groups below it."""
        return tuple(number for number, target in sent if self.rank[target] < self.rank[group])

    # Flushes

    def _flush(self) -> None:
        """Delivers an internal message to all groups, after which its predecessors are pruned."""
        self._deliver(Message(-(self._flush_count + 1), self.me, tuple(sorted(self.order.groups))))

    def _prune(self, flush: int) -> None:
        self.note("flushed", None, float(len(self.history)))
        assert flush == self._flush_count + 1, f"flush {flush} after {self._flush_count}"
        self._flush_count = flush
        self.history.prune()
        self._pruned_length = len(self.history)
        self._has_requested_flush = False
        self._notified_versions = {id: version for id, version in self._notified_versions.items() if id in self.history}

    # Diagnostics

    def status(self) -> ProcessStatus:
        return {"position": self.position, "pending": len(self._pending), "history": len(self.history)}

    def explain(self, message: MessageId) -> list[Phase]:
        entry = self._pending.get(message)
        if entry is None:
            return [Phase("text", False, f"group {self.home} does not know the message, or has delivered it")]
        if entry.message is None:
            return [Phase("text", False, "others have acknowledged it; the message itself has not arrived")]
        phases = [Phase("text", True, f"the message is here, for groups {list(entry.message.destinations)}")]
        if entry.outstanding:
            groups = sorted({group for group, _ in entry.outstanding})
            sentence = f"groups {groups}, or those that they notified, have not acknowledged it"
            return [*phases, Phase("acknowledged", False, sentence, self.topology.processes_of(tuple(groups)))]
        before = [blocker for blocker, waiting in self._blocked.items() if message in waiting]
        sentence = f"message {before[0]} comes before it and is not delivered" if before else "nothing is before it"
        return [
            *phases,
            Phase("acknowledged", True, "by all groups that may know more"),
            Phase("first", not before, sentence),
        ]

    # Snapshots

    def snapshot(self) -> FlexCastState:
        return FlexCastState(
            self.position,
            self.history.snapshot(),
            self._requested.snapshot(),
            tuple(
                FlexCastPending(id, e.message, tuple(sorted(e.outstanding)), e.committed_ns)
                for id, e in sorted(self._pending.items())
            ),
            tuple(
                FlexCastNotification(id, a.destinations, tuple(a.tokens))
                for id, a in sorted(self._notifications.items())
            ),
            tuple((id, tuple(waiting)) for id, waiting in sorted(self._blocked.items())),
            tuple(sorted(self._notified_versions.items())),
            self._notif_count,
            self._flush_count,
            self._pruned_length,
            self._has_requested_flush,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, FlexCastState)
        self.position = state.position
        self.history.restore(state.history)
        self._requested.restore(state.requested)
        self._pending = {}
        for saved in state.pending:
            entry = self._pending[saved.id] = _Pending()
            entry.message = saved.message
            entry.outstanding = set(saved.outstanding)
            entry.committed_ns = saved.committed_ns
        self._notifications = {}
        for waiting in state.notifications:
            notification = self._notifications[waiting.id] = _Notification(waiting.destinations)
            notification.tokens = list(waiting.tokens)
        self._blocked = {id: list(messages) for id, messages in state.blocked}
        self._notified_versions = dict(state.notified_versions)
        self._notif_count = state.notif_count
        self._flush_count = state.flush_count
        self._pruned_length = state.pruned_length
        self._has_requested_flush = state.has_requested_flush


def _about(message: MessageId) -> MessageId | None:
    """The application message that a body or note is about; None for flushes."""
    return message if message >= 0 else None


def make_contacts(config: FlexCastConfig) -> Contacts:
    """Requests go to the lowest destination, in the order that the settings name."""
    return contact_lca(lambda topology: parse_order(config.order, topology))


def _packets(destinations: int, replicas: int) -> int:
    """A request, and one packet from each destination to each higher one."""
    return 1 + destinations * (destinations - 1) // 2


UNREPLICATED = Claims(genuine="run", faults=LINK_FAULTS, delays=rank_delays, packets=_packets)

SPEC = Spec(
    name="flexcast",
    summary="groups in a line; the lowest destination orders, histories keep the others consistent",
    source="paper 000",
    process=replicate(FlexCast, (Msg, Ack, Notif, FlushRequest), FlexCastState),
    config=FlexCastConfig,
    bodies=(Msg, Ack, Notif, FlushRequest, *REPLICATED_BODIES, *PAXOS_BODIES),
    records=PAXOS_RECORDS,
    statements=make_replicated_table(FlexCastState),
    adapt_claims=adapt_replicated_claims,
    states=(FlexCastState, ReplicatedState),
    claims=replicate_claims(UNREPLICATED),
    unreplicated=UNREPLICATED,
    role_of=rank_role,
    contacts=make_contacts(FlexCastConfig()),
    make_contacts=make_contacts,
    goals=("notified", "blocked", "early"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)

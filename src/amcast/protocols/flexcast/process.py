"""FlexCast: groups in a line, each message ordered by its lowest destination, histories keep the rest consistent.

Source: paper 000 (Batista, Coelho, Alchieri, Dotti, Pedone: FlexCast, genuine overlay-based atomic multicast).

    client       A            B            C            message m to A, B and C, which are ranked in this order
      |--Request->|            |            |
      |        deliver         |            |
      |           |--Msg------>|            |           with what came before m at A
      |           |--Msg------------------->|
      |           |         deliver         |
      |           |            |--Ack------>|           with what came before m at B
      |           |            |         deliver

A destination delivers m when everybody who may know what comes before m has told it: the lower destinations, and every
group that one of those notified (Notif) because a message of its history went there; and when no message that comes
before m, and is addressed here, is still missing.

Claims: i message delays at the i-th destination in rank order; genuine at the level of the run (a Notif may reach a
group that is no destination of m, but is one of an earlier message); FIFO links; one process per group (or several,
by `parts/groups/replicated.py`: three delays for each one).

Deviations, each with its reason in docs/protocols/flexcast.md: every Notif has a number, and exactly the Ack that
answers it is awaited; it waits for what is known to come before its message, not for everything open; a Notif is sent
only where it can matter, and again only if something new is known; histories are pruned by flushes, which somebody's
full history asks for; there are no queues per ancestor, the history orders those messages already. With the option
`notify = "next"`, groups are not all asked at once: one passes the question to the next.
"""

from collections import deque

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Contacts, Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.groups.claims import LINK_FAULTS, replicate_claims
from amcast.parts.groups.messages import REPLICATED_BODIES, ReplicatedState
from amcast.parts.groups.replicated import replicate
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.history import History
from amcast.parts.ordering.overlay import Order, contact_lca, parse_order, rank_delays, rank_role
from amcast.protocols.flexcast.messages import (
    Ack,
    FlexCastAsked,
    FlexCastConfig,
    FlexCastPending,
    FlexCastState,
    Full,
    Msg,
    Notif,
    Token,
)


class _Pending:
    """A message to this group that is not delivered here."""

    __slots__ = ("committed_ns", "due", "message")

    def __init__(self) -> None:
        self.message: Message | None = None
        self.due: set[Token] = set()
        """Expected and not heard, or heard before anybody said that it is to be expected: empty when nothing is
        missing. Each token is expected once and heard once."""
        self.committed_ns = -1
        """When nothing was due any more; -1 before."""


class _Asked:
    """Notifications about a message to others that are not answered yet."""

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
        self._relays = config.notify == "next"
        self.history = History(self.home, self.descendants)
        self._asked_for = DeliveredSet()
        """What clients asked this group to order; each client's requests come in its order."""
        self._pending: dict[MessageId, _Pending] = {}
        self._asked: dict[MessageId, _Asked] = {}
        self._blocked: dict[MessageId, list[MessageId]] = {}
        """Open message: what waits for its delivery, to be delivered or acknowledged itself."""
        self._covered: dict[MessageId, int] = {}
        """Message to others: the version of my history of which I notified everybody whom it may concern."""
        self._ready: deque[MessageId] = deque()
        """What to look at again before the step ends."""
        self._numbered = 0
        """How many notifications I ever sent."""
        self._flushes = 0
        """The last flush that was delivered here."""
        self._floor = 0
        """How much of the history that flush had to leave."""
        self._full = False
        """I asked for the next one."""

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return self.topology.members(self.order.lca(message.destinations))

    # Events

    def on_request(self, message: Message) -> None:
        if self.order.lca(message.destinations) == self.home and self._asked_for.add(message.id):
            self._deliver(message)
            self._go_on()

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        group = self.topology.group_of(sender)
        assert group is not None, f"process {sender} is a client and says {body!r}"
        match body:
            case Msg(message, links, notified):
                self.history.learn(links)
                self._hear_message(group, message, notified)
            case Ack(message_id, tokens, links, notified):
                self.history.learn(links)
                self._hear_ack(group, message_id, tokens, notified)
            case Notif(message_id, destinations, number, links):
                self.history.learn(links)
                self._hear_notif((group, number), message_id, destinations)
            case Full(flushes):
                if flushes == self._flushes:
                    self._flush()
            case _:
                raise AssertionError(f"FlexCast's groups do not say {body!r}")
        self._go_on()

    def on_step_end(self) -> None:
        every = self.config.flush_every
        if every and not self._full and len(self.history) >= self._floor + every:
            self._full = True
            root = self.order.groups[0]
            if root == self.home:
                self._flush()
                self._go_on()
            else:
                self.send_all(self.topology.members(root), Full(self._flushes))

    # Hearing

    def _entry(self, message: MessageId) -> _Pending:
        entry = self._pending.get(message)
        if entry is None:
            entry = self._pending[message] = _Pending()
        return entry

    def _hear_message(self, group: GroupId, message: Message, notified: tuple[int, ...]) -> None:
        entry = self._entry(message.id)
        entry.message = message
        mine = self.rank[self.home]
        lowest = self.order.lca(message.destinations)
        entry.due ^= {(g, 0) for g in message.destinations if g != lowest and self.rank[g] < mine}
        entry.due ^= {(group, number) for number in notified}
        self._wake([message.id])

    def _hear_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        entry = self._entry(message)
        if entry.message is None:
            self.note("early", _about(message))
        entry.due ^= set(tokens)
        entry.due ^= {(group, number) for number in notified}
        self._wake([message])

    def _hear_notif(self, token: Token, message: MessageId, destinations: tuple[GroupId, ...]) -> None:
        asked = self._asked.get(message)
        if asked is not None:
            asked.tokens.append(token)  # it waits already; one acknowledgement will answer for both
            return
        asked = self._asked[message] = _Asked(destinations)
        asked.tokens.append(token)
        self._wake([message])

    # Deciding

    def _wake(self, messages: list[MessageId]) -> None:
        """Something that these waited for has happened."""
        self._ready += messages

    def _go_on(self) -> None:
        while self._ready:
            self._judge(self._ready.popleft())

    def _judge(self, message: MessageId) -> None:
        """Deliver a message, or acknowledge one to others, if nothing is in the way; else wait for what is."""
        entry = self._pending.get(message)
        if entry is not None:
            if entry.message is None or entry.due:
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
            self._answer(message, self._asked.pop(message))

    def _deliver(self, message: Message, committed_ns: int | None = None) -> None:
        id = message.id
        self.history.append(id, message.destinations)
        above = self._above(message.destinations)
        told = self._notify(id, message.destinations, above)
        for group in above:
            links, notified = self.history.take_diff(group), self._awaited(told, group)
            body: Body = Ack(id, ((self.home, 0),), links, notified)
            if committed_ns is None:
                body = Msg(message, links, notified)
            self.send_all(self.topology.members(group), body, _about(id))
            if self._relays:
                told = []  # the next destination awaits the answers, and passes on what it learns from them
        if id < 0:
            self._prune(-id)
        else:
            self.deliver(message, committed_ns=committed_ns)
        self._wake(self._blocked.pop(id, []))

    def _answer(self, message: MessageId, asked: _Asked) -> None:
        """Acknowledge a message to its destinations above, on behalf of who notified me."""
        above = self._above(asked.destinations)
        if self._relays:
            above = above[:1]
        told: list[tuple[int, GroupId]] = []
        covered = self._covered.get(message, -1)
        if self.history.last_change(message) > covered:
            told = self._notify(message, asked.destinations, above)
            self._covered[message] = self.history.version
        else:
            self.note("covered", _about(message))
        for group in above:
            links, notified = self.history.take_diff(group), self._awaited(told, group)
            body = Ack(message, tuple(asked.tokens), links, notified)
            self.send_all(self.topology.members(group), body, _about(message))

    def _above(self, destinations: tuple[GroupId, ...]) -> tuple[GroupId, ...]:
        """The destinations higher than this group, lowest first."""
        mine = self.rank[self.home]
        return self.order.sorted(group for group in destinations if self.rank[group] > mine)

    def _notify(
        self, message: MessageId, destinations: tuple[GroupId, ...], above: tuple[GroupId, ...]
    ) -> list[tuple[int, GroupId]]:
        """Ask the groups that may know something for a destination above them; their numbers."""
        told: list[tuple[int, GroupId]] = []
        for group in self._knowing(destinations, above):
            self._numbered += 1
            told.append((self._numbered, group))
            body = Notif(message, destinations, self._numbered, self.history.take_diff(group))
            self.note("notified", _about(message))
            self.send_all(self.topology.members(group), body, _about(message))
        return told

    def _knowing(self, destinations: tuple[GroupId, ...], above: tuple[GroupId, ...]) -> list[GroupId]:
        """Groups to which the history has messages that some destination above them does not get."""
        if self._relays:
            between = self.order.between(self.home, above[0]) if above else ()
            return [group for group in between if self.history.has_message_only_to(group, above[:1])][:1]
        found = []
        for group in self.descendants:
            higher = [target for target in above if self.rank[target] > self.rank[group]]
            if group not in destinations and higher and self.history.has_message_only_to(group, higher):
                found.append(group)
        return found

    def _awaited(self, told: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        """The notifications that a destination will see answered: those to groups below it."""
        return tuple(number for number, target in told if self.rank[target] < self.rank[group])

    # Forgetting

    def _flush(self) -> None:
        """A message to all groups, of no interest to any application, after which all that is before it can go."""
        self._deliver(Message(-(self._flushes + 1), self.me, tuple(sorted(self.order.groups))))

    def _prune(self, flush: int) -> None:
        self.note("flushed", None, float(len(self.history)))
        assert flush == self._flushes + 1, f"flush {flush} after {self._flushes}"
        self._flushes = flush
        self.history.prune()
        self._floor = len(self.history)
        self._full = False
        self._covered = {id: version for id, version in self._covered.items() if id in self.history}

    # For operators

    def status(self) -> ProcessStatus:
        return {"position": self.position, "pending": len(self._pending), "history": len(self.history)}

    def explain(self, message: MessageId) -> list[Phase]:
        entry = self._pending.get(message)
        if entry is None:
            return [Phase("text", False, f"group {self.home} does not know of it, or has delivered it")]
        if entry.message is None:
            return [Phase("text", False, "it was acknowledged by others; the message itself has not come")]
        told = [Phase("text", True, f"the message is here, for groups {list(entry.message.destinations)}")]
        if entry.due:
            groups = sorted({group for group, _ in entry.due})
            said = f"groups {groups}, or those that they notified, have not acknowledged it"
            return [*told, Phase("acknowledged", False, said, self.topology.processes_of(tuple(groups)))]
        before = [blocker for blocker, waiting in self._blocked.items() if message in waiting]
        said = f"message {before[0]} comes before it and is not delivered" if before else "nothing is before it"
        return [*told, Phase("acknowledged", True, "by all who may know more"), Phase("first", not before, said)]

    # Memory

    def snapshot(self) -> FlexCastState:
        return FlexCastState(
            self.position,
            self.history.snapshot(),
            self._asked_for.snapshot(),
            tuple(
                FlexCastPending(id, e.message, tuple(sorted(e.due)), e.committed_ns)
                for id, e in sorted(self._pending.items())
            ),
            tuple(FlexCastAsked(id, a.destinations, tuple(a.tokens)) for id, a in sorted(self._asked.items())),
            tuple((id, tuple(waiting)) for id, waiting in sorted(self._blocked.items())),
            tuple(sorted(self._covered.items())),
            self._numbered,
            self._flushes,
            self._floor,
            self._full,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, FlexCastState)
        self.position = state.position
        self.history.restore(state.history)
        self._asked_for.restore(state.asked_for)
        self._pending = {}
        for kept in state.pending:
            entry = self._pending[kept.id] = _Pending()
            entry.message = kept.message
            entry.due = set(kept.due)
            entry.committed_ns = kept.committed_ns
        self._asked = {}
        for waiting in state.asked:
            asked = self._asked[waiting.id] = _Asked(waiting.destinations)
            asked.tokens = list(waiting.tokens)
        self._blocked = {id: list(messages) for id, messages in state.blocked}
        self._covered = dict(state.covered)
        self._numbered = state.numbered
        self._flushes = state.flushes
        self._floor = state.floor
        self._full = state.full


def _about(message: MessageId) -> MessageId | None:
    """Which message of an application a body or a note is about: flushes are nobody's."""
    return message if message >= 0 else None


def contacting(config: FlexCastConfig) -> Contacts:
    """The lowest destination, in the order that a configuration names."""
    return contact_lca(lambda topology: parse_order(config.order, topology))


def _packets(destinations: int, replicas: int) -> int:
    """A request, and one packet from each destination to each higher one."""
    return 1 + destinations * (destinations - 1) // 2


ALONE = Claims(genuine="run", faults=LINK_FAULTS, delays=rank_delays, packets=_packets)

SPEC = Spec(
    name="flexcast",
    summary="groups in a line; the lowest destination orders, histories keep the others consistent",
    source="paper 000",
    process=replicate(FlexCast, (Msg, Ack, Notif, Full), FlexCastState),
    config=FlexCastConfig,
    bodies=(Msg, Ack, Notif, Full, *REPLICATED_BODIES, *PAXOS_BODIES),
    records=PAXOS_RECORDS,
    states=(FlexCastState, ReplicatedState),
    claims=replicate_claims(ALONE),
    alone=ALONE,
    roles=rank_role,
    contacts=contacting(FlexCastConfig()),
    make_contacts=contacting,
    goals=("notified", "blocked", "early"),
)

"""A gateway: the part of a node that multicasts for many clients at once.

    client      gateway                    contacts of the protocol
      |--Request-->|                              |
      |--Request-->| (both in one step)           |
      |            |--Request(bundle)------------>|
      |            |<-Reply (one per group)-------|
      |<-Done------|

Requests with the same destinations become one bundle (`kernel/bundle.py`). A lone message is a bundle of one and waits
for nothing. Bundles leave at an interval that follows from how busy the path is (`parts/node/bundle_pace.py`), and
messages gather meanwhile: the slower the order, the larger the bundles, and the less each message costs. If too many
bundles are in flight and no answer comes (a leader crashed), gathered messages leave after `GatewayConfig.gather_ns`.

The gateway is a client of its own protocol, with an ordinary session (`parts/client/session.py`): it retries, and it
holds back bundles that would run too far ahead. When it crashes, its clients move to another gateway.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from amcast.kernel.bundle import gateway_sender, make_bundle
from amcast.kernel.effects import Effect, Resolve, Send, SendEach, SetTimer
from amcast.kernel.events import Event, Submit
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.spec import Contacts
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import Done, SessionConfig
from amcast.parts.client.session import ClientSession
from amcast.parts.node.bundle_pace import BundlePace
from amcast.parts.node.messages import GatewayConfig, GatewayState

GATHER_TIMER: Final = "gather"
PACE_TIMER: Final = "bundle-pace"
MAX_PACES: Final = 1024
"""How many sets of destinations have a pace. When there are more, all paces are forgotten."""

Groups = tuple[GroupId, ...]

_id: Final = attrgetter("id")
_sender: Final = attrgetter("sender")
_destinations: Final = attrgetter("destinations")
_payload: Final = attrgetter("payload")
"""For `map`, which reads the attributes of many messages without running bytecode for each."""


def _count_bytes(messages: list[Message]) -> int:
    return sum(map(len, map(_payload, messages)))


class Gateway:
    """Serves the clients of one process in one incarnation."""

    def __init__(
        self,
        me: ProcessId,
        topology: Topology,
        contacts: Contacts,
        config: GatewayConfig,
        first_contacts: Callable[[Message], tuple[ProcessId, ...]] | None = None,
    ) -> None:
        self.me = me
        self.config = config
        self._topology = topology
        home = topology.group_of(me)
        self._home: Groups = () if home is None else (home,)
        self._contacts, self._first_contacts = contacts, first_contacts
        self.has_work = False
        """Whether `step` must be called: messages were gathered, or a timer expired."""
        self.gathered: dict[Groups, list[Message]] = {}
        """Messages that are in no bundle yet."""
        self._gathering_since_ns: dict[Groups, int] = {}
        """Since when messages gather for these destinations."""
        self._open: dict[MessageId, list[Message]] = {}
        """Bundles without all replies, and their messages."""
        self._sent_ns: dict[MessageId, int] = {}
        """When each open bundle was sent."""
        self._delivered_ns: dict[MessageId, int] = {}
        """When this process delivered open bundles whose answers it holds back."""
        self._in_flight: dict[Groups, int] = {}
        """The number of open bundles by destinations."""
        self._requested: set[MessageId] = set()
        """All messages that are gathered or in an open bundle; repeated requests for them are ignored."""
        self.unordered_bytes = 0
        """The payload of these messages."""
        self._is_overdue = False
        """Whether gathered messages may have waited for `gather_ns`."""
        self._is_gather_armed = False
        self._paces: dict[Groups, BundlePace] = {}
        self._timer_ns = 0
        """When PACE_TIMER expires; 0 if it is not set."""
        self._timer_set_ns = 0
        """When it was set, by the clock."""
        self._expired_ns = 0
        """When it should have expired, in a step before which it did."""
        self._now = 0
        """The local time. The clock is behind it if it was put back and stands still while timers expire."""
        self.rest_until_ns = 0
        """When the first gathered messages need not wait for their pace any longer; 0 if none wait for it."""
        self._resubmits: list[Event] = []
        """Messages of this process itself, to be multicast again without a bundle after a reconfiguration."""
        self.start(0)

    def start(self, incarnation: int) -> None:
        """Starts an incarnation under a new sender. Clients retry what the last one left unanswered."""
        self.sender = gateway_sender(self.me, incarnation)
        self._sequence = 0
        self.session = self._make_session()

    def _make_session(self) -> ClientSession:
        config = SessionConfig(self.config.retry_ns)
        return ClientSession(self.sender, self._topology, self._contacts, config, self._first_contacts)

    def follow_topology(self, topology: Topology) -> set[ProcessId]:
        """Follows a reconfiguration. Open bundles may be delivered or not, so their clients must retry; they are
        returned. Messages of this process itself are multicast again one by one, so that destinations can recognise
        those that are delivered."""
        held = [message for messages in (*self._open.values(), *self.gathered.values()) for message in messages]
        self._topology = topology
        self.gathered = {}
        self._gathering_since_ns = {}
        self._open = {message.id: [message] for message in held if message.sender == self.me}
        self._requested = set(self._open)
        self.unordered_bytes = sum(len(messages[0].payload) for messages in self._open.values())
        self._sent_ns = {}
        self._delivered_ns = {}
        self._in_flight = {}
        self.session = self._make_session()
        for messages in self._open.values():
            groups = messages[0].destinations
            self._in_flight[groups] = self._in_flight.get(groups, 0) + 1
            self._resubmits.append(Submit(messages[0]))
        self.has_work = bool(self._resubmits)
        return {message.sender for message in held if message.sender != self.me}

    def count_bytes_by_client(self) -> dict[ProcessId, int]:
        """The payload of messages that are not answered, by sender."""
        counts: dict[ProcessId, int] = {}
        for messages in (*self._open.values(), *self.gathered.values()):
            for message in messages:
                counts[message.sender] = counts.get(message.sender, 0) + len(message.payload)
        return counts

    # Requests

    def add(self, message: Message) -> None:
        """Gathers a client's message."""
        id = message.id
        if id in self._requested:
            return
        self._requested.add(id)
        self.unordered_bytes += len(message.payload)
        self.has_work = True
        self._record_return(message.destinations, (message.sender,))
        self.gathered.setdefault(message.destinations, []).append(message)

    def fast_add_all(self, messages: list[Message]) -> None:
        """The fast twin of `add` for many messages: gathers them at once if all have the same destinations and none was
        requested before."""
        if len(messages) == 1:
            self.add(messages[0])
            return
        groups = messages[0].destinations
        ids = set(map(_id, messages))
        has_same_groups = len(set(map(_destinations, messages))) == 1
        if not has_same_groups or len(ids) < len(messages) or not ids.isdisjoint(self._requested):
            for message in messages:
                self.add(message)
            return
        self._requested |= ids
        self.unordered_bytes += _count_bytes(messages)
        self.has_work = True
        self._record_return(groups, list(map(_sender, messages)))
        self.gathered.setdefault(groups, []).extend(messages)

    def record_delivery(self, bundle: MessageId, now: int) -> None:
        """Records that this process delivered a bundle of its own, and answers it when it is closed."""
        if bundle in self._open:
            self._delivered_ns.setdefault(bundle, now)

    def _record_return(self, groups: Groups, clients: Sequence[ProcessId]) -> None:
        """Records that clients have sent again."""
        pace = self._paces.get(groups)
        if pace is not None and pace.missing:
            pace.missing.difference_update(clients)

    def expire_gather_timer(self) -> None:
        """The timer GATHER_TIMER expired: messages that have gathered for long enough leave with the next step."""
        self._is_gather_armed = False
        self._is_overdue = self.has_work = bool(self.gathered)

    def expire_pace_timer(self) -> None:
        """The timer PACE_TIMER expired: gathered messages may leave with the next step."""
        self._expired_ns, self._timer_ns = self._timer_ns, 0
        self.has_work = bool(self.gathered)

    # Steps

    def step(self, events: list[Event], now: int) -> list[Effect]:
        """Steps the gateway at the end of a node's step: gives events to its session and bundles gathered messages."""
        clock, has_stood_still = now, now <= self._timer_set_ns
        now = self._now = max(now, self._now, self._expired_ns if has_stood_still else 0)
        self._expired_ns = 0
        self.has_work = False
        self.rest_until_ns = 0
        effects: list[Effect] = []
        if self._resubmits:
            events += self._resubmits
            self._resubmits = []
        events += self._make_bundles(now)
        while events:
            effects += self._acknowledge(self.session.step(events, now), now)
            events = self._make_bundles(now)
        if self.gathered:
            self._arm_pace_timer(now, clock, effects)
        for groups in self.gathered:
            self._gathering_since_ns.setdefault(groups, now)
        if self.gathered and not self._is_gather_armed:
            self._is_gather_armed = True
            low, high = self.config.gather_ns
            waited_ns = now - min(self._waiting_since_ns(groups, now) for groups in self.gathered)
            effects.append(SetTimer(GATHER_TIMER, max(low - waited_ns, 1), max(high - waited_ns, 1)))
        return effects

    def _arm_pace_timer(self, now: int, clock: int, effects: list[Effect]) -> None:
        """Sets the timer for the first gathered messages that wait for their pace alone, unless it expires before."""
        waits = [self._wait_ns(groups, now) for groups in self.gathered]
        wait_ns = min((wait for wait in waits if wait), default=0)
        if all(waits):
            self.rest_until_ns = now + wait_ns
        if wait_ns and (not self._timer_ns or now + wait_ns < self._timer_ns):
            self._timer_ns, self._timer_set_ns = now + wait_ns, clock
            effects.append(SetTimer(PACE_TIMER, wait_ns, wait_ns))

    def _wait_ns(self, groups: Groups, now: int) -> int:
        """How long the next bundle to these destinations has to wait for its pace."""
        pace = self._paces.get(groups)
        return 0 if pace is None else pace.wait_ns(now, groups in self._in_flight)

    def _make_bundles(self, now: int) -> list[Event]:
        """Bundles the gathered messages that need not wait for their pace or for bundles in flight."""
        submits: list[Event] = []
        if not self.gathered:
            self._is_overdue = False
            return submits
        for groups, messages in sorted(self.gathered.items()):
            if self._must_wait(groups, now) and not self._has_gathered_long(groups, now):
                continue
            del self.gathered[groups]
            self._gathering_since_ns.pop(groups, None)
            if groups in self._paces:
                self._paces[groups].sent_ns = now
            for share in self._split(messages):
                bundle = make_bundle(self.sender, self._sequence, groups, share)
                self._sequence += 1
                self._open[bundle.id] = share
                self._sent_ns[bundle.id] = now
                self._in_flight[groups] = self._in_flight.get(groups, 0) + 1
                submits.append(Submit(bundle))
        self._is_overdue = False
        return submits

    def _must_wait(self, groups: Groups, now: int) -> bool:
        in_flight, pace = self._in_flight.get(groups, 0), self._paces.get(groups)
        if pace is None:
            return in_flight >= self.config.max_in_flight
        most = self.config.max_in_flight if pace.may_overlap else 1
        return in_flight >= most or pace.wait_ns(now, in_flight > 0) > 0

    def _has_gathered_long(self, groups: Groups, now: int) -> bool:
        return self._is_overdue and now - self._waiting_since_ns(groups, now) >= self.config.gather_ns[0]

    def _waiting_since_ns(self, groups: Groups, now: int) -> int:
        """Since when messages gather, or since the last bundle or answer if bundles follow each other."""
        since_ns, pace = self._gathering_since_ns.get(groups, now), self._paces.get(groups)
        return since_ns if pace is None or pace.may_overlap else max(since_ns, pace.sent_ns)

    def _split(self, messages: list[Message]) -> list[list[Message]]:
        """Splits messages into as few bundles as the limits allow; a message above the limit is alone in its bundle."""
        max_messages, max_bytes = self.config.bundle_messages, self.config.bundle_bytes
        if len(messages) <= max_messages and self.unordered_bytes <= max_bytes:
            return [messages]
        shares: list[list[Message]] = []
        free_bytes = -1
        for message in messages:
            size = len(message.payload)
            if size > free_bytes or len(shares[-1]) == max_messages:
                shares.append([])
                free_bytes = max(max_bytes, size)
            shares[-1].append(message)
            free_bytes -= size
        return shares

    def _acknowledge(self, session_effects: Sequence[Effect], now: int) -> list[Effect]:
        """Replaces the session's Resolve of each bundle by a Done to each of its clients."""
        effects: list[Effect] = []
        for effect in session_effects:
            if type(effect) is not Resolve:
                effects.append(effect)
                continue
            messages = self._open.pop(effect.message)
            groups = messages[0].destinations
            self._decrement_in_flight(groups)
            took_ns = now - self._sent_ns.pop(effect.message, now)
            delivered_ns = self._delivered_ns.pop(effect.message, None)
            last_by_client = dict(zip(map(_sender, messages), map(_id, messages), strict=True))
            if took_ns and self.config.is_paced:
                local = self._paces.get(self._home) if groups != self._home else None
                if local is not None and not local.is_used(now):
                    local = None
                held_ns = None if delivered_ns is None or local is None else now - delivered_ns
                self._find_pace(groups).record_answer(last_by_client, now, took_ns, local, held_ns)
            self._send_done(messages, last_by_client, effects)
        return effects

    def _decrement_in_flight(self, groups: Groups) -> None:
        left = self._in_flight.pop(groups) - 1
        if left:
            self._in_flight[groups] = left

    def _send_done(
        self, messages: list[Message], last_by_client: dict[ProcessId, MessageId], effects: list[Effect]
    ) -> None:
        """Sends Done to the clients of an answered bundle, one for all messages of a client."""
        self.unordered_bytes -= _count_bytes(messages)
        if len(last_by_client) == len(messages) and self.me not in last_by_client:
            # The largest bundles hold one message each of many clients.
            self._requested.difference_update(last_by_client.values())
            ids = tuple(last_by_client.values())
            effects.append(SendEach(tuple(last_by_client), tuple(map(Done, zip(ids, strict=True))), ids))
            return
        self._requested.difference_update([message.id for message in messages])
        by_client: dict[ProcessId, list[MessageId]] = {}
        for message in messages:
            by_client.setdefault(message.sender, []).append(message.id)
        for client, client_ids in by_client.items():
            if client == self.me:
                effects += [Resolve(id) for id in client_ids]
            else:
                about = client_ids[0] if len(client_ids) == 1 else tuple(client_ids)
                effects.append(Send((client,), Done(tuple(client_ids)), about))

    def _find_pace(self, groups: Groups) -> BundlePace:
        pace = self._paces.get(groups)
        if pace is None:
            if len(self._paces) == MAX_PACES:
                self._paces.clear()
            pace = self._paces[groups] = BundlePace()
        return pace

    # Queries

    def bundle_content(self, bundle: MessageId) -> list[Message] | None:
        """The messages of an open bundle."""
        return self._open.get(bundle)

    def open_bundles(self) -> dict[MessageId, Groups]:
        """The open bundles, and the groups that have not replied."""
        return {bundle: self.session.unanswered_groups(bundle) for bundle in self._open}

    def snapshot(self) -> GatewayState:
        return GatewayState(
            self.sender,
            self._sequence,
            tuple((bundle, tuple(messages)) for bundle, messages in sorted(self._open.items())),
            tuple(message for _, messages in sorted(self.gathered.items()) for message in messages),
            self._is_gather_armed,
            self.session.snapshot(),
            tuple(sorted(self._sent_ns.items())),
            tuple(pace.snapshot(groups) for groups, pace in sorted(self._paces.items())),
            self._timer_ns,
            tuple(sorted(self._gathering_since_ns.items())),
            tuple(sorted(self._delivered_ns.items())),
            self._timer_set_ns,
            self._now,
        )

    def restore(self, state: GatewayState) -> None:
        self.sender = state.sender
        self._sequence = state.sequence
        self._open = {bundle: list(messages) for bundle, messages in state.open}
        self._requested = set()
        self.unordered_bytes = 0
        self._in_flight = {}
        for messages in self._open.values():
            self._requested.update(message.id for message in messages)
            self.unordered_bytes += sum(len(message.payload) for message in messages)
            groups = messages[0].destinations
            self._in_flight[groups] = self._in_flight.get(groups, 0) + 1
        self.gathered = {}
        for message in state.gathered:
            self.add(message)
        self.has_work = False
        self._resubmits = []
        self._is_gather_armed = state.is_gather_armed
        self._sent_ns = dict(state.sent_ns)
        self._paces = {pace.groups: BundlePace.from_state(pace) for pace in state.paces}
        self._timer_ns = state.timer_ns
        self._gathering_since_ns = dict(state.gathering_since_ns)
        self._delivered_ns = dict(state.delivered_ns)
        self._timer_set_ns, self._now = state.timer_set_ns, state.now_ns
        self.session = self._make_session()
        self.session.restore(state.session)

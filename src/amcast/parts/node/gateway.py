"""A gateway: the part of a node that asks for many clients at once.

    client      gateway                    contacts of the protocol
      |--Request-->|                              |
      |--Request-->| (what one step brought)      |
      |            |--Request(bundle)------------>|
      |            |<-Reply (one per group)-------|
      |<-Done------|

What arrives in one step and has the same destinations becomes one bundle (`kernel/bundle.py`). A lone message is a
bundle of one and waits for nobody. While a bundle is on its way, what else comes for the same destinations gathers, and
leaves when that is answered: the slower the order, the larger the bundles, and the less each message costs. An answer
that does not come soon (a leader died) holds nobody up for long.

Where several clients are at it, the next bundle leaves a little after the answer, so that those who have just been
answered can be in it (`parts/node/gather_window.py`).

The gateway is a client of its own protocol, with the session that every client has: it asks again, and holds back what
would run too far ahead. When it dies its clients ask another gateway.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from amcast.kernel.bundle import gateway_sender, make_bundle
from amcast.kernel.effects import Effect, Resolve, Send, SendEach, SetTimer
from amcast.kernel.events import Event, Submit
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import Done, SessionConfig
from amcast.parts.client.session import ClientSession, Contact
from amcast.parts.node.gather_window import GatherWindow
from amcast.parts.node.messages import GatewayConfig, GatewayState

GATHER: Final = "gather"
REST: Final = "rest"
MOST_WAVES: Final = 1024
"""Sets of destinations whose clients are known; before there are more, all are forgotten."""

_id: Final = attrgetter("id")
_sender: Final = attrgetter("sender")
_destinations: Final = attrgetter("destinations")
_payload: Final = attrgetter("payload")
"""A gateway looks at every message several times: `map` with these does that without the interpreter."""


def _bytes_of(messages: list[Message]) -> int:
    return sum(map(len, map(_payload, messages)))


class Gateway:
    """Serves the clients of one process in one incarnation."""

    def __init__(self, me: ProcessId, topology: Topology, contact: Contact, config: GatewayConfig) -> None:
        self.me = me
        self.config = config
        self._topology = topology
        self._contact = contact
        self.gathered: dict[tuple[GroupId, ...], list[Message]] = {}
        """Asked for in this step."""
        self._asked: set[MessageId] = set()
        """Everything that is gathered or in an open bundle: who asks again need only wait."""
        self.unordered_bytes = 0
        """Payload of all that."""
        self._open: dict[MessageId, list[Message]] = {}
        self._flying: dict[tuple[GroupId, ...], int] = {}
        """Open bundles by destinations."""
        self.moved = False
        """Something was gathered that `step` has not seen."""
        self._late = False
        """What gathered may have waited for long enough."""
        self._gathers_ns: dict[tuple[GroupId, ...], int] = {}
        """Since when each of them gather."""
        self._left_ns: dict[MessageId, int] = {}
        """When each open bundle left."""
        self._resting: set[tuple[GroupId, ...]] = set()
        """Destinations whose next bundle waits for those who have just been answered."""
        self._rest_ns = -1
        """For how long, if the timer is not set yet."""
        self._waves: dict[tuple[GroupId, ...], GatherWindow] = {}
        self.waited = (0, 0)
        """How long all messages together have waited here so far, and how many are answered."""
        self._since = (0, 0)
        """Up to when that is counted, and how many wait since."""
        self._armed = False
        self._again: list[Event] = []
        """To be asked for, without a bundle."""
        self.begin(0)

    def begin(self, incarnation: int) -> None:
        """An incarnation begins: what the last one left is its clients' business."""
        self.number = gateway_sender(self.me, incarnation)
        self._sequence = 0
        self.session = self._session()

    def _session(self) -> ClientSession:
        return ClientSession(self.number, self._topology, self._contact, SessionConfig(self.config.retry_ns))

    def follow(self, topology: Topology) -> set[ProcessId]:
        """The members have changed. What bundles hold may be delivered or not: clients must ask again (it says which),
        and I for what my own process multicast, message by message, so that destinations can tell."""
        held = [part for parts in (*self._open.values(), *self.gathered.values()) for part in parts]
        self._topology = topology
        self.gathered = {}
        self._gathers_ns = {}
        self._open = {part.id: [part] for part in held if part.sender == self.me}
        self._asked = set(self._open)
        self.unordered_bytes = sum(len(parts[0].payload) for parts in self._open.values())
        self._left_ns = {}
        self._flying = {}
        self.session = self._session()
        for parts in self._open.values():
            groups = parts[0].destinations
            self._flying[groups] = self._flying.get(groups, 0) + 1
            self._again.append(Submit(parts[0]))
        self.moved = bool(self._again)
        return {part.sender for part in held if part.sender != self.me}

    def take(self, message: Message) -> None:
        """A client asks."""
        id = message.id
        if id in self._asked:
            return
        self._asked.add(id)
        self.unordered_bytes += len(message.payload)
        self.moved = True
        self._awaited(message.destinations, (message.sender,))
        self.gathered.setdefault(message.destinations, []).append(message)

    def take_all(self, messages: list[Message]) -> None:
        """Many clients ask: the same as `take` for each, at once where all have the same destinations and none asks for
        what was asked for before."""
        if len(messages) == 1:
            self.take(messages[0])
            return
        groups = messages[0].destinations
        ids = set(map(_id, messages))
        alike = len(set(map(_destinations, messages))) == 1
        if not alike or len(ids) < len(messages) or not ids.isdisjoint(self._asked):
            for message in messages:
                self.take(message)
            return
        self._asked |= ids
        self.unordered_bytes += _bytes_of(messages)
        self.moved = True
        self._awaited(groups, list(map(_sender, messages)))
        self.gathered.setdefault(groups, []).extend(messages)

    def _awaited(self, groups: tuple[GroupId, ...], clients: Sequence[ProcessId]) -> None:
        """These ask again; if all have whom the next bundle waits for, it need not wait any longer."""
        wave = self._waves.get(groups)
        if wave is not None and wave.missing:
            wave.missing.difference_update(clients)
            if not wave.missing:
                self._resting.discard(groups)

    def step(self, events: list[Event], now: int) -> list[Effect]:
        """The end of a node's step: bundle what was gathered, and give the session what is for it."""
        self.moved = False
        self._count_waiting(now)
        told: list[Effect] = []
        if self._again:
            events += self._again
            self._again = []
        events += self._bundles(now)
        while events:
            told += self._answering(self.session.step(events, now), now)
            events = self._bundles(now)
        if self._rest_ns >= 0:
            told.append(SetTimer(REST, self._rest_ns, self._rest_ns))
            self._rest_ns = -1
        for groups in self.gathered:
            self._gathers_ns.setdefault(groups, now)
        if self.gathered and not self._armed:
            self._armed = True
            low, high = self.config.gather_ns
            waited_ns = now - min(self._gathers_ns.values())
            told.append(SetTimer(GATHER, max(low - waited_ns, 1), max(high - waited_ns, 1)))
        self._since = (now, len(self._asked))
        return told

    def _count_waiting(self, now: int) -> None:
        """As many as waited since the last step have waited for so much longer (Little's law gives the average)."""
        since_ns, waiting = self._since
        if waiting and now > since_ns:
            self.waited = (self.waited[0] + waiting * (now - since_ns), self.waited[1])

    def overdue(self) -> None:
        """The timer GATHER ran out: what gathered for so long leaves with the next step, whatever is on its way."""
        self._armed = False
        self._late = self.moved = bool(self.gathered)

    def rested(self) -> None:
        """The timer REST ran out: what gathered leaves with the next step."""
        self._resting.clear()
        self.moved = bool(self.gathered)

    def _bundles(self, now: int) -> list[Event]:
        """Of what was gathered, what need not wait for a bundle on its way."""
        made: list[Event] = []
        if not self.gathered:
            self._late = False
            return made
        for groups, messages in sorted(self.gathered.items()):
            waits = groups in self._resting or self._flying.get(groups, 0) >= self.config.bundles
            if waits and not (self._late and now - self._gathers_ns.get(groups, now) >= self.config.gather_ns[0]):
                continue
            del self.gathered[groups]
            self._gathers_ns.pop(groups, None)
            for share in self._shares(messages):
                bundle = make_bundle(self.number, self._sequence, groups, share)
                self._sequence += 1
                self._open[bundle.id] = share
                self._left_ns[bundle.id] = now
                self._flying[groups] = self._flying.get(groups, 0) + 1
                made.append(Submit(bundle))
        self._late = False
        return made

    def bundle_content(self, bundle: MessageId) -> list[Message] | None:
        """What one of my open bundles holds."""
        return self._open.get(bundle)

    def open_bundles(self) -> dict[MessageId, tuple[GroupId, ...]]:
        """Bundles without an answer, and the groups that have not answered."""
        return {bundle: self.session.unanswered_groups(bundle) for bundle in self._open}

    def _shares(self, messages: list[Message]) -> list[list[Message]]:
        """As few bundles as the limits allow; a message that is too large for any has one of its own."""
        most, room = self.config.bundle_messages, self.config.bundle_bytes
        if len(messages) <= most and self.unordered_bytes <= room:
            return [messages]
        shares: list[list[Message]] = []
        left = -1
        for message in messages:
            size = len(message.payload)
            if size > left or len(shares[-1]) == most:
                shares.append([])
                left = max(room, size)
            shares[-1].append(message)
            left -= size
        return shares

    def _answering(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Tell clients what is done, each once for all its messages in a bundle."""
        told: list[Effect] = []
        for effect in effects:
            if type(effect) is not Resolve:
                told.append(effect)
                continue
            parts = self._open.pop(effect.message)
            groups = parts[0].destinations
            self._landed(groups)
            took_ns = now - self._left_ns.pop(effect.message, now)
            self.waited = (self.waited[0], self.waited[1] + len(parts))
            lone = dict(zip(map(_sender, parts), map(_id, parts), strict=True))
            if took_ns and self.config.rest and (groups in self.gathered or parts[0].sender != parts[-1].sender):
                self._begin_rest(groups, lone, now, took_ns)
            self._tell(parts, lone, told)
        return told

    def _landed(self, groups: tuple[GroupId, ...]) -> None:
        """A bundle to these is answered."""
        left = self._flying.pop(groups) - 1
        if left:
            self._flying[groups] = left

    def _tell(self, parts: list[Message], lone: dict[ProcessId, MessageId], told: list[Effect]) -> None:
        """All is done in a bundle; `lone` has a message of each of its clients."""
        self.unordered_bytes -= _bytes_of(parts)
        if len(lone) == len(parts) and self.me not in lone:
            # Many clients with one message each are the largest bundles.
            self._asked.difference_update(lone.values())
            ids = tuple(lone.values())
            told.append(SendEach(tuple(lone), tuple(map(Done, zip(ids, strict=True))), ids))
            return
        self._asked.difference_update([part.id for part in parts])
        done: dict[ProcessId, list[MessageId]] = {}
        for part in parts:
            done.setdefault(part.sender, []).append(part.id)
        for client, all_its in done.items():
            if client == self.me:
                told += [Resolve(id) for id in all_its]
            else:
                about = all_its[0] if len(all_its) == 1 else tuple(all_its)
                told.append(Send((client,), Done(tuple(all_its)), about))

    def _begin_rest(self, groups: tuple[GroupId, ...], clients: Iterable[ProcessId], now: int, took_ns: int) -> None:
        wave = self._waves.get(groups)
        if wave is None:
            if len(self._waves) == MOST_WAVES:
                self._waves.clear()
            wave = self._waves[groups] = GatherWindow()
        if groups not in self._flying:
            wave.judge()
        wave.answer(clients)
        wave.count(now, *self.waited)
        if not self._resting:
            self._rest_ns = wave.rest_ns(took_ns)
        self._resting.add(groups)

    def snapshot(self) -> GatewayState:
        return GatewayState(
            self.number,
            self._sequence,
            tuple((bundle, tuple(parts)) for bundle, parts in sorted(self._open.items())),
            tuple(part for _, parts in sorted(self.gathered.items()) for part in parts),
            self._armed,
            self.session.snapshot(),
            tuple(sorted(self._left_ns.items())),
            tuple(sorted(self._resting)),
            tuple(wave.snapshot(groups) for groups, wave in sorted(self._waves.items())),
            self.waited,
            self._since,
            tuple(sorted(self._gathers_ns.items())),
        )

    def restore(self, state: GatewayState) -> None:
        self.number = state.number
        self._sequence = state.sequence
        self._open = {bundle: list(parts) for bundle, parts in state.open}
        self._asked = set()
        self.unordered_bytes = 0
        self._flying = {}
        for parts in self._open.values():
            self._asked.update(part.id for part in parts)
            self.unordered_bytes += sum(len(part.payload) for part in parts)
            groups = parts[0].destinations
            self._flying[groups] = self._flying.get(groups, 0) + 1
        self.gathered = {}
        for part in state.gathered:
            self.take(part)
        self.moved = False
        self._again = []
        self._armed = state.armed
        self._left_ns = dict(state.left_ns)
        self._resting = set(state.resting)
        self._waves = {wave.groups: GatherWindow.restored(wave) for wave in state.waves}
        self.waited, self._since = state.waited, state.since
        self._gathers_ns = dict(state.gathers_ns)
        self.session = self._session()
        self.session.restore(state.session)

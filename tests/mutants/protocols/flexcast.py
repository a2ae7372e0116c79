"""FlexCast as printed, mistake by mistake, and with mistakes that a repair could make. Searches must find every one."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Message
from amcast.kernel.spec import Links, Spec
from amcast.parts.ordering.history import History
from amcast.parts.ordering.messages import Link
from amcast.parts.ordering.messages import Links as Told
from amcast.protocols.flexcast.messages import Token
from amcast.protocols.flexcast.process import SPEC, FlexCast


class EarlyAcksLost(FlexCast):
    """Algorithm 2, lines 9 and 10: an acknowledgement finds its message in a queue, or is lost."""

    def _hear_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        if message in self._pending:
            super()._hear_ack(group, message, tokens, notified)


class HigherGroupsAwaited(FlexCast):
    """Algorithm 3, line 56: the list of notified groups holds higher ones too, which never answer to a lower one."""

    def _awaited(self, told: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        return tuple(number for number, _ in told)


class _Rash(FlexCast):
    """Base of those that may find a message ready more than once."""

    def _judge(self, message: MessageId) -> None:
        waits = any(message in waiting for waiting in self._blocked.values())
        if not waits and (message in self._pending or message in self._asked):
            super()._judge(message)


class AcksPerGroup(_Rash):
    """Algorithm 2, line 9, and 3, line 58: who was notified twice answers twice; the first answer counts for both."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._done: set[MessageId] = set()
        self._heard: dict[MessageId, set[object]] = {}
        self._expected: dict[MessageId, set[object]] = {}

    def _awaited(self, told: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        return tuple(target for _, target in told if self.rank[target] < self.rank[group])

    def _name(self, notifier: GroupId, notified: GroupId) -> object:
        return notified

    def _hear_message(self, group: GroupId, message: Message, notified: tuple[int, ...]) -> None:
        mine, lowest = self.rank[self.home], self.order.lca(message.destinations)
        expected = self._expected.setdefault(message.id, set())
        expected.update(self._name(g, g) for g in message.destinations if g != lowest and self.rank[g] < mine)
        expected.update(self._name(group, target) for target in notified)
        self._entry(message.id).message = message
        self._weigh(message.id)

    def _hear_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        names = {self._name(notifier if number else group, group) for notifier, number in tokens}
        self._heard.setdefault(message, set()).update(names)
        self._expected.setdefault(message, set()).update(self._name(group, target) for target in notified)
        if message not in self._done:
            self._weigh(message)

    def _deliver(self, message: Message, committed_ns: int | None = None) -> None:
        self._done.add(message.id)
        super()._deliver(message, committed_ns)

    def _weigh(self, message: MessageId) -> None:
        missing = self._expected.get(message, set()) - self._heard.get(message, set())
        self._entry(message).due = {(0, 1)} if missing else set()
        self._judge(message)


class AcksPerPair(AcksPerGroup):
    """The same with pairs of notifier and notified, which is not enough either."""

    def _name(self, notifier: GroupId, notified: GroupId) -> object:
        return (notifier, notified)


class OneWakes(FlexCast):
    """Algorithm 3, line 27: of all that waits for a delivery only one pending notification is looked at."""

    def _wake(self, waiting: list[MessageId]) -> None:
        notified = [message for message in waiting if message in self._asked][:1]
        super()._wake([message for message in waiting if message not in self._asked or message in notified])


class ListLeftBehind(_Rash):
    """The list of the notified is not the message copy's own: what leaves carries an empty one."""

    def _awaited(self, told: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        return ()

    def _hear_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        expected = tuple(token for token in tokens if token[1] == 0)
        super()._hear_ack(group, message, expected, notified)


class _NoEdges(History):
    def learn(self, links: Told) -> None:
        super().learn(tuple(Link(link.id, link.destinations, None) for link in links))


class EdgesLost(FlexCast):
    """Algorithm 3, line 3: the dependencies of an ancestor do not reach this group's own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.history = _NoEdges(self.home, self.descendants)


class AnswersAtOnce(FlexCast):
    """Answers a notification although something that comes before its message is missing here."""

    def _judge(self, message: MessageId) -> None:
        if message in self._asked:
            self._answer(message, self._asked.pop(message))
        else:
            super()._judge(message)


class NotifiesNobody(FlexCast):
    """Strategies (a) and (b) without (c)."""

    def _notify(self, *arguments: Any) -> list[tuple[int, GroupId]]:
        return []


class NotifiesOnce(FlexCast):
    """A group that was notified passes it on the first time only, whatever it has learned since."""

    def _answer(self, message: MessageId, asked: Any) -> None:
        if message in self._covered:
            self._covered[message] = self.history.version
        super()._answer(message, asked)


class NotPassedOn(FlexCast):
    """Asked by the group before it, a group answers and does not ask the next (`notify = "next"`)."""

    def _answer(self, message: MessageId, asked: Any) -> None:
        self._covered[message] = self.history.version
        super()._answer(message, asked)


class SkipsSome(FlexCast):
    """Asks the last group that may know something, not the next one (`notify = "next"`)."""

    def _knowing(self, destinations: tuple[GroupId, ...], above: tuple[GroupId, ...]) -> list[GroupId]:
        between = self.order.between(self.home, above[0]) if above else ()
        return [group for group in between if self.history.has_message_only_to(group, above[:1])][-1:]


class _Amnesiac(History):
    def prune(self) -> None:
        for vertex in self._vertices.values():
            vertex.settled = vertex.settled or self.version
        super().prune()


class FlushForgetsAll(FlexCast):
    """A flush drops everything, not only what is before it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.history = _Amnesiac(self.home, self.descendants)


class WaitsForAllOpen(FlexCast):
    """Algorithm 2, line 14: a notification waits for everything open, whether it comes before its message or not;
    with flushes, what it is about may be forgotten before it is answered."""

    def _judge(self, message: MessageId) -> None:
        asked = self._asked.get(message)
        if asked is None:
            super()._judge(message)
            return
        opened = [id for id, vertex in sorted(self.history._vertices.items()) if vertex.open]
        if opened:
            self._blocked.setdefault(opened[0], []).append(message)
        else:
            self._answer(message, self._asked.pop(message))


@dataclass(frozen=True)
class Mutant:
    """A protocol that must be caught, how and where."""

    process: type[FlexCast]
    status: frozenset[str]
    groups: int = 4
    messages: int = 14
    destinations: tuple[int, int] = (2, 3)
    options: dict[str, Any] = field(default_factory=dict)
    links: Links = "fifo"
    seeds: int = 60
    """Within so many."""

    @property
    def name(self) -> str:
        return self.process.__name__ if self.links == "fifo" else "ReorderingLinks"

    def spec(self) -> Spec:
        assert SPEC.alone is not None
        return replace(SPEC, process=self.process, claims=replace(SPEC.alone, links=self.links), alone=None)


VIOLATED: Final = frozenset({"violated"})
STUCK: Final = frozenset({"stuck"})

MUTANTS: Final = (
    Mutant(EarlyAcksLost, STUCK),
    Mutant(HigherGroupsAwaited, STUCK),
    Mutant(OneWakes, STUCK),
    Mutant(ListLeftBehind, VIOLATED),
    Mutant(EdgesLost, VIOLATED),
    Mutant(AnswersAtOnce, VIOLATED, seeds=1000),
    Mutant(NotifiesNobody, VIOLATED),
    Mutant(FlushForgetsAll, VIOLATED | STUCK, options={"flush_every": 3}),
    Mutant(NotPassedOn, VIOLATED, groups=5, messages=20, destinations=(2, 2), options={"notify": "next"}),
    Mutant(SkipsSome, VIOLATED, groups=5, messages=20, destinations=(2, 2), options={"notify": "next"}),
    Mutant(FlexCast, VIOLATED, links="reordering"),
)
"""Caught by chance."""

TOLD: Final = (
    ("notified twice", AcksPerGroup),
    ("notified twice", AcksPerPair),
    ("notified twice", NotifiesOnce),
    ("answered after a flush", WaitsForAllOpen),
)
"""Too rare for a short search: caught by a story (tests/protocols/flexcast_stories.py)."""

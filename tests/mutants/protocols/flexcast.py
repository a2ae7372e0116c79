"""Mutants of FlexCast: the mistakes of the printed algorithms, one each, and mistakes that a correction could make.

Searches must find every one.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Message
from amcast.kernel.spec import Links, Spec
from amcast.parts.ordering.history import History
from amcast.parts.ordering.messages import Link
from amcast.parts.ordering.messages import Links as HistoryLinks
from amcast.protocols.flexcast.messages import Token
from amcast.protocols.flexcast.process import SPEC, FlexCast


class EarlyAcksLost(FlexCast):
    """Algorithm 2, lines 9 and 10: an acknowledgement that arrives before its message is lost."""

    def _handle_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        if message in self._pending:
            super()._handle_ack(group, message, tokens, notified)


class HigherGroupsAwaited(FlexCast):
    """Algorithm 3, line 56: notified groups include higher ones, which never acknowledge to a lower one."""

    def _select_awaited(self, sent: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        return tuple(number for number, _ in sent)


class _RepeatedChecks(FlexCast):
    """Base of mutants that may check a message which is no longer pending."""

    def _check(self, message: MessageId) -> None:
        waits = any(message in waiting for waiting in self._blocked.values())
        if not waits and (message in self._pending or message in self._notifications):
            super()._check(message)


class AcksPerGroup(_RepeatedChecks):
    """Algorithm 2, line 9, and 3, line 58: a group that is notified twice acknowledges twice; the first acknowledgement
    counts for both."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._done: set[MessageId] = set()
        self._arrived: dict[MessageId, set[object]] = {}
        self._expected: dict[MessageId, set[object]] = {}

    def _select_awaited(self, sent: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        return tuple(target for _, target in sent if self.rank[target] < self.rank[group])

    def _name(self, notifier: GroupId, notified: GroupId) -> object:
        return notified

    def _handle_msg(self, group: GroupId, message: Message, notified: tuple[int, ...]) -> None:
        mine, lowest = self.rank[self.home], self.order.lca(message.destinations)
        expected = self._expected.setdefault(message.id, set())
        expected.update(self._name(g, g) for g in message.destinations if g != lowest and self.rank[g] < mine)
        expected.update(self._name(group, target) for target in notified)
        self._add_pending(message.id).message = message
        self._update_outstanding(message.id)

    def _handle_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        names = {self._name(notifier if number else group, group) for notifier, number in tokens}
        self._arrived.setdefault(message, set()).update(names)
        self._expected.setdefault(message, set()).update(self._name(group, target) for target in notified)
        if message not in self._done:
            self._update_outstanding(message)

    def _deliver(self, message: Message, committed_ns: int | None = None) -> None:
        self._done.add(message.id)
        super()._deliver(message, committed_ns)

    def _update_outstanding(self, message: MessageId) -> None:
        missing = self._expected.get(message, set()) - self._arrived.get(message, set())
        self._add_pending(message).outstanding = {(0, 1)} if missing else set()
        self._check(message)


class AcksPerPair(AcksPerGroup):
    """The same with pairs of notifying and notified group, which is not enough either."""

    def _name(self, notifier: GroupId, notified: GroupId) -> object:
        return (notifier, notified)


class OneNotificationChecked(FlexCast):
    """Algorithm 3, line 27: of the notifications that wait for a delivery only one is checked again."""

    def _schedule_checks(self, waiting: list[MessageId]) -> None:
        notified = [message for message in waiting if message in self._notifications][:1]
        super()._schedule_checks(
            [message for message in waiting if message not in self._notifications or message in notified]
        )


class ListLeftBehind(_RepeatedChecks):
    """The list of notified groups is shared by all copies of a message: bodies carry an empty one."""

    def _select_awaited(self, sent: list[tuple[int, GroupId]], group: GroupId) -> tuple[int, ...]:
        return ()

    def _handle_ack(
        self, group: GroupId, message: MessageId, tokens: tuple[Token, ...], notified: tuple[int, ...]
    ) -> None:
        expected = tuple(token for token in tokens if token[1] == 0)
        super()._handle_ack(group, message, expected, notified)


class _NoEdges(History):
    def learn(self, links: HistoryLinks) -> None:
        super().learn(tuple(Link(link.id, link.destinations, None) for link in links))


class EdgesLost(FlexCast):
    """Algorithm 3, line 3: the dependencies of an ancestor are not merged into the own history."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.history = _NoEdges(self.home, self.descendants)


class AcknowledgesAtOnce(FlexCast):
    """Acknowledges a notification although a predecessor of its message is missing."""

    def _check(self, message: MessageId) -> None:
        if message in self._notifications:
            self._acknowledge(message, self._notifications.pop(message))
        else:
            super()._check(message)


class NotifiesNobody(FlexCast):
    """Strategies (a) and (b) without (c)."""

    def _notify(self, *arguments: Any) -> list[tuple[int, GroupId]]:
        return []


class NotifiesOnce(FlexCast):
    """A notified group notifies others only the first time, even if its history has grown."""

    def _acknowledge(self, message: MessageId, notification: Any) -> None:
        if message in self._notified_versions:
            self._notified_versions[message] = self.history.version
        super()._acknowledge(message, notification)


class NextNotNotified(FlexCast):
    """A notified group acknowledges and does not notify the next one (`notify = "next"`)."""

    def _acknowledge(self, message: MessageId, notification: Any) -> None:
        self._notified_versions[message] = self.history.version
        super()._acknowledge(message, notification)


class LastNotified(FlexCast):
    """Notifies the last group that may know a predecessor, not the next one (`notify = "next"`)."""

    def _groups_to_notify(self, destinations: tuple[GroupId, ...], higher: tuple[GroupId, ...]) -> list[GroupId]:
        between = self.order.between(self.home, higher[0]) if higher else ()
        return [group for group in between if self.history.has_message_only_to(group, higher[:1])][-1:]


class _PrunesAll(History):
    def prune(self) -> None:
        for vertex in self._vertices.values():
            vertex.settled = vertex.settled or self.version
        super().prune()


class FlushPrunesAll(FlexCast):
    """A flush prunes all messages, not only its predecessors."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.history = _PrunesAll(self.home, self.descendants)


class WaitsForAllMissing(FlexCast):
    """Algorithm 2, line 14: a notification waits for all missing messages, not only for predecessors of its message;
    a flush may prune that message before the acknowledgement."""

    def _check(self, message: MessageId) -> None:
        notification = self._notifications.get(message)
        if notification is None:
            super()._check(message)
            return
        missing = [id for id, vertex in sorted(self.history._vertices.items()) if vertex.open]
        if missing:
            self._blocked.setdefault(missing[0], []).append(message)
        else:
            self._acknowledge(message, self._notifications.pop(message))


@dataclass(frozen=True)
class Mutant:
    """A wrong protocol, how it fails, and the runs that show it."""

    process: type[FlexCast]
    status: frozenset[str]
    groups: int = 4
    messages: int = 14
    destinations: tuple[int, int] = (2, 3)
    options: dict[str, Any] = field(default_factory=dict)
    links: Links = "fifo"
    seeds: int = 60
    """The mutant must fail within this number of seeds."""

    @property
    def name(self) -> str:
        return self.process.__name__ if self.links == "fifo" else "ReorderingLinks"

    def spec(self) -> Spec:
        assert SPEC.unreplicated is not None
        return replace(
            SPEC, process=self.process, claims=replace(SPEC.unreplicated, links=self.links), unreplicated=None
        )


VIOLATED: Final = frozenset({"violated"})
STUCK: Final = frozenset({"stuck"})

MUTANTS: Final = (
    Mutant(EarlyAcksLost, STUCK),
    Mutant(HigherGroupsAwaited, STUCK),
    Mutant(OneNotificationChecked, STUCK),
    Mutant(ListLeftBehind, VIOLATED),
    Mutant(EdgesLost, VIOLATED),
    Mutant(AcknowledgesAtOnce, VIOLATED, messages=60, destinations=(2, 2), seeds=250),
    Mutant(NotifiesNobody, VIOLATED),
    Mutant(FlushPrunesAll, VIOLATED | STUCK, options={"flush_every": 3}),
    Mutant(NextNotNotified, VIOLATED, groups=5, messages=20, destinations=(2, 2), options={"notify": "next"}),
    Mutant(LastNotified, VIOLATED, groups=5, messages=20, destinations=(2, 2), options={"notify": "next"}),
    Mutant(FlexCast, VIOLATED, links="reordering"),
)
"""Caught by random runs."""

SCENARIO_MUTANTS: Final = (
    ("notified twice", AcksPerGroup),
    ("notified twice", AcksPerPair),
    ("notified twice", NotifiesOnce),
    ("acknowledged after a flush", WaitsForAllMissing),
)
"""Too rare for a short search: caught by a scenario of `tests/protocols/flexcast/scenarios.py`."""

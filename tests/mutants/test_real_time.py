"""Real-time order with a rule that looks right, or without one safeguard: searches and scenes detect each of them.

The search is that of `tests/parts/node/free_order.py`: every order without cycles may occur.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from amcast.kernel.effects import Close, Deliver, Effect, Persist, Send
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Record
from amcast.kernel.topology import Topology
from amcast.lab.real_time.search import search_real_time
from amcast.parts.client.messages import Done
from amcast.parts.node.messages import NodeConfig, OrderReport, RealTimeCheckpoint
from amcast.parts.node.node import Node
from amcast.parts.node.real_time_order import RealTimeOrder
from amcast.parts.ordering.consistent_cut import GroupOrder
from amcast.protocols.catalogue import CATALOGUE
from tests.parts.node import free_order, test_real_time_order
from tests.parts.node.free_order import FreeOrder

SEEDS = 2000


@dataclass(frozen=True)
class Mutant:
    """A method with another meaning, and how it is detected."""

    owner: type
    method: str
    changed: Callable[..., Any]
    shape: tuple[int, int, bool] = (4, 1, False)
    """Groups, replicas, and whether there are faults."""
    scene: Callable[[], None] | None = None
    """The test that fails; None: the search finds it."""


def answer_when_every_destination_has_delivered(self: RealTimeOrder) -> None:
    """Ready as soon as the protocol delivers, whatever is open before it."""
    own = self._own
    while own.open:
        first = next(iter(own.open.values()))
        if any(first.id not in self._orders[group].open for group in first.destinations if group != self._home):
            return
        own.remove_before(first.position + 1)


def answer_when_clocks_have_passed(self: RealTimeOrder) -> None:
    """A process that delivers knows that the clocks of a quorum of every destination have passed the timestamp."""
    while self._own.open:
        self._own.remove_before(next(iter(self._own.open.values())).position + 1)


def report_only_what_is_addressed_to_the_receiver(self: RealTimeOrder, group: GroupId, closed: int) -> Send:
    """Ready for a group without the test whether everything before is addressed to it, too."""
    send = original_report(self, group, closed)
    body = send.body
    assert isinstance(body, OrderReport)
    messages = tuple(message for message in body.messages if group in message.destinations)
    return Send(send.targets, OrderReport(body.group, body.closed, body.begin, body.end, messages), send.about)


def answer_when_the_order_is_certain(self: Node, delivery: Deliver, order: RealTimeOrder) -> None:
    """The early answers of the other setting."""
    original_hold(self, delivery, order)
    message = delivery.message
    if {self.home, *delivery.ordered_elsewhere}.issuperset(message.destinations):
        self.send(message.sender, Done((message.id,)), message.id)


def answer_retries_of_what_is_delivered(
    self: Node, receiver: ProcessId, message: MessageId, destinations: tuple[GroupId, ...]
) -> None:
    self.send(receiver, Done((message,)), message)


def state_closed_what_is_delivered(self: RealTimeOrder, leads: bool, lost: tuple[GroupId, ...]) -> list[Effect]:
    """Readers are told that a message is closed when it is delivered."""
    effects = original_finish(self, leads, lost)
    if self._own.end > self._stated:
        self._stated = self._own.end
        effects.append(Close(self._own.end))
    return effects


def call_closed_what_is_delivered(self: RealTimeOrder, message: MessageId) -> bool:
    return self._has_delivered(message)


def call_closed_what_is_not_known(self: RealTimeOrder, message: MessageId) -> bool:
    return message not in self._own.open and self._has_delivered(message)


def install_without_a_gap(self: RealTimeOrder, position: int) -> None:
    self._own.end = max(self._own.end, position)


def save_no_open_messages(self: RealTimeOrder, effect: Persist) -> Persist:
    return effect


def start_with_nothing_open(self: RealTimeOrder, records: Sequence[Record]) -> None:
    original_start(self, records)
    self._own.open.clear()


def accept_reports_that_do_not_follow(self: GroupOrder, closed: int, begin: int, end: int, messages: Any) -> bool:
    return original_learn(self, closed, min(begin, self.end), end, messages)


original_report = RealTimeOrder._report_to
original_finish = RealTimeOrder.finish_step
original_hold = Node._hold_answer
original_start = RealTimeOrder.start
original_learn = GroupOrder.learn

MUTANTS = [
    Mutant(RealTimeOrder, "_advance", answer_when_every_destination_has_delivered),
    Mutant(RealTimeOrder, "_advance", answer_when_clocks_have_passed),
    Mutant(RealTimeOrder, "_report_to", report_only_what_is_addressed_to_the_receiver),
    Mutant(Node, "_hold_answer", answer_when_the_order_is_certain),
    Mutant(Node, "_answer_retry", answer_retries_of_what_is_delivered),
    Mutant(RealTimeOrder, "finish_step", state_closed_what_is_delivered),
    Mutant(RealTimeOrder, "_is_closed", call_closed_what_is_delivered, (3, 1, True)),
    Mutant(RealTimeOrder, "wrap", save_no_open_messages, (3, 1, True)),
    Mutant(RealTimeOrder, "start", start_with_nothing_open, (3, 1, True)),
    Mutant(
        RealTimeOrder,
        "_is_closed",
        call_closed_what_is_not_known,
        scene=test_real_time_order.test_member_that_adopted_a_state_does_not_call_closed_what_it_does_not_know,
    ),
    Mutant(
        RealTimeOrder,
        "install",
        install_without_a_gap,
        scene=test_real_time_order.test_member_that_adopted_a_state_closes_nothing_behind_what_it_does_not_know,
    ),
    Mutant(
        GroupOrder,
        "learn",
        accept_reports_that_do_not_follow,
        scene=test_real_time_order.test_lost_report_is_asked_for_when_the_next_one_does_not_follow_it,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.changed.__name__)
def test_wrong_rule_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.owner, mutant.method, mutant.changed)
    if mutant.scene is not None:
        with pytest.raises(AssertionError):
            mutant.scene()
        return
    groups, replicas, faults = mutant.shape
    for seed in range(SEEDS):
        run = FreeOrder(groups, replicas, seed)
        run.run(14, faults)
        if run.find_violation() is not None:
            monkeypatch.undo()
            original = FreeOrder(groups, replicas, seed)
            original.run(14, faults)
            assert original.find_violation() is None, f"seed {seed} finds the rule itself"
            return
    pytest.fail(f"{SEEDS} seeds do not find it")


@pytest.mark.parametrize("protocol", ["primcast", "skeen", "flexcast"])
def test_obvious_rule_is_found_in_real_protocols_under_chosen_delays(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RealTimeOrder, "_advance", answer_when_every_destination_has_delivered)
    found = search_real_time(CATALOGUE[protocol], 150, seed=7, shrinks=False, order="real-time")
    assert found.exposed
    assert not found.holds


def test_nodes_without_the_part_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting that the papers promise is weaker: the same search shows it."""

    def make(me: ProcessId, topology: Topology) -> Node:
        return Node(free_order.Puppet(me, topology), NodeConfig(omega=None), None, RealTimeCheckpoint)

    def answer(self: FreeOrder, source: ProcessId, target: ProcessId, body: Any) -> None:
        """A message is answered when every destination has replied."""
        if target == self.client:
            replies = self.timers  # type: ignore[assignment]
            replies.add((body.message, body.group))  # type: ignore[attr-defined]
            message = self.messages[body.message]
            if all((message.id, group) in replies for group in message.destinations):
                self.answers.setdefault(message.id, self.moment)

    monkeypatch.setattr(FreeOrder, "send", answer)
    monkeypatch.setattr(FreeOrder, "fire", lambda self, process, name: None)
    for seed in range(SEEDS):
        run = FreeOrder(3, 1, seed, make)
        run.run(14, faults=False)
        if run.find_violation() is not None:
            return
    pytest.fail(f"{SEEDS} seeds do not find it")

"""The monitor of closings: what is in no consistent cut of the groups' orders is not closed."""

import pytest

from amcast.kernel.effects import Deliver
from amcast.kernel.message import Message
from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.runs import fuzz_seed
from amcast.simulation.monitors.closings import ClosingMonitor


class Groups:
    """Groups 0, 1 and 2, with two members each, and what they have delivered."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.monitor = ClosingMonitor(lambda process, rule, sentence: self.broken.append(rule), lambda one: one // 2)

    def deliver(self, process: int, position: int, message: int, *destinations: int) -> None:
        self.monitor.hear_delivery(process, Deliver(Message(message, 9, destinations, b""), position))


@pytest.fixture
def groups() -> Groups:
    """Messages x (1) to groups 0 and 1, y (2) to groups 1 and 2; y precedes x in group 1."""
    groups = Groups()
    groups.deliver(0, 0, 1, 0, 1)
    groups.deliver(2, 0, 2, 1, 2)
    groups.deliver(3, 0, 2, 1, 2)
    return groups


def test_message_is_closed_when_all_before_it_are_delivered_everywhere(groups: Groups) -> None:
    groups.deliver(2, 1, 1, 0, 1)
    groups.deliver(4, 0, 2, 1, 2)
    groups.monitor.hear_closing(0, 1)
    groups.monitor.hear_closing(3, 2)
    groups.monitor.hear_answer(1, 9)
    assert groups.broken == []


def test_message_is_open_while_one_before_it_is_missing_in_a_third_group(groups: Groups) -> None:
    groups.deliver(2, 1, 1, 0, 1)
    groups.monitor.hear_answer(1, 9)
    groups.monitor.hear_closing(0, 1)
    assert groups.broken == ["closed deliveries"] * 2


def test_message_is_open_while_a_destination_has_not_delivered_it(groups: Groups) -> None:
    groups.deliver(4, 0, 2, 1, 2)
    groups.monitor.hear_closing(4, 1)
    assert groups.broken == []
    groups.monitor.hear_closing(0, 1)
    assert groups.broken == ["closed deliveries"]


def test_nobody_closes_what_nobody_has_delivered(groups: Groups) -> None:
    groups.monitor.hear_closing(0, 2)
    assert groups.broken == ["closed deliveries"]


def test_protocol_with_the_order_by_itself_may_answer_before_other_groups_have_delivered() -> None:
    runs = SwarmRuns({"protocol": "multipaxos", "order": "real-time"})
    for seed in (710033, 710017):  # a client is answered for what one group alone has delivered
        assert fuzz_seed(runs.prepare(seed), seed).status == "holds"

"""Real-time order: nodes answer when nothing that is multicast later can precede a message, and always answer then."""

import pytest

from amcast.kernel.effects import Persist
from amcast.kernel.events import Leader, LinkReset, Receive
from amcast.kernel.topology import Topology
from amcast.parts.node.messages import NodeConfig, OrderReport, OrderRequest, RealTimeCheckpoint, RealTimeConfig
from amcast.parts.node.node import Node
from amcast.parts.node.real_time_order import ORDER_TIMER
from amcast.parts.ordering.consistent_cut import OpenMessage
from tests.parts.node.free_order import DeliveredRecord, FreeOrder, Puppet, Save, SavedRecord

SEEDS = 40


@pytest.mark.parametrize(
    ("groups", "replicas", "faults", "servers_send"),
    [(3, 1, False, False), (5, 1, False, False), (3, 1, True, False), (3, 3, True, False), (3, 3, True, True)],
)
def test_no_order_without_cycles_breaks_it_and_every_message_is_answered(
    groups: int, replicas: int, faults: bool, servers_send: bool
) -> None:
    for seed in range(SEEDS):
        run = FreeOrder(groups, replicas, seed, servers_send=servers_send)
        run.run(14, faults)
        assert not run.list_unanswered(), f"seed {seed}: {run.list_unanswered()} were never answered"
        assert not run.list_open(), f"seed {seed}: {run.list_open()} do not know that all is closed"
        assert run.find_violation() is None, f"seed {seed}: {run.find_violation()}"


# When answers come


def test_local_message_with_nothing_open_before_it_is_answered_when_it_is_delivered() -> None:
    run = FreeOrder(2, 1)
    local = run.multicast(0)
    run.deliver_all(0, local)
    assert local.id in run.answers
    assert run.reports == 0


def test_lone_message_is_answered_after_one_report_of_each_other_destination() -> None:
    run = FreeOrder(3, 3)
    message = run.multicast(0, 1, 2)
    for group in (0, 1, 2):
        run.deliver_all(group, message)
    assert not run.answers
    assert run.reports == 3 * 2 * 3, "the leader of each destination reports to all members of the two others"
    run.arrive_all((1, 0), (1, 2), (2, 1))
    assert not run.answers, "no group has the reports of both others"
    run.arrive_all()
    assert message.id in run.answers
    assert run.reports == 18, "nobody has to ask"


def test_messages_with_equal_destinations_do_not_wait_for_each_other() -> None:
    run = FreeOrder(2, 1)
    messages = [run.multicast(0, 1) for _ in range(3)]
    run.deliver_all(1, *messages)
    run.deliver_all(0, *messages)
    run.arrive(1, 0)
    assert list(run.answers) == [messages[0].id]
    run.arrive(1, 0)
    run.arrive(1, 0)
    assert len(run.answers) == 3, "three reports, sent when the messages were delivered, are enough"


def test_report_that_overtakes_the_delivery_is_remembered() -> None:
    run = FreeOrder(2, 1)
    message = run.multicast(0, 1)
    run.deliver_all(1, message)
    run.arrive_all()
    run.deliver_all(0, message)
    assert message.id in run.answers


def test_member_ahead_of_its_leader_reports_to_the_process_that_answers() -> None:
    run = FreeOrder(2, 3, servers_send=True)
    message = run.multicast(0, 1)
    run.order(0, message)
    run.order(1, message)
    run.deliver(0)
    run.deliver(4)
    run.arrive(4, 0)
    assert run.closed[0] == 1, "the leader of group 1 has not delivered it yet"
    assert not [pair for pair in run.links if pair[0] == 4], "nobody else waits for this report"


def chain(run: FreeOrder) -> list:
    """The chain over three groups: y before z at group 1, z before a local message at group 0, y not at group 2 yet."""
    y, z, local = run.multicast(1, 2), run.multicast(0, 1), run.multicast(0)
    run.deliver_all(1, y, z)
    run.deliver_all(0, z, local)
    return [y, z, local]


def test_chain_over_three_groups_is_not_answered_before_its_end_is_known() -> None:
    run = FreeOrder(3, 1)
    y, z, local = chain(run)
    run.arrive_all()
    assert not run.answers, "every destination of z has delivered it, and group 2 may still order before y"
    later = run.multicast(2)
    run.deliver_all(2, later, y)
    run.arrive_all()
    assert {y.id, z.id, local.id, later.id} == set(run.answers)
    assert run.find_violation() is None


def test_path_over_five_groups_is_not_answered_before_its_end_is_known() -> None:
    run = FreeOrder(5, 1)
    links = [run.multicast(group, group + 1) for group in range(4)]
    local = run.multicast(0)
    run.deliver_all(0, links[0], local)
    for group in (1, 2, 3):
        run.deliver_all(group, links[group], links[group - 1])
    run.arrive_all()
    assert not run.answers
    later = run.multicast(4)
    run.deliver_all(4, later, links[3])
    run.arrive_all()
    assert local.id in run.answers
    assert run.find_violation() is None


def test_cut_of_several_groups_closes_no_more_than_it_contains() -> None:
    run = FreeOrder(3, 1)
    x, first, y, last = run.multicast(1, 2), run.multicast(0, 1), run.multicast(1, 2), run.multicast(0, 1)
    run.deliver_all(1, x, first, y, last)
    run.deliver_all(0, first, last)
    run.arrive_all((1, 2), (2, 1))
    assert not run.answers
    run.deliver_all(2, x)
    run.arrive_all((1, 2), (2, 1))
    assert set(run.closings) == {first.id}, "group 2 has not delivered y, which is before the last message"
    later = run.multicast(2)
    run.deliver_all(2, later, y)
    run.arrive_all()
    assert run.find_violation() is None
    assert last.id in run.answers


def test_retry_of_a_message_that_is_delivered_and_not_closed_is_answered_when_it_is() -> None:
    run = FreeOrder(3, 1)
    y, z, local = chain(run)
    for message in (z, local):
        run.retry(0, message)
    run.arrive_all()
    assert not run.answers
    run.deliver_all(2, y)
    run.arrive_all()
    assert local.id in run.answers


# Third groups


def test_third_group_that_is_followed_reports_to_the_group_that_waits() -> None:
    run = FreeOrder(3, 1)
    first = chain(run)
    run.arrive_all()
    run.deliver_all(2, first[0])
    run.arrive_all()
    assert len(run.answers) == 3
    second = chain(run)
    run.arrive_all()
    run.deliver_all(2, second[0])
    run.arrive_all((2, 1), (1, 0))
    assert second[2].id in run.answers, "group 2 reports to group 0, which it shares no message with"


def test_closed_context_is_reported_by_the_group_that_sent_it() -> None:
    run = FreeOrder(3, 1)
    y, _, local = chain(run)
    run.arrive_all((0, 2), (2, 0))
    run.deliver_all(2, y)
    run.arrive_all((0, 2), (2, 0))
    assert local.id in run.answers


# Losses


def test_lost_report_is_asked_for_when_the_next_one_does_not_follow_it() -> None:
    run = FreeOrder(3, 1)
    y, z = run.multicast(1, 2), run.multicast(0, 1)
    run.step(1, Receive(0, OrderRequest(1, (), follows=True)))
    run.arrive_all()
    run.deliver_all(1, y)
    del run.links[(1, 0)]
    run.deliver_all(1, z)
    run.deliver_all(0, z)
    run.arrive(1, 0)
    assert not run.answers, "group 0 does not know what was before the second report"
    assert list(run.links[(0, 1)])[-1] == OrderRequest(1)
    run.arrive_all()
    assert not run.answers
    run.deliver_all(2, y)
    run.arrive_all()
    assert z.id in run.answers


def test_member_asks_after_a_time_for_what_was_lost_and_any_member_answers() -> None:
    run = FreeOrder(2, 3)
    message = run.multicast(0, 1)
    run.deliver_all(1, message)
    run.deliver_all(0, message)
    run.links.clear()
    run.fire(0, ORDER_TIMER)
    for source, target in sorted(run.links):
        if target == 3:
            run.links.pop((source, target))  # the leader of group 1 is silent
    run.arrive_all()
    assert message.id in run.answers


def test_new_leader_reports_what_its_predecessor_may_not_have_reported() -> None:
    run = FreeOrder(2, 3)
    message = run.multicast(0, 1)
    for group in (0, 1):
        run.deliver_all(group, message)
    run.links.clear()
    for member in (3, 4, 5):
        run.step(member, Leader(1, 4))
    run.arrive_all()
    assert message.id in run.answers


def test_reports_are_repeated_when_a_link_starts_over() -> None:
    run = FreeOrder(2, 1)
    message = run.multicast(0, 1)
    for group in (0, 1):
        run.deliver_all(group, message)
    run.links.clear()
    run.step(1, LinkReset(0, 0))
    run.arrive_all()
    assert message.id in run.answers


def test_message_that_another_group_closed_and_forgot_is_asked_for() -> None:
    run = FreeOrder(2, 1)
    message = run.multicast(0, 1)
    run.deliver_all(0, message)
    run.arrive_all()
    run.deliver_all(1, message)
    run.links.clear()
    assert run.nodes[1].real_time.status() == {"closed": 1, "open": 0}  # type: ignore[union-attr]
    run.fire(0, ORDER_TIMER)
    run.arrive_all()
    assert run.nodes[0].real_time.closed == 1  # type: ignore[union-attr]


# Restarts and state transfer


def test_restart_from_a_checkpoint_still_knows_what_is_open() -> None:
    run = FreeOrder(2, 1)
    message = run.multicast(0, 1)
    run.deliver_all(0, message)
    run.step(0, Receive(0, Save()))
    run.restart(0)
    local = run.multicast(0)
    run.deliver_all(0, local)
    run.retry(0, message)
    run.arrive_all()
    assert not run.answers
    later = run.multicast(1)
    run.deliver_all(1, later, message)
    run.arrive_all()
    assert {local.id, message.id} <= set(run.answers)
    assert run.find_violation() is None


def test_restart_that_repeats_deliveries_takes_them_for_open() -> None:
    run = FreeOrder(2, 1)
    message, local = run.multicast(0, 1), run.multicast(0)
    run.deliver_all(0, message)
    run.restart(0)
    run.deliver_all(0, local)
    run.arrive_all()
    assert not run.answers
    run.deliver_all(1, message)
    run.arrive_all()
    assert local.id in run.answers


def test_records_of_a_cluster_without_real_time_order_count_as_closed() -> None:
    run = FreeOrder(2, 1)
    message = run.multicast(0, 1)
    run.order(0, message)
    run.records[0] = [SavedRecord((message.id,))]
    run.restart(0)
    local = run.multicast(0)
    run.deliver_all(0, local)
    assert local.id in run.answers


def test_checkpoints_are_opened_for_a_cluster_without_real_time_order() -> None:
    run = FreeOrder(2, 1)
    run.deliver_all(0, run.multicast(0, 1))
    run.step(0, Receive(0, Save()))
    assert isinstance(run.records[0][0], RealTimeCheckpoint)
    run.make = lambda me, topology: Node(Puppet(me, topology), NodeConfig(omega=None))
    run.restart(0)
    assert run.nodes[0].protocol.position == 1


def transfer_past(run: FreeOrder) -> list:
    """Member 1 of group 0 adopts a state behind a message that group 1 has not delivered, and delivers another."""
    message, local = run.multicast(0, 1), run.multicast(0)
    run.order(0, message)
    run.deliver(0)
    run.transfer(0, 1)
    run.order(0, local)
    return [message, local]


def test_member_that_adopted_a_state_closes_nothing_behind_what_it_does_not_know() -> None:
    run = FreeOrder(2, 2)
    transfer_past(run)
    run.step(1, Leader(0, 1))
    run.deliver(1)
    assert not run.answers
    assert run.nodes[1].real_time.closed == 0  # type: ignore[union-attr]
    run.arrive_all()
    assert not run.answers, "member 0 reported that a message to group 1 is open"


def test_member_that_adopted_a_state_learns_what_is_open_from_other_members() -> None:
    run = FreeOrder(2, 2)
    message, local = transfer_past(run)
    run.step(1, Leader(0, 1))
    run.deliver(1)
    run.arrive_all()
    run.deliver_all(1, message)
    run.arrive_all()
    assert local.id in run.answers


def test_member_that_adopted_a_state_does_not_call_closed_what_it_does_not_know() -> None:
    run = FreeOrder(3, 2)
    message, _ = transfer_past(run)
    run.links.clear()
    run.step(1, Receive(2, OrderRequest(0, (message.id,))))
    (report,) = run.links[(1, 2)]
    assert report == OrderReport(0, 0, 0, 0, ())


def test_member_that_learns_its_own_order_closes_what_other_groups_reported_before() -> None:
    """The report of group 1 comes while the member does not know its own order, and is not repeated."""
    run = FreeOrder(2, 2)
    message, _ = transfer_past(run)
    run.links.clear()
    run.step(1, Receive(2, OrderReport(1, 0, 0, 1, (OpenMessage(message.id, 0, (0, 1)),))))
    run.step(1, Receive(0, OrderReport(0, 2, 2, 2, ())))
    order = run.nodes[1].real_time
    assert order is not None
    assert order.closed == 2
    assert not order._orders[1].open, "a later message of group 1 would wait for this one for ever"


def test_other_group_tells_a_member_about_the_order_of_its_own_group() -> None:
    run = FreeOrder(2, 2)
    message, local = transfer_past(run)
    run.arrive_all((0, 0))
    run.restart(0, is_forgetting=True)
    run.transfer(1, 0)
    run.links.clear()
    run.step(1, Leader(0, 1))
    run.deliver(1)
    run.deliver_all(1, message)
    for process in (0, 1):
        run.fire(process, ORDER_TIMER)
    run.arrive_all()
    assert local.id in run.answers


def test_state_that_is_adopted_after_a_restart_without_checkpoint_is_not_taken_for_closed() -> None:
    run = FreeOrder(2, 2)
    first, message, local = run.multicast(0), run.multicast(0, 1), run.multicast(0)
    run.deliver_all(0, first)
    run.restart(1)
    run.links.clear()
    run.order(0, message)
    run.deliver(0)
    run.transfer(0, 1)
    run.order(0, local)
    run.step(1, Leader(0, 1))
    run.deliver(1)
    assert run.nodes[1].real_time.closed == 1  # type: ignore[union-attr]
    assert local.id not in run.answers


# Limits, and what operators see


def test_knowledge_of_other_groups_is_limited_and_every_message_is_answered() -> None:
    real_time = RealTimeConfig(retry_ns=(1, 1), max_open=2)

    def make(me: int, topology: Topology) -> Node:
        return Node(Puppet(me, topology), NodeConfig(omega=None, real_time=real_time))

    run = FreeOrder(2, 1, make=make)
    messages = [run.multicast(0, 1) for _ in range(20)]
    run.deliver_all(1, *messages)
    run.arrive_all()
    (_, known) = run.nodes[0].real_time.snapshot().orders  # type: ignore[union-attr]
    assert len(known[1].open) == 2
    run.deliver_all(0, *messages)
    for _ in range(20):
        run.arrive_all()
        run.fire(0, ORDER_TIMER)
    assert len(run.answers) == 20


def test_nothing_is_remembered_of_what_is_closed_but_the_last_ids() -> None:
    run = FreeOrder(2, 1)
    for _ in range(5000):
        message = run.multicast(0, 1)
        for group in (0, 1):
            run.deliver_all(group, message)
        run.arrive_all()
    state = run.nodes[0].real_time.snapshot()  # type: ignore[union-attr]
    assert len(state.closed) == 4096
    assert not state.held
    assert all(not order.open for _, order in state.orders)


def test_status_and_explain_name_the_group_that_answers_wait_for() -> None:
    run = FreeOrder(3, 1)
    _, _, local = chain(run)
    run.arrive_all()
    node = run.nodes[0]
    status = node.status()
    assert (status["closed"], status["open"], status["closing_waits_for"]) == (0, 1, "group 2")
    (phase,) = [phase for phase in node.explain(local.id) if phase.name == "closed"]
    assert not phase.is_done
    assert phase.waiting_for == run.topology.members(2)


def test_only_records_after_which_deliveries_are_not_repeated_carry_what_is_open() -> None:
    run = FreeOrder(2, 1)
    message = run.multicast(0, 1)
    effects: list = []
    run.execute = lambda process, found: effects.extend(found)  # type: ignore[method-assign]
    run.deliver_all(0, message)
    run.step(0, Receive(0, Save()))
    plain, checkpoint = [effect.record for effect in effects if isinstance(effect, Persist)][:2]
    assert isinstance(plain, DeliveredRecord)
    assert checkpoint == RealTimeCheckpoint(SavedRecord((message.id,)), run.nodes[0].real_time._own.snapshot())  # type: ignore[union-attr]


def forget_everywhere(run: FreeOrder) -> None:
    """Group 0 delivers a message that group 1 has not; then both its members lose what they know of it."""
    message = run.multicast(0, 1)
    run.deliver_all(0, message)
    for source, target in ((0, 1), (1, 0)):
        run.links.clear()
        run.restart(target, is_forgetting=True)
        run.transfer(source, target)
    run.links.clear()
    for process in (2, 3):
        run.restart(process)
    run.links.clear()


def test_group_whose_members_have_all_forgotten_what_is_open_waits_and_says_so() -> None:
    run = FreeOrder(3, 2)
    forget_everywhere(run)
    local = run.multicast(0)
    run.deliver_all(0, local)
    run.settle(2, bound=20)
    assert local.id not in run.answers, "who knows what it comes after?"
    status = run.nodes[0].status()
    assert status["closing_waits_for"] == (
        "members of group 0: the order before a state transfer is unknown; a message to all groups closes it"
    )


def test_message_to_all_groups_closes_what_everybody_has_forgotten() -> None:
    run = FreeOrder(3, 2)
    forget_everywhere(run)
    (forgotten,) = run.messages.values()
    local, both = run.multicast(0), run.multicast(0, 1)
    run.deliver_all(0, local, both)
    run.deliver_all(1, forgotten, both)
    run.settle(3, bound=20)
    assert not run.answers, "a message to some groups says nothing about what others may have to deliver"
    everywhere = run.multicast(0, 1, 2)
    run.deliver_all(0, everywhere)
    run.deliver_all(1, everywhere)
    run.arrive_all()
    assert not run.answers, "group 2 may still order a message before it"
    run.deliver_all(2, everywhere)
    run.settle(4)
    assert not run.list_unanswered()
    assert not run.list_open()
    assert run.find_violation() is None


def test_lone_group_closes_what_everybody_has_forgotten() -> None:
    """Every member adopted a state, and nobody is left to ask."""
    run = FreeOrder(1, 3)
    run.deliver_all(0, run.multicast(0))
    for process in (1, 2, 0):
        run.restart(process, is_forgetting=True)
        run.transfer(2 if process == 1 else 1, process)
    run.links.clear()
    local = run.multicast(0)
    run.deliver_all(0, local)
    assert local.id in run.answers
    assert [node.real_time.closed for node in run.nodes.values()] == [2, 2, 2]  # type: ignore[union-attr]

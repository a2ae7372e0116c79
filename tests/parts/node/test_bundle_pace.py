"""The pace of bundles: nobody waits for nobody, bundles overlap, and a busy path gets fewer and larger ones."""

from amcast.kernel.bundle import bundle_messages
from amcast.kernel.config import MILLISECOND
from amcast.kernel.effects import Effect, SetTimer
from amcast.kernel.topology import Topology
from amcast.parts.node.bundle_pace import (
    HELD_ANSWERS,
    IDLE_ANSWERS,
    MAX_IDLE_INTERVAL_NS,
    MAX_INTERVAL_NS,
    MEMORY_NS,
    BundlePace,
)
from amcast.parts.node.gateway import MAX_PACES, PACE_TIMER, Gateway
from tests.parts.node.gateway_scene import bundles_in, make_gateway, make_message, replies_to

TOOK_NS = MILLISECOND // 2
INTERVAL_NS = IDLE_ANSWERS * TOOK_NS


def pace_timers(effects: list[Effect]) -> list[int]:
    return [effect.low_ns for effect in effects if isinstance(effect, SetTimer) and effect.name == PACE_TIMER]


def answer_pair(gateway: Gateway) -> int:
    """Lets a gateway have answered one bundle of clients 6 and 7, sent at 0 after an earlier one; returns the time."""
    for begin in (-MILLISECOND, 0):
        for client in (6, 7):
            gateway.add(make_message(client, begin // MILLISECOND + 1))
        (bundle,) = bundles_in(gateway.step([], begin))
        gateway.step(replies_to(bundle), begin + TOOK_NS)
    return TOOK_NS


def test_next_bundle_leaves_at_once_when_all_answered_clients_have_sent_again() -> None:
    gateway = make_gateway()
    now = answer_pair(gateway)
    gateway.add(make_message(6, 9))
    effects = gateway.step([], now)
    assert bundles_in(effects) == [], "client 7 was answered and has not sent again"
    assert pace_timers(effects) == [INTERVAL_NS - TOOK_NS]
    gateway.add(make_message(7, 9))
    (bundle,) = bundles_in(gateway.step([], now + 1000))
    assert [message.sender for message in bundle_messages(bundle)] == [6, 7]


def test_next_bundle_does_not_wait_longer_than_an_interval_for_clients() -> None:
    gateway = make_gateway()
    now = answer_pair(gateway)
    gateway.add(make_message(6, 9))
    gateway.step([], now)
    gateway.expire_pace_timer()
    assert bundles_in(gateway.step([], INTERVAL_NS - 1)) == [], "a timer that expires early is set again"
    assert len(bundles_in(gateway.step([], INTERVAL_NS))) == 1


def test_bundles_overlap_at_the_interval() -> None:
    """A client that sends without waiting for answers has its next bundle on the way before the last is answered."""
    gateway = make_gateway()
    now = answer_pair(gateway)
    for client in (6, 7):
        gateway.add(make_message(client, 9))
    assert len(bundles_in(gateway.step([], now))) == 1
    gateway.add(make_message(8, 9))
    assert bundles_in(gateway.step([], now + INTERVAL_NS - 1)) == []
    gateway.expire_pace_timer()
    assert len(bundles_in(gateway.step([], now + INTERVAL_NS))) == 1
    assert len(gateway.open_bundles()) == 2


def test_timer_is_set_once_for_the_first_bundle_that_may_leave() -> None:
    gateway = make_gateway()
    now = answer_pair(gateway)
    gateway.add(make_message(6, 9))
    assert len(pace_timers(gateway.step([], now))) == 1
    gateway.add(make_message(6, 10))
    assert pace_timers(gateway.step([], now + 1000)) == [], "it is set already"


def interval_after(answers: list[tuple[int, int]]) -> int:
    """The interval after answers at these times that took so long."""
    pace = BundlePace()
    for now, took_ns in answers:
        pace.record_answer((6,), now, took_ns)
        assert BundlePace.from_state(pace.snapshot((0,))).snapshot((0,)) == pace.snapshot((0,))
    return pace.interval_ns


def test_interval_of_an_idle_path_follows_its_fastest_answer() -> None:
    assert interval_after([(1, TOOK_NS)]) == INTERVAL_NS
    assert interval_after([(1, TOOK_NS), (2, 2 * TOOK_NS), (3, TOOK_NS)]) == INTERVAL_NS
    assert interval_after([(1, 80 * MILLISECOND)] * 9) == MAX_IDLE_INTERVAL_NS, "waiting gains nothing far away"


def test_interval_grows_while_answers_queue_and_falls_when_they_no_longer_do() -> None:
    queueing = [(1, TOOK_NS), *((2, 50 * MILLISECOND),) * 40]
    assert interval_after(queueing) == MAX_INTERVAL_NS
    assert INTERVAL_NS < interval_after([*queueing, *((3, TOOK_NS),) * 8]) < MAX_INTERVAL_NS
    assert interval_after([*queueing, *((3, TOOK_NS),) * 40]) == INTERVAL_NS


def test_interval_does_not_grow_for_answers_that_take_a_few_intervals() -> None:
    """Two intervals in a queue mean two bundles: a path that is used, and not one that cannot keep up."""
    assert interval_after([(1, TOOK_NS), *((2, 2 * INTERVAL_NS),) * 40]) == INTERVAL_NS


def test_fastest_answer_is_forgotten() -> None:
    slow_ns = TOOK_NS + 4 * MILLISECOND
    assert interval_after([(1, TOOK_NS), (MEMORY_NS, slow_ns)]) == INTERVAL_NS
    later = [(MEMORY_NS * period, slow_ns) for period in range(1, 4)]
    assert interval_after([(1, TOOK_NS), *later]) == MAX_IDLE_INTERVAL_NS
    assert interval_after([(1, TOOK_NS), (3 * MEMORY_NS, slow_ns)]) == MAX_IDLE_INTERVAL_NS, "after a pause as well"


def test_number_of_paces_is_bounded() -> None:
    topology = Topology.grid(11, 1, 2)
    gateway = make_gateway(topology)
    sets = [tuple(group for group in range(11) if bits >> group & 1) for bits in range(1, MAX_PACES + 100)]
    for round, groups in enumerate(sets):
        for client in topology.clients:
            gateway.add(make_message(client, round, groups))
        (bundle,) = bundles_in(gateway.step([], 10 * round))
        gateway.step(replies_to(bundle, groups, {group: group for group in groups}), 10 * round + 5)
    assert (len(gateway._paces), gateway._in_flight, gateway._sent_ns) == (99, {}, {})
    copy = make_gateway(topology)
    copy.restore(gateway.snapshot())
    assert copy.snapshot() == gateway.snapshot()
    assert len(gateway.snapshot().paces) == 99


def overlaps_beside_local(local_took_ns: int, took_ns: int, later_ns: int = 0) -> bool:
    """Whether bundles to both groups overlap, at a gateway that has answered messages to its own group alone, and so
    long after."""
    gateway = make_gateway()
    for destinations, begin_ns, answer_ns in (((0,), 0, local_took_ns), ((0, 1), later_ns, took_ns)):
        gateway.add(make_message(6, len(destinations), destinations))
        (bundle,) = bundles_in(gateway.step([], begin_ns))
        gateway.step(replies_to(bundle, destinations), begin_ns + answer_ns)
    for client in (6, 7):
        gateway.add(make_message(client, 9))
        gateway.expire_pace_timer()
        gateway.step([], later_ns + took_ns + (client - 5) * MAX_INTERVAL_NS)
    copy = make_gateway()
    copy.restore(gateway.snapshot())
    assert copy.snapshot() == gateway.snapshot()
    return len(gateway.open_bundles()) == 2


def test_bundles_to_far_groups_do_not_overlap_beside_fast_local_ones() -> None:
    assert not overlaps_beside_local(MILLISECOND, 80 * MILLISECOND)
    assert overlaps_beside_local(60 * MILLISECOND, 80 * MILLISECOND), "no message is fast there"
    assert overlaps_beside_local(TOOK_NS, 2 * TOOK_NS), "the other group is near"
    assert overlaps_beside_local(MILLISECOND, 80 * MILLISECOND, 3 * MEMORY_NS), "no local messages come any more"


FAR_NS = 60 * MILLISECOND
REPORT_NS = 20 * MILLISECOND


def answer_held(gateway: Gateway, begin: int, held_ns: int, number: int, is_local_used: bool = True) -> int:
    """Lets a gateway have a message to its own group answered, and a bundle to both that it delivered `held_ns` before
    the answer; returns the time of the answer."""
    for destinations, answer_ns in (((0,), TOOK_NS), ((0, 1), FAR_NS))[0 if is_local_used else 1 :]:
        gateway.add(make_message(6, number + len(destinations), destinations))
        gateway.expire_pace_timer()
        (bundle,) = bundles_in(gateway.step([], begin))
        gateway.record_delivery(bundle.id, begin + answer_ns - held_ns)
        copy = make_gateway()
        copy.restore(gateway.snapshot())
        assert copy.snapshot() == gateway.snapshot()
        begin += answer_ns
        gateway.step(replies_to(bundle, destinations), begin)
    return begin


def find_pause(gateway: Gateway, now: int) -> int:
    """For how long a gateway that answered client 6 keeps a message of client 7."""
    gateway.add(make_message(7, 90))
    timers = pace_timers(gateway.step([], now))
    return timers[0] if timers else 0


def test_bundles_that_are_held_by_real_time_order_wait_for_clients_far_away() -> None:
    gateway = make_gateway()
    now = answer_held(gateway, 0, REPORT_NS, 0)
    assert find_pause(gateway, now) == MAX_INTERVAL_NS + 2 * REPORT_NS


def test_delay_of_a_report_is_that_of_bundles_which_wait_for_no_other() -> None:
    gateway = make_gateway()
    now = answer_held(gateway, 0, 2 * REPORT_NS, 0)
    assert find_pause(gateway, now) == MAX_INTERVAL_NS + 2 * FAR_NS // 3, "a third of the time of an answer at most"


def test_bundles_overlap_where_real_time_order_holds_them_for_a_short_time() -> None:
    """Reports come from near by, or other groups deliver first. Whether messages to one group are fast says nothing:
    they wait for bundles."""
    for held_ns in (MAX_IDLE_INTERVAL_NS - 1, FAR_NS // HELD_ANSWERS - 1):
        gateway = make_gateway()
        assert find_pause(gateway, answer_held(gateway, 0, held_ns, 0)) == 0


def test_that_bundles_were_held_is_forgotten() -> None:
    gateway = make_gateway()
    answer_held(gateway, 0, REPORT_NS, 0)
    now = answer_held(gateway, MEMORY_NS // 2, 0, 10)
    assert not gateway._find_pace((0, 1)).may_overlap, "once, the other group may deliver first by chance"
    now = answer_held(gateway, 2 * MEMORY_NS, 0, 20)
    assert gateway._find_pace((0, 1)).may_overlap
    now = answer_held(gateway, now, REPORT_NS, 30)
    assert not gateway._find_pace((0, 1)).may_overlap
    now = answer_held(gateway, now + 3 * MEMORY_NS, REPORT_NS, 40, is_local_used=False)
    assert gateway._find_pace((0, 1)).may_overlap, "no message to one group waits for them"


def test_messages_that_gather_behind_far_bundles_wait_from_their_answers() -> None:
    """The limit for gathering is there for answers that do not come."""
    gateway = make_gateway()
    now = answer_held(gateway, 0, REPORT_NS, 0)
    gateway.add(make_message(6, 50))
    (bundle,) = bundles_in(gateway.step([], now))
    gateway.add(make_message(7, 51))
    limit_ns = gateway.config.gather_ns[0]
    gateway.step([], now)
    gateway.step(replies_to(bundle), now + FAR_NS)
    gateway.expire_gather_timer()
    assert bundles_in(gateway.step([], now + limit_ns)) == [], "its pace lets it leave 10 ms later"
    gateway.expire_pace_timer()
    assert len(bundles_in(gateway.step([], now + FAR_NS + MAX_INTERVAL_NS + 2 * REPORT_NS))) == 1

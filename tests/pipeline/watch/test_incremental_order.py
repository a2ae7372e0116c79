"""Integrity and order of an unfinished run: no false word in between, and the plain checker's verdict at the end."""

from random import Random

import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.watch.id_intervals import IdIntervals
from amcast.pipeline.watch.incremental_order import DeliveredRow, IncrementalOrder
from tests.mutants.planted import Trace
from tests.pipeline.small_runs import plain, random_run

Multicast = tuple[int, tuple[int, ...], int]


def list_rows(trace: Trace) -> tuple[list[Multicast], list[DeliveredRow]]:
    sent = [(m, tuple(row["destinations"]), row["at_ns"]) for m, row in trace.multicasts.items()]
    rows = []
    for process, entries in trace.sequences.items():
        for position, message, at_ns in entries:
            known = trace.multicasts.get(message)
            groups = tuple(sorted(known["destinations"])) if known else None
            rows.append(DeliveredRow(process, trace.group_of(process) or 0, position, message, at_ns, groups, None))
    return sent, rows


def list_processes(trace: Trace) -> list[tuple[int, int | None]]:
    members = [(process, group) for group, processes in trace.groups.items() for process in processes]
    return [*members, *((client, None) for client in trace.clients)]


def feed(order: IncrementalOrder, random: Random, sent: list[Multicast], rows: list[DeliveredRow]) -> list[str]:
    """All rows in random batches; the verdict after each."""
    random.shuffle(rows)
    random.shuffle(sent)
    verdicts = []
    while sent or rows:
        some = random.randint(1, 8)
        if sent and (not rows or random.random() < 0.5):
            order.add_multicasts(sent[:some])
            order.judge()
            del sent[:some]
        else:
            order.add_deliveries(rows[:some])
            del rows[:some]
        verdicts.append(describe(order))
    return verdicts


def describe(order: IncrementalOrder) -> str:
    if order.story:
        return "violated"
    return "unknown" if order.doubts or order.open_questions() else "holds"


@pytest.mark.parametrize("seed", range(150))
def test_verdict_is_the_plain_checkers_at_the_end(seed: int) -> None:
    """P1, P4 and P5; with gaps, which make them unknown, and with every mistake of the random runs."""
    trace, order = random_run(1000 + seed), IncrementalOrder()
    assert trace.packets is not None
    wanted = plain(trace)
    assert isinstance(wanted, dict)
    found = {wanted["properties"][name]["verdict"] for name in ("P1", "P4", "P5")}
    expected = "violated" if "violated" in found else "unknown" if "unknown" in found else "holds"
    seen = feed(order, Random(seed), *list_rows(trace))
    order.add_processes(list_processes(trace))
    order.judge()
    if not order.story:
        order.finish()
    note = f"{order.story} {order.doubts} {order.open_questions()} {wanted['properties']}"
    if expected == "violated":
        # Behind a gap that nobody fills, a violation is not always searched: unknown is said, never holds.
        assert describe(order) == "violated" or order.holes(), note
    else:
        assert describe(order) == expected, note
        assert "violated" not in seen, note


def make_pair(messages: int) -> Trace:
    trace = Trace({0: [0, 1], 1: [2]}, [9])
    for message in range(messages):
        trace.multicast(message, 0, 1, sender=9)
        for process in (0, 1, 2):
            trace.deliver(process, message)
    return trace


def judge_trace(trace: Trace, order: IncrementalOrder | None = None) -> IncrementalOrder:
    order = order or IncrementalOrder()
    sent, rows = list_rows(trace)
    order.add_processes(list_processes(trace))
    order.add_multicasts(sent)
    order.add_deliveries(rows)
    return order


def test_hole_is_unknown_at_once_and_known_when_it_is_filled() -> None:
    trace = make_pair(20)
    sent, rows = list_rows(trace)
    missing = [row for row in rows if row.process == 2 and row.position == 5]
    order = IncrementalOrder()
    order.add_multicasts(sent)
    order.add_deliveries([row for row in rows if row not in missing])
    assert describe(order) == "unknown"
    assert order.holes() == {2: 5}
    assert order.open_questions() == ["process 2 lacks position 5, and has 14 later ones"]
    order.add_deliveries(missing)
    assert (describe(order), order.merged, order.holes()) == ("holds", 20, {})


def test_swap_behind_a_hole_is_seen_where_another_replica_fills_it() -> None:
    trace = make_pair(20)
    mine = trace.delivered(1)
    mine[12], mine[13] = mine[13], mine[12]
    trace.order(1, *mine)
    trace.sequences[1] = [row for row in trace.sequences[1] if row[0] != 5]
    order = judge_trace(trace)
    assert order.story == [
        "process 1 delivered 13 at position 12, before 12 at position 13; in its group, 12 at position 12 comes before"
        " 13 at position 13"
    ]


def test_other_message_behind_a_hole_is_unknown_until_the_hole_is_filled() -> None:
    """Process 1 may have delivered 11 in its hole: the order of its group is then its own."""
    trace = make_pair(20)
    trace.sequences[1] = [(at - 1, message, ns) for at, message, ns in trace.sequences[1] if at > 12]
    order = judge_trace(trace)
    assert describe(order) == "unknown"
    assert order.holes() == {1: 0}
    order.add_deliveries(DeliveredRow(1, 0, at, at, 5000, (0, 1), None) for at in range(12))
    assert order.story == [
        "replicas of one group disagree: at position 12 process 0 delivered 12, but process 1 delivered 13"
    ]


def test_processes_that_the_table_does_not_list_violate_integrity_at_the_end() -> None:
    trace = make_pair(3)
    for listed in ([(0, 0), (2, 1)], [(0, 0), (1, None), (2, 1)]):
        order = IncrementalOrder()
        sent, rows = list_rows(trace)
        order.add_multicasts(sent)
        order.add_deliveries(rows)
        order.add_processes(listed)
        assert describe(order) == "holds"
        order.finish()
        assert order.story == [
            "process 1 delivered as a member of group 0, but the table processes does not list it as one"
        ]


def test_groups_without_members_are_refused_at_the_end() -> None:
    order = IncrementalOrder()
    order.add_multicasts([(1, (7,), 0)])
    order.add_processes([(0, 0)])
    with pytest.raises(UsageError, match="addressed to group 7, of which processes lists no member"):
        order.finish()
    with pytest.raises(UsageError, match="process 0 has group 0 and 1; expected one value"):
        order.add_processes([(0, 1)])
    with pytest.raises(UsageError, match="message 2 has no destinations"):
        order.add_multicasts([(2, (), 0)])


def test_retry_of_another_sender_or_number_is_refused() -> None:
    order = IncrementalOrder()
    order.add_multicasts([(1, (0,), 5, 90, 90, 3), (1, (0,), 7, 90, 90, 3)])
    for column, other in (("sender", (89, 90, 3)), ("session", (90, None, 3)), ("sequence", (90, 90, 4))):
        with pytest.raises(UsageError, match=f"multicasts: {column} of message 1 is"):
            order.add_multicasts([(1, (0,), 7, *other)])


def test_second_delivery_violates_integrity_and_is_no_cycle() -> None:
    trace = make_pair(6)
    trace.deliver(2, 3)
    assert judge_trace(trace).story == ["process 2 delivered 3 twice, at positions 3 and 6"]
    trace = make_pair(6)
    order = judge_trace(trace)
    order.add_deliveries([DeliveredRow(2, 1, 6, 3, 5000, (0, 1), None)])
    assert order.story == ["process 2 delivered 3 at position 6, and before"]


def test_delivery_without_multicast_is_open_until_the_end() -> None:
    order = judge_trace(make_pair(3))
    order.add_deliveries([DeliveredRow(2, 1, 3, 77, 5000, (1,), None)])
    assert describe(order) == "unknown"
    assert order.open_questions() == [
        "process 2 delivered 77 at position 3, whose multicast was not read (1 such messages)"
    ]
    order.finish()
    assert order.story == ["process 2 delivered 77 at position 3, but nobody multicast it"]


def test_delivery_before_its_multicast_is_a_violation_at_the_end() -> None:
    order = judge_trace(make_pair(3))
    order.add_multicasts([(3, (1,), 900)])
    order.add_deliveries([DeliveredRow(2, 1, 3, 3, 899, (1,), None)])
    assert describe(order) == "unknown"
    order.finish()
    assert order.story == ["process 2 delivered 3 at position 3 and time 899 ns, before its multicast at 900 ns"]


def test_unaddressed_delivery_violates_integrity() -> None:
    order = judge_trace(make_pair(3))
    order.add_multicasts([(3, (0,), 0)])
    order.add_deliveries([DeliveredRow(2, 1, 3, 3, 899, None, None)])
    assert order.story == ["process 2 delivered 3 at position 3, but it is addressed to groups [0], not to 1"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            DeliveredRow(2, 1, 3, 3, 899, (1,), None),
            r"deliveries: destinations of message 3 is \[1\], but \[0, 1\]",
        ),
        (DeliveredRow(2, 0, 3, 3, 899, None, None), "deliveries: group of process 2 is 0, but 1 in other rows"),
        (DeliveredRow(2, 1, 3, 3, 899, None, 7), "deliveries: multicast_ns of message 3 is 7, but 0 in multicasts"),
    ],
)
def test_contradictions_are_refused(row: DeliveredRow, words: str) -> None:
    order = judge_trace(make_pair(3))
    order.add_multicasts([(3, (0, 1), 0)])
    with pytest.raises(UsageError, match=words):  # noqa: PT012 (what concerns times is judged at the end)
        order.add_deliveries([row])
        order.finish()


def test_snapshot_counts_as_delivered_and_lost_rows_do_not() -> None:
    trace = make_pair(10)
    trace.sequences[1] = trace.sequences[1][6:]
    order = judge_trace(trace)
    assert order.holes() == {1: 0}
    order.add_snapshot(1, 6.0)
    order.judge()
    assert (describe(order), order.lag()) == ("holds", {0: 0, 1: 0, 2: 0})
    order.add_lost_rows(1, 10.0)
    assert order.doubts == ["process 1's trace lacks position 10: what it delivered there is unknown"]


@pytest.mark.parametrize("first", [-30, -(2**63)])
def test_any_id_can_be_a_message(first: int) -> None:
    trace = Trace({0: [0], 1: [1]}, [9])
    for message in range(first, first + 20):
        trace.multicast(message, 0, 1, sender=9)
        for process in (0, 1):
            trace.deliver(process, message)
    trace.sequences[1] = trace.sequences[1][:15]
    order = judge_trace(trace)
    assert (describe(order), order.merged, order.lag()) == ("holds", 15, {0: 0, 1: 0})


def test_merged_entries_are_forgotten() -> None:
    order = IncrementalOrder(remembered=100)
    for first in range(0, 2000, 100):
        messages = range(first, first + 100)
        order.add_multicasts((message, (0, 1), 0) for message in messages)
        order.add_deliveries(DeliveredRow(p, p, at, at, 5, (0, 1), None) for p in (0, 1) for at in messages)
        assert describe(order) == "holds"
    assert order.merged == 2000
    assert len(order.known) == 0
    assert all(chain.messages.size <= 250 for chain in order.chains.values())
    order.add_deliveries([DeliveredRow(3, 1, 0, 0, 5, None, None)])
    assert order.doubts == ["process 3 is too far behind group 1 to be compared with it"]


def test_intervals_hold_exactly_the_added_ids() -> None:
    random, ids, found = Random(3), set[int](), IdIntervals(1000)
    for _ in range(50):
        some = [random.randrange(-40, 40) for _ in range(random.randrange(6))] + random.choice(
            ([], [-(2**63)], [2**63 - 1])
        )
        ids.update(some)
        assert found.add(some)
        for id in (*range(-45, 45), -(2**63), 2**63 - 1):
            assert found.contains(id) == (id in ids)
    assert not IdIntervals(2).add([1, 3, 5])

"""Stories, refusals, and sizes that an algorithm without care for cost would not survive."""

import pytest

from amcast.check import judge
from amcast.check.chains import ChainSet, DeliveryChain, build_chains
from amcast.check.cycles import compute_core, find_pair_cycle, find_shortest_cycle
from amcast.check.evidence import collect_evidence
from amcast.check.order import merge
from amcast.kernel.errors import UsageError
from tests.mutants.planted import MUTANTS, healthy, make_trace

BY_NAME = {case.name: case for case in MUTANTS}


def story(mutant: str, name: str) -> list[str]:
    return judge(make_trace(BY_NAME[mutant]).run()).properties[name].story


def test_cycle_is_described_edge_by_edge() -> None:
    assert story("cycle_of_three", "P5") == [
        "3 messages precede each other in a cycle: 3 -> 5 -> 4 -> 3",
        "process 0 delivered 3 at position 2, before 5 at position 3",
        "process 4 delivered 5 at position 0, before 4 at position 1",
        "process 2 delivered 4 at position 1, before 3 at position 2",
    ]


def test_cycle_closed_by_a_missing_delivery() -> None:
    assert story("cycle_closed_by_a_crashed_group", "P5")[1] == (
        "process 0 delivered 3 at position 2 and never delivered 5, which is addressed to it, before it crashed"
    )
    assert story("correct_process_skipped_a_message", "P4")[2] == (
        "process 5 delivered 7 at position 2 and never delivered 6,"
        " though it is addressed and correct and the run is complete"
    )


def test_missing_and_misplaced_deliveries_are_told() -> None:
    assert story("last_message_missing_at_one_replica", "P3") == [
        "process 5 never delivered 7, although process 2 did, and the run is complete"
    ]
    assert story("wrong_destination", "P1") == [
        "process 4 (of group 2) delivered 2 at position 4, but 2 is addressed to groups 0, 1"
    ]
    assert story("retry_delivered_as_well", "P8")[0] == (
        "process 0 delivered 3 at position 2 and 30 at position 5: both are number 1 of session 8"
    )


def test_a_long_story_says_how_much_it_leaves_out() -> None:
    trace = healthy()
    for message in (1, 2, 3, 5, 6):
        trace.deliver(0, message)
        trace.deliver(1, message)
    finding = judge(trace.run()).properties["P1"]
    assert finding.checked["violated"] == 10
    assert finding.story[-1] == "and 5 more like these"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda trace: trace.multicasts[1].update(destinations=(0, 44)),
            "group 44, of which processes lists",
        ),
        (lambda trace: trace.multicasts[1].update(destinations=()), "message 1 has no destinations"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(change, words) -> None:  # type: ignore[no-untyped-def]
    trace = healthy()
    change(trace)
    with pytest.raises(UsageError, match=words):
        judge(trace.run())


def test_a_message_multicast_twice_must_be_the_same_message() -> None:
    run = healthy().run()
    for column in run.multicasts.values():
        column.append(column[0])
    run.multicasts["at_ns"][-1] += 5000
    assert judge(run).verdict == "holds"
    run.multicasts["sender"][-1] += 1
    with pytest.raises(UsageError, match="message 1 has sender 8 and 9"):
        judge(run)


def test_a_process_that_ended_well_and_died_in_a_later_incarnation_is_dead() -> None:
    run = healthy().run()
    for at in (None, 70, 60):
        for name, column in run.processes.items():
            column.append(at if name == "crashed_at_ns" else column[1])
    assert collect_evidence(run).crashed == {run.processes["process"][1]: 70}


def test_one_mistake_in_a_long_run_has_a_small_core() -> None:
    """Everything after a circle is blocked; the core is the circle alone, and the search stays cheap."""
    count = 30_000
    ring = {count + i: tuple(sorted((i, (i + 1) % 5))) for i in range(5)}
    addressed = {m: (m % 5,) if m % 3 else tuple(sorted({m % 5, (m + 1) % 5})) for m in range(count)} | ring
    chains = []
    for c in range(5):
        mine = [m for m in range(count) if c in addressed[m]]
        middle = len(mine) // 2
        circle = [count + (c - 1) % 5, count + c]
        messages = mine[:middle] + circle + mine[middle:]
        chains.append(DeliveryChain(c, messages, list(range(len(messages))), len(messages)))
    everything = ChainSet(chains, addressed)
    _, blocked = merge(everything)
    found = compute_core(everything, blocked)
    assert len(blocked) > count // 3
    assert len(found.addressed) < 50
    assert find_pair_cycle(found) is None
    cycle, exhaustive = find_shortest_cycle(found)
    assert exhaustive
    assert sorted(edge.message for edge in cycle) == sorted(ring)


def test_a_search_that_hits_its_limit_says_so() -> None:
    trace = make_trace(BY_NAME["cycle_of_three"])
    chains = build_chains(collect_evidence(trace.run()))
    found = compute_core(chains, merge(chains)[1])
    assert find_shortest_cycle(found, work=0)[1] is False

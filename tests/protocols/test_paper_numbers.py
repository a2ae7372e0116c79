"""The papers' numbers for BaseCast, FastCast, MultiPaxos, A_ge and A_ge*; and invalid options."""

from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import sender_of
from amcast.lab.delays import measure_delays
from amcast.lab.runs import prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from tests.protocols.stage import Stage

EXACT = {  # (protocol, destinations, replicas): (delays, packets with self-sends and requests)
    ("basecast", 1, 3): (3, 15),
    ("basecast", 1, 5): (3, 35),
    ("basecast", 2, 3): (6, 66),
    ("basecast", 2, 5): (6, 150),
    ("basecast", 4, 3): (6, 156),
    ("basecast", 4, 5): (6, 340),
    ("fastcast", 1, 3): (3, 15),
    ("fastcast", 1, 5): (3, 35),
    ("fastcast", 2, 3): (4, 78),
    ("fastcast", 2, 5): (4, 170),
    ("fastcast", 4, 3): (4, 204),
    ("fastcast", 4, 5): (4, 420),
    ("multipaxos", 1, 3): (3, 15),
    ("multipaxos", 2, 3): (3, 27),
    ("multipaxos", 4, 3): (3, 51),
    ("multipaxos", 4, 5): (3, 125),
    ("a-ge", 1, 3): (0, 15),
    ("a-ge", 2, 3): (2, 66),
    ("a-ge", 4, 5): (2, 540),
    ("a-ge-star", 1, 3): (0, 15),
    ("a-ge-star", 2, 3): (2, 90),
}


@pytest.mark.parametrize(("case", "exact"), EXACT.items(), ids=["-".join(map(str, case)) for case in EXACT])
def test_delays_and_packets_of_a_lone_multicast(case: tuple[str, int, int], exact: tuple[int, int]) -> None:
    name, destinations, replicas = case
    row = measure_delays(CATALOGUE[name], destinations, replicas)
    assert (row.delays_max, row.packets) == exact


ALL_MEMBERS = {  # the same where every member sends timestamps, as 003 prints it
    ("basecast", 1, 3): (3, 15),
    ("basecast", 2, 3): (5, 90),
    ("basecast", 2, 5): (6, 230),
    ("fastcast", 2, 3): (4, 102),
    ("fastcast", 4, 3): (4, 300),
    ("fastcast", 2, 5): (4, 250),
}


@pytest.mark.parametrize(("case", "exact"), ALL_MEMBERS.items(), ids=["-".join(map(str, case)) for case in ALL_MEMBERS])
def test_timestamps_by_all_members_cost_packets_and_claims_say_so(
    case: tuple[str, int, int], exact: tuple[int, int]
) -> None:
    name, destinations, replicas = case
    row = measure_delays(CATALOGUE[name], destinations, replicas, {"stamps": "all"})
    assert (row.delays_max, row.packets) == exact
    assert row.holds, row
    assert row.claimed["packets"] == exact[1]


@pytest.mark.parametrize("name", ["a-ge", "a-ge-star"])
def test_filter_of_a_ge_keeps_delays_with_fewer_packets(name: str) -> None:
    """001 section 6: leaders alone send timestamps."""
    every, leaders = (measure_delays(CATALOGUE[name], 4, 3, {"stamps": stamps}) for stamps in ("all", "leader"))
    assert leaders.holds
    assert leaders.delays_max == every.delays_max == 2
    assert every.packets - leaders.packets == 4 * (4 * 3 * 2)


def test_fastcast_serves_far_clients_in_one_round_trip_if_all_members_send() -> None:
    """003 section 5.7: on wan-3 a client of any region waits one round trip of 70 ms, not two."""
    worst = {}
    for stamps in ("leader", "all"):
        plan = {
            "protocol": "fastcast",
            "options": {"stamps": stamps},
            "topology": {"environment": "wan-3", "groups": 2, "replicas": 3, "clients": 3},
            "workload": {"destinations": 2, "messages": 3},
            "nodes": False,
        }
        prepared = prepare_run(parse_plan(plan))
        recorder = Recorder()
        Simulation(prepared.make_setup(), recorder).run()
        first: dict[object, int] = {}
        for row in recorder.deliveries:
            process, message, at_ns, sent_ns = row[0], row[3], int(str(row[4])), int(str(row[7]))
            there = prepared.topology.region(int(str(process)))
            if there == prepared.topology.region(sender_of(int(str(message)))):
                first[message] = min(first.get(message, at_ns - sent_ns), at_ns - sent_ns)
        assert len(first) == 3
        worst[stamps] = max(first.values()) / 1e6
    assert worst["all"] < 90 < 130 < worst["leader"], worst


def test_wrong_guesses_cost_fastcast_two_delays_and_one_instance() -> None:
    right = measure_delays(CATALOGUE["fastcast"], 2, 3)
    wrong = measure_delays(CATALOGUE["fastcast"], 2, 3, {"wrong_guesses": True})
    assert (right.delays_max, wrong.delays_max) == (4, 6)
    assert wrong.packets - right.packets == 2 * (3 + 3 * 3)


def test_guesses_are_right_with_stable_leaders_and_wrong_ones_recover() -> None:
    stage = Stage("fastcast")
    for _ in range(10):
        stage.multicast(0, 0, 1)
        stage.multicast(1, 0, 1)
    stage.finish()
    assert stage.world.note_counts["fast"] > 0
    assert "slow" not in stage.world.note_counts
    forced = Stage("fastcast", options={"wrong_guesses": True})
    for _ in range(10):
        forced.multicast(0, 0, 1)
    forced.finish()
    forced.check()
    assert "fast" not in forced.world.note_counts
    assert forced.world.note_counts["slow"] == 10 * 6


def test_ring_consensus_needs_fewer_packets_and_more_delays() -> None:
    plain = measure_delays(CATALOGUE["basecast"], 2, 5)
    ring = measure_delays(CATALOGUE["basecast"], 2, 5, {"consensus": "ring"})
    assert ring.packets < plain.packets
    assert ring.delays_max is not None
    assert plain.delays_max is not None
    assert ring.delays_max > plain.delays_max


def test_local_message_waits_in_a_ge_and_overtakes_in_a_ge_star() -> None:
    """A global message that group 1 cannot order yet, then a local one in group 0."""
    for name, overtakes in (("a-ge", False), ("a-ge-star", True)):
        stage = Stage(name)
        for process in (3, 4, 5):
            stage.isolate(process)
        stage.multicast(0, 0, 1)
        stage.steps(40)
        local = stage.multicast(1, 0)
        stage.steps(60)
        assert (stage.world.history[0] == [local]) == overtakes, name
        stage.heal()
        stage.finish()
        stage.check()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"retry_ns": [5, 2]}, "retry_ns"),
        ({"keep": 0}, "keep = 0"),
        ({"confirmation_batch": 0}, "confirmation_batch = 0"),
        ({"consensus": "rafts"}, "consensus"),
        ({"speed": 3}, "speed"),
    ],
)
def test_invalid_options_are_rejected_by_name(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        CATALOGUE["basecast"].configure(options)

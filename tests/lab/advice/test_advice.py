"""The adviser: candidates, what their clients wait for, what a lost region takes with it, and the ranking."""

import pytest

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.message import Message
from amcast.lab.advice.advice import Advice, advise
from amcast.lab.advice.candidate_run import list_losses, simulate_candidate, simulate_loss
from amcast.lab.advice.candidates import (
    Candidate,
    ReplicaPlacement,
    list_candidates,
    list_placements,
    make_plan,
    parse_choice,
)
from amcast.lab.advice.request import (
    AdviceRequest,
    count_run,
    find_homes,
    number_mix,
    parse_groups,
    read_environment_latencies,
)
from amcast.lab.advice.sources import ask_directly
from amcast.trace.meta import Meta
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

REGIONS = ("eu", "us", "ap")
ONE_WAY_MS = {
    "eu": {"eu": 0.5, "us": 35.0, "ap": 105.0},
    "us": {"eu": 35.0, "us": 0.5, "ap": 75.0},
    "ap": {"eu": 105.0, "us": 75.0, "ap": 0.5},
}
HOMES: dict[str, tuple[int, ...]] = {"eu": (0,), "us": (1,), "ap": (2,)}


def request(mix: str = "70% home, 25% home+nearest, 5% all", replicas: int = 3) -> AdviceRequest:
    names = {0: "europe", 1: "america", 2: "asia"}
    return AdviceRequest(ONE_WAY_MS, REGIONS, HOMES, names, REGIONS, mix, {}, 64, replicas)


def placement(name: str) -> ReplicaPlacement:
    return next(one for one in list_placements(request()) if one.name == name)


def plan(protocol: str, where: str, mix: str = "1 home", messages: int = 120) -> dict[str, object]:
    return make_plan(request(mix), Candidate(parse_choice(protocol), placement(where)), messages, 1)


SPREAD = "replicas in different regions, leaders at home"


def test_placements_cover_homes_leaders_majorities_and_single_regions() -> None:
    found = {one.name: one.rows for one in list_placements(request())}
    assert found[SPREAD] == (("eu", "us", "ap"), ("us", "eu", "ap"), ("ap", "us", "eu"))
    assert [row[0] for row in found["replicas in different regions, leaders in us"]] == ["us"] * 3
    assert found["a majority of replicas at home"][0] == ("eu", "eu", "us")
    assert found["whole groups at home"][2] == ("ap", "ap", "ap")
    assert found["whole groups in us"] == (("us",) * 3,) * 3
    assert len(found) == 9
    single = list_placements(request(replicas=1))
    assert len({one.rows for one in single}) == len(single), "equal placements appear once"


def test_replica_at_home_stays_where_leaders_are_far() -> None:
    """With more regions than replicas, the leaders' neighbours would leave a group without a replica at home."""
    far = {name: {**row, "sa": 20.0 if name == "us" else 120.0} for name, row in ONE_WAY_MS.items()}
    far["sa"] = {"eu": 120.0, "us": 20.0, "ap": 120.0, "sa": 0.5}
    asked = AdviceRequest(far, (*REGIONS, "sa"), HOMES, {}, REGIONS, "1 home", {}, 64, 3)
    found = {one.name: one.rows for one in list_placements(asked)}
    assert found["replicas in different regions, leaders in us"][2] == ("us", "sa", "ap")


@pytest.mark.parametrize(
    ("where", "region", "expected_ms"),
    [
        ("whole groups at home", "eu", 2 * 0.5 + 2 * 0.5),  # to the leader and back, leader to majority and back
        (SPREAD, "eu", 2 * 0.5 + 2 * 35),
        (SPREAD, "ap", 2 * 0.5 + 2 * 75),
        ("replicas in different regions, leaders in us", "ap", 2 * 75 + 2 * 35),
    ],
)
def test_local_messages_wait_for_the_leader_and_a_majority(where: str, region: str, expected_ms: float) -> None:
    found = simulate_candidate(plan("multipaxos", where))
    # MultiPaxos orders everything in one group; the group of eu is that of its clients.
    if region == "eu" or "leaders in" in where:
        assert found.by_region[region]["local"].p50 == pytest.approx(expected_ms, rel=0.05)
    whitebox = simulate_candidate(plan("whitebox", where))
    assert whitebox.by_region[region]["local"].p50 == pytest.approx(expected_ms, rel=0.05)


def test_clients_of_all_regions_count_the_same_whoever_is_answered_sooner() -> None:
    found = simulate_candidate(plan("whitebox", "whole groups in us", messages=600))
    counts = [kinds["local"].messages for kinds in found.by_region.values()]
    assert min(counts) > 0.7 * max(counts)
    assert found.region_bytes == 0
    assert simulate_candidate(plan("whitebox", SPREAD)).region_bytes > 0


def test_groups_stop_with_their_majority_and_elect_without_their_leader() -> None:
    rows = (("eu", "eu", "us"), ("us", "eu", "ap"), ("eu", "us"))
    assert list_losses(rows, "eu") == ((0, 2), ())
    assert list_losses(rows, "us") == ((2,), (1,))
    assert list_losses(rows, "ap") == ((), ())


def test_killed_region_of_spread_replicas_stops_nobody() -> None:
    found = simulate_loss(plan("whitebox", SPREAD, "50% home, 50% all"), "eu")
    assert (found.stopped, found.led, found.blocked) == ((), (0,), False)
    assert set(found.answered) == {"local", "global"}
    assert all(done == total > 0 for done, total in found.answered.values())


def test_killed_region_takes_the_groups_with_it_that_had_their_majority_there() -> None:
    found = simulate_loss(plan("whitebox", "a majority of replicas at home", "90% home, 10% home+nearest"), "us")
    assert found.stopped == (1,)
    done, total = found.answered["stopped"]
    assert done == 0 < total
    assert found.answered["local"][1] > 0


@pytest.fixture(scope="module")
def advice() -> Advice:
    choices = [parse_choice("whitebox"), parse_choice("basecast")]
    placements = [placement(SPREAD), placement("whole groups at home")]
    return advise(request(), list_candidates(choices, placements), 120, seed=1)


def test_candidates_are_ranked_by_what_clients_wait_for(advice: Advice) -> None:
    values = [one.value("mean") for one in advice.ranked]
    assert values == sorted(values)
    assert len(values) == 4
    assert advice.best.candidate.placement.name == "whole groups at home"
    assert advice.best.fragile == ("ap", "eu", "us")
    assert advice.best_surviving is not None
    assert advice.best_surviving.candidate.placement.name == SPREAD
    assert [loss.region for loss in advice.losses] == ["ap", "eu", "us"]


def test_reasons_name_quorums_protocols_placements_and_losses(advice: Advice) -> None:
    text = "\n".join(advice.reasons)
    best, other = (one.candidate.choice.name for one in advice.ranked[:2])
    assert "europe: its leader is in eu, at home, and reaches a majority of its replicas in 1.0 ms both ways" in text
    assert f"with the same placement {other} takes" in text
    assert f"the next best placement of {best} is '{SPREAD}'" in text
    assert "the death of a region stops groups: ap (asia), eu (europe), us (america)" in text
    assert "that no region's death stops a group costs: whitebox" in text


def test_only_placements_that_survive_a_region_are_ranked_on_demand() -> None:
    candidates = [Candidate(parse_choice("whitebox"), placement(name)) for name in (SPREAD, "whole groups at home")]
    found = advise(request(), candidates, 60, seed=1, must_survive=True)
    assert [one.candidate.placement.name for one in found.ranked] == [SPREAD]
    with pytest.raises(CannotTellError, match="in every placement the death of some region stops a group"):
        advise(request(), candidates[1:], 60, seed=1, must_survive=True)


def test_same_seed_gives_the_same_advice(advice: Advice) -> None:
    again = advise(request(), [advice.best.candidate], 120, seed=1)
    assert again.best.outcome == advice.best.outcome
    other = advise(request(), [advice.best.candidate], 120, seed=2)
    assert other.best.outcome != advice.best.outcome


def recorded(regions: dict[int, str]) -> Run:
    """A run with two groups of one, a client that uses the second one, and one that uses both."""
    recorder = Recorder()
    for process, group in ((0, 0), (1, 1), (8, None), (9, None)):
        recorder.record_process(process, group, regions.get(process, ""))
    for number, (sender, groups) in enumerate(((8, (1,)), (8, (1,)), (9, (0, 1)), (9, (0,)))):
        recorder.record_multicast(Message(number, sender, groups, bytes(10 * number)), number)
    return Run.from_recorder(recorder, Meta(run="r"))


def test_traffic_is_counted_by_region_of_the_client_or_of_the_group_that_it_uses() -> None:
    counts, size = count_run(recorded({0: "eu", 1: "us", 8: "ap", 9: "ap"}))
    assert counts == {"ap": {(1,): 2, (0, 1): 1, (0,): 1}}
    assert size == 15
    live, _ = count_run(recorded({0: "eu", 1: "us"}))
    assert live == {"us": {(1,): 2}, "eu": {(0, 1): 1, (0,): 1}}
    with pytest.raises(UsageError, match="neither client 8 nor group 1 has a region"):
        count_run(recorded({0: "eu"}))
    with pytest.raises(UsageError, match="the run has no multicasts, or no groups"):
        count_run(Run.from_recorder(Recorder(), Meta(run="r")))


def test_homes_are_where_groups_are_used_most() -> None:
    counts = {"eu": {(0,): 10, (0, 1): 4}, "us": {(1,): 3, (0, 1): 2, (2,): 1}}
    assert find_homes(counts, (0, 1, 2)) == {"eu": (0,), "us": (1, 2)}


def test_groups_are_named_or_counted() -> None:
    assert parse_groups(None, REGIONS) == (HOMES, {0: "g0", 1: "g1", 2: "g2"})
    assert parse_groups("4", REGIONS)[0] == {"eu": (0, 3), "us": (1,), "ap": (2,)}
    homes, names = parse_groups("orders=us,users=eu,logs=us", REGIONS)
    assert (homes, names) == ({"us": (0, 2), "eu": (1,)}, {0: "orders", 1: "users", 2: "logs"})
    assert number_mix("70% home, 30% orders+logs", names) == "70% home, 30% 0+2"


@pytest.mark.parametrize("text", ["0", "eu", "a=", "=eu", "a=eu,a=us", "home=eu", "a=eu,,b=us"])
def test_impossible_groups_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--groups"):
        parse_groups(text, REGIONS)


def test_homes_must_be_among_the_regions_and_regions_have_latencies() -> None:
    with pytest.raises(UsageError, match="--groups: home 'eu-west-2'; expected one of --regions: eu-west-1"):
        ask_directly("eu-west-1", "a=eu-west-2", "1 home", None, None)
    with pytest.raises(UsageError, match="--clients: region 'mars' has no latencies; expected some of: af-south-1"):
        ask_directly("eu-west-1", None, "1 home", "mars", None)
    with pytest.raises(UsageError, match="--replicas 11; expected 1 to 9"):
        ask_directly("eu-west-1", None, "1 home", None, None, replicas=11)


def test_latencies_of_today_are_round_trips_that_are_halved() -> None:
    found = read_environment_latencies()
    assert 60 < found["eu-west-1"]["us-east-1"] + found["us-east-1"]["eu-west-1"] < 80

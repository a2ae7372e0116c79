"""The workload mix: weights, near groups, homes, and what it refuses."""

from collections import Counter
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.topology import Topology
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.workloads.catalogue import build_workload
from amcast.workloads.mix import parse_mix

WAYS = {("eu", "us"): 70, ("ap", "us"): 150, ("ap", "eu"): 210}
REGIONS = ("eu", "us", "ap")


def distance(one: str, other: str) -> int:
    return 0 if one == other else WAYS[min(one, other), max(one, other)]


def topology(clients: int = 3) -> Topology:
    """Three groups with a replica in every region; their leaders are all in us."""
    groups = {group: tuple(range(3 * group, 3 * group + 3)) for group in range(3)}
    regions = {process: ("us", "eu", "ap")[process % 3] for process in range(9)}
    regions |= {9 + place: REGIONS[place % 3] for place in range(clients)}
    return Topology(groups, range(9, 9 + clients), regions)


HOMES = {"eu": [0], "us": [1], "ap": [2]}


def count(options: dict[str, Any], client: int, draws: int = 4000) -> Counter[tuple[int, ...]]:
    made = build_workload("mix", topology(), 1, options, distance)
    return Counter(made.draw(client).destinations for _ in range(draws))


def test_shares_are_those_of_the_mix() -> None:
    found = count({"mix": "70% home, 25% home+nearest, 5% all", "homes": HOMES}, client=9)
    assert set(found) == {(0,), (0, 1), (0, 1, 2)}
    shares = {destinations: times / 4000 for destinations, times in found.items()}
    assert shares[0,] == pytest.approx(0.70, abs=0.03)
    assert shares[0, 1] == pytest.approx(0.25, abs=0.03)
    assert shares[0, 1, 2] == pytest.approx(0.05, abs=0.015)


def test_near_groups_are_those_of_near_home_regions_wherever_replicas_are() -> None:
    for client, home, nearest, second in ((9, 0, 1, 2), (10, 1, 0, 2), (11, 2, 1, 0)):
        assert set(count({"mix": "1 nearest", "homes": HOMES}, client, 5)) == {(nearest,)}
        assert set(count({"mix": "1 home+second", "homes": HOMES}, client, 5)) == {tuple(sorted((home, second)))}


def test_other_groups_and_numbers() -> None:
    assert set(count({"mix": "1 other", "homes": HOMES}, 9)) == {(1,), (2,)}
    assert set(count({"mix": "1 0+2", "homes": HOMES}, 10, 5)) == {(0, 2)}


def test_regions_can_have_mixes_of_their_own() -> None:
    options = {"mix": "1 home", "by_region": {"ap": "1 all"}, "homes": HOMES}
    assert set(count(options, 9, 5)) == {(0,)}
    assert set(count(options, 11, 5)) == {(0, 1, 2)}


def test_clients_of_a_region_without_groups_are_at_home_in_the_nearest_one() -> None:
    assert set(count({"mix": "1 home", "homes": {"eu": [0], "us": [1, 2]}}, 11, 5)) == {(1,)}


def test_plan_ranks_near_groups_by_its_network() -> None:
    plan: dict[str, Any] = {
        "protocol": "skeen",
        "topology": {"environment": "aws-12", "groups": 12, "replicas": 1, "clients": 12},
        "workload": {"name": "mix", "mix": "1 nearest"},
    }
    draw = prepare_run(parse_plan(plan)).make_draw(1)
    assert draw(14)[0] == (1,)  # Virginia: Canada
    assert draw(16)[0] == (5,)  # Ireland: Paris


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        ("", "''; expected a weight and destinations"),
        ("home", "'home'; expected a weight and destinations"),
        ("70% hom, 30% all", "'hom'; expected home, nearest, second, third, other, all or a group's number"),
        ("70% home, 20% all", "the percentages add up to 90; expected 100"),
        ("70% home, 30 all", "some weights are percentages; expected all or none"),
        ("0 home", "the weights add up to 0; expected more than 0"),
        ("1 home+", "''; expected home"),
    ],
)
def test_impossible_mixes_get_one_sentence(mix: str, expected: str) -> None:
    with pytest.raises(ValueError, match="mix = ") as caught:
        parse_mix(mix)
    assert expected in str(caught.value), caught.value
    with pytest.raises(UsageError, match="options of workload mix"):
        build_workload("mix", topology(), 1, {"mix": mix})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mix": "1 third"}, "'third' with 3 groups; expected more groups"),
        ({"mix": "1 7"}, "mix: group 7; expected one of 0, 1, 2"),
        ({"homes": {"eu": [5]}}, r"homes.eu: group 5; expected one of 0, 1, 2"),
        ({"homes": {"eu": []}}, r"homes.eu = \[\]; expected at least one group"),
        ({"by_region": {"eu": "x"}}, "by_region.eu = 'x'"),
    ],
)
def test_mixes_that_do_not_fit_the_topology_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        build_workload("mix", topology(), 1, options)

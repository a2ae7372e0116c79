"""Every environment builds, says what its source says, and refuses what it cannot hold."""

import csv
import json
from importlib.resources import files
from random import Random

import pytest

from amcast.kernel.config import parse_config
from amcast.kernel.errors import UsageError
from amcast.simulation.inputs.environments import find_environment, load_environments
from amcast.simulation.inputs.network import Network, NetworkConfig
from amcast.workloads.base import assign_home_groups

NAMES = ["lan", "wan-3", "wan1", "wan2", "colocated", "distributed", "srds-1", "srds-2", "aws-12", "aws-2025"]
MS = 1_000_000


def data(name: str) -> str:
    return files("amcast").joinpath("data", name).read_text(encoding="utf-8")


SETUPS = json.loads(data("wan_setups.json"))


def pairs(found: dict[str, dict[str, int]], names: str) -> list[int]:
    """The delays of "A-B A-C ..." in that order, checked to be the same both ways."""
    result = []
    for pair in names.split():
        one, other = pair.split("-")
        assert found[one][other] == found[other][one]
        result.append(found[one][other])
    return result


def test_the_names_are_those_of_the_evaluation() -> None:
    assert list(load_environments()) == [*NAMES, "own"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("groups", "replicas", "clients"), [(1, 1, 0), (2, 3, 4), (4, 3, 12), (7, 3, 150)])
def test_every_environment_builds_a_network(name: str, groups: int, replicas: int, clients: int) -> None:
    made = find_environment(name, groups, replicas, clients)
    topology = made.topology
    assert (len(topology.groups), len(topology.servers), len(topology.clients)) == (groups, groups * replicas, clients)
    assert set(topology.regions) == set(topology.processes)
    config = parse_config(NetworkConfig, made.network, name)
    network = Network(config, topology, Random(1))
    for source in topology.processes:
        for target in topology.processes[:5]:
            assert network.base_delay(source, target) > 0 or source == target
    assert (config.distribution, config.spread) == ("normal", 0.05)


def test_lan() -> None:
    matrix = find_environment("lan", 16, 3, 96).network["matrix_ns"]
    assert matrix == {"lan": {"lan": round(SETUPS["FastCast"]["LAN_rtt"] * MS / 2)}}
    assert matrix["lan"]["lan"] == SETUPS["SRDS09"]["LAN_ms"] * MS
    primcast = find_environment("lan", 8, 3, 24, {"inside_ms": SETUPS["PrimCast"]["LAN_rtt"]})
    assert primcast.network["matrix_ns"]["lan"]["lan"] == 45_000


def test_wan_3_halves_round_trips() -> None:
    made = find_environment("wan-3", 4, 3, 9)
    matrix = made.network["matrix_ns"]
    printed = SETUPS["FastCast"]["rtt_ms"]
    assert pairs(matrix, " ".join(printed)) == [rtt * MS // 2 for rtt in printed.values()]
    assert {matrix[r][r] for r in matrix} == {50_000}
    for group in made.topology.groups:
        members = made.topology.members(group)
        assert sorted(made.topology.region(m) for m in members) == ["R1", "R2", "R3"]
        assert made.topology.region(members[0]) == "R2"
    assert [made.topology.region(c) for c in made.topology.clients[:4]] == ["R1", "R2", "R3", "R1"]


def test_leaders_can_be_elsewhere_or_spread() -> None:
    def leaders(**options: str) -> list[str]:
        topology = find_environment("wan-3", 4, 3, 0, options).topology
        return [topology.region(topology.members(g)[0]) for g in topology.groups]

    assert leaders(leaders="R3") == ["R3"] * 4
    assert leaders(leaders="spread") == ["R1", "R2", "R3", "R1"]


@pytest.mark.parametrize("name", ["wan1", "wan2"])
def test_the_thesis_delays_are_one_way_and_clients_five_milliseconds_off(name: str) -> None:
    matrix = find_environment(name, 7, 3, 150).network["matrix_ns"]
    printed = SETUPS["Thesis"]["delay_ms"]
    assert pairs(matrix, " ".join(printed)) == [delay * MS for delay in printed.values()]
    assert matrix["R2/clients"]["R2"] == SETUPS["Thesis"]["client_to_local_replica"] * MS == matrix["R2"]["R2/clients"]
    assert matrix["R2/clients"]["R3"] == 70 * MS
    assert {matrix[r][r] for r in ("R1", "R2", "R3")} == {50_000}


def test_wan1_spreads_replicas_and_wan2_keeps_groups_together() -> None:
    spread = find_environment("wan1", 7, 3, 6).topology
    assert {tuple(sorted(spread.region(m) for m in spread.members(g))) for g in spread.groups} == {("R1", "R2", "R3")}
    assert {spread.region(c) for c in spread.clients} == {"R1/clients", "R2/clients", "R3/clients"}
    whole = find_environment("wan2", 7, 3, 6).topology
    regions = [{whole.region(m) for m in whole.members(g)} for g in whole.groups]
    assert regions == [{"R1"}, {"R2"}, {"R3"}, {"R2"}, {"R2"}, {"R3"}, {"R3"}]
    assert {whole.region(c) for c in whole.clients} == {"R2/clients"}
    assert set(assign_home_groups(whole).values()) == {1, 3, 4}


def test_colocated() -> None:
    made = find_environment("colocated", 8, 3, 24)
    topology, matrix = made.topology, made.network["matrix_ns"]
    printed = SETUPS["PrimCast"]["WAN_colocated"]
    assert sorted(pairs(matrix, "D1-D2 D2-D3 D1-D3")) == [rtt * MS // 2 for rtt in printed["intra_group_rtt"]]
    assert len({topology.region(topology.members(g)[0]) for g in topology.groups}) == 1
    assert matrix["D2"]["D2"] == round(printed["leaders_rtt"] * MS / 2)
    homes = assign_home_groups(topology)
    beside = {(homes[client], topology.region(client)) for client in topology.clients}
    assert len(beside) == 24, "one client with each replica"


def test_distributed() -> None:
    made = find_environment("distributed", 8, 3, 24)
    topology, matrix = made.topology, made.network["matrix_ns"]
    printed = SETUPS["PrimCast"]["WAN_distributed"]
    assert matrix["r1/a"]["r2/c"] == printed["cross_group_rtt"] * MS // 2
    assert matrix["r1/a"]["r1/b"] == printed["intra_group_rtt"] * MS // 2
    assert matrix["r1/a"]["r1/a"] == 45_000
    assert len({topology.region(p) for p in topology.servers}) == 24
    assert sorted(topology.region(c) for c in topology.clients) == sorted(topology.region(p) for p in topology.servers)
    for client, home in assign_home_groups(topology).items():
        assert topology.region(client) in {topology.region(m) for m in topology.members(home)}


@pytest.mark.parametrize(
    ("name", "setup", "bandwidth"), [("srds-1", "setup1", 125_000), ("srds-2", "setup2", 1_250_000)]
)
def test_srds(name: str, setup: str, bandwidth: int) -> None:
    made = find_environment(name, 8, 3, 48)
    printed = SETUPS["SRDS09"][setup]
    matrix = made.network["matrix_ns"]
    assert len(matrix) == 8
    assert {matrix[a][b] for a in matrix for b in matrix if a != b} == {printed["one_way_mean_ms"] * MS}
    assert made.network["spread"] * printed["one_way_mean_ms"] == pytest.approx(printed["sd_ms"])
    assert {matrix[a][a] for a in matrix} == {SETUPS["SRDS09"]["LAN_ms"] * MS}
    assert (made.network["bandwidth"], made.network["pipe"]) == (bandwidth, "uplink")
    assert bandwidth == {"125 KB/s full duplex": 125_000, "1.25 MB/s full duplex": 1_250_000}[printed["per_group_link"]]


def test_aws_12_has_the_delays_of_its_file() -> None:
    made = find_environment("aws-12", 12, 1, 24)
    matrix = made.network["matrix_ns"]
    names = json.loads(data("flexcast_overlays.json"))["numbering"]
    lines = [line for line in data("flexcast_aws12_oneway_ms.csv").splitlines() if not line.startswith("#")]
    checked = 0
    for row in csv.DictReader(lines):
        for number, name in names.items():
            assert matrix[names[row["node"]]][name] == round(float(row[number]) * MS)
            checked += 1
    assert checked == 144
    topology = made.topology
    assert [topology.region(p) for p in topology.servers] == list(names.values())
    assert all(topology.region(c) == topology.region(home) for c, home in assign_home_groups(topology).items())


def test_aws_2025_has_half_the_round_trips_of_its_file() -> None:
    printed = json.loads(data("aws_cloudping_p50_1y_2025.json"))
    made = find_environment("aws-2025", 32, 1, 32)
    matrix = made.network["matrix_ns"]
    assert sorted(matrix) == sorted(printed["regions"])
    for source, row in printed["rtt_ms"].items():
        for target, rtt in row.items():
            assert matrix[source][target] == round(rtt * MS / 2)


def test_aws_2025_can_be_three_regions_with_a_replica_of_each_group_in_each() -> None:
    options = {
        "regions": ["eu-west-1", "us-east-1", "ap-south-1"],
        "placement": "replica-per-region",
        "leaders": "us-east-1",
    }
    topology = find_environment("aws-2025", 5, 3, 6, options).topology
    assert {tuple(topology.region(m) for m in topology.members(g)) for g in topology.groups} == {
        ("us-east-1", "ap-south-1", "eu-west-1")
    }
    assert {topology.region(c) for c in topology.clients} == {"eu-west-1", "us-east-1", "ap-south-1"}


def test_options_change_what_they_name() -> None:
    made = find_environment("wan-3", 2, 3, 4, {"sd_percent": 0, "bandwidth": 1000, "clients": ["R3"]})
    assert (made.network["spread"], made.network["bandwidth"]) == (0.0, 1000)
    assert {made.topology.region(c) for c in made.topology.clients} == {"R3"}


@pytest.mark.parametrize(
    ("name", "sizes", "options", "sentence"),
    [
        ("moon", (1, 1, 1), {}, "environment 'moon' does not exist; `amcast environments` lists them: lan, wan-3"),
        ("wan-3", (2, 5, 1), {}, "environment wan-3: 5 replicas, one per region; expected 1 to 3"),
        ("colocated", (8, 4, 1), {}, "environment colocated: 4 replicas"),
        ("wan2", (8, 3, 1), {}, "environment wan2: 8 groups; it places 1 to 7"),
        ("aws-12", (13, 1, 1), {}, "environment aws-12: 13 groups, one per region; expected 1 to 12"),
        ("aws-2025", (33, 1, 1), {}, "33 groups, one per region; expected 1 to 32"),
        ("aws-2025", (3, 1, 1), {"regions": ["eu-west-1"]}, "3 groups, one per region; expected 1 to 1"),
        ("aws-2025", (3, 1, 1), {"regions": ["mars-1"]}, "regions: 'mars-1' is none of: us-west-1"),
        ("aws-2025", (3, 1, 1), {"regions": []}, r"regions = \[\]; expected one or more different names"),
        ("aws-12", (3, 1, 1), {"inside_ms": 1.0}, "inside_ms = 1.0; the matrix says it"),
        ("lan", (3, 1, 1), {"bandwidth": 1000}, "bandwidth = 1000; there is one region"),
        ("lan", (3, 1, 1), {"regions": ["lan"]}, r"regions = \['lan'\]; expected it for own, aws-12 and aws-2025 only"),
        ("lan", (3, 1, 1), {"leaders": "lan"}, "leaders = 'lan'; expected no such option"),
        ("wan-3", (3, 3, 1), {"leaders": "R4"}, "leaders = 'R4'; expected one of: R1, R2, R3, spread"),
        ("wan-3", (3, 3, 1), {"sd_percent": -1}, "options of environment wan-3: sd_percent = -1.0; expected 0 or more"),
        ("wan-3", (3, 3, 1), {"clients": ["R4"]}, "clients in 'R4'; expected some of: R1, R2, R3"),
        ("wan-3", (3, 3, 1), {"wind": 3}, "options of environment wan-3: .*wind"),
        ("lan", (0, 1, 1), {}, "groups = 0; expected"),
        ("lan", (1, 1, -1), {}, "clients = -1; expected"),
    ],
)
def test_invalid_options_are_rejected_in_one_sentence(
    name: str, sizes: tuple[int, int, int], options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        find_environment(name, *sizes, options)
    assert "\n" not in str(caught.value)


def test_uplink_is_shared_by_all_that_leaves_a_region() -> None:
    """Two packets of 1000 bytes to two regions at 10 kB/s: the second waits for the first, unless each has a pipe."""
    for pipe, second_ms in (("uplink", 300), ("region", 200)):
        made = find_environment("srds-1", 3, 1, 1, {"sd_percent": 0.0, "bandwidth": 10_000, "pipe": pipe})
        network = Network(parse_config(NetworkConfig, made.network, "network"), made.topology, Random(0))
        arrivals = [network.draw_arrival(0, target, 1000, 0) / 1e6 for target in (1, 2)]
        assert arrivals == [200, second_ms]
        assert network.draw_arrival(1, 0, 1000, 0) / 1e6 == 200

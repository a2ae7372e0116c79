"""Latencies, placements and leaders of one's own: in a plan, from a file, and refused with one sentence."""

from pathlib import Path
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.environments import find_environment
from amcast.simulation.inputs.plan import describe_plan, parse_plan, read_plan

CSV = """# measured in May
,eu,us,ap
eu,0.8,70,210
us,72,0.6,150

ap,210,150,1
"""
MS = 1_000_000
TABLE = {"eu": {"eu": 0.8, "us": 70.0}, "us": {"eu": 72.0, "us": 0.6}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.csv").write_text(CSV)
    return tmp_path / "mine.csv"


def test_round_trips_of_a_file_are_halved_each_direction_by_itself(file: Path) -> None:
    made = find_environment("own", 3, 1, 3, {"latencies": str(file)})
    assert made.network["matrix_ns"]["eu"] == {"eu": 0.4 * MS, "us": 35 * MS, "ap": 105 * MS}
    assert made.network["matrix_ns"]["us"]["eu"] == 36 * MS
    assert [made.topology.region(process) for process in made.topology.processes] == ["eu", "us", "ap"] * 2
    one_way = find_environment("own", 3, 1, 3, {"latencies": str(file), "delays": "one-way"})
    assert one_way.network["matrix_ns"]["us"]["eu"] == 72 * MS


def test_plan_finds_its_file_beside_it_and_needs_it_only_once(file: Path) -> None:
    plan = file.parent / "plan.toml"
    plan.write_text(
        'protocol = "skeen"\n[topology]\nenvironment = "own"\nreplicas = 1\noptions = { latencies = "mine.csv" }\n'
    )
    parsed = parse_plan(read_plan(plan))
    file.unlink()
    again = prepare_run(parse_plan(describe_plan(parsed)))
    assert again.network.matrix_ns["ap"]["us"] == 75 * MS


def test_every_replica_is_where_the_plan_lists_it_and_the_leader_is_first(file: Path) -> None:
    options: dict[str, Any] = {
        "latencies": str(file),
        "placement": [["eu", "us", "ap"], ["us", "us", "eu"]],
        "leaders": "us",
        "clients": ["ap"],
    }
    topology = find_environment("own", 2, 3, 2, options).topology
    assert [topology.region(process) for process in topology.servers] == ["us", "eu", "ap", "us", "us", "eu"]
    assert [topology.region(client) for client in topology.clients] == ["ap", "ap"]
    topology = find_environment("own", 2, 3, 2, {**options, "leaders": ["ap", "eu"]}).topology
    assert [topology.region(process) for process in topology.servers] == ["ap", "eu", "us", "eu", "us", "us"]


def test_leaders_of_each_group_fit_replica_per_region_too() -> None:
    options = {"leaders": ["R1", "R3"]}
    topology = find_environment("wan-3", 2, 3, 0, options).topology
    assert [topology.region(topology.members(group)[0]) for group in topology.groups] == ["R1", "R3"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "latencies is missing; expected a CSV file"),
        ({"latencies": {}}, "latencies: 0 regions; expected 1 to"),
        ({"latencies": {"eu": {"us": 1.0}}}, "row 'eu' and region 'eu'; expected the same regions"),
        ({"latencies": {"eu": {"eu": -1.0}}}, "row 'eu', column 'eu': -1.0; expected 0 to"),
        ({"latencies": TABLE, "inside_ms": 1.0}, "inside_ms = 1.0; the matrix says it"),
        ({"latencies": TABLE, "placement": [["eu", "mars", "us"], ["us"] * 3]}, "placement: 'mars' is none of: eu, us"),
        ({"latencies": TABLE, "placement": [["eu"] * 3]}, "placement lists 1 groups; expected 2"),
        ({"latencies": TABLE, "placement": [["eu"], ["us"]]}, "placement[0] lists 1 replicas; expected 3"),
        ({"latencies": TABLE, "placement": [["eu"] * 3, ["us"] * 3], "leaders": "us"}, "leaders: 'us', and placement"),
        ({"latencies": TABLE, "placement": [["eu"] * 3, ["us"] * 3], "leaders": "mars"}, "leaders = 'mars'; expected"),
        ({"latencies": TABLE, "placement": [["eu"] * 3, ["us"] * 3], "leaders": ["eu"]}, "leaders lists 1 regions"),
        ({"latencies": TABLE, "leaders": "us"}, "leaders = 'us'; expected no such option"),
    ],
)
def test_impossible_options_get_one_sentence(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_environment("own", 2, 3, 2, options)
    assert expected in str(caught.value), caught.value


def test_latencies_belong_to_the_environment_own() -> None:
    with pytest.raises(UsageError, match="latencies is given; expected it for the environment own only"):
        find_environment("wan-3", 2, 3, 2, {"latencies": TABLE})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no table; expected a first row and a first column"),
        (",eu,us\neu,1,x\nus,1,1\n", "row 'eu', column 'us': 'x'; expected milliseconds"),
        (",eu,us\neu,1\nus,1,1\n", "row 'eu' has 1 numbers; expected 2"),
        (",eu\neu,1\neu,1\n", "row 'eu' appears twice"),
        (",eu,us\neu,1,2\n", "row 'eu' and region 'us'"),
        (",eu\neu,nan\n", "row 'eu', column 'eu': nan; expected 0 to"),
    ],
)
def test_impossible_files_get_one_sentence(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(UsageError) as caught:
        find_environment("own", 2, 1, 2, {"latencies": str(tmp_path / "bad.csv")})
    assert expected in str(caught.value), caught.value
    assert "bad.csv" in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plan: topology\.options: latencies .*none\.csv: cannot be read"):
        parse_plan({"protocol": "skeen", "topology": {"options": {"latencies": str(tmp_path / "none.csv")}}})

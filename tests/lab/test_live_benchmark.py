"""The benchmark: real processes, and an order check that can fail."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run
from amcast.kernel.config import parse_config
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.lab import live_benchmark as module
from amcast.lab.live_benchmark import BenchmarkPlan, compute_measures
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.load.load_generator import DeliveredPrefix, Window
from amcast.live.operations.local_cluster import format_local_config

BOTH = (0, 1)
FIRST, SECOND = 1000_000_000_000, 1001_000_000_000


def judged(folder: Path, prefixes: dict[int, DeliveredPrefix]) -> str:
    """The verdict on two clients' messages to two groups of one replica."""
    file = folder / "cluster.toml"
    file.write_text(format_local_config({"a": 1, "b": 1}, protocol="skeen"))
    cluster: Cluster = read_cluster(file)
    plan = BenchmarkPlan(replicas=1, connections=2, outstanding=1, protocol="skeen")
    recorder = module._Memory()
    for id, sender in ((FIRST, 1000), (SECOND, 1001)):
        recorder.record_multicast(Message(id, sender, BOTH), 1, sender, 0)
    return module._judged(plan, cluster, recorder, prefixes).verdict


def test_the_order_that_replicas_tell_is_judged(tmp_path: Path) -> None:
    one, other = (FIRST, BOTH), (SECOND, BOTH)
    assert judged(tmp_path, {0: DeliveredPrefix(0, [one, other]), 1: DeliveredPrefix(0, [one, other])}) == "holds"
    assert judged(tmp_path, {0: DeliveredPrefix(0, [one, other]), 1: DeliveredPrefix(0, [other, one])}) == "violated", (
        "another order"
    )
    assert judged(tmp_path, {0: DeliveredPrefix(0, [one, other]), 1: DeliveredPrefix(0, [one])}) == "violated", (
        "one is missing"
    )
    assert (
        judged(tmp_path, {0: DeliveredPrefix(0, [one, other, one]), 1: DeliveredPrefix(0, [one, other])}) == "violated"
    ), "one twice"
    assert judged(tmp_path, {0: DeliveredPrefix(1, [other]), 1: DeliveredPrefix(0, [one, other])}) == "unknown", (
        "no longer kept"
    )


def test_numbers_are_per_multicast() -> None:
    found = compute_measures([Window(0.5, 100, 0.001, 0.002), Window(0.5, 300, 0.001, 0.002)], [1000, 2000, 3000])
    assert found["throughput_per_s"] == 400
    assert found["replica_cpu_us"] == 5.0
    assert found["client_cpu_us"] == 10.0
    assert found["replica_cpu_us_best"] == 3.33
    assert (found["latency_us_p50"], found["latency_us_max"]) == (2.0, 3.0)
    with pytest.raises(UsageError, match="no multicast was answered"):
        compute_measures([Window(0.5, 0, 0.001, 0.002)], [])


def test_connections_take_the_sets_of_groups_in_turn() -> None:
    plan = BenchmarkPlan(groups=3, destinations=2, connections=6)
    assert sorted(plan.sets()) == [(0, 1), (0, 1), (0, 2), (0, 2), (1, 2), (1, 2)]
    assert plan.sets() == BenchmarkPlan(groups=3, destinations=2, connections=6).sets()


@pytest.mark.parametrize(
    ("field", "value"),
    [("groups", 0), ("destinations", 3), ("outstanding", 0), ("payload", -1), ("seconds", 0), ("rate", 0)],
)
def test_a_wrong_plan_is_refused(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{field} = {value}"):
        parse_config(BenchmarkPlan, {field: value}, "bench")


@pytest.mark.live
def test_the_command_measures_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    given = "bench --groups 2 --replicas 1 --connections 3 --outstanding 8 --seconds 0.5 --trace sampled --json"
    assert run(given.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "holds"
    assert found["multicasts"] > 0
    assert found["replica_cpu_us"] > 0
    assert found["client_cpu_us"] > 0
    assert 0 < found["latency_us_p50"] <= found["latency_us_p99"] <= found["latency_us_max"]
    assert found["interpreter"].startswith("CPython")
    assert (found["durability"], found["protocol"], found["seed"]) == ("memory", "primcast", 0)

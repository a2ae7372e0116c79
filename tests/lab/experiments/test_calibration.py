"""The cost of a packet: the fit, what it is laid against, and a small calibration of real processes."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run
from amcast.kernel.errors import UsageError
from amcast.lab.experiments.calibration import CostPoint, count_ends, fit_cost
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation


def point(packets: float, size: float, cpu_us: float) -> CostPoint:
    return CostPoint(1, int(size), packets, size, cpu_us)


def test_fit_finds_the_cost_that_made_the_points() -> None:
    sizes = [(18.0, 2_000.0), (18.0, 40_000.0), (58.0, 6_000.0), (58.0, 120_000.0)]
    cost = fit_cost([point(packets, size, 12.5 * packets + 0.002 * size) for packets, size in sizes])
    assert cost.packet_us == pytest.approx(12.5)
    assert cost.byte_ns == pytest.approx(2.0)
    assert cost.relative_error < 1e-9
    noisy = fit_cost([*cost.points, point(18.0, 2_000.0, 400.0)])
    assert noisy.residuals_us[-1] > 50
    assert noisy.relative_error > 0.1
    network = cost.as_dict()["network"]
    assert (network["cpu_ns"], network["cpu_send_ns"], network["cpu_byte_ns"]) == (12_500, 12_500, 4.0)


def test_no_cost_is_negative() -> None:
    cost = fit_cost([point(10, 1_000, 100), point(10, 100_000, 90), point(20, 2_000, 200)])
    assert cost.byte_ns == 0
    assert cost.packet_us > 0


def test_points_that_tell_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="2 live runs; expected at least 3"):
        fit_cost([point(1, 1, 1), point(2, 2, 2)])
    with pytest.raises(UsageError, match="the runs have equal sizes"):
        fit_cost([point(1, 100, 1), point(2, 200, 2), point(3, 300, 3)])


def test_packets_are_counted_at_both_ends_and_grow_with_payloads() -> None:
    packets, size = count_ends("whitebox", 2, 3, 2, 64)
    larger = count_ends("whitebox", 2, 3, 2, 4096)
    assert packets == larger[0]
    # The payload goes to every member of both groups at least.
    assert larger[1] - size >= 6 * (4096 - 64)


def test_bytes_cost_time_in_the_simulator() -> None:
    """One process that is sent 1,000 bytes and more by a client: 1 ms each way, 10 ns for each byte."""
    ends = []
    for byte_ns in (0.0, 10.0):
        plan = {
            "protocol": "skeen",
            "nodes": False,
            "topology": {"groups": 1, "clients": 1},
            "network": {"cpu_ns": 1, "cpu_byte_ns": byte_ns},
            "workload": {"messages": 1, "payload": 1000},
        }
        ends.append(Simulation(prepare_run(parse_plan(plan)).make_setup()).run().simulated_ns)
    assert 10_000 <= ends[1] - ends[0] < 15_000


@pytest.mark.live
@pytest.mark.slow
def test_command_measures_real_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cost.json"
    assert run(["calibrate", "--payloads", "64,8192", "--seconds", "0.3", "--out", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(file.read_text()) == found
    assert len(found["points"]) == 4
    assert found["packet_us"] > 0
    plan = {"protocol": "primcast", "network": found["network"], "workload": {"messages": 5}}
    assert prepare_run(parse_plan(plan)).network.cpu_ns > 0


def test_impossible_payloads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("64", "64,x", ""):
        assert run(["calibrate", "--payloads", given]) == 64
        assert "expected two or more numbers of bytes" in capsys.readouterr().err

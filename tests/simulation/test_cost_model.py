"""Clients without CPU time, and clocks that are off by a constant, in whole simulated runs."""

from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder

MS = 1_000_000


def run(protocol: str = "primcast", **network: Any) -> tuple[Simulation, list[int]]:
    """The simulation, and how long its one client waited for each message."""
    plan = {
        "protocol": protocol,
        "nodes": True,
        "topology": {"groups": 2, "replicas": 3, "clients": 1},
        "network": {"delay_ns": 5 * MS, **network},
        "workload": {"messages": 4, "destinations": 2},
    }
    recorder = Recorder()
    simulation = Simulation(prepare_run(parse_plan(plan)).make_setup(), recorder)
    assert simulation.run().complete
    sent = {row[0]: int(str(row[3])) for row in recorder.multicasts}
    return simulation, [int(str(row[1])) - sent[row[0]] for row in recorder.answers]


def test_clients_need_cpu_time_unless_the_plan_says_otherwise() -> None:
    waits, free = (run(cpu_ns=MS, cpu_clients=own)[1] for own in (True, False))
    assert waits[0] - free[0] == 2 * MS  # two groups reply


def test_clocks_are_off_by_a_constant_that_the_seed_draws() -> None:
    (one, ranks), (same, _), (exact, others) = (
        (simulation, [row[5] for row in simulation.world.recorder.deliveries])  # type: ignore[union-attr]
        for simulation in (run("primcast-hc", clock_offset_ns=ns)[0] for ns in (MS, MS, 0))
    )
    offsets = [offset for offset, drift in one.world.skews.values() if drift == 0]
    assert len(set(offsets)) == 7
    assert max(map(abs, offsets)) <= MS
    assert one.world.skews == same.world.skews
    assert not exact.world.skews
    assert ranks != others  # hybrid clocks stamp by them


def test_a_second_thread_and_bursts_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="io_thread = true with burst = true"):
        run(io_thread=True, burst=True)

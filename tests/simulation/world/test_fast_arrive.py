"""`World.fast_arrive` and its slow twin, the scheduler's way for targets that may be down, give the same run."""

import pytest

from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder


def run(protocol: str, lossless: bool) -> Recorder:
    workload = {"messages": 60, "destinations": [1, 2], "outstanding": 3}
    plan = parse_plan({"protocol": protocol, "seed": 5, "topology": {"groups": 3, "clients": 4}, "workload": workload})
    recorder = Recorder()
    simulation = Simulation(prepare_run(plan).make_setup(), recorder)
    assert simulation.world.lossless
    simulation.world.lossless = lossless
    assert simulation.run().end == "delivered"
    return recorder


@pytest.mark.parametrize("protocol", ["skeen", "primcast", "flexcast"])
def test_fast_arrive_equals_the_slow_way(protocol: str) -> None:
    fast, slow = run(protocol, True), run(protocol, False)
    for table in ("multicasts", "deliveries", "packets", "notes"):
        assert sorted(map(repr, getattr(fast, table))) == sorted(map(repr, getattr(slow, table))), table

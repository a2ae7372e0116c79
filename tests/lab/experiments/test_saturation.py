"""The load at which clients wait twice as long."""

from typing import Any

import pytest

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.lab.experiments.measures import run_measured_cell
from amcast.lab.experiments.saturation import find_saturation

PLAN = {
    "protocol": "skeen",
    "nodes": False,
    "answers": "nearest",
    "topology": {"groups": 1, "replicas": 1, "clients": 1},
    "network": {"delay_ns": 1_000_000, "cpu_ns": 100_000},
    "workload": {"destinations": 1, "seconds": 0.2, "outstanding": 1},
}


def test_a_group_of_one_saturates_at_the_reciprocal_of_its_cost() -> None:
    """A message is two packets of 0.1 ms for the group, the request and its own proposal: 5,000 per second, and 2.2 ms
    without a queue."""
    row = find_saturation(PLAN, "workload.outstanding", run_measured_cell)
    assert row["saturation_per_s"] == pytest.approx(5_000, rel=0.05)
    assert row["saturation_load"] == 32
    assert row["answer_ms_p95"] < 2 * 2.3


def test_what_cannot_saturate_is_refused() -> None:
    calls: list[Any] = []

    def measure(plan: dict[str, Any]) -> dict[str, Any]:
        calls.append(plan["workload"]["outstanding"])
        return {"answer_ms_p95": 1.0}

    with pytest.raises(CannotTellError, match=r"not saturated; expected a cost of packets"):
        find_saturation(PLAN, "workload.outstanding", measure)
    assert calls[:4] == [1, 2, 4, 8]
    with pytest.raises(UsageError, match=r"saturate = 'workload\.rate': the plan has None there"):
        find_saturation(PLAN, "workload.rate", measure)

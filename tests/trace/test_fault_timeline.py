"""The seconds around a fault: time counts from it, lanes have names, and pauses are those that it caused."""

import re
from xml.etree import ElementTree

import pytest

from amcast.trace.fault_timeline import FaultTimeline, list_faults, list_lanes
from amcast.trace.meta import Meta
from amcast.trace.run import Run

ZERO = 1_700_000_000_000_000_000
MS = 1_000_000


def make_run() -> Run:
    """Two groups; `orders` is silent for 250 ms after its leader was killed, `stock` never for more than 10 ms."""
    deliveries: dict[str, list[int]] = {"process": [], "at_ns": [], "message": []}
    for process, last in ((0, 0), (1, 400), (2, 400)):
        for at in range(-500, last, 10):
            if process != 1 or not 0 <= at < 250:
                deliveries["process"].append(process)
                deliveries["at_ns"].append(ZERO + at * MS)
                deliveries["message"].append(1)
    groups = [
        {"group": 0, "name": "orders", "members": [0, 1]},
        {"group": 1, "name": "stock", "members": [2]},
    ]
    return Run(
        meta=Meta(run="r", protocol="primcast", topology={"groups": groups}),
        processes={"process": [0, 1, 2, 9], "group": [0, 0, 1, None], "crashed_at_ns": [None] * 4},
        multicasts={"message": [1], "sender": [9], "at_ns": [ZERO - 500 * MS]},
        deliveries=deliveries,
        answers={"message": [1], "at_ns": [ZERO - 490 * MS]},
        packets=None,
        notes={
            "process": [0, 0],
            "at_ns": [ZERO, ZERO + 300 * MS],
            "name": ["fault-crash", "fault-recover"],
            "message": [None, None],
            "value": [None, None],
        },
    )


def test_pause_of_each_group_is_told() -> None:
    run = make_run()
    assert [kind for _, _, kind in list_faults(run)] == ["crash", "recover"]
    assert [(lane.name, lane.group) for lane in list_lanes(run)] == [
        ("orders/1", "orders"), ("orders/2", "orders"), ("stock/1", "stock"), ("clients", "clients"),
    ]  # fmt: skip
    assert "orders 260 ms, stock 10 ms" in FaultTimeline(run, ZERO).describe()


def test_time_counts_from_the_fault_and_lanes_have_names() -> None:
    text = "\n".join(FaultTimeline(make_run(), ZERO).svg())
    ElementTree.fromstring(text)
    assert "kill -9 orders/1" in text
    assert "orders/1 starts again" in text
    assert "orders delivered nothing for 260 ms" in text
    assert str(ZERO)[:6] not in text
    assert re.findall(r">([+-]?[\d.]+) s<", text)[0].startswith("-")
    assert re.search(r'data-group="stock".*stock/1', text, re.DOTALL)


@pytest.mark.parametrize("late", [400, 2000])
def test_pause_that_begins_later_has_another_cause(late: int) -> None:
    run = make_run()
    run.deliveries["process"] += [2, 2]
    run.deliveries["at_ns"] += [ZERO + late * MS, ZERO + (late + 900) * MS]
    run.deliveries["message"] += [1, 1]
    assert "stock 10 ms" in FaultTimeline(run, ZERO).describe()

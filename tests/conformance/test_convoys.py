"""The convoy effect: how long local messages wait for global ones, as notes in the trace of every protocol.

In the wide-area network of paper 001, section 7.1: where all links are alike, a local message takes as long as a global
one, and some protocols have no reason to let it wait.
"""

from functools import cache
from typing import Any

import pytest

from amcast.kernel.config import MILLISECOND
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from tests.conformance.plans import planned

FREE = {
    "multipaxos": "everybody orders everything: a local message does not wait, it is as slow as a global one",
    "flexcast": "a local message is ordered by its only destination, at once",
    "treecast": "so is it here",
    "a-ge-star": "local messages get no timestamp",
}
"""Protocols without the effect, and why."""
CLOCKED = {"a-ng": {"kappa": 0}, "a-dt": {"kappa": 0}}
"""With kappa instances to spare, local messages need not wait for bundles."""
LOCAL, MIXED = (1, 1), (1, 3)
"""The smallest and the largest number of destinations."""


@cache
def simulated(name: str, destinations: tuple[int, int], replicas: int) -> Recorder:
    """One run, which several tests look at."""
    prepared = planned(
        name,
        seed=3,
        topology={"replicas": replicas, "clients": 6, "environment": "srds-2"},
        workload={"messages": 120, "destinations": list(destinations), "home": True},
        options=CLOCKED.get(name, {}),
    )
    recorder = Recorder()
    assert Simulation(prepared.make_setup(), recorder).run().end == "delivered"
    return recorder


def convoys(recorder: Recorder) -> dict[tuple[Any, Any], float]:
    """How long each process' deliveries were held up: (process, message) to nanoseconds."""
    found: dict[tuple[Any, Any], float] = {}
    for process, _, kind, message, value in recorder.notes:
        if kind == "convoy":
            assert (process, message) not in found, "a delivery is noted once"
            assert isinstance(value, float)
            found[(process, message)] = value
    return found


@pytest.mark.parametrize("replicas", [1, 3])
def test_local_messages_alone_have_no_convoy(name: str, replicas: int) -> None:
    recorder = simulated(name, LOCAL, replicas)
    assert convoys(recorder) == {}


@pytest.mark.parametrize("replicas", [1, 3])
def test_convoy_of_local_messages_is_noted(name: str, replicas: int) -> None:
    recorder = simulated(name, MIXED, replicas)
    found = convoys(recorder)
    assert (not found) == (name in FREE), f"{len(found)} local deliveries of {name} waited"
    rows = {(row[0], row[3]): row for row in recorder.deliveries}
    for key, waited in found.items():
        destinations, latency = rows[key][9], rows[key][4] - rows[key][7]  # type: ignore[operator]
        assert len(destinations) == 1  # type: ignore[arg-type]
        assert 0 < waited <= latency, f"{key} waited {waited} of {latency} ns"


@pytest.mark.parametrize("replicas", [1, 3])
def test_local_message_without_convoy_has_local_latency(name: str, replicas: int) -> None:
    if name == "multipaxos":
        pytest.skip("multipaxos: one group orders everything, so global messages are more work for local ones")
    alone, mixed = simulated(name, LOCAL, replicas), simulated(name, MIXED, replicas)
    # PrimCast's local messages also wait for the quorum clock, which global ones push ahead: no wait of their own.
    spare = 4 if name.startswith("primcast") else 1
    assert left(mixed) < 1.1 * left(alone) + spare * MILLISECOND


def left(recorder: Recorder) -> float:
    """The mean latency of local deliveries, without the part that was noted."""
    waited = convoys(recorder)
    latencies = [
        row[4] - row[7] - waited.get((row[0], row[3]), 0.0)  # type: ignore[operator]
        for row in recorder.deliveries
        if len(row[9]) == 1  # type: ignore[arg-type]
    ]
    return sum(latencies) / len(latencies)


@pytest.mark.parametrize("stamped", ["skeen", "basecast", "fastcast", "a-ge"])
def test_convoy_notes_agree_with_deliveries(stamped: str) -> None:
    """From the moment when a place was known to the last at which a global message got its own, or was delivered."""
    recorder = simulated(stamped, MIXED, 3)
    cleared: dict[Any, list[int]] = {}
    for row in recorder.deliveries:
        if len(row[9]) > 1:  # type: ignore[arg-type]
            cleared.setdefault(row[0], []).extend(row[place] for place in (4, 8))  # type: ignore[misc]
    waits: dict[tuple[Any, Any], float] = {}
    for process, _, _, message, at_ns, _, _, _, committed_ns, destinations in recorder.deliveries:
        if len(destinations) == 1:  # type: ignore[arg-type]
            last = max((moment for moment in cleared.get(process, ()) if moment <= at_ns), default=-1)  # type: ignore[operator]
            if last > committed_ns:  # type: ignore[operator]
                waits[(process, message)] = last - committed_ns  # type: ignore[operator]
    assert convoys(recorder) == waits


def test_the_names_exist() -> None:
    assert set(FREE) | set(CLOCKED) <= set(CATALOGUE)

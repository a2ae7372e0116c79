"""Protocols with other claims for groups of one process: the conformance suite runs them replicated, this alone."""

import pytest

from amcast.kernel.effects import Deliver, Send
from amcast.kernel.events import Receive
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Request
from amcast.kernel.topology import Topology
from amcast.lab.runs import PreparedRun
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.skeen.messages import Propose, SkeenConfig
from amcast.protocols.skeen.process import Skeen
from tests.conformance.plans import planned
from tests.conformance.test_worlds import fuzzed, hold

ALONE = [name for name, spec in CATALOGUE.items() if spec.unreplicated is not None]


def prepare_alone(name: str, seed: int = 0, **tables: dict[str, object]) -> PreparedRun:
    spec = CATALOGUE[name]
    assert spec.unreplicated is not None
    network = {"links": spec.unreplicated.links, **tables.pop("network", {})}
    return planned(name, seed, topology={"replicas": 1}, network=network, **tables)


@pytest.mark.parametrize("name", ALONE)
def test_timed_runs_hold(name: str) -> None:
    hold(prepare_alone(name, workload={"messages": 200}))
    for seed in range(3):
        hold(prepare_alone(name, seed, network={"distribution": "exponential", "spread": 3.0}))
    hold(prepare_alone(name, network={"cpu_ns": 300_000, "burst": True}))
    hold(prepare_alone(name, faults={"profile": "all"}))


@pytest.mark.parametrize("name", ALONE)
def test_random_runs_reach_every_goal(name: str) -> None:
    prepared = prepare_alone(name, workload={"messages": 12}, faults={"profile": "all"})
    notes = fuzzed(prepared, range(150))
    assert not [goal for goal in CATALOGUE[name].goals if goal not in notes]


def test_skeen_gives_a_repeated_request_no_second_timestamp() -> None:
    """A client's retry in the step that delivers its message, when no node can know yet that it is delivered."""
    topology = Topology.grid(2, 1, 1)
    process = Skeen(0, topology, SkeenConfig())
    message = Message(message_id(2, 0), 2, (0, 1))
    request = Receive(2, Request(message))
    process.step((request,), 0)
    proposals = [Receive(group, Propose(message.id, group, 1)) for group in (0, 1)]
    effects = process.step((*proposals, request), 1)
    assert [effect.message for effect in effects if isinstance(effect, Deliver)] == [message]
    assert not [effect for effect in effects if isinstance(effect, Send)]
    assert not process.snapshot().pending


def test_skeen_nodes_survive_retries_in_bursts() -> None:
    fuzzed(prepare_alone("skeen", nodes=True, workload={"messages": 20}, faults={"profile": "all"}), range(5, 17))  # type: ignore[arg-type]

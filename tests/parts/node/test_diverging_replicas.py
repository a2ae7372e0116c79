"""Simulated replicas whose deliveries or states are spoilt: their group finds them, and they alone stop."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import pytest
from msgspec import structs

from amcast.kernel.effects import Deliver, Effect, Send
from amcast.kernel.events import Event, Receive, Started, StateTaken
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Message, Request
from amcast.kernel.process import Process
from amcast.lab.runs import prepare_run
from amcast.parts.client.messages import Farewell
from amcast.parts.node.messages import Heartbeat
from amcast.parts.node.node import Node
from amcast.parts.node.replica_comparison import ReplicaComparison
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder

MS = 1_000_000
SPOILT = 2
"""The process that diverges: the third member of the first group."""
BEGIN = 10
"""The position from which on it does."""
Fault = Literal["swap", "drop", "corrupt", "state"]


class SpoiltProtocol:
    """A protocol one of whose deliveries is changed on its way to the node around it."""

    def __init__(self, protocol: Process, fault: Fault) -> None:
        self._protocol = protocol
        self._fault = fault
        self._is_done = False
        self._held: Deliver | None = None
        self._shift = 0
        """By how much later positions are lower."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        effects: list[Effect] = []
        for effect in self._protocol.step(events, now):
            effects += self._spoil(effect) if type(effect) is Deliver else [effect]
        return effects

    def _spoil(self, delivery: Deliver) -> list[Deliver]:
        delivery = structs.replace(delivery, position=delivery.position - self._shift)
        if delivery.position < BEGIN or self._is_done:
            return [delivery]
        if self._fault == "corrupt":
            self._is_done = True
            return [structs.replace(delivery, message=corrupt(delivery.message))]
        if self._held is None:
            self._held, self._shift = delivery, count(delivery)
            self._is_done = self._fault == "drop"
            return []
        self._is_done, self._shift = True, 0
        return [delivery, structs.replace(self._held, position=self._held.position + count(delivery))]


def count(delivery: Deliver) -> int:
    return 1 if delivery.message_count < 0 else delivery.message_count


def corrupt(message: Message) -> Message:
    """The message with one flipped bit, of the message itself or of the last message of a bundle."""
    flipped = message.payload[:-1] + bytes([message.payload[-1] ^ 1])
    return structs.replace(message, payload=flipped)


class SpoiltState:
    """A node whose application takes another state from some position on."""

    def __init__(self, node: Process) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        return self._node.step([self._spoil(event) for event in events], now)

    def _spoil(self, event: Event) -> Event:
        if type(event) is not StateTaken or event.position < BEGIN:
            return event
        return StateTaken(event.position, event.digest ^ 1)


def simulate(fault: Fault, replicas: int = 3, until_ms: int = 300, **changes: Any) -> Simulation:
    """A run in which the first incarnation of one process is spoilt."""
    values: dict[str, Any] = {
        "protocol": "primcast",
        "nodes": True,
        "topology": {"groups": 2, "replicas": replicas, "clients": 4},
        "workload": {"messages": 60, "outstanding": 2, "destinations": [1, 2], "payload": 20},
        "until_ns": until_ms * MS,
    }
    prepared = prepare_run(parse_plan({**values, **changes}))
    made = set()

    def make(process: ProcessId) -> Process:
        node = prepared.make(process)
        if process != min(SPOILT, replicas - 1) or process in made:
            return node
        made.add(process)
        if fault == "state":
            return cast(Process, SpoiltState(node))
        assert isinstance(node, Node)
        node.protocol = cast(Process, SpoiltProtocol(node.protocol, fault))
        return node

    simulation = Simulation(replace(prepared.make_setup(), make=make), Recorder(), keeps_history=True)
    simulation.run()
    return simulation


@pytest.mark.parametrize("fault", ["swap", "drop", "corrupt", "state"])
@pytest.mark.parametrize("gateways", [False, True])
def test_diverging_replica_stops_and_the_others_go_on(fault: Fault, gateways: bool) -> None:
    world = simulate(fault, gateways=gateways).world
    status = {process: world.processes[process].status() for process in world.topology.members(0)}
    assert status[SPOILT]["comparison"] == "minority"
    assert status[SPOILT]["admission"] == "refused"
    assert status[SPOILT]["admission_remedy"] == "renew"
    assert "it has stopped, because it diverged" in str(status[SPOILT]["admission_reason"])
    for process in (0, 1):
        assert status[process]["comparison"] == "majority"
        assert f"process {SPOILT} is wrong: a majority agrees with process" in str(status[process]["divergence"])
        assert world.positions[process] > world.positions[SPOILT]
    assert all(world.undelivered[message] == {SPOILT} for message in world.undelivered)
    assert world.folders[SPOILT].divergence == status[SPOILT]["divergence"]
    assert any(f"process {SPOILT} found" in violation for violation in world.violations)


@pytest.mark.parametrize("protocol", ["multipaxos", "whitebox", "a-ge", "flexcast"])
def test_diverging_replica_of_other_protocols_stops(protocol: str) -> None:
    world = simulate("corrupt", protocol=protocol).world
    outcomes = [world.processes[process].status()["comparison"] for process in (0, 1, SPOILT)]
    assert outcomes == ["majority", "majority", "minority"]


def test_replica_that_stops_sends_what_it_found() -> None:
    """Its heartbeats may all have come before the difference: without a last one, only it would know."""
    plan = {"protocol": "primcast", "nodes": True, "topology": {"groups": 1, "replicas": 3}}
    node = prepare_run(parse_plan(plan)).make(0)
    assert isinstance(node, Node)
    node.step([Started()], 0)
    others = [ReplicaComparison(member, (0, 1, 2)) for member in (1, 2)]
    for comparison, payload in ((node.comparison, b"a"), (others[0], b"b"), (others[1], b"b")):
        comparison.record(Deliver(Message(50 * 10**9, 50, (0,), payload), 0))
    others[0].receive(2, 0, others[1].make_report())
    others[1].receive(1, 0, others[0].make_report())
    events = [Receive(member, Heartbeat(0, comparison=others[member - 1].make_report())) for member in (1, 2)]
    effects = node.step(events, 1)
    sent = [effect for effect in effects if type(effect) is Send]
    assert [type(effect.body) for effect in sent] == [Heartbeat, Farewell]
    heartbeat = cast(Heartbeat, sent[0].body)
    assert heartbeat.comparison is not None
    others[0].receive(0, 0, heartbeat.comparison)
    assert others[0].outcome == "majority"


def test_diverged_replica_stays_out_after_a_restart_until_it_is_replaced() -> None:
    crashes = [
        {"at_ns": 100 * MS, "do": "crash", "process": SPOILT},
        {"at_ns": 101 * MS, "do": "recover", "process": SPOILT},
    ]
    world = simulate("corrupt", faults={"events": crashes}).world
    status = world.processes[SPOILT].status()
    assert world.incarnations[SPOILT] == 1
    assert status["admission"] == "refused"
    assert status["divergence"] == world.folders[SPOILT].divergence != ""


def test_replaced_replica_is_equal_again() -> None:
    replacement = [
        {"at_ns": 100 * MS, "do": "crash", "process": SPOILT},
        {"at_ns": 101 * MS, "do": "recover", "process": SPOILT, "amnesia": True},
    ]
    workload = {"messages": 250, "outstanding": 2, "destinations": [1, 2], "payload": 20}
    world = simulate("corrupt", faults={"events": replacement}, workload=workload, until_ms=2000).world
    for process in (0, 1, SPOILT):
        status = world.processes[process].status()
        assert status["comparison"] == "equal"
        assert status["divergence"] == ""
        assert str(status["compared"]).count("equal before position 1") == 2


def test_group_without_a_majority_takes_no_new_messages() -> None:
    simulation = simulate("swap", replicas=2)
    world = simulation.world
    nodes = [cast(Node, world.processes[process]) for process in (0, 1)]
    assert [node.status()["comparison"] for node in nodes] == ["split", "split"]
    for node in nodes:
        text = str(node.status()["divergence"])
        assert "process 0 holds" in text
        assert "process 1 holds" in text
        assert text.endswith("no new messages are taken")
        request = Request(Message(50 * 10**9, 50, (0,), b"new"))
        assert node.step([Receive(50, request)], world.now) == []
        (phase, *_) = node.explain(50 * 10**9)
        assert phase.name == "comparison"
        assert not phase.is_done
    assert simulation.load.remaining > 0

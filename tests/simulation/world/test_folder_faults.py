"""Spoilt data folders in simulated runs: emptied without a replacement, or replaced by an older copy."""

from collections.abc import Iterator
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.runs import PreparedRun, fuzz_seed, prepare_run
from amcast.parts.node import admission
from amcast.parts.node.admission import Admission
from amcast.simulation.inputs.disk_faults import draw_storage
from amcast.simulation.inputs.faults import perform_fault
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from amcast.simulation.simulate import Simulation
from amcast.simulation.world.actions import DiskFault, Recover
from amcast.storage.client_ids import ClientIdAllocator
from amcast.trace.meta import Meta
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

MS = 1_000_000
SEEDS = 12


def prepare(protocol: str = "primcast", **changes: Any) -> PreparedRun:
    values: dict[str, Any] = {
        "protocol": protocol,
        "topology": {"groups": 2, "replicas": 3, "clients": 4},
        "workload": {"messages": 60, "outstanding": 2, "destinations": [1, 2]},
    }
    return prepare_run(parse_plan({**values, **changes}))


def simulate(*events: dict[str, Any], **changes: Any) -> Simulation:
    """A run with listed faults, to its end."""
    faults = {"events": [{"process": 4, **event} for event in events]}
    simulation = Simulation(prepare(faults=faults, **changes).make_setup(), Recorder())
    assert simulation.run().end == "delivered"
    return simulation


def test_emptied_node_takes_no_part_until_it_is_replaced() -> None:
    until_replaced = 200 * MS
    simulation = simulate(
        {"at_ns": 20 * MS, "do": "crash"},
        {"at_ns": 30 * MS, "do": "recover", "emptied": True},
        {"at_ns": until_replaced, "do": "crash"},
        {"at_ns": until_replaced + MS, "do": "recover", "amnesia": True},
        workload={"messages": 300, "outstanding": 2, "destinations": [1, 2]},
    )
    recorder = simulation.world.recorder
    assert recorder is not None
    table = Run.from_recorder(recorder, Meta(run="emptied")).deliveries
    times = [time for process, time in zip(table["process"], table["at_ns"], strict=True) if process == 4]
    assert not [time for time in times if 30 * MS <= time <= until_replaced]
    world = simulation.world
    assert world.positions[4] == world.positions[5], "its group has sent it the rest"


def test_older_copy_restarts_without_its_records_in_a_later_incarnation() -> None:
    simulation = simulate(
        {"at_ns": 60 * MS, "do": "crash"},
        {"at_ns": 61 * MS, "do": "recover", "rolled_back": 20},
        workload={"messages": 200, "outstanding": 2, "destinations": [1, 2]},
    )
    world = simulation.world
    assert world.note_counts["restarted"] == 1
    assert world.incarnations[4] == 2
    assert world.processes[4].status()["admission"] == "admitted"


@pytest.mark.parametrize(
    ("kinds", "gateways"), [("emptied+recovery", False), ("emptied", True)], ids=["bare requests", "gateways"]
)
def test_search_finds_nodes_that_take_part_without_admission(
    kinds: str, gateways: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(
        faults={"profile": kinds},
        gateways=gateways,
        workload={"messages": 12, "outstanding": 2, "destinations": [1, 2]},
    )
    assert fuzz_seed(prepared, 0).status == "holds"
    monkeypatch.setattr(Admission, "_decide", lambda self: True)
    outcomes = (fuzz_seed(prepared, seed) for seed in range(SEEDS))
    assert any(outcome.status != "holds" for outcome in outcomes)


def fuzz_storage(prepared: PreparedRun, seeds: int) -> Iterator[FuzzOutcome]:
    """The outcomes of the seeds that keep folders in the storage code."""
    for seed in range(seeds):
        if draw_storage(make_stream(seed, "storage")):
            yield fuzz_seed(prepared, seed)


def test_search_puts_older_copies_back_and_finds_servers_that_do_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(faults={"profile": "recovery+rollback+amnesia"}, workload={"messages": 20, "destinations": 2})
    outcomes = list(fuzz_storage(prepared, 24))
    assert {outcome.status for outcome in outcomes} == {"holds"}
    kinds = [action.kind for outcome in outcomes for action in outcome.script if isinstance(action, DiskFault)]
    assert "old" in kinds
    compare = admission._compare

    def forgive(*args: Any) -> Any:
        verdict = compare(*args)
        return "known" if verdict == "ahead" else verdict

    monkeypatch.setattr(admission, "_compare", forgive)
    assert any(outcome.status != "holds" for outcome in fuzz_storage(prepared, 80))


def test_search_finds_client_ids_that_are_allocated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(faults={"profile": "recovery"}, workload={"messages": 20, "destinations": 2})
    write = ClientIdAllocator._write

    def reserve_nothing(self: ClientIdAllocator, reserved: dict[int, int]) -> None:
        write(self, {})
        self._reserved = reserved

    monkeypatch.setattr(ClientIdAllocator, "_write", reserve_nothing)
    assert any("again, which a client has" in outcome.story for outcome in fuzz_storage(prepared, 40))


def test_bare_processes_have_no_folders_to_spoil() -> None:
    prepared = prepare(nodes=False)
    simulation = Simulation(prepared.make_setup(), Recorder())
    simulation.world.start()
    simulation.world.crash(4)
    assert not perform_fault(simulation.world, simulation, Recover(4, emptied=True))
    with pytest.raises(UsageError, match="does not claim to survive 'emptied'"):
        prepare(nodes=False, faults={"profile": "emptied"})

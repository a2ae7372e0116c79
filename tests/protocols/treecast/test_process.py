"""TreeCast: the execution of the thesis, order by FIFO links, confirmation, and mutants."""

from collections import Counter
from typing import Any

import pytest

from amcast.check.judge import judge
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message, Reply, Request
from amcast.kernel.topology import Topology
from amcast.lab.delays import measure_delays
from amcast.lab.overlays import find_overlay
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.protocols.treecast.messages import Forward, TreeCastConfig
from amcast.protocols.treecast.process import SPEC, TreeCast
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.mutants.outcome import is_caught
from tests.mutants.protocols.treecast import MUTANTS, Mutant
from tests.protocols.manual_network import CLIENT, ManualNetwork


def make_tree(groups: int, process: type[TreeCast] = TreeCast, **options: Any) -> ManualNetwork:
    config = TreeCastConfig(**options)
    return ManualNetwork(lambda me, topology: process(me, topology, config), Topology.grid(groups, 1))


def test_execution_of_figure_3_2() -> None:
    """Groups g1 to g7 are 0 to 6: m1 to g2, g3, g5; m2 to g4, g5; m3 to g7."""
    world = make_tree(7)
    m1, m2, m3 = 1, 2, 3
    world.multicast(m1, 1, 2, 4)
    world.multicast(m2, 3, 4)
    world.multicast(m3, 6)
    assert world.delivered[6] == [m3], "a local message involves no other group"
    world.carry_all()
    assert world.delivered[0] == [], "the root orders m1 and does not deliver it"
    assert world.delivered[1] == [m1]
    assert world.delivered[4] == [m2, m1], "g2 is the highest group that both pass, and saw m2 first"
    copies = Counter((s, t) for s, t, body in world.carried if isinstance(body, Forward) and body.message.id == m1)
    assert copies == {(0, 1): 1, (0, 2): 1, (1, 4): 1}, "one copy along each edge that is needed"
    assert world.list_undelivered() == []


def test_lowest_common_ancestor_replies_once_all_groups_confirmed() -> None:
    world = make_tree(7)
    world.multicast(1, 3, 5)
    world.carry(0, 1)
    world.carry(1, 3)
    world.carry(3, 1)
    world.carry(1, 0)
    assert (0, CLIENT) not in world.links, "5 has not confirmed"
    world.carry_all()
    assert list(world.links[(0, CLIENT)]) == [Reply(1, 3), Reply(1, 5)]
    assert all(not process._waiting for process in world.processes.values() if isinstance(process, TreeCast))


def test_no_confirmations_are_sent_if_disabled() -> None:
    world = make_tree(3, confirm=False)
    world.multicast(1, 1, 2)
    world.carry_all()
    assert {type(body).__name__ for _, _, body in world.carried} == {"Forward"}


def test_repeated_request_is_delivered_once() -> None:
    world = make_tree(3)
    world.multicast(1, 1, 2)
    world.receive(0, Request(Message(1, CLIENT, (1, 2))))
    world.receive(1, Request(Message(1, CLIENT, (1, 2))))
    world.carry_all()
    assert world.delivered == {0: [], 1: [1], 2: [1]}


@pytest.mark.parametrize(("name", "deepest"), [("C1", 2), ("C2", 3)])
@pytest.mark.parametrize("replicas", [1, 3])
def test_delays_by_depth_in_the_trees_of_the_thesis(name: str, deepest: int, replicas: int) -> None:
    row = measure_delays(SPEC, 7, replicas, find_overlay(name))
    assert row.delays_max == deepest * (3 if replicas > 1 else 1)


def test_only_local_messages_are_genuine() -> None:
    for destinations, expected in (((1, 1), "holds"), ((2, 2), "violated")):
        values = {
            "protocol": "treecast",
            "topology": {"groups": 7, "replicas": 1, "clients": 3},
            "workload": {"messages": 40, "destinations": list(destinations)},
        }
        prepared = prepare_run(parse_plan(values), SPEC)
        recorder = Recorder()
        Simulation(prepared.make_setup(), recorder).run()
        report = judge(Run.from_recorder(recorder, prepared.make_meta("treecast").with_claims(complete=True)))
        assert report.properties["P6'"].verdict == expected
        assert report.verdict == "holds", "P6' is reported, not claimed"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    values = {
        "protocol": "treecast",
        "topology": {"groups": 5, "replicas": 1, "clients": 4},
        "workload": {"messages": 16, "outstanding": 3, "destinations": [1, 4]},
        "network": {"links": mutant.links},
        "nodes": mutant.nodes,
    }
    prepared = prepare_run(parse_plan(values), mutant.spec())
    for seed in range(60):
        outcome = fuzz_seed(prepared, seed)
        if is_caught(outcome):
            assert outcome.status == mutant.status, f"seed {seed}: {outcome.story}"
            return
    pytest.fail(f"{mutant.name} survived")


def test_tree_without_a_single_root_is_rejected() -> None:
    config = SPEC.configure({"edges": [[0, 1]]})
    assert isinstance(config, TreeCastConfig)
    with pytest.raises(UsageError, match="expected exactly one root"):
        TreeCast(0, Topology.grid(3, 1), config)

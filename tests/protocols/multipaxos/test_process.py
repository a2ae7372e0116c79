"""MultiPaxos: the choice of the ordering group. Other tests run it together with the protocols that use timestamps."""

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.topology import Topology
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.multipaxos.messages import MultiPaxosConfig
from amcast.protocols.multipaxos.process import find_ordering_group
from amcast.simulation.inputs.plan import parse_plan
from tests.protocols.stage import Stage

NAMED = Topology({0: (0, 1, 2), 4: (3, 4, 5)}, (6,), names={0: "north", 4: "south"})
NORTH, SOUTH = NAMED.groups


@pytest.mark.parametrize(("ordering", "group"), [(None, NORTH), ("south", SOUTH), (4, SOUTH), ("north", NORTH)])
def test_ordering_group_is_found_by_name_or_number(ordering: int | str | None, group: int) -> None:
    config = MultiPaxosConfig(ordering=ordering)
    assert find_ordering_group(NAMED, config) == group
    assert CATALOGUE["multipaxos"].contacts_for(config)(NAMED, None) == NAMED.members(group)  # type: ignore[arg-type]


@pytest.mark.parametrize("ordering", ["west", 1, "4", ""])
def test_unknown_ordering_group_is_rejected(ordering: int | str) -> None:
    with pytest.raises(UsageError, match=r"ordering = .*; expected one of the groups 0 \(north\), 4 \(south\)"):
        CATALOGUE["multipaxos"].process(0, NAMED, MultiPaxosConfig(ordering=ordering))


def test_plan_with_unknown_ordering_group_is_rejected() -> None:
    values = {"protocol": "multipaxos", "topology": {"groups": 2, "replicas": 3}, "options": {"ordering": 2}}
    with pytest.raises(UsageError, match="ordering = 2; expected one of the groups 0, 1"):
        prepare_run(parse_plan(values, "test"))


def test_only_the_ordering_group_votes_and_survives_its_leader() -> None:
    stage = Stage("multipaxos", options={"ordering": 1})
    stage.multicast(0, 0, 1)
    stage.multicast(1, 0)
    stage.steps(6)
    stage.crash(3)
    stage.suggest_leader(1, 4)
    stage.finish()
    stage.check()
    places = [stage.world.processes[server].protocol._paxos.place for server in (0, 1, 2, 4, 5)]  # type: ignore[attr-defined]
    assert places == [-1, -1, -1, 1, 2]


def test_fuzzed_runs_hold_with_the_last_group_ordering() -> None:
    values = {
        "protocol": "multipaxos",
        "topology": {"groups": 3, "replicas": 3, "clients": 3},
        "workload": {"messages": 10, "outstanding": 3, "destinations": [1, 3]},
        "faults": {"profile": "all"},
        "options": {"ordering": 2},
    }
    prepared = prepare_run(parse_plan(values, "test"))
    for seed in range(12):
        outcome = fuzz_seed(prepared, seed)
        assert outcome.status == "holds", f"seed {seed}: {outcome.story}"

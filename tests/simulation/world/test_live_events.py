"""Events that a live driver reports, as actions of a world: PeerDown, Requests of many clients, and Farewell."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from amcast.check.judge import judge
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Event, PeerDown, Receive, Requests
from amcast.kernel.ids import ProcessId, message_id
from amcast.kernel.process import Process
from amcast.lab.runs import PreparedRun, fuzz_seed, make_judge, prepare_run
from amcast.parts.client.messages import Farewell
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.narration import NarratedProcess, ObservedStep
from amcast.simulation.schedulers.replay import narrate, replay
from amcast.simulation.schedulers.script import Script, read_script
from amcast.simulation.simulate import Simulation
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    BeginRead,
    Collect,
    Crash,
    Leave,
    Multicast,
    Recover,
    Unreachable,
    encode_actions,
    parse_action,
)
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

MS = 1_000_000


def plan(events: list[dict[str, Any]], protocol: str = "primcast", **tables: Any) -> PreparedRun:
    values = {
        "protocol": protocol,
        "nodes": True,
        "topology": {"groups": 2, "replicas": 3, "clients": 4},
        "workload": {"messages": 60, "outstanding": 2, "destinations": [1, 2]},
        "network": {"cpu_ns": MS // 20, "burst": True},
        "faults": {"events": events},
        **tables,
    }
    return prepare_run(parse_plan(values))


def simulate(prepared: PreparedRun) -> tuple[dict[ProcessId, list[Event]], Recorder]:
    """A timed run, which must hold: the events that each process got, and the trace."""
    log: list[ObservedStep] = []
    recorder = Recorder()
    setup = prepared.make_setup()

    def make(process: ProcessId) -> Process:
        return cast(Process, NarratedProcess(prepared.make(process), log))

    assert Simulation(replace(setup, make=make), recorder).run().end == "delivered"
    report = judge(Run.from_recorder(recorder, prepared.make_meta("live-events").with_claims(complete=True)))
    assert report.verdict == "holds", list(report.story())
    events: dict[ProcessId, list[Event]] = {process: [] for process in setup.topology.processes}
    for process, got, _ in log:
        events[process].extend(got)
    return events, recorder


def first_epoch_ns(recorder: Recorder) -> int:
    """When the first leader change was complete."""
    return min(cast(int, at_ns) for _, at_ns, name, *_ in recorder.notes if name == "epoch")


def test_peer_is_reported_down_to_one_process() -> None:
    events, _ = simulate(plan([{"at_ns": 5 * MS, "do": "unreachable", "process": 1, "peer": 0}]))
    assert [event for event in events[1] if isinstance(event, PeerDown)] == [PeerDown(0)]
    assert not any(isinstance(event, PeerDown) for process in (0, 2, 3, 4, 5) for event in events[process])


def test_group_elects_another_leader_when_its_leader_is_unreachable() -> None:
    down = [{"at_ns": 5 * MS, "do": "unreachable", "process": process, "peer": 0} for process in (1, 2)]
    stops = [{"at_ns": 5 * MS, "do": "crash", "process": 0}]
    _, slow = simulate(plan(stops))
    _, fast = simulate(plan([*stops, *down]))
    assert first_epoch_ns(fast) < first_epoch_ns(slow), "members waited for a silence that the report makes needless"


@pytest.mark.parametrize(("protocol", "gateways"), [("primcast", True), ("multipaxos", False)])
def test_requests_of_many_clients_are_one_event(protocol: str, gateways: bool) -> None:
    collects = [{"at_ns": 0, "do": "collect", "process": process} for process in range(6)]
    events, _ = simulate(plan(collects, protocol, gateways=gateways))
    together = [event for got in events.values() for event in got if isinstance(event, Requests)]
    assert any(len({message.sender for message in event.messages}) > 1 for event in together)
    singles, _ = simulate(plan([], protocol, gateways=gateways))
    assert not any(isinstance(event, Requests) for got in singles.values() for event in got)


def test_farewell_reaches_all_others_and_they_elect_a_leader() -> None:
    leaves = [
        {"at_ns": 5 * MS, "do": "leave", "process": 0},
        {"at_ns": 8 * MS, "do": "crash", "process": 0},
        {"at_ns": 30 * MS, "do": "recover", "process": 0},
    ]
    events, fast = simulate(plan(leaves))
    for process in range(1, 10):
        farewells = [event for event in events[process] if isinstance(event, Receive) and type(event.body) is Farewell]
        assert farewells == [Receive(0, Farewell(0))]
    _, slow = simulate(plan(leaves[1:]))
    assert first_epoch_ns(fast) < first_epoch_ns(slow)
    assert "fault-leave" in {row[2] for row in fast.notes}


def test_bare_processes_have_no_farewell() -> None:
    bare = plan([{"at_ns": 5 * MS, "do": "leave", "process": 0}], "skeen", nodes=False)
    assert bare.node_bodies.farewell is None
    events, _ = simulate(bare)
    assert not any(isinstance(event, Receive) and type(event.body) is Farewell for event in events[1])


def script(prepared: PreparedRun, actions: Sequence[AnyAction]) -> Script:
    return Script(prepared.spec.name, prepared.whole_topology, actions, links=prepared.network.links)


def test_scripts_replay_and_narrate_the_actions(tmp_path: Path) -> None:
    prepared = plan([])
    one, other = 6, 7
    actions: list[AnyAction] = [
        Collect(0),
        Multicast(one, message_id(one, 0), (0,)),
        Multicast(other, message_id(other, 0), (0,)),
        Arrive(0, ((one, 0), (other, 0))),
        Collect(0, False),
        Unreachable(1, 0),
        Leave(0),
        Arrive(1, ((0, 0), (0, 0), (0, 0), (0, 0))),
        Crash(0),
        Recover(0),
    ]
    script(prepared, actions).write(tmp_path / "live.script")
    stored = read_script(tmp_path / "live.script")
    assert list(stored.actions) == actions
    judged = make_judge(prepared, 0)
    again = replay(stored, prepared.make, prepared.spec.claims, judged, node_bodies=prepared.node_bodies)
    assert (again.status, again.skipped) == ("holds", 0)
    story = "\n".join(narrate(stored, prepared.make, prepared.spec.claims, judged, prepared.node_bodies))
    assert f"process 0 receives requests for messages {message_id(one, 0)}, {message_id(other, 0)}" in story
    assert "process 1 learns that process 0 is unreachable" in story
    assert "process 0 announces to all others that it leaves" in story
    assert "Farewell(incarnation=0) from 0" in story


def test_script_without_a_farewell_refuses_to_let_a_process_leave() -> None:
    prepared = plan([])
    with pytest.raises(UsageError, match="cannot happen there: process 0 announces to all others that it leaves"):
        replay(script(prepared, [Leave(0)]), prepared.make, prepared.spec.claims, make_judge(prepared, 0))


@pytest.mark.parametrize("action", [Unreachable(1, 0), Leave(2), Collect(3), Collect(3, False), BeginRead(1)])
def test_actions_are_json_lines(action: AnyAction) -> None:
    line = encode_actions([action])
    assert f'"do":"{type(action).__name__.lower()}"' in line
    assert parse_action(line, "here") == action


def draw_actions(profile: str) -> set[type]:
    """The kinds of actions in fuzzed runs with a profile of faults, which must hold."""
    prepared = plan([], workload={"messages": 12, "outstanding": 2}, faults={"profile": profile})
    drawn: set[type] = set()
    for seed in range(6):
        outcome = fuzz_seed(prepared, seed)
        assert outcome.status == "holds", f"seed {seed}, faults {profile}: {outcome.story}"
        drawn.update(type(action) for action in outcome.script)
    return drawn


def test_fuzzed_runs_draw_them() -> None:
    assert {Unreachable, Leave, Collect} <= draw_actions("leave+unreachable")


def test_reports_and_farewells_are_drawn_in_their_profiles_only() -> None:
    drawn = draw_actions("none")
    assert not {Unreachable, Leave} & drawn
    assert Collect in drawn, "requests are taken together without faults too"

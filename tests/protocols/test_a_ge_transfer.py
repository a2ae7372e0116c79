"""001 section 6 in A_ge and A_ge*: messages, timestamps and confirmations go from leader to leader, in batches."""

import pytest

from amcast.lab.delays import measure_delays
from amcast.lab.runs import prepare_run
from amcast.parts.groups.timestamped_messages import GroupTimestamp
from amcast.protocols.a_ge.messages import GroupTransfer
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.simulation.world.actions import Skew
from amcast.trace.recorder import Recorder
from tests.protocols.stage import Stage

NAMES = ["a-ge", "a-ge-star"]


def run(name: str, **options: object) -> tuple[Recorder, dict[str, int]]:
    """30 clients of 2 groups of 3 multicast to both; the packets between groups by body."""
    plan = {
        "protocol": name,
        "nodes": False,
        "answers": "nearest",
        "options": options,
        "topology": {"environment": "srds-1", "groups": 2, "replicas": 3, "clients": 30},
        "workload": {"destinations": 2, "messages": 90, "stagger_ns": 10_000_000},
    }
    prepared = prepare_run(parse_plan(plan))
    recorder = Recorder()
    summary = Simulation(prepared.make_setup(), recorder).run()
    assert summary.complete
    between: dict[str, int] = {}
    group_of = prepared.topology.group_of
    for row in recorder.packets:
        source, target = group_of(int(str(row[2]))), group_of(int(str(row[3])))
        if source is not None and target is not None and source != target:
            between[str(row[1])] = between.get(str(row[1]), 0) + 1
    return recorder, between


@pytest.mark.parametrize("name", NAMES)
def test_leaders_alone_speak_between_groups_with_the_same_delays(name: str) -> None:
    plain = measure_delays(CATALOGUE[name], 4, 3, {"stamps": "leader"})
    transferred = measure_delays(CATALOGUE[name], 4, 3, {"transfer": "leader"})
    assert transferred.holds
    assert (transferred.delays_max, plain.delays_max) == (2, 2)
    assert transferred.packets < plain.packets
    _, between = run(name, transfer="leader")
    assert set(between) == {GroupTransfer.__name__}, between


@pytest.mark.parametrize("name", NAMES)
def test_pace_gathers_messages_so_that_groups_exchange_fewer_packets(name: str) -> None:
    _, by_members = run(name, stamps="leader")
    _, at_once = run(name, transfer="leader")
    _, paced = run(name, transfer="leader", pace_ns=5_000_000)
    assert by_members[GroupTimestamp.__name__] > 3 * 90
    assert sum(paced.values()) < sum(at_once.values()) / 2 < sum(by_members.values()) / 2


def test_pace_is_ended_by_its_timer_although_the_clock_stands_still() -> None:
    stage = Stage("basecast", groups=1, options={"pace_ns": 60_000_000_000})
    stage.multicast(0, 0)
    stage.step_until(lambda: stage.protocol(0).position == 1)
    stage.apply(Skew(0, -3_600_000_000_000))
    stage.multicast(1, 0)
    stage.finish()
    stage.check()


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_messages_survive_the_leader_that_sends_and_the_leader_that_is_sent_to(name: str, victim: int) -> None:
    stage = Stage(name, options={"transfer": "leader"})
    stage.multicast(0, 0, 1)
    stage.step_until(lambda: any(type(body) is GroupTransfer for body in bodies_in_flight(stage)))
    stage.crash(victim)
    stage.suggest_leader(victim // 3, victim + 1)
    stage.multicast(1, 0, 1)
    stage.finish()
    stage.check()
    assert stage.protocol(victim // 3 * 3 + 2).position == 2


def bodies_in_flight(stage: Stage) -> list[object]:
    return [envelope[2] for link in stage.links.values() for _, envelope in link]

"""The replicated-group adapter: channels between groups that neither lose, nor double, nor overtake, whoever leads."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from amcast.check.judge import judge
from amcast.kernel.effects import Deliver, Effect, Send
from amcast.kernel.events import Receive, Started
from amcast.kernel.message import Message, Request
from amcast.kernel.topology import Topology
from amcast.lab.delays import delays
from amcast.lab.runs import fuzz_one, prepare
from amcast.parts.consensus.messages import Entry
from amcast.parts.groups.messages import GroupMessage, GroupMessageAck
from amcast.parts.groups.replicated import GROUP_MESSAGE, REQUEST, ReplicatedGroup
from amcast.parts.node.node import Node
from amcast.protocols.flexcast import process as flexcast
from amcast.protocols.ring import process as ring
from amcast.protocols.ring.messages import End, Pass, RingConfig, RingState
from amcast.protocols.ring.process import Ring
from amcast.protocols.skeen import process as skeen
from amcast.protocols.skeen.messages import Propose, SkeenConfig, SkeenState
from amcast.protocols.skeen.process import Skeen
from amcast.protocols.treecast import process as treecast
from amcast.simulation.inputs.plan import plan_of
from amcast.simulation.schedulers.fuzz import Fuzzer
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.mutants.protocols.replicated import AskedTwice, NotSentAgain, Overtaken, TakenTwice, lifted

TOPOLOGY = Topology.grid(2, 3, 1)
TOPOLOGY_OF_NINE = Topology.grid(3, 3)
CLIENT = TOPOLOGY.clients[0]
LIFTED = {spec.SPEC.name: spec.SPEC for spec in (skeen, flexcast, treecast, ring)}


def member(me: int, kind: type[ReplicatedGroup] = ReplicatedGroup) -> ReplicatedGroup:
    if kind is AskedTwice:  # the ring would notice by itself
        made = kind(me, TOPOLOGY, SkeenConfig(), Skeen, (Propose,), SkeenState)
    else:
        made = kind(me, TOPOLOGY, RingConfig(), Ring, (Pass, End), RingState)
    made.step([Started()], 0)
    return made


def carried(number: int, id: int) -> Entry:
    """Group 0 passes message `id` on to group 1 as the `number`-th thing that it says."""
    body = msgspec.msgpack.encode(Pass(Message(id, CLIENT, (0, 1))))
    return Entry(GROUP_MESSAGE, id, 0, number, Message(id, 0, (), body))


def asked(id: int) -> Entry:
    return Entry(REQUEST, id, message=Message(id, CLIENT, (1,)))


def applied(process: ReplicatedGroup, *entries: Entry) -> list[int]:
    """What a member of group 1 delivers when its log has these."""
    delivered = []
    for instance, entry in enumerate(entries):
        process._apply([(instance, (entry,))])
        effects, process._outbox = process._outbox, []
        delivered += [effect.message.id for effect in effects if isinstance(effect, Deliver)]
    return delivered


SCRIPTS: dict[str, tuple[tuple[Entry, ...], list[int], type[ReplicatedGroup]]] = {
    "doubled": ((carried(0, 1), carried(0, 1), carried(1, 2)), [1, 2], TakenTwice),
    "overtaken": ((carried(1, 2), carried(0, 1), carried(1, 2)), [1, 2], Overtaken),
    "asked twice": ((asked(1), asked(1), asked(2)), [1, 2], AskedTwice),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_log_takes_everything_once_and_in_order(script: str) -> None:
    entries, expected, mutant = SCRIPTS[script]
    assert applied(member(3), *entries) == expected
    assert applied(member(3, mutant), *entries) != expected


def sends(effects: list[Effect], kind: type) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.body, kind)]


def decided(process: ReplicatedGroup, *entries: Entry) -> list[Effect]:
    process._apply([(process._paxos.log.decided_until, entries)])
    return process.step([], 0)


def test_only_the_leader_speaks_and_everybody_remembers_until_it_is_taken() -> None:
    asked_of_both = Entry(REQUEST, 7, message=Message(7, CLIENT, (0, 1)))
    leader, follower = member(0), member(1)
    said = sends(decided(leader, asked_of_both), GroupMessage)
    assert [send.targets for send in said] == [TOPOLOGY.members(1)]
    assert sends(decided(follower, asked_of_both), GroupMessage) == []
    for process in (leader, follower):
        assert list(process._outgoing[1]) == [0]
        process.step([Receive(3, GroupMessageAck(1, 1))], 0)
        assert 1 not in process._outgoing, "groups that owe nothing cost nothing"


def test_a_member_that_is_behind_does_not_keep_what_is_already_taken() -> None:
    follower = member(1)
    follower.step([Receive(3, GroupMessageAck(1, 1))], 0)
    decided(follower, Entry(REQUEST, 7, message=Message(7, CLIENT, (0, 1))))
    assert not follower._outgoing.get(1)
    assert follower._sent[1] == 1


def test_what_is_said_again_after_it_was_taken_is_answered_at_once() -> None:
    process = member(3)
    applied(process, carried(0, 1))
    process.step([], 0)
    again = process.step([Receive(0, GroupMessage(0, 0, 1, b""))], 0)
    assert [send.body for send in sends(again, GroupMessageAck)] == [GroupMessageAck(1, 1)]


def test_requests_for_other_groups_are_not_ordered_here() -> None:
    process = member(3)
    process.step([Receive(CLIENT, Request(Message(7, CLIENT, (0, 1))))], 0)
    assert not process._waiting, "the lowest destination orders it"


def planned(spec: Any, faults: str, groups: int = 3, **options: Any) -> Any:
    values = {
        "protocol": spec.name,
        "options": options,
        "topology": {"groups": groups, "replicas": 3, "clients": 3},
        "workload": {"messages": 10, "outstanding": 3, "destinations": [1, 2]},
        "faults": {"profile": faults},
    }
    return prepare(plan_of(values), spec)


def test_a_leader_that_takes_its_words_with_it_is_caught() -> None:
    prepared = planned(lifted(NotSentAgain), "leaders+links+recovery", groups=2)
    assert any(fuzz_one(prepared, seed).status == "stuck" for seed in range(4))


@pytest.mark.parametrize("name", LIFTED)
def test_crashes_recoveries_and_wrong_leaders_with_a_short_log(name: str) -> None:
    notes: Counter[str] = Counter()
    options = {"flush_every": 3} if name == "flexcast" else {}
    prepared = planned(LIFTED[name], "all", keep=4, **options)
    for seed in range(12):
        outcome = fuzz_one(prepared, seed)
        assert outcome.status == "holds", f"amcast fuzz --protocol {name} --seeds {seed}: {outcome.story}"
        notes.update(outcome.notes)
    assert {"resent", "led", "admitted"} <= set(notes), notes


@pytest.mark.parametrize("name", LIFTED)
@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_groups_of_any_size_deliver_in_the_delays_that_are_claimed(name: str, replicas: int) -> None:
    row = delays(LIFTED[name], 3, replicas)
    assert row.holds, row
    assert row.claimed


@pytest.mark.parametrize("name", ["skeen", "ring"])
def test_a_genuine_protocol_stays_genuine(name: str) -> None:
    prepared = planned(LIFTED[name], "none", groups=4)
    recorder = Recorder()
    Simulation(prepared.setup(), recorder).run()
    report = judge(Run.from_recorder(recorder, prepared.meta(name).with_claims(complete=True)))
    assert report.properties["P6'"].verdict == "holds", report.properties["P6'"].story


def test_single_processes_run_the_bare_protocol() -> None:
    single = Topology.grid(2, 1, 1)
    assert type(ring.SPEC.process(0, single, RingConfig())) is Ring
    assert type(ring.SPEC.process(0, TOPOLOGY, RingConfig())) is ReplicatedGroup
    assert ring.SPEC.for_topology(single).claims.tolerates(single, frozenset())
    assert "crash" not in ring.SPEC.for_topology(single).claims.faults
    assert "crash" in ring.SPEC.for_topology(TOPOLOGY).claims.faults


@pytest.mark.parametrize("name", LIFTED)
def test_nothing_is_kept_once_everything_is_taken(name: str) -> None:
    values = {
        "protocol": name,
        "options": {"keep": 8},
        "topology": {"groups": 3, "replicas": 3, "clients": 3},
        "workload": {"messages": 150, "outstanding": 4, "destinations": [1, 3]},
    }
    fuzzer = Fuzzer(prepare(plan_of(values), LIFTED[name]).case(), 1, Recorder())
    assert fuzzer.run(lambda world, recorder, complete: None).status == "holds"
    for _ in range(20_000):
        if not any(fuzzer.open(pair) for pair in fuzzer.links) or not fuzzer._one(fair=True):
            break
    for process in TOPOLOGY_OF_NINE.servers:
        node = fuzzer.world.processes[process]
        assert isinstance(node, Node)
        lifted_one = node.protocol
        assert isinstance(lifted_one, ReplicatedGroup)
        assert not any(lifted_one._outgoing.values())
        assert not any(lifted_one._arrived.values())
        assert not lifted_one._waiting
        assert len(lifted_one._paxos.log._decided) <= 4 * 8

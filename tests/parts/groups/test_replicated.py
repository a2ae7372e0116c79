"""Replicated groups: channels between groups neither lose, nor duplicate, nor reorder bodies, whoever leads."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from amcast.check.judge import judge
from amcast.kernel.effects import Deliver, Effect, Send
from amcast.kernel.events import Receive, Started, Timer
from amcast.kernel.message import Message, Request
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.lab.delays import measure_delays
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.parts.consensus.messages import Entry
from amcast.parts.groups.replicated import GROUP_MESSAGE, REQUEST, RETRY, ReplicatedGroup
from amcast.parts.groups.replicated_messages import GroupMessage, GroupMessageAck
from amcast.parts.node.node import Node
from amcast.protocols.flexcast import process as flexcast
from amcast.protocols.ring import process as ring
from amcast.protocols.ring.messages import End, Pass, RingConfig, RingState
from amcast.protocols.ring.process import Ring
from amcast.protocols.skeen import process as skeen
from amcast.protocols.skeen.messages import Propose, SkeenConfig, SkeenState
from amcast.protocols.skeen.process import Skeen
from amcast.protocols.treecast import process as treecast
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.fuzz import Fuzzer
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.mutants.protocols.replicated import DuplicateBody, DuplicateRequest, NoResend, ReorderedBody, make_ring_spec

TOPOLOGY = Topology.grid(2, 3, 1)
TOPOLOGY_OF_NINE = Topology.grid(3, 3)
CLIENT = TOPOLOGY.clients[0]
SPECS = {spec.SPEC.name: spec.SPEC for spec in (skeen, flexcast, treecast, ring)}


class TrustingSkeen(Skeen):
    """Skeen that takes every request for a new one."""

    def on_request(self, message: Message) -> None:
        self._requested = type(self._requested)()
        super().on_request(message)


def member(me: int, kind: type[ReplicatedGroup] = ReplicatedGroup) -> ReplicatedGroup:
    if kind is DuplicateRequest:  # the protocols remove duplicates themselves
        made = kind(me, TOPOLOGY, SkeenConfig(), TrustingSkeen, (Propose,), SkeenState)
    else:
        made = kind(me, TOPOLOGY, RingConfig(), Ring, (Pass, End), RingState)
    made.step([Started()], 0)
    return made


def body_entry(number: int, id: int) -> Entry:
    """A log entry of group 1: body `number` of group 0, which passes message `id` on."""
    body = msgspec.msgpack.encode(Pass(Message(id, CLIENT, (0, 1))))
    return Entry(GROUP_MESSAGE, id, 0, number, Message(id, 0, (), body))


def request_entry(id: int) -> Entry:
    return Entry(REQUEST, id, message=Message(id, CLIENT, (1,)))


def apply_entries(process: ReplicatedGroup, *entries: Entry) -> list[int]:
    """The messages that a member of group 1 delivers when its log has these entries."""
    delivered = []
    for instance, entry in enumerate(entries):
        process._apply([(instance, (entry,))])
        effects, process._outbox = process._outbox, []
        delivered += [effect.message.id for effect in effects if isinstance(effect, Deliver)]
    return delivered


SCRIPTS: dict[str, tuple[tuple[Entry, ...], list[int], type[ReplicatedGroup]]] = {
    "duplicate body": ((body_entry(0, 1), body_entry(0, 1), body_entry(1, 2)), [1, 2], DuplicateBody),
    "reordered body": ((body_entry(1, 2), body_entry(0, 1), body_entry(1, 2)), [1, 2], ReorderedBody),
    "duplicate request": ((request_entry(1), request_entry(1), request_entry(2)), [1, 2], DuplicateRequest),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_log_accepts_every_body_once_and_in_order(script: str) -> None:
    entries, expected, mutant = SCRIPTS[script]
    assert apply_entries(member(3), *entries) == expected
    assert apply_entries(member(3, mutant), *entries) != expected


def sends(effects: list[Effect], kind: type) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.body, kind)]


def decide(process: ReplicatedGroup, *entries: Entry) -> list[Effect]:
    process._apply([(process._paxos.log.decided_until, entries)])
    return process.step([], 0)


def test_only_the_leader_sends_and_every_member_retains_until_acknowledged() -> None:
    request = Entry(REQUEST, 7, message=Message(7, CLIENT, (0, 1)))
    leader, follower = member(0), member(1)
    sent = sends(decide(leader, request), GroupMessage)
    assert [send.targets for send in sent] == [TOPOLOGY.members(1)]
    assert sends(decide(follower, request), GroupMessage) == []
    for process in (leader, follower):
        assert list(process._unacknowledged[1]) == [0]
        process.step([Receive(3, GroupMessageAck(1, 1))], 0)
        assert 1 not in process._unacknowledged, "idle channels are not stored"


def test_body_goes_to_the_first_member_alone_until_it_is_overdue() -> None:
    leader = ReplicatedGroup(0, TOPOLOGY, RingConfig(transfer="leader"), Ring, (Pass, End), RingState)
    leader.step([Started()], 0)
    first = sends(decide(leader, Entry(REQUEST, 7, message=Message(7, CLIENT, (0, 1)))), GroupMessage)
    assert [send.targets for send in first] == [TOPOLOGY.members(1)[:1]]
    again = sends(leader.step([Timer(RETRY)], 1), GroupMessage)
    assert [send.targets for send in again] == [TOPOLOGY.members(1)]
    leader.step([Receive(3, GroupMessageAck(1, 1))], 2)
    assert sends(leader.step([Timer(RETRY)], 3), GroupMessage) == []


def test_lagging_member_does_not_retain_acknowledged_bodies() -> None:
    follower = member(1)
    follower.step([Receive(3, GroupMessageAck(1, 1))], 0)
    decide(follower, Entry(REQUEST, 7, message=Message(7, CLIENT, (0, 1))))
    assert not follower._unacknowledged.get(1)
    assert follower._sent[1] == 1


def test_repeated_body_is_acknowledged_again() -> None:
    process = member(3)
    apply_entries(process, body_entry(0, 1))
    process.step([], 0)
    effects = process.step([Receive(0, GroupMessage(0, 0, 1, b""))], 0)
    assert [send.body for send in sends(effects, GroupMessageAck)] == [GroupMessageAck(1, 1)]


def test_only_contacted_groups_order_a_request() -> None:
    process = member(3)
    process.step([Receive(CLIENT, Request(Message(7, CLIENT, (0, 1))))], 0)
    assert not process._requests, "the first destination orders it"


def make_plan(spec: Any, faults: str, groups: int = 3, **options: Any) -> Any:
    values = {
        "protocol": spec.name,
        "options": options,
        "topology": {"groups": groups, "replicas": 3, "clients": 3},
        "workload": {"messages": 10, "outstanding": 3, "destinations": [1, 2]},
        "faults": {"profile": faults},
    }
    return prepare_run(parse_plan(values), spec)


def test_fuzzer_finds_missing_resend() -> None:
    prepared = make_plan(make_ring_spec(NoResend), "leaders+links+recovery", groups=2)
    assert any(fuzz_seed(prepared, seed).status == "stuck" for seed in range(18, 26))


@pytest.mark.parametrize("name", SPECS)
def test_protocols_survive_all_faults_with_a_short_log(name: str) -> None:
    notes: Counter[str] = Counter()
    options = {"flush_every": 3} if name == "flexcast" else {}
    prepared = make_plan(SPECS[name], "all", keep=4, **options)
    for seed in range(12):
        outcome = fuzz_seed(prepared, seed)
        assert outcome.status == "holds", f"amcast fuzz --protocol {name} --seeds {seed}: {outcome.story}"
        notes.update(outcome.notes)
    assert {"resent", "led", "admitted"} <= set(notes), notes


@pytest.mark.parametrize("name", ["treecast", "flexcast"])
def test_rings_and_single_receivers_survive_all_faults(name: str) -> None:
    prepared = make_plan(SPECS[name], "all", keep=4, consensus="ring", transfer="leader")
    for seed in range(8):
        outcome = fuzz_seed(prepared, seed)
        assert outcome.status == "holds", f"seed {seed}: {outcome.story}"


def test_ring_sends_fewer_packets_in_more_delays_and_claims_none() -> None:
    plain, ringed = (
        measure_delays(SPECS["treecast"], 2, 5, {"consensus": kind, "transfer": "leader"}) for kind in ("paxos", "ring")
    )
    assert ringed.packets < plain.packets
    assert (ringed.delays_max or 0) > (plain.delays_max or 0)
    assert plain.claimed
    assert plain.holds
    assert not ringed.claimed


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_groups_of_any_size_deliver_within_the_claimed_delays(name: str, replicas: int) -> None:
    row = measure_delays(SPECS[name], 3, replicas)
    assert row.holds, row
    assert row.claimed


@pytest.mark.parametrize("name", ["skeen", "ring"])
def test_replicated_protocol_stays_genuine(name: str) -> None:
    prepared = make_plan(SPECS[name], "none", groups=4)
    recorder = Recorder()
    Simulation(prepared.make_setup(), recorder).run()
    report = judge(Run.from_recorder(recorder, prepared.make_meta(name).with_claims(complete=True)))
    assert report.properties["P6'"].verdict == "holds", report.properties["P6'"].story


def test_groups_of_one_run_the_bare_protocol() -> None:
    single = Topology.grid(2, 1, 1)
    assert type(ring.SPEC.process(0, single, RingConfig())) is Ring
    assert type(ring.SPEC.process(0, TOPOLOGY, RingConfig())) is ReplicatedGroup
    assert ring.SPEC.for_topology(single).claims.tolerates(single, frozenset())
    assert "crash" not in ring.SPEC.for_topology(single).claims.faults
    assert "crash" in ring.SPEC.for_topology(TOPOLOGY).claims.faults


@pytest.mark.parametrize("name", SPECS)
def test_no_body_or_request_is_retained_in_the_end(name: str) -> None:
    values = {
        "protocol": name,
        "options": {"keep": 8},
        "topology": {"groups": 3, "replicas": 3, "clients": 3},
        "workload": {"messages": 150, "outstanding": 4, "destinations": [1, 3]},
    }
    fuzzer = Fuzzer(prepare_run(parse_plan(values), SPECS[name]).make_case(), 1, Recorder())
    assert fuzzer.run(lambda world, recorder, complete: None).status == "holds"
    groups = [_group_of(fuzzer.world.processes[process]) for process in TOPOLOGY_OF_NINE.servers]
    for _ in range(20_000):
        if not any(_retains(group) for group in groups) or not fuzzer._step(fair=True):
            break
    for group in groups:
        assert not any(group._unacknowledged.values())
        assert not any(group._incoming.values())
        assert not group._requests
        assert len(group._paxos.log._decided) <= 4 * 8


def _group_of(process: Process) -> ReplicatedGroup:
    assert isinstance(process, Node)
    assert isinstance(process.protocol, ReplicatedGroup)
    return process.protocol


def _retains(group: ReplicatedGroup) -> bool:
    return any(group._unacknowledged.values()) or any(group._incoming.values()) or bool(group._requests)

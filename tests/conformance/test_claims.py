"""The numbers that a protocol claims: delays, packets, genuineness, ranks; and what it says on the wire."""

import msgspec

from amcast.check.judge import judge
from amcast.kernel.topology import Topology
from amcast.lab.delays import count_packets_unequal, measure_delays
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.schedulers.fuzz import Fuzzer
from amcast.simulation.simulate import Simulation
from amcast.simulation.world.world import Hello
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.conformance.plans import planned, sizes_of


def test_delays_and_packets_are_exactly_as_claimed(name: str) -> None:
    spec = CATALOGUE[name]
    for destinations in (1, 2, 3, 4):
        for replicas in (1,) if spec.claims.single_replica else (1, 3, 5):
            row = measure_delays(spec, destinations, replicas)
            assert row.holds, row
            assert row.delays_max is not None, row


def test_packets_are_as_claimed_under_unequal_delays(name: str) -> None:
    """Where some processes are fifty times as far from each other as others, bodies overtake each other."""
    spec = CATALOGUE[name]
    for destinations, replicas in ((1, 1), (2, 1), (4, 1), (1, 3), (2, 3), (4, 3)):
        if replicas > 1 and spec.claims.single_replica:
            continue
        claimed = spec.for_topology(Topology.grid(destinations, replicas)).claims.packets(destinations, replicas)
        counts = {seed: count_packets_unequal(spec, destinations, replicas, seed) for seed in range(6)}
        assert None not in counts.values(), f"{name}: not delivered everywhere: {counts}"
        if claimed is not None:
            assert set(counts.values()) == {claimed}, f"{name}, {destinations} x {replicas}: {counts}"


def test_genuineness_is_as_claimed_and_ranks_agree(name: str) -> None:
    prepared = planned(name, topology={"groups": 5})
    recorder = Recorder()
    Simulation(prepared.make_setup(), recorder).run()
    report = judge(Run.from_recorder(recorder, prepared.make_meta("claims").with_claims(complete=True)))
    level = prepared.spec.claims.genuine
    if level == "strict":
        assert report.properties["P6'"].verdict == "holds", report.properties["P6'"].story
    if level in ("strict", "run"):
        assert report.properties["P6"].verdict == "holds", report.properties["P6"].story
    if prepared.spec.claims.ranked:
        ranks: dict[object, object] = {}
        for row in recorder.deliveries:
            assert row[5] is not None, "a ranked protocol delivered without a rank"
            assert ranks.setdefault(row[3], (row[5], row[6])) == (row[5], row[6]), "destinations disagree on a rank"


def test_snapshots_are_canonical_and_restore_the_process(name: str) -> None:
    """At many moments of a run: rebuild each process from its snapshot, and let the rebuilt ones finish the run."""
    prepared = planned(name, workload={"messages": 10})
    encode = msgspec.msgpack.Encoder().encode
    for every in (7, 31):
        fuzzer = Fuzzer(prepared.make_case(), every, Recorder())
        world = fuzzer.world
        world.start()
        while not fuzzer._is_finished() and fuzzer._step(fair=True):
            if world.steps % every:
                continue
            for process in world.topology.processes:
                before = world.processes[process].snapshot()
                fresh = prepared.make(process)
                fresh.restore(before)
                fresh.now = world.processes[process].now
                assert encode(fresh.snapshot()) == encode(before), f"{name}: process {process} changed in its snapshot"
                world.processes[process] = fresh
        assert not world.list_due_deliveries(), (
            f"{name}: restored processes never delivered {world.list_due_deliveries()[:3]}"
        )


def test_every_body_survives_the_codec(name: str) -> None:
    """What travels in a run, decoded from its encoding, is equal to what was sent."""
    prepared = planned(name, workload={"messages": 12}, faults={"profile": "all"})
    wire = prepared.wire_bodies()
    decoder = msgspec.msgpack.Decoder(__import__("typing").Union[wire])
    for seed in range(5):
        fuzzer = Fuzzer(prepared.make_case(), seed, Recorder())
        arriving = fuzzer.offer_packet

        def check(number, envelope, arriving=arriving) -> None:
            body = envelope[2]
            if type(body) is not Hello:
                assert decoder.decode(msgspec.msgpack.encode(body)) == body
            arriving(number, envelope)

        fuzzer.offer_packet = check  # type: ignore[method-assign]
        fuzzer.run(lambda world, recorder, complete: None)


def test_unsupported_group_sizes_are_rejected(name: str) -> None:
    assert sizes_of(CATALOGUE[name])

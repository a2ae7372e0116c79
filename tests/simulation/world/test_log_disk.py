"""Simulated processes whose records live in the real log: what a start finds after each fault of the disk."""

import dataclasses
from itertools import product
from pathlib import Path
from random import Random

import pytest

from amcast.kernel.effects import Persist
from amcast.kernel.message import Record
from amcast.lab.failure_scripts import make_script, prepare_script
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.disk_faults import draw_disk_fault
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.fuzz import Fuzzer, FuzzOutcome
from amcast.simulation.schedulers.replay import replay
from amcast.simulation.schedulers.script import read_script
from amcast.simulation.world.actions import Crash, DiskFault, Recover
from amcast.simulation.world.log_disk import LogDisk
from amcast.storage import files, segments
from amcast.storage.files import File
from amcast.trace.recorder import Recorder


class Number(Record, frozen=True):
    """A record of a test."""

    value: int
    padding: bytes = b""


def write(disk: LogDisk, *values: int, size: int = 700) -> None:
    """Makes records durable as one group."""
    disk.waiting.extend(Persist(Number(value, bytes(size))) for value in values)
    while disk.waiting:
        effect = disk.waiting[0]
        assert type(effect) is Persist
        disk.store(effect, len(disk.waiting))
        disk.waiting.popleft()


def start(disk: LogDisk) -> tuple[list[int], str | None]:
    started, fault = disk.start(0)
    return [record.value for record in started.records if type(record) is Number], fault


def test_start_recovers_acknowledged_records_and_all_or_none_of_those_being_written() -> None:
    found = set()
    for torn in range(1, 200):
        disk = LogDisk(0, 2048)
        assert start(disk) == ([], None)
        write(disk, 1, 2)
        disk.waiting.extend([Persist(Number(3, bytes(600))), Persist(Number(4, bytes(600)))])
        disk.crash(2, torn)
        values, fault = start(disk)
        assert fault is None, f"torn = {torn}"
        found.add(tuple(values))
    assert found == {(1, 2), (1, 2, 3, 4)}


@pytest.mark.parametrize("kind", ["rot", "lost", "old"])
def test_damaged_folder_starts_without_records_and_is_no_violation(kind: str) -> None:
    emptied = 0
    for draw in range(60):
        disk = LogDisk(0, 4096)
        start(disk)
        write(disk, 1)
        disk.damage("copy", 0)
        if kind != "old":
            assert disk.damage(kind, draw)
        write(disk, 2)
        disk.crash(0)
        if kind == "old":
            assert disk.damage(kind, draw)
        values, fault = start(disk)
        assert fault is None
        assert values in ([], [1, 2]), draw
        emptied += not values
        write(disk, 3)
        disk.crash(0)
        assert start(disk) == ([*values, 3], None), "a new log is as good as the first"
    assert emptied > 20


def test_disk_that_loses_writes_may_damage_the_folder_that_replaces_another() -> None:
    for draw, cut in product(range(3), range(40)):
        disk = LogDisk(0, 4096, has_identity=True)
        start(disk)
        disk.damage("lost", draw)
        disk.damage("cut", cut)
        disk.crash(0)
        disk.replace(1)
        assert start(disk)[1] is None, (draw, cut)


def test_operator_replaces_a_folder_in_spite_of_a_sync_that_fails() -> None:
    disk = LogDisk(0, 4096, has_identity=True)
    start(disk)
    disk.crash(0)
    disk.files.failing_syncs = 1
    disk.replace(1)
    assert start(disk) == ([], None)


def test_unchecked_short_write_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LogDisk(0, 4096)
    start(disk)
    monkeypatch.setattr("amcast.storage.log.write_all", lambda file, data, at: file.write_at(data, at))
    disk.damage("short", 0)
    write(disk, 1)
    disk.crash(0)
    assert start(disk)[1] is not None


def test_rot_that_passes_for_a_torn_tail_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_is_rotten", lambda sector, place, chain: False)
    faults = []
    for draw in range(30):
        disk = LogDisk(0, 4096)
        start(disk)
        write(disk, 1)
        disk.crash(0)
        disk.damage("rot", draw)
        faults.append(start(disk)[1])
    assert any(fault is not None and "differ from the 1 that were acknowledged" in fault for fault in faults)


def test_doubt_about_a_torn_log_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_is_rotten", lambda sector, place, chain: True)
    faults = []
    for torn in range(1, 40):
        disk = LogDisk(0, 4096)
        start(disk)
        disk.waiting.append(Persist(Number(1, bytes(2000))))
        disk.crash(1, torn)
        faults.append(start(disk)[1])
    assert any(fault is not None and "doubts a log that nothing has damaged" in fault for fault in faults)


PLAN = {"protocol": "primcast", "topology": {"groups": 2, "replicas": 3, "clients": 2}, "faults": {"profile": "all"}}


def fuzz(seed: int) -> FuzzOutcome:
    case = prepare_run(parse_plan({**PLAN, "workload": {"messages": 8}}, "plan")).make_case()
    return Fuzzer(case, seed, Recorder()).run(lambda world, recorder, complete: None)


def test_seeds_draw_real_storage_and_faults_of_disks() -> None:
    outcomes = [fuzz(seed) for seed in range(90)]
    assert {outcome.storage for outcome in outcomes} == {0, 2048, 4096, 16384}
    assert any(isinstance(action, DiskFault) for outcome in outcomes for action in outcome.script)
    assert any(isinstance(action, Crash) and action.torn for outcome in outcomes for action in outcome.script)
    assert {outcome.status for outcome in outcomes} == {"holds"}


@pytest.mark.parametrize("may_lose", [True, False])
def test_faults_of_every_kind_are_drawn_and_harmful_ones_only_where_records_may_be_lost(may_lose: bool) -> None:
    case = prepare_run(parse_plan({**PLAN, "workload": {"messages": 8}}, "plan")).make_case()
    world = next(fuzzer.world for seed in range(20) if (fuzzer := Fuzzer(case, seed, Recorder())).storage)
    random = Random(0)
    drawn = [draw_disk_fault(world, 0, random, lambda process: may_lose) for _ in range(300)]
    kinds = {action.kind for actions in drawn for action in actions if isinstance(action, DiskFault)}
    harmful = {"lost", "rot"}
    assert kinds == {"short", "fail", "cut", "full", "space", "copy"} | (harmful if may_lose else set())


def test_script_of_a_run_on_real_storage_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_some(file: File, data: bytes, at: int) -> None:
        file.write_at(data, at)

    monkeypatch.setattr(files, "write_all", write_some)
    monkeypatch.setattr("amcast.storage.log.write_all", write_some)
    monkeypatch.setattr("amcast.storage.atomic_files.write_all", write_some)
    outcome = next(outcome for outcome in map(fuzz, range(200)) if outcome.status == "violated")
    assert outcome.storage
    prepared = prepare_run(parse_plan({**PLAN, "workload": {"messages": 8}}, "plan"))
    make_script(prepared, outcome).write(tmp_path / "script.jsonl")
    script = read_script(tmp_path / "script.jsonl")
    again = prepare_script(script, "script")
    result = replay(script, again.make, again.spec.claims, lambda *_: None, node_bodies=again.node_bodies)
    assert (result.status, result.story) == (outcome.status, outcome.story)


@pytest.mark.parametrize("replicas", [1, 3])
def test_power_cut_of_all_replicas_needs_no_operator(replicas: int) -> None:
    plan = {**PLAN, "topology": {"groups": 2, "replicas": replicas, "clients": 2}, "workload": {"messages": 8}}
    prepared = prepare_run(parse_plan(plan, "plan"))
    servers = prepared.whole_topology.servers
    for seed in range(12):
        case = dataclasses.replace(prepared.make_case(), kinds=frozenset())
        outcome = Fuzzer(case, seed, Recorder()).run(lambda world, recorder, complete: None)
        random = Random(seed)
        half = list(outcome.script[: random.randrange(len(outcome.script))])
        half += [Crash(process, 5, random.randint(1, 1 << 20)) for process in servers]
        half += [Recover(process) for process in servers]
        script = dataclasses.replace(make_script(prepared, outcome), actions=half, storage=4096)
        result = replay(script, prepared.make, case.claims, lambda world, recorder, complete: None, strict=False)
        assert result.status == "holds", f"seed {seed}: {result.story}"


def test_node_on_a_rotten_log_states_its_doubt_to_its_group() -> None:
    prepared = prepare_run(parse_plan({**PLAN, "nodes": True, "workload": {"messages": 8}}, "plan"))
    case = prepared.make_case()
    world = next(fuzzer.world for seed in range(20) if (fuzzer := Fuzzer(case, seed, Recorder())).storage)
    world.start()
    doubts = []
    for draw in range(10):
        world.crash(0)
        world.disks[0].damage("rot", draw)
        world.recover(0)
        doubts.append((world.disks[0].doubt, world.folders[0].doubt))
        world.folders[0].doubt = ""
    assert any(doubt for doubt, _ in doubts)
    assert all(stated == doubt for doubt, stated in doubts)
    assert not world.violations

"""A failing run becomes a script file, replays from it, shrinks to a dozen steps, and reads like a story."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.events import Event, Started, Submit, Timer
from amcast.kernel.spec import Claims
from amcast.kernel.topology import Topology
from amcast.protocols.skeen.process import SPEC
from amcast.simulation.schedulers.explore import explore
from amcast.simulation.schedulers.fuzz import FuzzCase, Fuzzer, FuzzOutcome
from amcast.simulation.schedulers.replay import narrate, replay
from amcast.simulation.schedulers.script import Script, read_script
from amcast.simulation.schedulers.shrink import shrink
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    Block,
    Crash,
    Fire,
    Heal,
    Multicast,
    Pause,
    Recover,
    Resume,
    Sync,
)
from amcast.trace.recorder import Recorder
from tests.mutants.protocols.skeen import SKEEN_MUTANTS
from tests.simulation.puppets import Fact, Number, Puppet
from tests.simulation.small_worlds import case_of, explored_script, fuzzed, judge, maker, scope_of, script_of

ALONE = SPEC.unreplicated or SPEC.claims
FAULTS = frozenset({"pause", "slow", "partition", "loss", "skew"})


def failing(case: FuzzCase) -> FuzzOutcome:
    """The first failure of 200 seeds."""
    return next(outcome for seed in range(200) if (outcome := fuzzed(case, seed)).status != "holds")


@pytest.mark.parametrize("faults", [frozenset(), FAULTS], ids=["calm", "faulty"])
@pytest.mark.parametrize("name", SKEEN_MUTANTS)
def test_planted_bug_is_fuzzed_and_shrinks_to_a_dozen_steps(name: str, faults: frozenset[str], tmp_path: Path) -> None:
    spec = SKEEN_MUTANTS[name]
    case = case_of(spec, 3, faults)
    failure = failing(case)
    expected = "stuck" if name == "skeen-early-proposals-dropped" else "violated"
    assert failure.status == expected, failure.story
    script_of(spec, case, failure).write(tmp_path / "long.script")
    script = read_script(tmp_path / "long.script")
    assert replay(script, case.make, spec.claims, judge).status == expected

    small = shrink(script, case.make, spec.claims, judge)
    assert small.limit is None
    assert len(small.script.actions) <= 12, f"seed {failure.seed}"
    small.script.write(tmp_path / "small.script")
    again = replay(read_script(tmp_path / "small.script"), case.make, spec.claims, judge)
    assert (again.status, again.story) == (expected, small.script.story)
    assert replay(small.script, maker(SPEC, case.topology), spec.claims, judge, strict=False).status == "holds"


def test_shrunk_script_is_as_short_as_the_shortest() -> None:
    spec = SKEEN_MUTANTS["skeen-local-timestamp"]
    scope = scope_of(spec, 2, ((2, (0, 1)), (3, (0, 1))), links="reordering", reduced=False)
    found = explore(scope)
    assert found.counterexample is not None
    small = shrink(explored_script(spec, scope, found.counterexample.script), scope.make, spec.claims, scope.judge)
    assert len(small.script.actions) == len(found.counterexample.script)


def test_no_step_of_a_shrunk_script_is_superfluous() -> None:
    spec = SKEEN_MUTANTS["skeen-not-blocked"]
    case = case_of(spec)
    small = shrink(script_of(spec, case, failing(case)), case.make, spec.claims, judge).script
    for place in range(len(small.actions)):
        fewer = replace(small, actions=[*small.actions[:place], *small.actions[place + 1 :]])
        again = replay(fewer, case.make, spec.claims, judge, strict=False)
        assert again.status != "violated" or again.ending, f"without step {place + 1}"


def test_script_that_does_not_fail_is_not_shrunk() -> None:
    case = case_of(SPEC)
    with pytest.raises(UsageError, match="does not fail"):
        shrink(script_of(SPEC, case, fuzzed(case, 0)), case.make, ALONE, judge)


def test_shrinking_reports_its_limit() -> None:
    spec = SKEEN_MUTANTS["skeen-last-proposal-ignored"]
    case = case_of(spec)
    progress: list[tuple[int, int]] = []
    script = script_of(spec, case, failing(case))
    small = shrink(script, case.make, spec.claims, judge, lambda *both: progress.append(both), max_runs=20)
    assert small.limit is not None
    assert "20 runs" in small.limit
    assert progress
    assert replay(small.script, case.make, spec.claims, judge).status == "violated"


def test_narration_of_a_script() -> None:
    spec = SKEEN_MUTANTS["skeen-last-proposal-ignored"]
    case = case_of(spec)
    small = shrink(script_of(spec, case, failing(case)), case.make, spec.claims, judge).script
    lines = list(narrate(small, case.make, spec.claims, judge))
    first = small.actions[0]
    assert isinstance(first, Multicast)
    groups = ", ".join(map(str, first.destinations))
    assert lines[0] == (
        f"1. process {first.sender} multicasts message {first.message} to groups {groups}"
        f" -> sends Request(message={first.message}) to {groups}"
    )
    assert any("receives Request(" in line and "-> sends Propose(message=" in line for line in lines)
    assert "DELIVERS message" in lines[-2]
    assert lines[-1].startswith("violated: 2 messages precede each other in a cycle: process ")


@pytest.mark.parametrize("links", ["fifo", "reordering"])
@pytest.mark.parametrize("faults", [frozenset(), FAULTS], ids=["calm", "faulty"])
def test_every_run_replays_from_its_script(links: str, faults: frozenset[str]) -> None:
    case = case_of(SPEC, 3, faults, links=links)
    for seed in range(40):
        outcome = fuzzed(case, seed)
        assert outcome.status == "holds", f"seed {seed}: {outcome.story}"
        again = replay(script_of(SPEC, case, outcome), case.make, ALONE, judge)
        assert (again.status, again.notes) == ("holds", outcome.notes), f"seed {seed}"


def test_equal_seeds_give_equal_runs_and_others_differ() -> None:
    case = case_of(SPEC, 3, FAULTS)

    def run(seed: int) -> tuple[list[AnyAction], list[object]]:
        recorder = Recorder()
        outcome = Fuzzer(case, seed, recorder).run(judge)
        return outcome.script, [recorder.multicasts, recorder.deliveries, recorder.packets]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_seeds_draw_bursts_and_single_steps() -> None:
    case = case_of(SPEC)
    sizes = [{len(a.packets) for a in fuzzed(case, seed).script if isinstance(a, Arrive)} for seed in range(20)]
    assert any(max(found) > 1 for found in sizes)
    assert any(found == {1} for found in sizes)


# Scripts with faults in them


def two(*actions: AnyAction) -> Script:
    return Script("puppets", Topology.grid(2, 1), actions)


def test_strict_replay_names_the_line_that_cannot_happen(tmp_path: Path) -> None:
    multicast = Multicast(2, 2_000_000_000, (0, 1))
    script = Script("skeen", Topology.grid(2, 1, 1), [multicast, Arrive(1, ((0, 0),)), Arrive(1, ((2, 0),))])
    (tmp_path / "a.script").write_text(script.encode().replace("\n", "\n\n"))
    again = read_script(tmp_path / "a.script")
    make = maker(SPEC, script.topology)
    with pytest.raises(
        UsageError, match="line 5 of the script: cannot happen there: process 1 receives packets in flight"
    ):
        replay(again, make, ALONE, judge)
    found = replay(again, make, ALONE, judge, strict=False)
    assert (found.status, found.skipped, found.actions) == ("holds", 1, [script.actions[0], script.actions[2]])
    assert found.ending, "what was owed came in a fair ending"


def test_script_is_written_to_a_device_and_does_not_replace_it(tmp_path: Path) -> None:
    script = Script("skeen", Topology.grid(2, 1, 1), [Multicast(2, 2_000_000_000, (0, 1))])
    device = tmp_path / "device"
    os.mkfifo(device)
    reader = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    script.write(device)
    assert device.is_fifo()
    assert os.read(reader, 1 << 16).decode() == script.encode()
    os.close(reader)


def test_stuck_script_is_narrated_with_its_fair_ending() -> None:
    def lazy(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.persist(Fact(3))
            puppet.send(1, Number(4))
        elif isinstance(event, Started):
            puppet.set_timer("tick", (1, 1))

    topology = Topology.grid(2, 1)

    def make(me: int) -> Puppet:
        return Puppet(me, topology, lazy, {})

    script = two(Pause(1), Block(((0, 1),)), Multicast(0, 0, (0,)), Sync(0), Crash(1), Recover(1))
    lines = list(narrate(script, make, Claims("no"), judge))
    assert lines[2] == (
        "3. process 0 multicasts message 0 to group 0"
        " -> persists Fact(value=3); sends Number(value=4, pad=0 bytes) to 1 (once that is durable)"
    )
    assert "links are blocked: 0 to 1" in lines[1]
    assert "end of the script; a fair ending follows: faults heal, and every pending action happens:" in lines
    assert any("all links are unblocked" in line for line in lines)
    assert any("timer 'tick' of process 0 fires" in line for line in lines)
    assert lines[-1].startswith("stuck: process 0 never delivers message 0")
    small = shrink(script, make, Claims("no"), judge).script
    assert list(small.actions) == [Multicast(0, 0, (0,))]
    assert small.status == "stuck"


def test_shrinking_keeps_the_faults_that_matter() -> None:
    def fragile(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Started) and puppet.me == 0:
            puppet.set_timer("tick", (1, 1))
        if isinstance(event, Timer) and event.name == "tick" and puppet.me == 0:
            puppet.send(1, Number(1))
            puppet.set_timer("tick", (1, 1))
        if isinstance(event, Started) and event.incarnation == 2:
            raise RuntimeError("a third incarnation")

    topology = Topology.grid(2, 1)
    noise: list[AnyAction] = [Fire(0, "tick"), Arrive(1, ((0, 0),)), Pause(0), Resume(0), Block(((0, 1),)), Heal()]
    actions = [*noise, Crash(1), *noise[:1], Recover(1), *noise, Crash(1), *noise[2:], Recover(1)]
    script = two(*actions)
    small = shrink(script, lambda me: Puppet(me, topology, fragile, {}), Claims("no"), judge).script
    assert list(small.actions) == [Crash(1), Recover(1), Crash(1), Recover(1)]
    assert small.status == "violated"
    assert "process 1 fails with RuntimeError in fragile: a third incarnation" in small.story


# Files


def lines_of(*changes: tuple[str, str]) -> str:
    script = Script("skeen", Topology.grid(2, 1, 1), [Multicast(2, 2_000_000_000, (0, 1)), Arrive(0, ((2, 0),))])
    text = script.encode()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_script_round_trip(tmp_path: Path) -> None:
    topology = Topology({3: (5, 6), 1: (0,)}, (9,), {5: "here"}, {3: "three"})
    script = Script(
        "skeen", topology, [Multicast(9, 9_000_000_000, (1, 3), 7), Crash(5, 2)], {"a": 1}, {"nodes": True},
        "raw", 0, 77, "stuck", "a long\nstory",
    )  # fmt: skip
    script.write(tmp_path / "a.script")
    again = read_script(tmp_path / "a.script")
    assert replace(again, lines=()) == script
    assert again.lines == [2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["a.script"]
    header = msgspec.json.decode((tmp_path / "a.script").read_text().splitlines()[0])
    assert header["script"] == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty; expected a header"),
        ("\x00", "line 1: .*expected the header"),
        ('{"do": "heal"}\n', "line 1: .*expected the header"),
        (lines_of(('"script":1', '"script":2')), "line 1: script = 2; expected format 1"),
        (lines_of(('"protocol":"skeen"', '"protocol":5')), "line 1: protocol: Expected `str`, got `int`"),
        (lines_of(('"protocol"', '"colour":"red","protocol"')), "line 1: .*unknown field `colour`"),
        (lines_of(('"members":[1]', '"members":[0]')), "process 0 is a member twice"),
        (lines_of(('"members":[1]', '"members":["x"]')), "line 1: topology: 'x'; expected whole numbers"),
        (lines_of(('"groups"', '"troops"')), "line 1: topology: KeyError 'groups'"),
        (lines_of(('"do":"arrive"', '"do":"arise"')), "line 3: .*arise"),
        (lines_of(('"target":0', '"target":8')), "line 3: process 8 does not exist"),
        (lines_of(('"packets":[[2,0]]', '"packets":[[2,-1]]')), r"line 3: packets.*>= 0"),
        (lines_of(('"destinations":[0,1]', '"destinations":[0,4]')), "line 2: destinations: group 4 does not exist"),
        (lines_of(('"destinations":[0,1]', '"destinations":[1,0]')), "line 2: destinations .*expected sorted"),
        (lines_of(("[[2,0]]}", "[[2,0]]")), "line 3: "),
    ],
)
def test_invalid_script_is_rejected_in_a_sentence(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.script"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint) as refused:
        read_script(file)
    assert str(refused.value).startswith(f"{file}")


def test_missing_or_binary_script_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_script(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        read_script(tmp_path / "binary")

"""Feedback: which runs become parents, and what their children repeat."""

from amcast.kernel.topology import Topology
from amcast.lab.fuzz_campaign import SwarmRuns, run_feedback_campaign
from amcast.lab.runs import fuzz_lineage
from amcast.simulation.schedulers.feedback import Corpus, Lineage, StateRecorder
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.world import World
from tests.simulation.puppets import Puppet

RUNS = SwarmRuns({"protocol": "primcast", "topology": {"groups": 2, "replicas": 3}})


def test_abstract_states_are_notes_with_their_counts_predecessors_and_faults() -> None:
    topology = Topology.grid(1, 2, 1)
    recorder = StateRecorder(topology)
    recorder.world = World(
        topology, lambda me: Puppet(me, topology, lambda puppet, event: None, {}), PendingActions(), recorder
    )
    for process, name in ((0, "led"), (0, "fault-crash"), (1, "led"), (1, "led"), (1, "trimmed")):
        recorder.record_note(process, 0, name)
    assert recorder.states.keys() == {
        ("count", "led", "1"),
        ("after", "", "led"),
        ("fault", "", "led"),
        ("count", "led", "2"),
        ("fault", "fault-crash", "led"),
        ("group", "led", "led"),
        ("after", "led", "led"),
        ("count", "trimmed", "1"),
        ("after", "led", "trimmed"),
        ("fault", "fault-crash", "trimmed"),
    }
    assert len(recorder.notes) == 5


def test_run_that_reaches_nothing_new_is_no_parent() -> None:
    corpus = Corpus()
    corpus.learn(Lineage(1), {("led",): 5, ("trimmed",): 9})
    corpus.learn(Lineage(2), {("trimmed",): 3})
    corpus.learn(Lineage(3), {("trimmed",): 3, ("installed",): 4})
    assert [(parent.lineage.seed, parent.step) for parent in corpus.parents] == [(1, 9), (3, 4)]


def test_some_runs_are_children_and_others_new() -> None:
    corpus = Corpus()
    assert corpus.breed(7) == Lineage(7), "nobody is a parent yet"
    corpus.learn(Lineage(1, ((4, 2), (8, 3))), {("led",): 6})
    bred = [corpus.breed(seed) for seed in range(40)]
    children = [lineage for lineage in bred if lineage.turns]
    assert 10 < len(children) < 30
    assert len({lineage.turns for lineage in children}) == len(children)
    for lineage in children:
        assert lineage.seed == 1
        assert lineage.turns[-1][0] <= 6
        assert all(turn in ((4, 2), (8, 3)) and turn[0] < lineage.turns[-1][0] for turn in lineage.turns[:-1])


def test_child_repeats_its_parent_up_to_its_turn() -> None:
    seed = next(seed for seed in range(9) if len(fuzz_lineage(RUNS.prepare(seed), Lineage(seed))[0].script) > 300)
    parent, states = fuzz_lineage(RUNS.prepare(seed), Lineage(seed))
    turns = ((max(states.values()) // 2, 1001),)
    child, _ = fuzz_lineage(RUNS.prepare(seed), Lineage(seed, turns))
    again, _ = fuzz_lineage(RUNS.prepare(seed), Lineage(seed, turns))
    same = next(
        place for place, pair in enumerate(zip(child.script, parent.script, strict=False)) if pair[0] != pair[1]
    )
    assert same >= turns[0][0] // 2 > 0, "a step is an action, but for those of the boot"
    assert child.script == again.script
    assert child.turns == turns


def test_campaign_with_feedback_holds() -> None:
    found = run_feedback_campaign(RUNS, range(30))
    assert found.tally == {"holds": 30, "violated": 0, "stuck": 0}, [failure.story for failure in found.failures]

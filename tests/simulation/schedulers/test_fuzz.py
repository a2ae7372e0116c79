"""The liveness bound of fuzzed runs."""

import re

import pytest

from amcast.lab.runs import fuzz_seed
from amcast.simulation.schedulers import fuzz
from amcast.simulation.world.actions import Heal, Multicast
from amcast.trace.recorder import Recorder
from tests.conformance.plans import planned


def test_load_ends_with_the_faults_but_for_a_few_messages() -> None:
    for messages in (1, 12, 100):
        case = planned("basecast", workload={"messages": messages}, faults={"profile": "partition"}).make_case()
        for seed in range(6):
            fuzzer = fuzz.Fuzzer(case, seed, Recorder())
            outcome = fuzzer.run(lambda world, recorder, complete: None)
            assert outcome.status == "holds", outcome.story
            healing = max(place for place, action in enumerate(outcome.script) if action == Heal())
            late = [action for action in outcome.script[healing:] if isinstance(action, Multicast)]
            assert len(late) <= fuzz.MAX_LEFT, f"seed {seed}"
            assert fuzzer.load.remaining == 0, f"seed {seed}"


def test_story_of_a_stuck_run_tells_its_steps_after_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "SETTLE_STEPS", 10)
    short = planned("basecast", workload={"messages": 60})
    stuck = [outcome for seed in range(8) if "never" in (outcome := fuzz_seed(short, seed)).story]
    counts = []
    for outcome in stuck:
        found = re.search(r"(\d+) steps after healing", outcome.story)
        assert found is not None, outcome.story
        counts.append(int(found[1]))
        assert 10 <= counts[-1] < outcome.steps, outcome.story
    # Packets in flight still arrive after the bound, so the true number is mostly not the bound itself.
    assert max(counts) > 10

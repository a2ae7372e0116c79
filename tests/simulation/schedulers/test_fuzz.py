"""The liveness bound of fuzzed runs."""

import re

import pytest

from amcast.lab.runs import fuzz_seed
from amcast.simulation.schedulers import fuzz
from tests.conformance.plans import planned


def test_long_run_that_makes_progress_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 600
    monkeypatch.setattr(fuzz, "SETTLE_STEPS", bound)
    monkeypatch.setattr(fuzz, "SETTLE_STEPS_PER_MESSAGE", 0)
    slow = planned("basecast", workload={"messages": 100, "outstanding": 1}, topology={"clients": 1})
    outcome = fuzz_seed(slow, 0)
    assert outcome.status == "holds", outcome.story
    assert outcome.steps > 6 * bound


def test_story_of_a_stuck_run_tells_its_steps_after_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "SETTLE_STEPS", 10)
    monkeypatch.setattr(fuzz, "SETTLE_STEPS_PER_MESSAGE", 0)
    short = planned("basecast", workload={"messages": 1, "outstanding": 1}, topology={"clients": 1})
    outcomes = [fuzz_seed(short, seed) for seed in range(4)]
    stories = [outcome.story for outcome in outcomes if outcome.status == "stuck"]
    assert stories
    for story in stories:
        found = re.search(r"(\d+) steps after healing", story)
        assert found is not None, story
        # Packets in flight still arrive after the bound, so the true number is never the bound itself.
        assert 10 < int(found[1]) < 200, story

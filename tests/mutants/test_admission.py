"""Admission with a safeguard removed: fuzzing finds it, and the original survives the same seeds."""

import pytest

from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.runs import fuzz_seed
from amcast.parts.node import admission

MOST_SEEDS = 60


def test_older_copy_that_had_more_starts_than_the_original_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails in its first starts until its incarnation no longer tells, and lacks no record that others know of."""
    monkeypatch.setattr(admission, "_lacks_start", lambda known, starts: False)
    runs = SwarmRuns({"protocol": "primcast", "faults": {"profile": "recovery+rollback"}})
    seeds = range(MOST_SEEDS)
    seed = next((seed for seed in seeds if fuzz_seed(runs.prepare(seed), seed).status == "violated"), -1)
    assert seed >= 0, f"{MOST_SEEDS} seeds never put back a copy that only its starts betray"
    monkeypatch.undo()
    outcome = fuzz_seed(runs.prepare(seed), seed)
    assert outcome.status == "holds", (
        f"{outcome.story}\nreplay: amcast fuzz -p primcast --seeds {seed} --faults recovery+rollback"
    )

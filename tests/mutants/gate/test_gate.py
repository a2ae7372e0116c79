"""The gate of planted bugs, in short: every bug can be planted, and one bug for each rule is found at once.

`python -m tests.mutants.gate` looks for all of them.
"""

import json
from pathlib import Path

import pytest

from tests.mutants.gate.__main__ import read_findings, read_rows, write_findings
from tests.mutants.gate.catalogue import BUGS
from tests.mutants.gate.search import Finding, look_for, name_judge

FOUND_AT_ONCE = {
    "paxos-promise-before-its-persist": {"monitor: persist before send"},
    "primcast-epoch-takes-the-first-clock": {"monitor: promises heard", "monitor: ballot's clock"},
    "real-time-answers-when-every-destination-has-delivered": {"checker: P9", "monitor: closed deliveries"},
    "replicated-checkpoint-forgets-what-is-ordered": {"monitor: restart"},
    "whitebox-checkpoint-forgets-the-clock": {"monitor: restart", "monitor: nothing forgotten"},
    "primcast-membership-without-doubt": {
        "monitor: majority of others",
        "monitor: nothing forgotten",
        "monitor: one value",
    },
}
"""Bugs that the first few seeds find, and the judges that can."""


@pytest.mark.parametrize("name", sorted(BUGS))
def test_planted_bug_changes_its_module(name: str) -> None:
    bug = BUGS[name]
    source = bug.file.read_text()
    mutated = bug.apply(source)
    assert mutated != source
    compile(mutated, str(bug.file), "exec")


def test_every_bug_has_one_name_and_a_limit() -> None:
    assert len(BUGS) >= 75
    assert all(0 < bug.most_seeds <= 2000 for bug in BUGS.values())


@pytest.mark.parametrize("name", sorted(FOUND_AT_ONCE))
def test_fuzzing_finds_a_planted_bug_at_once(name: str) -> None:
    finding = look_for(BUGS[name], seeds=30)
    assert finding.seed >= 0, f"python -m tests.mutants.gate --only {name}"
    assert finding.judge in FOUND_AT_ONCE[name], finding.story


@pytest.mark.parametrize(
    ("status", "story", "judge"),
    [
        ("violated", "process 3 breaks the rule 'promise kept' in step 5: votes", "monitor: promise kept"),
        ("violated", "process 3 breaks the rule 'ballot's clock' in step 5: begins", "monitor: ballot's clock"),
        ("violated", "P4: group 0 and group 1 disagree", "checker: P4"),
        ("violated", "process 1 delivered message 7 at position 3 after 1", "world"),
        ("stuck", "process 0 never delivered message 4", "liveness"),
        ("violated", "process 1 fails with AssertionError in decide: two values", "assertion"),
    ],
)
def test_judge_is_named_by_the_story(status: str, story: str, judge: str) -> None:
    assert name_judge(status, story) == judge


def test_findings_of_another_source_stay_until_their_bugs_are_looked_for_again(tmp_path: Path) -> None:
    first, second, third = sorted(BUGS)[:3]
    old = [{"bug": name, "seed": 7, "judge": "world", "story": ""} for name in (first, second, "a bug that is gone")]
    file = tmp_path / "gate.json"
    file.write_text(json.dumps({"source": "older", "bugs": 3, "findings": old}))
    assert read_findings(file) == {}
    found = {name: Finding(BUGS[name], seed, "checker: P4", "P4: ...") for name, seed in ((second, 1), (third, -1))}
    write_findings(file, found, 2000)
    assert read_findings(file) == found
    assert [(row["bug"], row["seed"]) for row in read_rows(file)] == [(second, 1), (third, -1), (first, 7)]
    assert [row["source"] == "older" for row in read_rows(file)] == [False, False, True]

"""The operators, the sample and the exemptions of mutation testing; the campaign itself is `make mutation`."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.exemptions import KINDS, read_exemptions
from tests.mutation.judges import judge_seed
from tests.mutation.operators import list_mutants
from tests.mutation.patch import plant_source
from tests.mutation.sample import SIZES, SOURCE, draw_sample, find_mutant, find_targets, list_all
from tests.mutation.search import find_failure

ROOT = Path(__file__).parents[2]

EXAMPLE = """
class Voter:
    def _vote(self, sender, ballot):
        if ballot < self._promised:
            return
        self._clock = max(self._clock, ballot)
        self.persist(Vote(ballot))
        self.send(sender, Voted(ballot))
        if self._ready and len(self._votes) >= self._quorum:
            self._queue.sort(key=lambda item: (item.time, item.id))

    def restore(self, state):
        self._promised = state.promised
"""


def changed_lines(operator: str) -> list[str]:
    """The changed line of each mutant of the example."""
    lines = []
    for mutant in list_mutants("example", EXAMPLE):
        if mutant.operator == operator:
            changed = mutant.apply(EXAMPLE).splitlines()
            ast.parse("\n".join(changed))
            lines.append(changed[mutant.line - 1].strip())
    return lines


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("drop-guard", ["if False:"]),
        ("off-by-one", ["if ballot <= self._promised:", "if self._ready and len(self._votes) > self._quorum:"]),
        ("drop-merge", ["pass"]),
        ("first-of-extreme", ["self._clock = (self._clock)"]),
        ("drop-persist", ["pass"]),
        ("drop-send", ["pass"]),
        ("send-before-persist", ["self.send(sender, Voted(ballot))"]),
        ("force-guard", ["if True:"]),
        ("drop-operand", ["if (len(self._votes) >= self._quorum):", "if (self._ready):"]),
        ("weaken-quorum", ["if self._ready and len(self._votes) >= (self._quorum - 1):"]),
        ("drop-tie-breaker", ["self._queue.sort(key=lambda item: (item.time, 0))"]),
        ("forget-field", ["pass"]),
    ],
)
def test_operator_plants_its_fault(operator: str, expected: list[str]) -> None:
    assert changed_lines(operator) == expected


def test_swapped_statements_are_both_kept() -> None:
    (mutant,) = [one for one in list_mutants("example", EXAMPLE) if one.operator == "send-before-persist"]
    changed = mutant.apply(EXAMPLE)
    assert changed.index("self.send(") < changed.index("self.persist(")


def test_every_mutant_of_the_sample_compiles_and_is_looked_for() -> None:
    sources: dict[str, str] = {}
    ids = Counter(mutant.id for mutant in list_all())
    assert max(ids.values()) == 1
    for mutant in draw_sample():
        file = SOURCE.joinpath(*mutant.module.split(".")).with_suffix(".py")
        source = sources.setdefault(mutant.module, file.read_text())
        assert source[mutant.start : mutant.end] == mutant.before != mutant.after, mutant.id
        compile(mutant.apply(source), str(file), "exec", flags=ast.PyCF_ONLY_AST)
        find_targets(mutant.module)


def test_sample_has_at_least_300_mutants_of_all_operators() -> None:
    sample = draw_sample()
    assert len(sample) >= 300
    assert {mutant.operator for mutant in sample} == set(SIZES)


def test_exemptions_name_mutants_and_argue() -> None:
    """A mutant may leave the sample when another one is added to the source, and come back."""
    exemptions, sample = read_exemptions(), {mutant.id for mutant in draw_sample()}
    assert exemptions.keys() <= {mutant.id for mutant in list_all()}
    assert len(exemptions.keys() & sample) <= len(sample) / 3
    for id, (kind, argument) in exemptions.items():
        assert kind in KINDS, f"{id}: kind {kind!r}; expected one of {KINDS}"
        assert len(argument.split()) >= 8, f"{id}: the argument is too short to convince"


def test_planted_mutant_is_found_by_fuzzing(tmp_path: Path) -> None:
    silent = next(
        mutant.id
        for mutant in list_all()
        if mutant.module == "amcast.protocols.skeen.process" and mutant.operator == "drop-send"
    )
    search = ("fuzz", "-p", "skeen", "--seeds", "3..9", "--jobs", "1", "--json", "--script", str(tmp_path / "script"))
    command = (sys.executable, "-m", "tests.mutation.plant", silent, *search)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, (silent, done.stdout, done.stderr)


def test_judges_of_random_traces_agree_and_find_a_planted_fault() -> None:
    assert [judge_seed(seed) for seed in range(20)] == [("holds", "")] * 20
    mutant = find_mutant("amcast.check.order:check_order:drop-assignment:0")
    source = SOURCE.joinpath(*mutant.module.split(".")).with_suffix(".py").read_text()
    with plant_source(mutant.module, mutant.apply(source)):
        failure = find_failure(judge_seed, range(20))
    assert failure is not None
    assert "P9 judges" in failure.story

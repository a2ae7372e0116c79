"""Every mutant of A_ng and A_dt is caught by a random run; the protocols themselves pass the same run."""

import pytest

from amcast.lab.runs import PreparedRun, fuzz_seed, prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers import fuzz
from tests.mutants.outcome import is_caught
from tests.mutants.protocols.rounds import MUTANTS, Mutant

ENOUGH_STEPS = 12_000
"""The liveness bound after healing: a blocked run ends soon."""


def prepare_mutant(mutant: Mutant, wrong: bool) -> PreparedRun:
    spec = mutant.spec()
    topology = {"groups": 3, "replicas": 3, "clients": 3, **mutant.plan.get("topology", {})}
    plan = {
        "protocol": spec.name if wrong else spec.name.removesuffix(f"-{mutant.name}"),
        "topology": topology,
        "workload": {"messages": 12, "outstanding": 3, "destinations": [1, min(3, topology["groups"])]},
        "faults": {"profile": mutant.faults},
    }
    return prepare_run(parse_plan(plan), spec if wrong else None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_and_protocol_passes(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "SETTLE_STEPS", ENOUGH_STEPS)
    wrong, right = prepare_mutant(mutant, wrong=True), prepare_mutant(mutant, wrong=False)
    for seed in mutant.seeds:
        if is_caught(fuzz_seed(wrong, seed)):
            outcome = fuzz_seed(right, seed)
            replay = f"amcast fuzz --protocol {right.spec.name} --seeds {seed} --faults {mutant.faults}"
            assert outcome.status == "holds", f"{outcome.story}\nreplay: {replay}"
            return
    raise AssertionError(f"{mutant.name}: {mutant.process.__doc__} No run failed in seeds {mutant.seeds}")


def test_every_mutant_belongs_to_a_protocol_of_the_catalogue() -> None:
    assert {mutant.spec().name.removesuffix(f"-{mutant.name}") for mutant in MUTANTS} <= set(CATALOGUE)

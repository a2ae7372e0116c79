"""The fuzzer finds the error of every mutant, and the product survives the same seed."""

import pytest

from amcast.lab.runs import fuzz_one, prepare
from amcast.simulation.inputs.plan import plan_of
from tests.mutants.protocols.timestamped import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_fuzzer_catches_mutant_and_product_survives_its_seed(mutant: Mutant) -> None:
    plan = plan_of(mutant.plan())
    planted = prepare(plan, mutant.spec())
    caught = next((o for seed in range(mutant.seeds) if (o := fuzz_one(planted, seed)).status != "holds"), None)
    assert caught is not None, f"{mutant.name}: {mutant.seeds} seeds found nothing wrong"
    assert caught.status == mutant.wrong, f"seed {caught.seed}: {caught.story}"
    product = fuzz_one(prepare(plan), caught.seed)
    assert product.status == "holds", f"amcast fuzz --seeds {caught.seed}, plan {plan}: {product.story}"

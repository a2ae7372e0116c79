"""The fuzzer finds the error of every mutant, and the product survives the same seed."""

import pytest

from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.simulation.inputs.plan import parse_plan
from tests.mutants.outcome import is_caught
from tests.mutants.protocols.timestamped import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_fuzzer_catches_mutant_and_product_survives_its_seed(mutant: Mutant) -> None:
    plan = parse_plan(mutant.plan())
    planted = prepare_run(plan, mutant.spec())
    caught = next((o for seed in range(mutant.seeds) if is_caught(o := fuzz_seed(planted, seed))), None)
    assert caught is not None, f"{mutant.name}: {mutant.seeds} seeds found nothing wrong"
    assert caught.status == mutant.wrong, f"seed {caught.seed}: {caught.story}"
    product = fuzz_seed(prepare_run(plan), caught.seed)
    assert product.status == "holds", f"amcast fuzz --seeds {caught.seed}, plan {plan}: {product.story}"

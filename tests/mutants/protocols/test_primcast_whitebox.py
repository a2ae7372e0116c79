"""Every mistake planted in PrimCast and White-Box is caught, and what it was planted in is not."""

from dataclasses import replace

import pytest

from tests.mutants.protocols import primcast, whitebox
from tests.mutants.protocols.primcast import Mutant

MUTANTS = [("primcast", mutant) for mutant in primcast.MUTANTS] + [("whitebox", mutant) for mutant in whitebox.MUTANTS]


@pytest.mark.parametrize("mutant", [m for _, m in MUTANTS], ids=[f"{name}: {m.name}" for name, m in MUTANTS])
def test_a_planted_mistake_is_caught(mutant: Mutant) -> None:
    story = mutant.find_violation()
    assert story is not None, f"nothing showed that {mutant.process.__doc__}"


@pytest.mark.parametrize("mutant", [m for _, m in MUTANTS if m.scene is None], ids=lambda mutant: mutant.name)
def test_the_protocol_itself_passes_the_same_runs(mutant: Mutant) -> None:
    healthy = replace(mutant, process=mutant.spec.process, seeds=mutant.seeds[:8])
    assert healthy.find_violation() is None

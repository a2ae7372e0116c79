"""Every mutant of PrimCast and White-Box is caught; the protocols themselves pass the same runs."""

from dataclasses import replace

import pytest

from tests.mutants.protocols import primcast, whitebox
from tests.mutants.protocols.primcast import Mutant

MUTANTS = [("primcast", mutant) for mutant in primcast.MUTANTS] + [("whitebox", mutant) for mutant in whitebox.MUTANTS]


@pytest.mark.parametrize("mutant", [m for _, m in MUTANTS], ids=[f"{name}: {m.name}" for name, m in MUTANTS])
def test_mutant_is_caught(mutant: Mutant) -> None:
    story = mutant.find_violation()
    assert story is not None, f"no run caught the mutant {mutant.name}: {mutant.process.__doc__}"


@pytest.mark.parametrize("mutant", [m for _, m in MUTANTS if m.scene is None], ids=lambda mutant: mutant.name)
def test_protocol_passes_the_runs_of_its_mutants(mutant: Mutant) -> None:
    healthy = replace(mutant, process=mutant.spec.process, seeds=mutant.seeds[:8])
    assert healthy.find_violation() is None

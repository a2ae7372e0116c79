"""Every protocol of the catalogue runs under everything in this folder; a new one joins by being in the catalogue."""

import pytest

from amcast.kernel.spec import FAULTS
from amcast.protocols.catalogue import CATALOGUE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        pairs = [(name, kind) for name, spec in CATALOGUE.items() for kind in FAULTS if kind in spec.claims.faults]
        metafunc.parametrize(("name", "fault"), pairs, ids=["-".join(pair) for pair in pairs])
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", list(CATALOGUE))

"""The catalogue finds every protocol under the name that it has."""

import pytest

from amcast.kernel.errors import UsageError
from amcast.protocols.catalogue import CATALOGUE, NAMES, get_protocol


def test_every_protocol_is_found_under_its_own_name() -> None:
    assert tuple(spec.name for spec in CATALOGUE.values()) == NAMES


def test_unknown_protocol_is_rejected_with_the_names_that_exist() -> None:
    with pytest.raises(UsageError, match=r"'raft' does not exist; expected one of: skeen, basecast, .*, ring$"):
        get_protocol("raft")

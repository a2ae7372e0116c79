"""Changes: one member at a time, or an error that names the mistake."""

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import (
    change_topology,
    check_change,
    decode_topology,
    encode_topology,
    is_change,
    make_change_message,
    parse_change,
)
from amcast.kernel.topology import Topology

OLD = Topology({0: (0, 1, 2), 1: (3,)}, (7, 8), {0: "here"}, {0: "zero"})


def test_added_member_is_last_and_removal_keeps_the_order() -> None:
    more = change_topology(OLD, 0, add=4)
    assert (more.configuration, more.members(0), more.members(1)) == (1, (0, 1, 2, 4), (3,))
    fewer = change_topology(more, 0, remove=0)
    assert (fewer.configuration, fewer.members(0)) == (2, (1, 2, 4))
    check_change(OLD, more)
    check_change(more, fewer)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"group": 5, "add": 4}, "group 5 does not exist; expected one of \\[0, 1\\]"),
        ({"group": 0}, "expected one of them, one at a time"),
        ({"group": 0, "add": 4, "remove": 1}, "expected one of them, one at a time"),
        ({"group": 0, "add": 3}, "process 3 is a member of group 1"),
        ({"group": 0, "add": 7}, "process 7 is a client"),
        ({"group": 0, "remove": 3}, "process 3 is no member; expected one of \\[0, 1, 2\\]"),
        ({"group": 1, "remove": 3}, "process 3 is its last member; expected 1 or more"),
    ],
)
def test_impossible_change_is_rejected(change: dict[str, int], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        change_topology(OLD, **change)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (Topology({0: (0, 1), 1: (3,)}, configuration=2), "configuration = 2; expected 1"),
        (Topology({0: (0, 1, 2)}, configuration=1), "groups \\[0\\]; expected \\[0, 1\\]"),
        (Topology({0: (0, 1, 2), 1: (3,)}, configuration=1), "no member differs; expected one member of one group"),
        (Topology({0: (0, 1, 4), 1: (3,)}, configuration=1), "process 2 of group 0, process 4 of group 0 differs"),
        (Topology({0: (0, 1), 1: (3, 4)}, configuration=1), "process 2 of group 0, process 4 of group 1 differs"),
        (Topology({0: (0, 1, 2, 8), 1: (3,)}, configuration=1), "process 8 is a client"),
    ],
)
def test_topology_more_than_one_change_away_is_rejected(new: Topology, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        check_change(OLD, new)
    assert parse_change(OLD, make_change_message(9, 7, new)) is None


def test_change_is_a_message_to_all_groups() -> None:
    new = change_topology(OLD, 1, add=4)
    message = make_change_message(9, 7, new)
    assert message.destinations == (0, 1)
    assert is_change(message)
    assert parse_change(OLD, message) == new
    assert parse_change(new, message) is None, "a change applies once"
    assert parse_change(OLD, Message(9, 7, (0,), message.payload)) is None, "a change is addressed to all groups"
    assert parse_change(OLD, Message(9, 7, (0, 1), message.payload[:-1])) is None
    assert decode_topology(encode_topology(new)) == new


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", encode_topology(OLD)[:-3], b"\x80"])
def test_bytes_that_are_no_topology_are_rejected(data: bytes) -> None:
    with pytest.raises(UsageError, match="topology"):
        decode_topology(data)

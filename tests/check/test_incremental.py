"""The incremental checker describes the first violation in one sentence."""

import pytest

from amcast.check.incremental import check_chains

GROUPS = {0: 0, 1: 0, 2: 1, 3: 2, 9: None}
DESTINATIONS = {1: (0, 1), 2: (0, 1), 3: (1, 2), 4: (0, 2)}


@pytest.mark.parametrize(
    ("deliveries", "sentence"),
    [
        ({0: [1, 2], 1: [1], 2: [1, 2, 3], 3: [3]}, None),
        ({}, None),
        ({0: [], 9: []}, None),
        ({0: [1, 7]}, "process 0 delivered 7, which nobody multicast"),
        ({0: [3]}, "process 0 delivered 3, which is not addressed to it"),
        ({9: [1]}, "process 9 delivered 1, which is not addressed to it"),
        ({0: [1, 2, 1]}, "process 0 delivered 1 twice, at positions 0 and 2"),
        (
            {0: [1, 2, 4], 1: [1, 4]},
            "at position 1 process 0 delivered 2, but process 1 of the same group delivered 4",
        ),
        (
            {0: [1, 2], 2: [2]},
            "2 messages precede each other in a cycle: process 0 delivered 1 at position 0, before 2 at position 1;"
            " process 2 delivered 2 at position 0 and has not delivered 1",
        ),
        (
            {0: [1, 4], 2: [3, 1], 3: [4, 3]},
            "3 messages precede each other in a cycle: process 0 delivered 1 at position 0, before 4 at position 1;"
            " process 3 delivered 4 at position 0, before 3 at position 1;"
            " process 2 delivered 3 at position 0, before 1 at position 1",
        ),
    ],
)
def test_first_violation_is_one_sentence(deliveries: dict[int, list[int]], sentence: str | None) -> None:
    assert check_chains(deliveries, DESTINATIONS, GROUPS) == sentence

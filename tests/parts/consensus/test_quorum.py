"""Ballots, majorities and tallies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amcast.parts.consensus.quorum import Tally, ballot_of, majority, next_ballot, place_of


def test_ballot_zero_belongs_to_the_first_member() -> None:
    assert ballot_of(0, 0, 0) == 0
    assert place_of(0) == 0


@given(st.integers(0, 2**40), st.integers(0, 2**16 - 1), st.integers(0, 31))
def test_next_ballot_is_higher_and_names_its_member(above: int, incarnation: int, place: int) -> None:
    ballot = next_ballot(above, incarnation, place)
    assert ballot > above
    assert place_of(ballot) == place


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), unique=True))
def test_no_two_incarnations_share_a_ballot(attempts: list[tuple[int, int, int]]) -> None:
    assert len({ballot_of(*attempt) for attempt in attempts}) == len(attempts)


def test_ballot_rejects_values_beyond_its_fields() -> None:
    with pytest.raises(AssertionError, match="place 1024"):
        ballot_of(1, 0, 1024)
    with pytest.raises(AssertionError, match="incarnation 65536"):
        ballot_of(1, 65536, 0)


def test_tally_counts_each_member_once_for_the_highest_ballot() -> None:
    tally = Tally()
    assert tally.count(5, 0) == 1
    assert tally.count(5, 0) == 1
    assert tally.count(5, 2) == 2
    assert tally.count(4, 1) == 0
    assert tally.count(6, 1) == 1


def test_majority_is_more_than_half() -> None:
    assert [majority(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]

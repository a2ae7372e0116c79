"""Ballots, tallies, the set of seen messages, the heap of bounds: small parts, checked against plain ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amcast.kernel.ids import message_id
from amcast.parts.consensus.quorum import Tally, ballot_of, majority, next_ballot, place_of
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.delivery_queue import DeliveryQueue
from amcast.parts.ordering.messages import WINDOW


def test_ballot_zero_belongs_to_the_first_member() -> None:
    assert ballot_of(0, 0, 0) == 0
    assert place_of(0) == 0


@given(st.integers(0, 2**40), st.integers(0, 2**16 - 1), st.integers(0, 31))
def test_the_next_ballot_is_higher_and_names_its_owner(above: int, incarnation: int, place: int) -> None:
    ballot = next_ballot(above, incarnation, place)
    assert ballot > above
    assert place_of(ballot) == place


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), unique=True))
def test_no_two_incarnations_share_a_ballot(tries: list[tuple[int, int, int]]) -> None:
    assert len({ballot_of(*attempt) for attempt in tries}) == len(tries)


def test_a_ballot_beyond_its_fields_is_refused() -> None:
    with pytest.raises(AssertionError, match="place 1024"):
        ballot_of(1, 0, 1024)
    with pytest.raises(AssertionError, match="incarnation 65536"):
        ballot_of(1, 65536, 0)


def test_a_tally_counts_members_once_and_only_for_the_highest_ballot() -> None:
    tally = Tally()
    assert tally.count(5, 0) == 1
    assert tally.count(5, 0) == 1
    assert tally.count(5, 2) == 2
    assert tally.count(4, 1) == 0
    assert tally.count(6, 1) == 1
    assert [majority(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=80))
def test_seen_is_a_set_within_the_window(messages: list[tuple[int, int]]) -> None:
    seen, model = DeliveredSet(), set()
    for sender, sequence in messages:
        id = message_id(sender, sequence)
        assert (id in seen) == (id in model)
        assert seen.has_any([message_id(5, 0), id]) == (id in model)
        assert seen.add(id) == (id not in model)
        model.add(id)
    again = DeliveredSet()
    again.restore(seen.snapshot())
    assert all((message_id(s, n) in again) == (message_id(s, n) in model) for s in range(4) for n in range(61))
    assert again.snapshot() == seen.snapshot()


runs = st.lists(st.tuples(st.booleans(), st.integers(-30, 30), st.integers(1, 900)), max_size=12)


@settings(deadline=None, max_examples=50)
@given(runs)
def test_runs_and_gaps_are_remembered_as_if_one_by_one(runs: list[tuple[bool, int, int]]) -> None:
    """Runs of any length after jumps to and fro, some taken back: the same set, told in the same bytes, as one that
    was read from a snapshot before every message, and so never holds a run that is not told bit by bit."""
    seen, read, model = DeliveredSet(), DeliveredSet(), set()
    newest = -1
    for forgets, jump, length in runs:
        first = max(newest + jump, 0)
        for sequence in range(first, first + length):
            id = message_id(3, sequence)
            known = id in model or sequence <= newest - WINDOW
            edge = sequence in (first, first + 1, first + length - 1)
            if edge:
                read.restore(seen.snapshot())
                assert read.add(id) != known
            assert (id in seen) == known
            assert seen.add(id) != known
            model.add(id)
            newest = max(newest, sequence)
            assert not edge or read.snapshot() == seen.snapshot()
        if forgets and first + length // 2 > newest - WINDOW:
            gone = message_id(3, first + length // 2)
            seen.forget(gone)
            model.discard(gone)


def test_what_is_older_than_the_window_counts_as_seen() -> None:
    seen = DeliveredSet()
    assert seen.add(message_id(7, 3 * WINDOW))
    assert message_id(7, 2 * WINDOW) in seen
    assert message_id(7, 2 * WINDOW + 1) not in seen
    assert not seen.add(message_id(7, 0))
    assert len(seen.snapshot()[0].bits) <= WINDOW // 8


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=30), st.randoms())
def test_bounds_come_out_in_the_order_of_final_ranks(messages: list[tuple[int, int]], random) -> None:
    """Each message is (bound, how far above it the final one is); whatever order they are fixed in."""
    bounds = DeliveryQueue()
    finals = {}
    for id, (bound, more) in enumerate(messages):
        bounds.add(bound, id)
        finals[id] = bound + more
    order = list(finals)
    random.shuffle(order)
    out: list[int] = []
    for id in order:
        bounds.fix(id, finals[id])
        while (first := bounds.first(1000)) is not None:
            out.append(first)
    assert out == sorted(finals, key=lambda id: (finals[id], id))
    assert len(bounds) == 0


def test_nothing_comes_out_above_what_is_reached_or_past_what_is_open() -> None:
    bounds = DeliveryQueue()
    bounds.add(1, 10)
    bounds.add(2, 11)
    bounds.fix(11, 2)
    assert bounds.first(9) is None, "10 may still end up before 11"
    bounds.fix(10, 5)
    assert bounds.first(9) == 11
    assert bounds.first(4) is None, "somebody may still be stamped 5"
    bounds.drop(10)
    assert bounds.first(9) is None

"""Answers are remembered exactly until a majority of every other destination has delivered the message."""

from hypothesis import given
from hypothesis import strategies as st

from amcast.parts.ordering.obligations import Obligations


def test_answer_is_remembered_until_every_group_has_delivered() -> None:
    obligations = Obligations()
    obligations.add(7, 3, 5, (1, 2))
    obligations.resolve(1, (5, 6))
    assert obligations.answer(7) == 3, "message 7 comes after (5, 6)"
    obligations.resolve(1, (5, 7))
    assert obligations.list_all() == [(7, 3, 5, (2,))]
    obligations.resolve(2, (9, 0))
    assert obligations.answer(7) is None
    assert not obligations.list_all()


def test_message_without_other_destinations_has_no_answer() -> None:
    obligations = Obligations()
    obligations.add(7, 3, 5, ())
    assert obligations.answer(7) is None
    obligations.resolve(4, (9, 9))


deliveries = st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(1, 3))), max_size=30)
ranks = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(0, 30)), max_size=10)


@given(deliveries, ranks)
def test_remaining_answers_are_those_above_every_delivered_rank(
    delivered: list[tuple[int, set[int]]], ranks: list[tuple[int, int, int]]
) -> None:
    """Messages come in the order of ranks, with final timestamps that may repeat. The listed answers restore an equal
    object."""
    obligations = Obligations()
    expected_groups: dict[int, tuple[int, set[int]]] = {}
    final = 0
    for id, (rise, groups) in enumerate(delivered):
        final += rise
        obligations.add(id, final - rise, final, tuple(sorted(groups)))
        expected_groups[id] = (final, set(groups))
    for group, time, tie in ranks:
        obligations.resolve(group, (time, tie))
        for id, (final, groups) in expected_groups.items():
            if (final, id) <= (time, tie):
                groups.discard(group)
    expected = [(id, final, tuple(sorted(groups))) for id, (final, groups) in expected_groups.items() if groups]
    assert [(id, final, groups) for id, _, final, groups in obligations.list_all()] == expected
    restored = Obligations()
    for obligation in obligations.list_all():
        restored.add(*obligation)
    assert restored.list_all() == obligations.list_all()

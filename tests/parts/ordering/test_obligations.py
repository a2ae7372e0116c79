"""What a group owes to others is kept exactly until a majority of each of them has it."""

from hypothesis import given
from hypothesis import strategies as st

from amcast.parts.ordering.obligations import Obligations


def test_an_answer_is_kept_until_every_group_has_delivered() -> None:
    debts = Obligations()
    debts.add(7, 3, 5, (1, 2))
    debts.resolve(1, (5, 6))
    assert debts.answer(7) == 3, "message 7 comes after (5, 6)"
    debts.resolve(1, (5, 7))
    assert debts.list_all() == [(7, 3, 5, (2,))]
    debts.resolve(2, (9, 0))
    assert debts.answer(7) is None
    assert not debts.list_all()


def test_a_message_to_nobody_else_is_owed_to_nobody() -> None:
    debts = Obligations()
    debts.add(7, 3, 5, ())
    assert debts.answer(7) is None
    debts.resolve(4, (9, 9))


deliveries = st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(1, 3))), max_size=30)
marks = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(0, 30)), max_size=10)


@given(deliveries, marks)
def test_what_is_left_is_what_no_mark_covers(
    delivered: list[tuple[int, set[int]]], marks: list[tuple[int, int, int]]
) -> None:
    """In the order of ranks, with final timestamps that may repeat; listed debts make an equal ledger."""
    debts = Obligations()
    left: dict[int, tuple[int, set[int]]] = {}
    final = 0
    for id, (rise, groups) in enumerate(delivered):
        final += rise
        debts.add(id, final - rise, final, tuple(sorted(groups)))
        left[id] = (final, set(groups))
    for group, time, tie in marks:
        debts.resolve(group, (time, tie))
        for id, (final, groups) in left.items():
            if (final, id) <= (time, tie):
                groups.discard(group)
    expected = [(id, final, tuple(sorted(groups))) for id, (final, groups) in left.items() if groups]
    assert [(id, final, groups) for id, _, final, groups in debts.list_all()] == expected
    again = Obligations()
    for debt in debts.list_all():
        again.add(*debt)
    assert again.list_all() == debts.list_all()

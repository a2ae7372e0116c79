"""Consistent cuts: what a process may call closed, compared with the definition on random orders."""

from random import Random

from amcast.kernel.ids import GroupId, MessageId
from amcast.parts.ordering.consistent_cut import GroupOrder, OpenMessage, find_cut

Sequences = dict[GroupId, list[MessageId]]
Destinations = dict[MessageId, tuple[GroupId, ...]]


def draw_sequences(random: Random, groups: int, messages: int) -> tuple[Sequences, Destinations]:
    """Sequences of groups without a cycle, of which each group has delivered a prefix."""
    destinations = {
        message: tuple(sorted(random.sample(range(groups), random.choice((1, 2, 2, min(3, groups))))))
        for message in range(messages)
    }
    sequences: Sequences = {}
    for group in range(groups):
        whole = [message for message in range(messages) if group in destinations[message]]
        sequences[group] = whole[: random.randint(0, len(whole))]
    return sequences, destinations


def know(sequences: Sequences, destinations: Destinations, ends: dict[GroupId, int]) -> dict[GroupId, GroupOrder]:
    """All that can be known of these prefixes."""
    orders = {}
    for group, sequence in sequences.items():
        order = orders[group] = GroupOrder()
        for position, message in enumerate(sequence[: ends[group]]):
            if len(destinations[message]) == 1:
                order.end = position + 1
            else:
                order.append(OpenMessage(message, position, destinations[message]), position + 1)
    return orders


def find_greatest(sequences: Sequences, destinations: Destinations, ends: dict[GroupId, int]) -> dict[GroupId, int]:
    """The greatest consistent cut by its definition: prefixes become shorter until every message is in all of its."""
    ends = dict(ends)
    while True:
        inside = {group: set(sequences[group][:end]) for group, end in ends.items()}
        shorter = dict(ends)
        for group, end in ends.items():
            for position, message in enumerate(sequences[group][:end]):
                if any(message not in inside[other] for other in destinations[message]):
                    shorter[group] = min(shorter[group], position)
        if shorter == ends:
            return ends
        ends = shorter


def test_cut_is_the_greatest_consistent_one_of_what_is_known() -> None:
    nonempty = partial = 0
    for seed in range(500):
        random = Random(seed)
        sequences, destinations = draw_sequences(random, random.randint(2, 5), random.randint(1, 14))
        ends = {group: random.randint(0, len(sequence)) for group, sequence in sequences.items()}
        orders = know(sequences, destinations, ends)
        cut = find_cut(orders)
        greatest = find_greatest(sequences, destinations, ends)
        for group, order in orders.items():
            inside = [m for m in sequences[group][: greatest[group]] if len(destinations[m]) > 1]
            assert cut.sizes[group] == len(inside), f"seed {seed}, group {group}"
            nonempty += cut.sizes[group] > 0
            partial += 0 < cut.sizes[group] < len(order.open)
        for message, group in cut.missing:
            assert group in destinations[message], f"seed {seed}"
            assert message not in orders[group].open, f"seed {seed}"
    assert nonempty > 100
    assert partial > 50


def test_every_predecessor_of_a_message_in_a_cut_is_in_it() -> None:
    for seed in range(200):
        random = Random(seed)
        sequences, destinations = draw_sequences(random, 4, 12)
        ends = {group: len(sequence) for group, sequence in sequences.items()}
        greatest = find_greatest(sequences, destinations, ends)
        closed = {message for group, end in greatest.items() for message in sequences[group][:end]}
        for message in closed:
            for group in destinations[message]:
                before = sequences[group][: sequences[group].index(message)]
                assert closed.issuperset(before), f"seed {seed}: message {message} at group {group}"


def test_nothing_is_demanded_of_a_lost_group() -> None:
    orders = {group: GroupOrder() for group in (0, 1, 2)}
    for group in (0, 1):
        orders[group].append(OpenMessage(7, 0, (0, 1, 2)), 1)
    assert find_cut(orders).sizes[0] == 0
    assert find_cut(orders, lost=(2,)).sizes == {0: 1, 1: 1, 2: 0}


def message(id: MessageId, position: int) -> OpenMessage:
    return OpenMessage(id, position, (0, 1))


def test_statements_that_overlap_or_repeat_add_nothing() -> None:
    order = GroupOrder()
    assert order.learn(0, 0, 3, (message(1, 0), message(2, 2)))
    assert order.learn(0, 0, 2, (message(1, 0),))
    assert order.learn(0, 2, 5, (message(2, 2), message(3, 4)))
    assert [m.id for m in order.open.values()] == [1, 2, 3]
    assert (order.closed, order.end) == (0, 5)


def test_statement_behind_an_unknown_part_is_refused() -> None:
    order = GroupOrder()
    assert not order.learn(0, 3, 5, (message(3, 4),))
    assert (order.end, order.open) == (0, {})
    assert order.learn(4, 3, 5, (message(3, 4),)), "everything before it is closed"
    assert order.closed == 4


def test_gap_ends_what_is_closed_until_a_statement_covers_it() -> None:
    order = GroupOrder()
    order.skip(4)
    order.append(message(9, 4), 5)
    assert (order.closed, order.end) == (0, 5)
    assert order.learn(1, 1, 3, ())
    assert order.gap == (1, 4), "the statement ends inside the gap"
    assert order.learn(1, 1, 6, (message(8, 3), message(9, 4), message(10, 5)))
    assert order.gap is None
    assert [m.id for m in order.open.values()] == [8, 9, 10]
    assert order.closed == 3


def test_gap_is_filled_by_a_statement_that_ends_where_it_ends() -> None:
    """Perhaps nothing is ever delivered after it."""
    order = GroupOrder()
    order.skip(4)
    assert order.learn(0, 0, 4, (message(8, 3),))
    assert (order.gap, order.closed) == (None, 3)


def test_gap_is_over_when_a_statement_that_does_not_reach_it_closes_its_end() -> None:
    order = GroupOrder()
    order.skip(4)
    assert not order.learn(4, 6, 8, ())
    assert order.gap is None


def test_gap_is_over_when_everything_in_it_is_closed() -> None:
    order = GroupOrder()
    order.skip(4)
    order.learn(6, 6, 6, ())
    order.remove_before(6)
    assert (order.gap, order.closed, order.end) == (None, 6, 6)


def test_second_transfer_extends_the_gap_over_what_was_known_behind_it() -> None:
    order = GroupOrder()
    order.append(message(1, 0), 1)
    order.skip(3)
    order.append(message(2, 3), 4)
    order.skip(8)
    assert order.gap == (1, 8)
    assert list(order.open) == [1]


def test_snapshot_restores_the_order() -> None:
    order, copy = GroupOrder(), GroupOrder()
    order.append(message(1, 0), 1)
    order.skip(3)
    copy.restore(order.snapshot())
    assert copy.snapshot() == order.snapshot()

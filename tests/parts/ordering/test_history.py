"""Histories: diffs, dependency search compared with a plain search, pruning."""

from random import Random

from amcast.parts.ordering.history import History
from amcast.parts.ordering.messages import Link


def plain_open(history: History, message: int) -> set[int]:
    """Every open message before this one, by a search of the whole graph."""
    found: set[int] = set()
    stack, seen = [message], {message}
    while stack:
        for before in history._vertices[stack.pop()].before:
            if before not in seen:
                seen.add(before)
                stack.append(before)
                if history._vertices[before].open:
                    found.add(before)
    return found


def test_each_descendant_gets_each_link_once() -> None:
    history = History(0, (1, 2))
    history.append(10, (0, 1))
    history.append(11, (0, 2))
    assert history.take_diff(1) == (Link(10, (0, 1), None), Link(11, (0, 2), 10))
    assert history.take_diff(1) == ()
    history.append(12, (0, 1))
    assert history.take_diff(1) == (Link(12, (0, 1), 11),)
    assert len(history.take_diff(2)) == 3


def test_repeated_links_are_learned_once() -> None:
    history = History(2, (3,))
    links = (Link(10, (0, 1), None), Link(11, (0, 1), 10))
    history.learn(links)
    history.learn(links)
    assert history.take_diff(3) == links
    assert history.version == 2


def test_blocker_is_an_open_message_before() -> None:
    history = History(2, ())
    history.learn((Link(10, (0, 2), None), Link(11, (0, 1), 10), Link(12, (1, 2), 11)))
    assert history.find_blocker(12) == 10
    history.append(10, (0, 2))
    assert history.find_blocker(12) is None
    assert history.find_blocker(99) is None, "an unknown message"


def test_has_message_only_to_compares_destinations() -> None:
    history = History(0, (1, 2, 3))
    history.append(10, (0, 1, 3))
    assert not history.has_message_only_to(1, (3,)), "group 3 gets the only message to group 1 itself"
    assert history.has_message_only_to(1, (2, 3))
    assert not history.has_message_only_to(2, (3,))
    history.append(-1, (0, 1, 2, 3))
    assert not history.has_message_only_to(2, (1,)), "flushes do not count"


def test_prune_keeps_messages_after_the_flush() -> None:
    history = History(2, (3,))
    history.learn((Link(10, (0, 1), None), Link(-1, (0, 1, 2, 3), 10), Link(11, (0, 2), -1)))
    history.append(-1, (0, 1, 2, 3))
    history.take_diff(3)
    history.prune()
    assert 10 not in history
    assert history.find_blocker(11) is None
    assert len(history) == 2
    assert history.take_diff(3) == ()
    assert history.has_message_only_to(0, (1,)), "message 11 still counts"


def test_search_finds_the_same_as_a_plain_search() -> None:
    for seed in range(200):
        random = Random(seed)
        history = History(9, ())
        lines: list[list[int]] = [[] for _ in range(3)]
        for id in range(30):
            group = random.randrange(3)
            destinations = (group, 9) if random.random() < 0.4 else (group,)
            lines[group].append(id)
            before = lines[group][-2] if len(lines[group]) > 1 else None
            history.learn((Link(id, destinations, before),))
            if random.random() < 0.3:
                other = random.choice([line for line in lines if line])
                history.learn((Link(id, destinations, other[-1]),) if other[-1] < id else ())
            ready = [m for m in range(id + 1) if history._vertices[m].open and not plain_open(history, m)]
            for message in range(id + 1):
                found = history.find_blocker(message)
                assert (found is None) == (not plain_open(history, message)), f"seed {seed}, message {message}"
                assert found is None or found in plain_open(history, message)
            if ready and random.random() < 0.5:
                message = random.choice(ready)
                history.append(message, history._vertices[message].destinations)


def test_restored_history_equals_the_original() -> None:
    history = History(1, (2, 3))
    history.learn((Link(10, (0, 1), None), Link(11, (0, 2), 10)))
    history.append(10, (0, 1))
    history.take_diff(2)
    restored = History(1, (2, 3))
    restored.restore(history.snapshot())
    assert restored.snapshot() == history.snapshot()
    assert restored.take_diff(3) == history.take_diff(3)
    assert restored.has_message_only_to(2, (3,)) == history.has_message_only_to(2, (3,))

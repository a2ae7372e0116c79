"""How far an exhaustive search came is said, whatever ended it."""

from amcast.lab.exhaustive_search import list_patterns, search_patterns
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.scope import Budget


def small(messages: int) -> PreparedRun:
    return prepare_run(
        parse_plan({"protocol": "flexcast", "topology": {"groups": 3, "replicas": 1, "clients": messages}})
    )


def test_patterns_are_counted_up_to_renaming_of_messages() -> None:
    assert len(list(list_patterns((0, 1, 2), 2))) == 28
    assert len(list(list_patterns((0, 1, 2, 3), 4))) == 3060


def test_a_pattern_with_too_many_states_is_left_and_the_others_are_searched() -> None:
    chosen = list(list_patterns((0, 1, 2), 2))
    found = search_patterns(small(2), chosen, Budget(), max_states=100_000, most_each=20)
    assert found.chosen == found.patterns == len(chosen)
    assert 0 < found.exhausted < len(chosen)
    assert found.share == found.exhausted / len(chosen)
    assert len(found.limits) == len(chosen) - found.exhausted
    assert found.verdict == "unknown"


def test_an_interrupted_search_tells_what_it_saw() -> None:
    def interrupt(states: int) -> None:
        raise KeyboardInterrupt

    few, many = ((0,), (1,), (2,), (2,)), ((0, 1, 2), (0, 1, 2), (0, 2), (1, 2))
    found = search_patterns(small(4), [few, many, few], Budget(), max_states=100_000, progress=interrupt)
    assert (found.exhausted, found.patterns, found.chosen) == (1, 1, 3)
    assert found.verdict == "unknown"
    assert found.limits == ["interrupted; 2 of 3 patterns were not seen"]

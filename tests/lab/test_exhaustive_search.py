"""How far an exhaustive search came is said, whatever ended it."""

import pytest

from amcast.lab.exhaustive_search import SearchResult, list_audits, list_patterns, search_patterns
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.parts.node.real_time_order import RealTimeOrder
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.scope import Budget
from tests.mutants.test_real_time import answer_when_every_destination_has_delivered


def small(messages: int) -> PreparedRun:
    return prepare_run(
        parse_plan({"protocol": "flexcast", "topology": {"groups": 3, "replicas": 1, "clients": messages}})
    )


def test_patterns_are_counted_up_to_renaming_of_messages() -> None:
    assert len(list(list_patterns((0, 1, 2), 2))) == 28
    assert len(list(list_patterns((0, 1, 2, 3), 4))) == 3060


def test_pattern_with_too_many_states_is_abandoned_for_the_next() -> None:
    chosen = list(list_patterns((0, 1, 2), 2))
    found = search_patterns(small(2), chosen, Budget(), max_states=100_000, most_each=20)
    assert found.chosen == found.patterns == len(chosen)
    assert 0 < found.exhausted < len(chosen)
    assert found.share == found.exhausted / len(chosen)
    assert len(found.limits) == len(chosen) - found.exhausted
    assert found.verdict == "unknown"


def test_interrupted_search_returns_what_it_explored() -> None:
    def interrupt(states: int) -> None:
        raise KeyboardInterrupt

    few, many = ((0,), (1,), (2,), (2,)), ((0, 1, 2), (0, 1, 2), (0, 2), (1, 2))
    found = search_patterns(small(4), [few, many, few], Budget(), max_states=100_000, progress=interrupt)
    assert (found.exhausted, found.patterns, found.chosen) == (1, 1, 3)
    assert found.verdict == "unknown"
    assert found.limits == ["interrupted; 2 of 3 patterns were not seen"]


AUDIT = ((0,), (1,), (0, 1))
"""The auditor reads group 0, then group 1; somebody moves money from one to the other."""
CHAIN = ((0,), (2,), (0, 1), (1, 2))


def audited(protocol: str, order: str, pattern: tuple[tuple[int, ...], ...]) -> SearchResult:
    groups = len({group for destinations in pattern for group in destinations})
    sizes = {"groups": groups, "replicas": 1, "clients": len(pattern) - 1}
    settings = {"protocol": protocol, "topology": sizes, "nodes": True, "heartbeats": False, "order": order}
    return search_patterns(prepare_run(parse_plan(settings)), [pattern], Budget(), 20_000, audits=True)


@pytest.mark.parametrize("protocol", ["flexcast", "primcast"])
def test_auditor_is_contradicted_in_the_acyclic_setting(protocol: str) -> None:
    found = audited(protocol, "acyclic", AUDIT)
    assert found.counterexample is not None
    assert "client 2 had the answer to 2000000000 before it multicast 2000000001" in found.counterexample.story


@pytest.mark.parametrize(
    ("protocol", "pattern"),
    [("flexcast", AUDIT), ("primcast", AUDIT), ("skeen", AUDIT), ("skeen", (*AUDIT, (0,))), ("flexcast", CHAIN)],
)
def test_no_interleaving_contradicts_an_auditor_in_the_real_time_setting(
    protocol: str, pattern: tuple[tuple[int, ...], ...]
) -> None:
    found = audited(protocol, "real-time", pattern)
    assert found.counterexample is None, found.counterexample
    assert found.exhausted == 1


def test_chain_over_three_groups_contradicts_the_obvious_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealTimeOrder, "_advance", answer_when_every_destination_has_delivered)
    found = audited("flexcast", "real-time", CHAIN)
    assert found.counterexample is not None
    assert found.counterexample.story.startswith("4 messages precede each other in a cycle")


def test_audits_are_listed_in_the_order_of_their_messages() -> None:
    assert len(list(list_audits((0, 1), 3))) == 27
    assert AUDIT in list(list_audits((0, 1), 3))

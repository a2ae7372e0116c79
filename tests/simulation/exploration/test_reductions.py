"""A reduced search ends where the full one ends, and the same comparison catches a reduction that is unsound."""

from dataclasses import replace
from typing import Any

import pytest

from amcast.kernel.ids import MessageId, message_id, sender_of, sequence_of
from amcast.lab.exhaustive_search import make_scope
from amcast.lab.runs import prepare_run
from amcast.simulation.exploration import expansion
from amcast.simulation.exploration.commutation import Commutation
from amcast.simulation.exploration.expansion import Expander
from amcast.simulation.exploration.partition import list_mappings, split_scope
from amcast.simulation.exploration.symmetry import Permutation, Symmetry, find_subgroup, list_candidates
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.explore import Explorer, explore
from amcast.simulation.schedulers.scope import Budget, Exploration, Scope
from amcast.simulation.world.actions import Suggest

Ending = tuple[tuple[MessageId, ...], ...]


def scope_of(protocol: str, replicas: int, pattern: tuple[tuple[int, ...], ...], **faults: int) -> Scope:
    groups = 1 + max(group for destinations in pattern for group in destinations)
    retries = "crashes" in faults
    plan: dict[str, Any] = {
        "protocol": protocol,
        "topology": {"groups": groups, "replicas": replicas, "clients": len(pattern)},
        "nodes": retries,
        "heartbeats": not retries,
    }
    return make_scope(prepare_run(parse_plan(plan)), pattern, Budget(**faults), 200_000)


CALM = {
    "skeen": scope_of("skeen", 1, ((0, 1), (0, 1))),
    "three groups of skeen": scope_of("skeen", 1, ((0, 1), (1, 2))),
    "flexcast": scope_of("flexcast", 1, ((0, 1), (0,))),
    "whitebox": scope_of("whitebox", 3, ((0,),)),
    "no change of leaders": replace(
        scope_of("primcast", 3, ((0,),), suggestions=1), suggestions=(Suggest(0, 0, 0), Suggest(2, 0, 1))
    ),
    "two messages": scope_of("primcast", 2, ((0,), (0,))),
}
CRASHING = {
    "crash in primcast": scope_of("primcast", 3, ((0,),), crashes=1),
    "crash in whitebox": scope_of("whitebox", 3, ((0,),), crashes=1),
    "crash in fastcast": scope_of("fastcast", 2, ((0,),), crashes=1),
}
SCOPES = CALM | CRASHING


def list_ending_keys(scope: Scope) -> set[int]:
    """The digests of all states in which only faults can happen, without symmetry."""
    explorer = Explorer(scope, [tuple(range(len(scope.topology.processes)))], None)
    found = explorer.run()
    assert found is not None
    assert found.verdict == "holds"
    return explorer.ending_keys


def list_endings(scope: Scope, found: Exploration) -> set[Ending]:
    """The deliveries in all endings, and in their images under the symmetries that were used."""
    kept = [one for one in list_candidates(scope) if one not in found.refuted]
    return {rename(scope, one, ending) for one in kept for ending in found.endings}


def rename(scope: Scope, one: Permutation, ending: Ending) -> Ending:
    processes = scope.topology.processes
    places = {process: place for place, process in enumerate(processes)}
    renamed: dict[int, tuple[MessageId, ...]] = {}
    for server, history in zip(scope.topology.servers, ending, strict=True):
        renamed[processes[one[places[server]]]] = tuple(
            message_id(processes[one[places[sender_of(message)]]], sequence_of(message)) for message in history
        )
    return tuple(renamed[server] for server in scope.topology.servers)


def full(scope: Scope) -> Scope:
    return replace(scope, reduced=False)


@pytest.mark.parametrize("name", CALM)
def test_moves_that_stand_for_all_lose_no_ending(name: str) -> None:
    scope = CALM[name]
    assert list_ending_keys(scope) == list_ending_keys(full(scope))


@pytest.mark.parametrize("name", SCOPES)
def test_reduced_search_finds_the_deliveries_of_the_full_one(name: str) -> None:
    scope = SCOPES[name]
    whole = explore(full(scope))
    parts = [explore(part) for part in split_scope(scope)]
    assert {part.verdict for part in parts} == {whole.verdict} == {"holds"}
    found = set().union(*(list_endings(scope, part) for part in parts))
    if name in CRASHING:  # a process that crashes has written what it could, so that it may have delivered more
        assert found <= set(whole.endings)
        assert {max(ending, key=len) for ending in found} == {max(ending, key=len) for ending in whole.endings}
    else:
        assert found == set(whole.endings)


def test_reductions_reduce() -> None:
    for scope in (CALM["skeen"], CALM["two messages"], CRASHING["crash in whitebox"]):
        assert explore(scope).states < explore(full(scope)).states / 1.5


@pytest.mark.parametrize("name", CRASHING)
def test_parts_have_all_endings_with_crashes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With writes in any order, so that a process that crashes has written what it has in the full search."""
    monkeypatch.setattr(expansion, "POSITIONS_PER_STATE", 0)
    scope = CRASHING[name]
    assert set().union(*map(list_ending_keys, split_scope(scope))) == list_ending_keys(full(scope))


def test_unsound_commutation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commutation, "_commutes", lambda self, pair, event: True)
    assert [name for name, scope in CALM.items() if list_ending_keys(scope) != list_ending_keys(full(scope))]


def test_refuted_choice_that_is_not_taken_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commutation, "refuted", property(lambda self: [], lambda self, value: None), raising=False)
    assert [name for name, scope in CALM.items() if list_ending_keys(scope) != list_ending_keys(full(scope))]


def test_choice_of_a_packet_that_a_crash_may_take_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "POSITIONS_PER_STATE", 0)
    monkeypatch.setattr(Expander, "_find_mortal", lambda self, control: [])
    scope = CRASHING["crash in primcast"]
    assert set().union(*map(list_ending_keys, split_scope(scope))) != list_ending_keys(full(scope))


def test_symmetry_that_is_not_observed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Symmetry, "_refute", lambda self, number: None)
    scope = CRASHING["crash in primcast"]
    assert find_all(scope) != set(explore(full(scope)).endings)


def find_all(scope: Scope) -> set[Ending] | None:
    try:
        return list_endings(scope, explore(scope))
    except KeyError:
        return None


def test_replicas_and_clients_are_observed_to_be_alike() -> None:
    assert explore(CALM["whitebox"]).symmetries == 2  # the followers
    assert explore(CALM["skeen"]).symmetries >= 2  # the clients
    mapped = list_mappings(split_scope(CRASHING["crash in primcast"]), list_candidates(CRASHING["crash in primcast"]))
    assert any(mapped)


def test_subgroup_has_no_refuted_permutation() -> None:
    candidates = list_candidates(scope_of("whitebox", 3, ((0,),)))
    assert len(candidates) == 6
    swap = (1, 0, 2, 3)
    group = find_subgroup(candidates, [swap])
    assert swap not in group
    assert len(group) in (2, 3)


def test_digests_bound_the_probability_of_an_omission() -> None:
    found = explore(CALM["skeen"])
    assert 0 < found.omission < 1e-12
    assert replace(found, states=2**33).omission == 1.0

"""Exhaustive search: correct Skeen holds in every scope tried, every planted bug is found by a shortest way."""

from itertools import combinations, combinations_with_replacement

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.events import Event, Started, Submit, Timer
from amcast.kernel.message import Message
from amcast.kernel.spec import Claims, Links
from amcast.kernel.topology import Topology
from amcast.protocols.skeen.process import SPEC
from amcast.simulation.schedulers.explore import explore
from amcast.simulation.schedulers.replay import replay
from amcast.simulation.schedulers.scope import Budget, Scope
from amcast.simulation.world.actions import AnyAction
from tests.mutants.protocols.skeen import SKEEN_MUTANTS
from tests.simulation.puppets import Fact, Number, Puppet, React
from tests.simulation.small_worlds import explored_script, judge, scope_of

KINDS: tuple[Links, ...] = ("fifo", "reordering")
BOTH = ((2, (0, 1)), (3, (0, 1)))


@pytest.mark.parametrize("links", KINDS)
@pytest.mark.parametrize("senders", [(2, 2), (2, 3), (0, 1)], ids=str)
def test_skeen_holds_for_two_messages_to_two_groups(links: Links, senders: tuple[int, int]) -> None:
    for first, second in combinations_with_replacement([(0,), (1,), (0, 1)], 2):
        found = explore(scope_of(SPEC, 2, ((senders[0], first), (senders[1], second)), links=links))
        assert (found.verdict, found.limit, found.counterexample) == ("holds", None, None)
    assert found.goals == {"waited": links == "reordering" or senders[0] != senders[1], "early": True}


def test_skeen_holds_for_two_messages_to_three_groups() -> None:
    pairs = list(combinations(range(3), 2))
    for first, second in [*combinations_with_replacement(pairs, 2), ((0, 1, 2), (0, 1)), ((0, 1, 2), (1,))]:
        found = explore(scope_of(SPEC, 3, ((3, first), (4, second))))
        assert (found.verdict, found.limit) == ("holds", None)
    found = explore(scope_of(SPEC, 3, ((3, (0, 1, 2)), (3, (0, 1, 2)))))
    assert found.verdict == "holds"


@pytest.mark.parametrize("links", KINDS)
@pytest.mark.parametrize("name", SKEEN_MUTANTS)
def test_planted_bug_is_found_and_replays(name: str, links: Links) -> None:
    spec = SKEEN_MUTANTS[name]
    scope = scope_of(spec, 2, BOTH, links=links)
    found = explore(scope)
    assert found.verdict == "violated"
    assert found.counterexample is not None
    example = found.counterexample
    assert len(example.script) <= 14
    again = replay(explored_script(spec, scope, example.script), scope.make, scope.claims, scope.judge)
    assert (again.status, again.story) == (example.status, example.story)


@pytest.mark.parametrize("name", ["skeen-last-proposal-ignored", "skeen-twice", "skeen-no-tie-break"])
def test_counterexample_of_a_full_search_is_a_shortest_path(name: str) -> None:
    full = explore(scope_of(SKEEN_MUTANTS[name], 2, BOTH, reduced=False))
    reduced = explore(scope_of(SKEEN_MUTANTS[name], 2, BOTH))
    assert full.counterexample is not None
    assert reduced.counterexample is not None
    assert full.deepest <= len(full.counterexample.script) <= len(reduced.counterexample.script)


SCOPES = [
    (2, BOTH, "fifo"),
    (2, BOTH, "reordering"),
    (2, ((2, (0, 1)), (2, (0, 1))), "reordering"),
    (2, ((0, (0, 1)), (1, (0, 1))), "fifo"),
    (3, ((3, (0, 1)), (4, (1, 2))), "reordering"),
]


@pytest.mark.parametrize(("groups", "messages", "links"), SCOPES, ids=str)
def test_reduction_loses_no_goal_and_no_depth(
    groups: int, messages: tuple[tuple[int, tuple[int, ...]], ...], links: Links
) -> None:
    reduced = explore(scope_of(SPEC, groups, messages, links=links))
    full = explore(scope_of(SPEC, groups, messages, links=links, reduced=False))
    assert reduced.transitions < full.transitions
    assert reduced.states < full.states
    for field in ("verdict", "deepest", "goals"):
        assert getattr(reduced, field) == getattr(full, field), field


def test_limit_makes_the_verdict_unknown() -> None:
    found = explore(scope_of(SPEC, 2, BOTH, max_states=100))
    assert found.verdict == "unknown"
    assert found.limit == "the limit of 100 states was reached; there may be more"
    assert found.states == 100


def test_unreachable_goal_is_missed() -> None:
    found = explore(scope_of(SPEC, 2, ((2, (0,)),), goals=("early", "waited")))
    assert found.verdict == "holds"
    assert found.missed_goals == ["early", "waited"]


def test_progress_is_reported() -> None:
    calls: list[tuple[int, int]] = []
    scope = scope_of(SPEC, 2, ((2, (0, 1)), (2, (0, 1))), links="reordering", reduced=False)
    explore(scope, lambda *progress: calls.append(progress))
    assert calls
    assert calls == sorted(calls)


def test_equal_scopes_give_equal_searches() -> None:
    assert explore(scope_of(SPEC, 2, BOTH)) == explore(scope_of(SPEC, 2, BOTH))


def puppets(react: React, budget: Budget, links: Links = "fifo", **claims: object) -> Scope:
    topology = Topology.grid(2, 1)
    return Scope(
        topology,
        lambda me: Puppet(me, topology, react, {}),
        ((0, (0,)),),
        lambda histories, destinations: None,
        Claims("no", **claims),  # type: ignore[arg-type]
        links,
        budget,
    )


def kinds(actions: list[AnyAction]) -> list[str]:
    return [type(action).__name__ for action in actions]


def careless(puppet: Puppet, event: Event) -> None:
    """Delivers before it has written down that it will: after a crash it delivers something else there."""
    if isinstance(event, Submit):
        puppet.deliver(event.message)
    elif isinstance(event, Started) and event.incarnation and not event.records:
        puppet.deliver(Message(99, 0, (0,)))


def test_crash_and_recovery_are_tried_within_the_budget() -> None:
    assert explore(puppets(careless, Budget())).verdict == "holds"
    assert explore(puppets(careless, Budget(crashes=1))).verdict == "holds"
    found = explore(puppets(careless, Budget(crashes=1, recoveries=1)))
    assert found.counterexample is not None
    assert kinds(found.counterexample.script) == ["Multicast", "Crash", "Recover"]
    assert "in an earlier incarnation" in found.counterexample.story


def test_crash_before_a_disk_write_is_tried() -> None:
    def fearful(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.deliver(event.message)
            puppet.persist(Fact(1))
            puppet.note("asked")
        elif isinstance(event, Started) and event.incarnation:
            puppet.note("kept" if event.records else "lost")

    scope = puppets(fearful, Budget(crashes=1, recoveries=1))
    found = explore(Scope(**{**vars(scope), "goals": ("kept", "lost", "asked")}))
    assert found.missed_goals == []


def test_losses_and_duplicates_are_tried_on_raw_links() -> None:
    def counting(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.send(1, Number(1))
            puppet.send(1, Number(1))
            puppet.deliver(event.message)
        elif puppet.me == 1 and puppet.received == 4:
            raise AssertionError("three packets of two")

    assert explore(puppets(counting, Budget(drops=1), "raw")).verdict == "holds"
    found = explore(puppets(counting, Budget(repeats=1), "raw"))
    assert found.counterexample is not None
    assert found.counterexample.status == "violated"
    assert "fails with AssertionError in counting: three packets of two" in found.counterexample.story
    assert sorted(kinds(found.counterexample.script)) == ["Arrive", "Arrive", "Arrive", "Multicast", "Repeat"]


def retrying(puppet: Puppet, event: Event) -> None:
    """0 asks 1 until it answers; the timer never stops."""
    if isinstance(event, Submit):
        puppet.persist(Fact(1))
    if isinstance(event, Submit | Timer) and puppet.me == 0:
        puppet.send(1, Number(1))
        puppet.set_timer("again", (1, 1))
    elif puppet.me == 1 and not isinstance(event, Started):
        puppet.send(0, Number(2))
    elif puppet.me == 0 and not isinstance(event, Started) and puppet.position == 0:
        puppet.deliver(Message(0, 0, (0,)))


def test_fair_ending_lets_a_retrying_protocol_deliver() -> None:
    found = explore(puppets(retrying, Budget(drops=1, timers=1), "raw"))
    assert found.verdict == "holds"
    assert found.unspent > 0


def test_missing_delivery_is_found() -> None:
    def lazy(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.send(1, Number(1))

    found = explore(puppets(lazy, Budget()))
    assert found.counterexample is not None
    assert found.counterexample.status == "stuck"
    assert found.counterexample.story.startswith("process 0 never delivers message 0")
    assert kinds(found.counterexample.script) == ["Multicast", "Arrive"]


def test_incomplete_snapshot_is_noticed() -> None:
    class Shallow(Puppet):
        forgotten = 0

        def _hear(self, event: Event) -> None:
            self.forgotten += 1
            super()._hear(event)

    def react(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.send(0, Number(1))
            puppet.send(0, Number(2))
        elif puppet.received == 4:
            assert isinstance(puppet, Shallow)
            if puppet.forgotten == 4:
                puppet.deliver(Message(0, 0, (0,)))

    topology = Topology.grid(1, 1)
    scope = Scope(
        topology,
        lambda me: Shallow(me, topology, react, {}),
        ((0, (0,)),),
        lambda histories, destinations: None,
        Claims("no"),
    )
    with pytest.raises(AssertionError, match="not complete"):
        explore(scope)


def test_invalid_scope_is_rejected() -> None:
    with pytest.raises(UsageError, match="only raw links"):
        scope_of(SPEC, 2, BOTH, budget=Budget(drops=1))
    with pytest.raises(UsageError, match="group 7 does not exist"):
        scope_of(SPEC, 2, ((2, (7,)),))
    with pytest.raises(UsageError, match=r"budget\.crashes = -1"):
        scope_of(SPEC, 2, BOTH, budget=Budget(crashes=-1))
    with pytest.raises(UsageError, match="max_states"):
        scope_of(SPEC, 2, BOTH, max_states=0)


def test_judges_agree() -> None:
    """The judge of replays says what `always` says."""
    scope = scope_of(SKEEN_MUTANTS["skeen-last-proposal-ignored"], 2, BOTH)
    found = explore(scope)
    assert found.counterexample is not None
    script = explored_script(SPEC, scope, found.counterexample.script)
    assert replay(script, scope.make, scope.claims, judge).story == found.counterexample.story

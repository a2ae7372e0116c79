"""The search for the worst case: strong enough to get far above the conflict-free delays, and never above a bound."""

from dataclasses import replace

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.spec import Spec
from amcast.lab.worst_case import UNIT_NS, Cast, Schedule, list_skews, make_topology, run_schedule, search_worst_case
from amcast.protocols.catalogue import CATALOGUE
from amcast.trace.recorder import Recorder

SCHEDULES = 300

CASES = [
    ("basecast", 0.0, {"leader": 8.4, "follower": 7.4}),
    ("fastcast", 0.0, {"leader": 5.9, "follower": 5.9}),
    ("whitebox", 0.0, {"leader": 4.4, "follower": 5.4}),
    ("primcast", 0.0, {"primary": 4.9, "member": 4.9}),
    ("primcast-hc", 0.0, {"primary": 3.9, "member": 3.9}),
    ("primcast-hc", 0.25, {"primary": 3.9, "member": 3.9}),
    ("primcast-hc", 1.0, {"primary": 3.9, "member": 4.4}),
]


@pytest.mark.parametrize(("name", "skew", "reached"), CASES)
def test_no_schedule_exceeds_the_bound_and_the_search_gets_near(
    name: str, skew: float, reached: dict[str, float]
) -> None:
    for row in search_worst_case(CATALOGUE[name], SCHEDULES, seed=1, skew=skew):
        again = f"amcast worst {name} --schedules {SCHEDULES} --seed 1 --json"
        assert row.holds, f"{row.found} D at a {row.role}, skew {skew}, bound {row.bound}: {again}"
        assert row.found >= reached[row.role], f"too tame: {row.found} D at a {row.role}, skew {skew}: {again}"


def test_worst_schedule_replays_to_the_same_latency() -> None:
    spec = CATALOGUE["primcast"]
    for row in search_worst_case(spec, 60, seed=3):
        schedule = Schedule.of_dict(row.as_dict()["schedule"])
        assert schedule == row.schedule
        assert run_schedule(spec, schedule).latest[row.role] == row.found


def test_bound_that_is_too_low_is_exceeded() -> None:
    spec = CATALOGUE["primcast"]
    proud = replace(spec, claims=replace(spec.claims, bound=lambda role, skew: 3))
    assert not all(row.holds for row in search_worst_case(proud, 60, seed=0))


def test_worst_case_search_is_deterministic() -> None:
    spec = CATALOGUE["whitebox"]
    first, second = (search_worst_case(spec, 60, seed=5) for _ in range(2))
    assert first == second
    assert first != search_worst_case(spec, 60, seed=6)


def test_no_packet_takes_longer_than_its_bound_or_overtakes() -> None:
    there = make_topology()
    client, first = there.clients[0], there.members(0)[0]
    chosen = {(client, first, 0): UNIT_NS // 2, (first, 1, 0): UNIT_NS, (first, 1, 1): 0}
    recorder = Recorder()
    schedule = Schedule((Cast(0, (0, 1)), Cast(UNIT_NS // 4, (0,))), {}, chosen)
    assert not run_schedule(CATALOGUE["primcast"], schedule, recorder).undelivered
    arrived: dict[tuple[int, int], int] = {}
    for row in recorder.packets:
        source, target, sent_ns, received_ns = (int(str(row[place])) for place in (2, 3, 5, 6))
        assert 0 <= received_ns - sent_ns <= UNIT_NS
        assert received_ns >= arrived.get((source, target), 0)
        arrived[source, target] = received_ns


def test_protocol_without_a_bound_is_rejected() -> None:
    spec: Spec = CATALOGUE["skeen"]
    with pytest.raises(UsageError, match="claims no bound"):
        list_skews(spec)


# Schedules by hand, to show what the search should find


def meeting(after: float, skew: float) -> Schedule:
    """Group 1 is ahead, so a message to groups 0 and 1 ends above group 0's clock. Just before group 0 learns that,
    another message reaches group 0 at once, but group 2 slowly: it comes first, and both wait for group 2."""
    there = make_topology()
    start = 50 * UNIT_NS
    casts = [Cast(number * UNIT_NS, (1,)) for number in range(3)]
    casts += [Cast(start, (0, 1)), Cast(start + int(after * UNIT_NS) - 1, (0, 2))]
    rival = there.clients[len(casts) - 1]
    clocks = {
        member: int(sign * skew * UNIT_NS) for group, sign in ((0, -1), (1, 1)) for member in there.members(group)
    }
    return Schedule(tuple(casts), {(rival, member): 0 for member in there.members(0)}, {}, clocks if skew else {})


@pytest.mark.parametrize(
    ("name", "skew", "after", "latest"),
    [
        ("basecast", 0, 4, {"leader": 10, "follower": 9}),
        ("fastcast", 0, 2, {"leader": 6, "follower": 6}),
        ("whitebox", 0, 2, {"leader": 5, "follower": 6}),
        ("primcast", 0, 2, {"primary": 5, "member": 5}),
        ("primcast-hc", 0, 1, {"primary": 4, "member": 4}),
        ("primcast-hc", 0.25, 1.5, {"primary": 4.5, "member": 4.5}),
        ("primcast-hc", 1, 2, {"primary": 5, "member": 5}),
    ],
)
def test_two_messages_that_meet(name: str, skew: float, after: float, latest: dict[str, float]) -> None:
    found = run_schedule(CATALOGUE[name], meeting(after, skew)).latest
    assert {role: round(value, 3) for role, value in found.items()} == latest

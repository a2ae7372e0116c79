"""The search for cycles of time and order: it finds them where they exist, and none where P9 is claimed."""

import pytest

from amcast.check import judge
from amcast.kernel.ids import message_id
from amcast.lab.real_time.schedule import HELD, Schedule, judge_real_time, run_schedule
from amcast.lab.real_time.search import search_real_time
from amcast.lab.worst_case import UNIT_NS, Cast
from amcast.protocols.catalogue import CATALOGUE


@pytest.mark.parametrize("name", ["primcast", "skeen", "flexcast"])
def test_search_finds_a_cycle_that_breaks_nothing_else(name: str) -> None:
    spec = CATALOGUE[name]
    found = search_real_time(spec, 200, seed=7, shrinks=False)
    assert found.schedule is not None, f"amcast worst {name} --real-time --schedules 200 --seed 7"
    assert found.stuck == 0
    report = judge(run_schedule(spec, Schedule.of_dict(found.schedule.as_dict()), packets=True))
    verdicts = {property: finding.verdict for property, finding in report.properties.items()}
    assert verdicts.pop("P9") == "violated"
    assert set(verdicts.values()) == {"holds"}


@pytest.mark.parametrize("name", ["ring", "multipaxos"])
def test_search_finds_nothing_where_real_time_is_claimed(name: str) -> None:
    found = search_real_time(CATALOGUE[name], 60, seed=7)
    assert found.holds, f"amcast worst {name} --real-time --schedules 60 --seed 7 --json"
    assert found.stuck == 0


def test_search_is_deterministic() -> None:
    first, second = (search_real_time(CATALOGUE["whitebox"], 40, seed=2, shrinks=False) for _ in range(2))
    assert first == second
    assert first != search_real_time(CATALOGUE["whitebox"], 40, seed=3, shrinks=False)


def test_shrunk_schedule_needs_every_multicast() -> None:
    spec = CATALOGUE["primcast"]
    schedule = search_real_time(spec, 40, seed=0).schedule
    assert schedule is not None
    assert judge_real_time(run_schedule(spec, schedule)).verdict == "violated"
    assert 3 <= len(schedule.casts) <= 5
    used = {group for cast in schedule.casts for group in cast.destinations}
    assert used == set(range(schedule.groups))


def test_held_links_are_slow_from_a_moment_on() -> None:
    casts = (Cast(0, (0,)), Cast(10 * UNIT_NS, (0,)))
    servers = range(6)
    held = tuple((client, server) for client in (6, 7) for server in servers)
    run = run_schedule(CATALOGUE["skeen"], Schedule(2, casts, held_ns=5 * UNIT_NS, held=held))
    first = {}
    for message, at in zip(run.deliveries["message"], run.deliveries["at_ns"], strict=True):
        first[message] = min(at, first.get(message, at))
    assert first[message_id(6, 0)] < 10 * UNIT_NS
    assert first[message_id(7, 0)] >= 10 * UNIT_NS + HELD

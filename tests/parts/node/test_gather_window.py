"""Gather windows: how long a gateway waits for the clients that it has just answered."""

from amcast.kernel.config import MILLISECOND
from amcast.kernel.effects import Effect, SetTimer
from amcast.kernel.topology import Topology
from amcast.parts.node.gateway import MAX_WINDOWS, WINDOW_TIMER
from amcast.parts.node.gather_window import (
    FULL_WINDOW_ROUNDS,
    LONG_WINDOW_NS,
    MAX_EMPTY_ROUNDS,
    MAX_WINDOW_NS,
    MIN_PHASE_NS,
    PHASE_BUNDLES,
    TRIAL_INTERVAL,
    GatherWindow,
)
from tests.parts.node.gateway_scene import bundles_in, make_gateway, make_message, replies_to

BUNDLE_INTERVAL_NS = MIN_PHASE_NS // PHASE_BUNDLES
"""With bundles in such intervals, a phase has PHASE_BUNDLES of them, and one."""


def window_timers(effects: list[Effect]) -> list[int]:
    return [effect.low_ns for effect in effects if isinstance(effect, SetTimer) and effect.name == WINDOW_TIMER]


def test_number_of_windows_is_bounded() -> None:
    topology = Topology.grid(11, 1, 2)
    gateway = make_gateway(topology)
    sets = [tuple(group for group in range(11) if bits >> group & 1) for bits in range(1, MAX_WINDOWS + 100)]
    for round, groups in enumerate(sets):
        for client in topology.clients:
            gateway.add(make_message(client, round, groups))
        gateway.expire_window_timer()
        (bundle,) = bundles_in(gateway.step([], 10 * round))
        gateway.step(replies_to(bundle, groups, {group: group for group in groups}), 10 * round + 5)
    assert (len(gateway._windows), gateway._in_flight, gateway._sent_ns) == (99, {}, {})
    assert len(gateway.snapshot().windows) == 99


def windows_after(pairs: list[tuple[int, int]], took_ns: int = 4000) -> list[int]:
    """The window after each bundle of two clients, if every answer takes `took_ns`."""
    gateway, windows = make_gateway(), []
    for round, clients in enumerate(pairs):
        for client in clients:
            gateway.add(make_message(client, round))
        gateway.expire_window_timer()
        sent_ns = BUNDLE_INTERVAL_NS * round
        (bundle,) = bundles_in(gateway.step([], sent_ns))
        windows += window_timers(gateway.step(replies_to(bundle), sent_ns + took_ns))
        copy = make_gateway()
        copy.restore(gateway.snapshot())
        assert copy.snapshot() == gateway.snapshot()
    return windows


def test_window_is_full_for_returning_clients_and_short_for_others() -> None:
    assert windows_after([(6, 7)] * 5) == [8000] * 5
    assert windows_after([(6, client) for client in range(7, 12)]) == [8000] * 5, "one of two returns"
    assert windows_after([(6, 7)] * 2, 10**9) == [MAX_WINDOW_NS] * 2
    passing = windows_after([(client, client + 1) for client in range(6, 6 + 2 * 100, 2)])
    assert passing[:PHASE_BUNDLES] == [8000] + [1000] * (PHASE_BUNDLES - 1)
    trial = [LONG_WINDOW_NS] * MAX_EMPTY_ROUNDS + [1000] * (PHASE_BUNDLES - MAX_EMPTY_ROUNDS)
    assert passing[PHASE_BUNDLES : 2 * PHASE_BUNDLES] == trial, "long windows are tried, and not for long"
    later = passing[2 * PHASE_BUNDLES + 1 :]
    assert later[:FULL_WINDOW_ROUNDS] == [8000] + [1000] * (FULL_WINDOW_ROUNDS - 1)
    assert later[FULL_WINDOW_ROUNDS] == 8000, "a full window now and then"


def are_windows_long(short_ns: int, long_ns: int, rounds: int, away_ns: int = 20 * MILLISECOND) -> list[bool]:
    """Whether the window after each bundle of three clients is long, if messages wait `short_ns` with short windows and
    `long_ns` with long ones, and clients stay away for 20 ms after short windows and `away_ns` after long ones."""
    gateway, results, now = make_gateway(), [False], 0
    for round in range(rounds):
        for client in range(6, 9):
            gateway.add(make_message(client, round))
        gateway.expire_window_timer()
        (bundle,) = bundles_in(gateway.step([], now))
        now += long_ns if results[-1] else short_ns
        (window_ns,) = window_timers(gateway.step(replies_to(bundle), now))
        results.append(window_ns == LONG_WINDOW_NS)
        now += away_ns if results[-1] else 20 * MILLISECOND  # no message waits here during this time
    return results[1:]


def test_long_windows_are_tried_and_kept_if_they_cost_little() -> None:
    rounds = 40 * PHASE_BUNDLES
    assert not any(are_windows_long(MILLISECOND, MILLISECOND, PHASE_BUNDLES)), "the first phase has short windows"
    is_long = are_windows_long(MILLISECOND, MILLISECOND, rounds)
    assert sum(is_long) > 0.85 * rounds
    assert not all(is_long[2 * PHASE_BUNDLES :]), "the other kind is tried from time to time"
    assert sum(are_windows_long(10 * MILLISECOND, 20 * MILLISECOND, rounds)) < 0.15 * rounds
    assert sum(are_windows_long(2 * MILLISECOND, MILLISECOND, rounds)) > 0.85 * rounds
    same_rate = are_windows_long(10 * MILLISECOND, 19 * MILLISECOND, rounds, away_ns=11 * MILLISECOND)
    assert sum(same_rate) > 0.85 * rounds, "messages wait longer here and less elsewhere"
    too_long = are_windows_long(MILLISECOND, 4 * MILLISECOND, rounds, away_ns=10 * MILLISECOND)
    assert sum(too_long) < 0.15 * rounds


def test_one_failed_trial_does_not_end_long_windows() -> None:
    window = GatherWindow()
    window.is_long, window.is_trial, window.phases, window.next_trial = False, True, 10, 10
    window.long_result, window.short_result = (4 * MILLISECOND, 4 * MILLISECOND), (MILLISECOND, MILLISECOND)
    window._choose_next_phase()
    assert (window.is_long, window.is_trial, window.next_trial) == (True, False, 11), "the first failure"
    window.phases = 11
    window._choose_next_phase()
    assert (window.is_long, window.is_trial) == (False, True), "short windows are tried again"
    window._choose_next_phase()
    assert not window.is_long
    assert window.next_trial == 11 + 2 * TRIAL_INTERVAL
    window.is_long = window.is_trial = True
    window.long_result = (MILLISECOND, MILLISECOND)
    window._choose_next_phase()
    assert (window.is_long, window.failed_trials, window.trial_interval) == (True, 0, TRIAL_INTERVAL)


def test_windows_are_short_for_distant_groups_and_passing_clients() -> None:
    distant = windows_after([(6, 7)] * 3 * PHASE_BUNDLES, LONG_WINDOW_NS)
    assert distant == [MAX_WINDOW_NS] * len(distant)
    passing = windows_after([(client, client + 1) for client in range(6, 6 + 200 * PHASE_BUNDLES, 2)])
    assert passing.count(LONG_WINDOW_NS) == 3 * MAX_EMPTY_ROUNDS, "a trial lasts a few bundles, and trials become rare"
    assert LONG_WINDOW_NS in windows_after([(6, 7)] * 3 * PHASE_BUNDLES)

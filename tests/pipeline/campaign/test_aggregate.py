"""The aggregate of a campaign."""

from typing import Any

from amcast.pipeline.campaign.aggregate import aggregate_runs, decide_verdict, format_ranges

ROW: dict[str, Any] = {
    "protocol": "ring",
    "faults": "drawn",
    "status": "holds",
    "story": "",
    "steps": 10,
    "messages": 2,
    "real_log": False,
    "cpu_s": 0.25,
    "fired": [("crash", 2)],
    "reached": [("led", 9)],
}


def count(rows: list[dict[str, Any]], goals: tuple[str, ...] = ("led",)) -> dict[str, Any]:
    (one,) = aggregate_runs(rows, [("ring", "drawn"), ("skeen", "drawn")], lambda protocol, faults: goals)
    return one


def test_aggregate_counts_runs_faults_and_goals() -> None:
    one = count([{**ROW, "seed": seed} for seed in (0, 1, 2, 5)] + [{**ROW, "seed": 6, "fired": [], "reached": []}])
    assert (one["runs"], one["seeds"], one["steps"], one["cpu_s"]) == (5, "0..2,5..6", 50, 1.2)
    assert one["fired"] == {"crash": {"runs": 4, "times": 8}}
    assert one["goals"] == {"led": 4}
    assert one["cpu_hours_of_a_million_runs"] == round(0.25 * 1e6 / 3600, 1)


def test_seed_counts_once_whatever_a_first_try_met() -> None:
    lost = {**ROW, "seed": 0, "status": "timeout", "story": "slow"}
    for rows in ([lost, {**ROW, "seed": 0}], [{**ROW, "seed": 0}, lost], [{**ROW, "seed": 0}] * 2):
        one = count(rows)
        assert (one["runs"], one["unfinished"], one["failures"]) == (1, 0, [])
    assert count([lost])["unfinished"] == 1


def test_missed_goal_counts_after_enough_runs() -> None:
    rows = [{**ROW, "seed": seed} for seed in range(60)]
    assert count(rows[:10], ("led", "never"))["goals_missed"] == []
    assert count(rows, ("led", "never"))["goals_missed"] == ["never"]


def test_verdict_is_no_better_than_the_worst_run() -> None:
    good = count([{**ROW, "seed": 0}])
    assert decide_verdict([good], 0) == "holds"
    assert decide_verdict([good], 1) == "unknown"
    assert decide_verdict([], 0) == "unknown"
    verdicts = {"violated": "violated", "stuck": "violated", "error": "unknown", "crash": "unknown"}
    for status, verdict in verdicts.items():
        assert decide_verdict([good, count([{**ROW, "seed": 0, "status": status}])], 0) == verdict
    assert decide_verdict([count([{**ROW, "seed": seed} for seed in range(60)], ("never",))], 0) == "unknown"


def test_ranges_are_compact() -> None:
    assert format_ranges([]) == ""
    assert format_ranges([3, 1, 2, 9]) == "1..3,9"

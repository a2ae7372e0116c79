"""The sentence about who answers first says how sure it is, and no interval is made of few seeds."""

from typing import Any

import pytest

from amcast.figures.charts import Axis, ChartFrame, Curve, draw_panels, spans_decades
from amcast.figures.measured_settings import MeasuredSettings
from amcast.figures.ranks import describe_rankings, rank_protocols


def measure(runs: int, *latencies: tuple[str, int, float, float]) -> MeasuredSettings:
    """Settings with a protocol, a load, a median and the half of its interval, in ms."""
    rows: list[dict[str, Any]] = []
    plans = {}
    for protocol, load, median, half in latencies:
        setting = f"{protocol}-{load}"
        plans[setting] = {"protocol": protocol, "workload": {"outstanding": load}}
        rows.append(
            {
                "setting": setting,
                "protocol": protocol,
                "outstanding": load,
                "plan": f'{{"protocol": "{protocol}", "workload": {{"outstanding": {load}}}}}',
                "runs": runs,
                "latency_ns_p50": median * 1e6,
                "latency_ns_p50_low": (median - half) * 1e6,
                "latency_ns_p50_high": (median + half) * 1e6,
            }
        )
    return MeasuredSettings({"comparison": rows, "summary": []}, plans)


@pytest.mark.parametrize(
    ("runs", "half", "expected"),
    [
        (5, 1.0, "the 95 % intervals are apart"),
        (5, 20.0, "the 95 % intervals overlap: it may be chance"),
        (4, 1.0, "fewer than 5 seeds: no interval"),
    ],
)
def test_sentence_says_by_how_much_and_how_sure(runs: int, half: float, expected: str) -> None:
    measured = measure(runs, ("ring", 1, 300, 1.0), ("basecast", 1, 57, half), ("primcast", 1, 40, half))
    (ranking,) = rank_protocols(measured)
    assert [setting.protocol for setting in ranking.settings] == ["primcast", "basecast", "ring"]
    assert ranking.describe() == (
        f"For this load, primcast answers 17 ms earlier than the next, basecast (median 40 against 57 ms; {expected})."
    )


def test_every_load_has_its_sentence() -> None:
    measured = measure(5, ("a", 1, 10, 1), ("b", 1, 20, 1), ("a", 8, 50, 1), ("b", 8, 50.1, 1))
    first, second, note = describe_rankings(rank_protocols(measured))
    assert first.startswith("With outstanding 1, a answers 10 ms earlier")
    assert second.startswith("With outstanding 8, a and b answer equally fast")
    assert "amcast protocols" in note


def test_lone_protocol_has_no_ranking() -> None:
    assert rank_protocols(measure(5, ("a", 1, 10, 1), ("a", 2, 20, 1))) == []


def test_few_seeds_have_no_interval() -> None:
    for runs, expected in ((2, (None, None)), (5, (9e6, 11e6))):
        assert measure(runs, ("a", 1, 10, 1)).settings[0].interval("latency_ns_p50") == expected


def test_scale_is_logarithmic_over_decades() -> None:
    assert spans_decades([1, None, 100])
    assert not spans_decades([10, 100])
    assert not spans_decades([0, 1000])
    assert not spans_decades([])


def test_small_multiples_show_one_line_each_on_equal_axes() -> None:
    frame = ChartFrame("many", "Many", "", Axis("x", log=True), Axis("y", log=True))
    chart = draw_panels(frame, [Curve(name, [1, 10], [10, 1000], notes=("low", "high")) for name in "abc"])
    assert chart.inline.count("<svg") == 3
    assert chart.is_wide
    assert [chart.inline.count(f'<div data-series="{name}"') for name in "abc"] == [1, 1, 1]
    assert "b, high: x 10, y 1000" in chart.inline
    assert chart.file.count("<svg") == 1
    assert len(chart.rows) == 6

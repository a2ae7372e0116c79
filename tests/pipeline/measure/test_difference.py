"""Two sets of runs side by side: worse only where an interval shows it, and never "same" without one."""

import json
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.measure.comparison import SUMMARY
from amcast.pipeline.measure.difference import NumberChange, RunsDifference, compare_runs

NOTHING: tuple[dict[str, Any], dict[str, Any]] = ({}, {})


def make_run(seed: int | None, protocol: str = "skeen", status: str = "holds", **numbers: float) -> dict[str, Any]:
    plan = {"protocol": protocol, "clients": int(numbers.pop("clients", 1))}
    row = dict.fromkeys(SUMMARY) | {"run": f"{protocol}-{seed}", "seed": seed, "status": status, "protocol": protocol}
    return row | {"setting": json.dumps(plan), "plan": json.dumps(plan)} | numbers


def find_number(found: RunsDifference, name: str = "latency_ns_p50") -> NumberChange:
    return next(one for one in found.settings[0].numbers if one.number == name)


def compare(before: list[float], after: list[float], other_seeds: bool = False, **options: Any) -> NumberChange:
    """Of the median latency of runs with seeds 0, 1, ..., or with other seeds after."""
    first = [make_run(seed, latency_ns_p50=value) for seed, value in enumerate(before)]
    second = [make_run(seed + 100 * other_seeds, latency_ns_p50=value) for seed, value in enumerate(after)]
    return find_number(compare_runs(first, second, NOTHING, gated=("latency_ns_p50",), **options))


def test_runs_with_the_same_seeds_are_compared_in_pairs() -> None:
    """The runs differ by far more than the change, which every pair shows."""
    paired = compare([100, 500, 900], [160, 561, 959])
    assert (paired.method, paired.change) == ("paired", "worse")
    assert paired.low is not None
    assert 0 < paired.low < paired.difference
    apart = compare([100, 500, 900], [160, 561, 959], other_seeds=True)
    assert (apart.method, apart.change) == ("means", "unknown")


def test_welch_interval_is_the_textbooks() -> None:
    """Two samples of Welch's example in many textbooks: t = 2.776 at 4 degrees of freedom for equal variances."""
    found = compare([1, 2, 3], [11, 12, 13], other_seeds=True)
    assert found.low == pytest.approx(10 - 2.776 * (2 / 3) ** 0.5)
    assert found.high == pytest.approx(10 + 2.776 * (2 / 3) ** 0.5)


def test_same_needs_an_interval_within_the_tolerance() -> None:
    assert compare([100, 101, 100], [101, 101, 101]).change == "same"
    assert compare([100, 101, 100], [101, 101, 101], tolerance=0.001).change == "unknown"
    assert compare([100, 100, 100], [80, 81, 80]).change == "better"
    assert compare([100], [100]).change == "same"
    assert compare([100], [101]).change == "unknown"


def test_single_runs_are_compared_by_their_own_intervals() -> None:
    runs = [[make_run(None, latency_ns_p50=value)] for value in (100.0, 120.0)]
    near = {"latency_ns_p50_low": 97.0, "latency_ns_p50_high": 103.0}
    far = {"latency_ns_p50_low": 116.0, "latency_ns_p50_high": 124.0}
    found = compare_runs(*runs, ({"skeen-None": near}, {"skeen-None": far}), gated=("latency_ns_p50",))
    number = find_number(found)
    assert (number.method, number.low, number.high, number.change) == ("inside", 15.0, 25.0, "worse")
    assert found.verdict == "violated"
    assert found.worse == ["skeen: latency_ns_p50 is worse"]


def test_higher_throughput_is_better() -> None:
    rows = [[make_run(seed, throughput_per_s=rate) for seed in range(3)] for rate in (100.0, 200.0)]
    assert find_number(compare_runs(*rows, NOTHING), "throughput_per_s").change == "better"
    assert find_number(compare_runs(*reversed(rows), NOTHING), "throughput_per_s").change == "worse"


def test_runs_out_of_order_are_worse_and_undecided_ones_unknown() -> None:
    good = [make_run(seed, latency_ns_p50=1.0) for seed in range(2)]
    for status, verdict in (("violated", "violated"), ("unknown", "unknown"), ("holds", "holds")):
        bad = [good[0], make_run(1, status=status, latency_ns_p50=1.0)]
        assert compare_runs(good, bad, NOTHING, gated=("latency_ns_p50",)).verdict == verdict
        assert compare_runs(bad, good, NOTHING, gated=("latency_ns_p50",)).verdict == "holds"


def test_settings_are_paired_by_what_both_sets_vary() -> None:
    """The protocol differs as a whole: it is what is compared. Settings of one side alone are named."""
    before = [make_run(0, "skeen", clients=clients, latency_ns_p50=1.0) for clients in (1, 2, 4)]
    after = [make_run(0, "ring", clients=clients, latency_ns_p50=1.0) for clients in (1, 2, 8)]
    found = compare_runs(before, after, NOTHING, gated=("latency_ns_p50",))
    assert [setting.name for setting in found.settings] == ["clients=1", "clients=2"]
    assert (found.only_before, found.only_after) == (["skeen"], ["ring"])
    assert found.verdict == "unknown"


def test_unknown_gates_are_refused() -> None:
    with pytest.raises(UsageError, match="--gate speed; expected some of throughput_per_s"):
        compare_runs([], [], NOTHING, gated=("speed",))
    assert compare_runs([], [], NOTHING).verdict == "unknown"

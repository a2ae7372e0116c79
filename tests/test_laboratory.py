"""`amcast.simulate`, `amcast.sweep` and `amcast.advise` from Python, and their data frames."""

from pathlib import Path
from typing import Any

import pytest

import amcast

PLAN: dict[str, Any] = {
    "protocol": "primcast",
    "seed": 3,
    "topology": {"environment": "wan-3", "groups": 2, "replicas": 3, "clients": 3},
    "workload": {"messages": 40, "destinations": [1, 2]},
}


def test_simulated_run_has_tables_waits_and_a_verdict() -> None:
    run = amcast.simulate(PLAN)
    assert (run.verdict, run.story()) == ("holds", [])
    assert list(run) == ["processes", "multicasts", "deliveries", "answers", "packets", "notes"]
    deliveries = run["deliveries"].to_pandas()
    assert len(deliveries) == run.summary.deliveries
    assert set(deliveries["group"]) == {0, 1}
    waits = run.waits.to_pandas()
    assert len(waits) == 40
    assert set(waits["region"]) == {"R1", "R2", "R3"}
    local = waits[(waits["kind"] == "local") & (waits["region"] == "R2")]
    # R2 has the leaders: to a majority and back.
    assert local["wait_ms"].median() == pytest.approx(70, rel=0.1)
    assert waits[waits["region"] == "R3"]["wait_ms"].median() > 1.5 * local["wait_ms"].median()


def test_seed_replaces_that_of_the_plan_and_the_plan_stays(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('protocol = "skeen"\nnodes = false\n[workload]\nmessages = 20\n')
    one, again, other = (amcast.simulate(file, seed=seed, packets=False) for seed in (1, 1, 2))
    assert one["multicasts"].to_rows() == again["multicasts"].to_rows() != other["multicasts"].to_rows()
    assert "packets" not in one
    with pytest.raises(amcast.UsageError, match="table 'packets'; expected one of processes"):
        one["packets"]
    with pytest.raises(amcast.UsageError, match="the run has no answers; expected nodes"):
        one.waits  # noqa: B018


def test_sweep_has_a_row_per_cell_with_local_and_global_waits() -> None:
    grid = {**PLAN, "grid": {"protocol": ["primcast", "basecast"]}}
    cells = amcast.sweep(grid, seeds=[1, 2]).to_pandas()
    assert list(zip(cells["protocol"], cells["seed"], strict=True)) == [
        ("primcast", 1),
        ("primcast", 2),
        ("basecast", 1),
        ("basecast", 2),
    ]
    assert set(cells["status"]) == {"ok"}
    by = cells.groupby("protocol")["answer_ms_p50_global"].mean()
    assert by["basecast"] > 1.2 * by["primcast"]
    assert "grid" not in PLAN


def test_sweep_is_what_simulate_shows() -> None:
    cell = amcast.sweep(PLAN).to_rows()[0]
    waits = amcast.simulate(PLAN).waits.to_pandas()
    assert cell["multicasts"] == len(waits)
    # A cell leaves out what is multicast in the first and the last tenth of the time.
    end = waits["multicast_ms"].max()
    steady = waits[waits["multicast_ms"].between(0.1 * end, 0.9 * end)]
    assert cell["answer_ms_mean"] == pytest.approx(steady["wait_ms"].mean(), abs=0.001)


def test_advice_is_a_table(tmp_path: Path) -> None:
    csv = tmp_path / "mine.csv"
    csv.write_text(",eu,us\neu,1,80\nus,80,1\n")
    advice = amcast.advise(["eu", "us"], mix="80% home, 20% all", latencies=csv, protocols=["whitebox"], messages=60)
    table = advice.table.to_pandas()
    assert list(table["rank"]) == list(range(1, len(table) + 1))
    assert table["mean_ms"].is_monotonic_increasing
    assert set(advice.losses.to_pandas()["region"]) <= {"eu", "us"}
    assert advice.reasons
    assert amcast.simulate(advice.plan).verdict == "holds"


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({**PLAN, "grid": {"seed": "0..3"}}, "plan: grid is given; expected a plan of one run"),
        ({"workload": {}}, "plan: protocol is missing"),
        ("none.toml", "plan none.toml: cannot be read"),
    ],
)
def test_impossible_plans_are_refused(plan: Any, expected: str) -> None:
    with pytest.raises(amcast.UsageError, match=expected):
        amcast.simulate(plan)


def test_missing_package_of_a_conversion_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(amcast.UsageError, match="polars is not installed; expected it for this conversion"):
        amcast.sweep({"protocol": "skeen", "nodes": False, "workload": {"messages": 5}}).to_polars()

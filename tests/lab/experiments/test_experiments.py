"""Experiment files, their cells, tables and verdicts."""

from pathlib import Path
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.experiments.experiment import find_experiment, read_claims, read_experiments
from amcast.lab.experiments.measures import run_measured_cell
from amcast.lab.experiments.page import render_page
from amcast.lab.experiments.pictures import draw_pictures
from amcast.lab.experiments.table import format_table, read_table, run_cells, write_table
from amcast.lab.experiments.verdicts import judge_all, judge_experiment

COMMITTED = Path(__file__).parents[3] / "experiments"

CLAIMS = """
[[claim]]
number = 1
paper = "003"
where = "Fig. 9"
text = "the latency is two delays"
[[claim]]
number = 2
paper = "003"
where = "Fig. 9"
text = "not run"
[[claim]]
number = 3
paper = "003"
where = "Fig. 9"
text = "on the moon"
cannot = "There is no moon here."
"""
EXPERIMENT = """
title = "Skeen in a world of unit delays"
paper = "003"
figure = "Fig. 9"
question = "How long?"
setting = "unit delays"
[plan]
protocol = "skeen"
answers = "nearest"
nodes = false
[plan.topology]
groups = 3
replicas = 1
clients = 2
[plan.workload]
messages = 10
[plan.grid]
workload.destinations = [1, 2, 3]
[quick]
"grid.workload.destinations" = [2]
[[claim]]
number = 1
reason = "because"
[[claim.checks]]
say = "two groups, ms"
metric = "rank1_ms_p50"
of = { destinations = 2 }
paper = 2.0
tolerance = 0.3
[[claim.checks]]
say = "three groups against one: at most the same"
metric = "rank1_ms_mean"
of = { destinations = 3 }
against = { destinations = 1 }
paper = 1.0
direction = "below"
tolerance = 0.0
[[picture]]
title = "by destinations"
x = "destinations"
y = "rank1_ms_p50"
label_x = "destinations"
label_y = "ms"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "claims.toml").write_text(CLAIMS)
    (tmp_path / "003-unit").mkdir()
    (tmp_path / "003-unit" / "experiment.toml").write_text(EXPERIMENT)
    return tmp_path


def test_run_resumes_after_the_cells_of_the_table_and_judges_every_claim(folder: Path) -> None:
    experiment = find_experiment(folder, "003-unit")
    cells = experiment.expand()
    begun: list[int] = []

    def save(rows: list[dict[str, Any]]) -> None:
        write_table(experiment, rows)

    first = run_cells(experiment, cells, [], save, lambda: len(begun) >= 1, begun.append)
    assert (first.run, first.left) == (1, 2)
    known = read_table(experiment)
    assert [row["destinations"] for row in known] == [1]
    judged = judge_experiment(experiment, known)
    assert judged[0].verdict == "not run"
    known[0]["rank1_ms_mean"] = 0.001  # a row that is there is not run again
    second = run_cells(experiment, cells, known, save)
    assert (second.run, second.left, second.failures) == (2, 0, [])
    rows = read_table(experiment)
    assert rows[0]["rank1_ms_mean"] == 0.001
    assert rows[1]["rank1_ms_p50"] == pytest.approx(2.0, abs=0.5)
    (judged_one,) = judge_experiment(experiment, rows)
    assert [number.holds for number in judged_one.numbers] == [True, False]
    assert (judged_one.verdict, judged_one.reason) == ("holds in part", "because")
    every = judge_all(read_claims(folder), {"003-unit": experiment}, {"003-unit": rows})
    assert [one.verdict for one in every] == ["holds in part", "not run", "cannot be tested here"]
    page = render_page(read_claims(folder), {"003-unit": experiment}, every, {"003-unit": rows})
    assert "3 claims: 0 holds, 1 holds in part, 0 differs, 1 cannot be tested here, 1 not run" in page
    assert "There is no moon here." in page
    assert "<svg" in draw_pictures(experiment, rows)[0].file


def test_reduced_grid_and_other_seeds(folder: Path) -> None:
    experiment = find_experiment(folder, "003-unit")
    assert [cell.varied["workload.destinations"] for cell in experiment.expand(quick=True)] == [2]
    assert [cell.plan["seed"] for cell in experiment.expand(quick=True, seeds=[4, 5])] == [4, 5]


def test_table_survives_writing_and_reading(folder: Path) -> None:
    experiment = find_experiment(folder, "003-unit")
    cell = experiment.expand(seeds=[4])[0].id
    rows = [{"cell": cell, "seed": 4, "seconds": 0.5, "options": {"stamps": "all"}, "rank1_ms_p50": 2.5, "end": "ok"}]
    write_table(experiment, rows)
    assert read_table(experiment) == rows
    assert format_table(read_table(experiment)) == (experiment.folder / "table.csv").read_text()


def test_rows_of_cells_that_the_file_no_longer_has_do_not_count(folder: Path) -> None:
    """A check takes the mean of the rows that it selects: a stale one beside a new one gave a ratio of 8.8 for 4.8."""
    experiment = find_experiment(folder, "003-unit")
    stale = {"cell": "a", "seed": 0, "destinations": 2, "rank1_ms_p50": 200.0}
    mine = {"cell": experiment.expand()[1].id, "seed": 0, "destinations": 2, "rank1_ms_p50": 2.0}
    write_table(experiment, [stale, mine])
    rows = read_table(experiment)
    assert rows == [mine]
    assert judge_experiment(experiment, rows)[0].numbers[0].ours == 2.0


def test_cells_that_violate_a_property_have_no_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = find_experiment(folder, "003-unit")

    def fail(plan: dict[str, Any], packets: bool) -> dict[str, Any]:
        raise RuntimeError("order cycle")

    monkeypatch.setattr("amcast.lab.experiments.table.run_measured_cell", fail)
    result = run_cells(experiment, experiment.expand()[:1], [], lambda rows: None)
    assert result.rows == []
    assert [failure.status for failure in result.failures] == ["error"]
    assert "order cycle" in result.failures[0].message


def test_measures_split_by_region_kind_and_role() -> None:
    plan = {
        "protocol": "primcast",
        "nodes": False,
        "answers": "nearest",
        "topology": {"environment": "wan-3", "groups": 2, "replicas": 3, "clients": 3, "options": {"sd_percent": 0.0}},
        "workload": {"destinations": [1, 2], "messages": 60},
    }
    row = run_measured_cell(plan, packets=True)
    assert row["answer_ms_p50_R2"] == pytest.approx(70.1, abs=0.2)
    assert row["answer_ms_p50_R1"] == pytest.approx(70.1, abs=0.2)
    assert row["answer_ms_p50_local"] <= row["answer_ms_p50_global"]
    assert row["throughput_per_s"] == pytest.approx(3 * 1000 / 70, rel=0.2)
    assert row["uplink_kb_per_s_max"] >= row["uplink_kb_per_s"] > 0
    assert (row["overhead_max"], row["clean_share"]) == (0, 100)
    assert row["received_kb_per_s_max"] >= row["received_kb_per_s"] > row["uplink_kb_per_s"] / 2
    assert 12 <= row["packets_per_multicast"] <= 60


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("tolerance = 0.3", "tolerance = 3"), "tolerance = 3.0; expected a share"),
        (("paper = 2.0", "paper = 0"), "paper = 0.0; expected a value above 0"),
        (("number = 1\nreason", "number = 7\nreason"), "claim 7 is not in claims.toml"),
        (('title = "Skeen', 'titel = "Skeen'), "titel"),
        (("workload.destinations = [1, 2, 3]", "workload.destinations = 7"), "expected a list of values"),
        (('protocol = "skeen"', 'protocol = "skein"'), "'skein' does not exist"),
    ],
)
def test_wrong_experiments_are_refused(folder: Path, change: tuple[str, str], expected: str) -> None:
    file = folder / "003-unit" / "experiment.toml"
    assert change[0] in EXPERIMENT
    file.write_text(EXPERIMENT.replace(*change, 1))
    with pytest.raises(UsageError, match=expected.replace("'", ".")):
        find_experiment(folder, "003-unit").expand()


def test_checks_that_select_by_unknown_columns_are_refused(folder: Path) -> None:
    file = folder / "003-unit" / "experiment.toml"
    file.write_text(EXPERIMENT.replace("of = { destinations = 2 }", "of = { destination = 2 }"))
    experiment = find_experiment(folder, "003-unit")
    with pytest.raises(UsageError, match="selects by destination; expected columns of the table"):
        judge_experiment(experiment, [{"cell": "a", "destinations": 2, "rank1_ms_p50": 1.0}])


def test_committed_experiments_are_valid_and_their_tables_belong_to_them() -> None:
    claims = read_claims(COMMITTED)
    assert len(claims) == 59
    for experiment in read_experiments(COMMITTED).values():
        rows = read_table(experiment)
        table = experiment.folder / "table.csv"
        lines = len(table.read_text().splitlines()) - 1 if table.is_file() else 0
        assert len(rows) == lines, f"{experiment.name}: rows of cells that the experiment has no more"
        assert experiment.file.claim or "an ablation" in experiment.file.title or experiment.file.paper == "beyond"
        for one in judge_experiment(experiment, rows):
            assert one.verdict in ("holds", "not run") or one.reason, (
                f"{experiment.name}: claim {one.number}: no reason"
            )


def test_map_of_winners_has_the_least_value_of_every_place(folder: Path) -> None:
    file = folder / "003-unit" / "experiment.toml"
    at = EXPERIMENT.index("[[picture]]")
    picture = """[[picture]]
title = "winners"
kind = "winners"
x = "destinations"
y = "environment"
value = "answer_ms_mean"
label_x = "groups"
label_y = ""
"""
    file.write_text(EXPERIMENT[:at] + picture)
    rows = [
        {"protocol": name, "destinations": groups, "environment": "lan", "answer_ms_mean": wait}
        for name, groups, wait in (("skeen", 1, 2.0), ("ring", 1, 1.0), ("skeen", 2, 2.0), ("ring", 2, 2.03))
    ]
    (chart,) = draw_pictures(find_experiment(folder, "003-unit"), rows)
    assert chart.rows == (("lan", "ring 1", "skeen 2 (+1)"),)
    file.write_text(EXPERIMENT[:at] + picture.replace('value = "answer_ms_mean"\n', ""))
    with pytest.raises(UsageError, match="expected a column with winners alone"):
        find_experiment(folder, "003-unit")


def test_three_seeds_give_the_mean_an_interval(folder: Path) -> None:
    experiment = find_experiment(folder, "003-unit")
    rows = [{"seed": seed, "destinations": 2, "rank1_ms_p50": value} for seed, value in enumerate((1.9, 2.0, 2.1))]
    assert judge_experiment(experiment, rows[:2])[0].numbers[0].interval is None
    number = judge_experiment(experiment, rows)[0].numbers[0]
    assert number.ours == pytest.approx(2.0)
    assert number.interval == pytest.approx((2.0 - 4.303 * 0.1 / 3**0.5, 2.0 + 4.303 * 0.1 / 3**0.5))

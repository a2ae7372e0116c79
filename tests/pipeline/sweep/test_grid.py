"""The cells of a plan: which there are, their ids, and how they are grouped into tasks."""

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amcast.kernel.errors import UsageError
from amcast.lab.sweep_cell import normalise_plan
from amcast.pipeline.sweep.grid import (
    SweepCell,
    bundle_cells,
    describe_cell,
    expand_cells,
    hash_plan,
    parse_grid,
    to_toml,
)
from amcast.simulation.inputs.plan import describe_plan, parse_plan
from tests import ROOT


def plain(values: dict[str, Any], where: str) -> dict[str, Any]:
    return values


def varied(text: str) -> list[dict[str, Any]]:
    return [cell.varied for cell in expand_cells(parse_grid(tomllib.loads(text)), plain)]


def test_grid_is_every_combination_in_file_order() -> None:
    found = varied("""
        protocol = "a"
        [grid]
        protocol = ["a", "b"]
        seed = "3..4"
        "topology.groups" = [2]
    """)
    assert [(f["protocol"], f["seed"], f["topology.groups"]) for f in found] == [
        ("a", 3, 2), ("a", 4, 2), ("b", 3, 2), ("b", 4, 2),
    ]  # fmt: skip


def test_dotted_and_quoted_paths_are_equal() -> None:
    assert varied("[grid]\ntopology.groups = [2, 4]") == varied('[grid]\n"topology.groups" = [2, 4]')


def test_zipped_fields_change_together() -> None:
    found = varied("[[zip]]\ntopology.clients = [4, 16]\nworkload.outstanding = [1, 8]\n[grid]\nseed = [0, 1]")
    assert sorted((f["topology.clients"], f["workload.outstanding"], f["seed"]) for f in found) == [
        (4, 1, 0), (4, 1, 1), (16, 8, 0), (16, 8, 1),
    ]  # fmt: skip


def test_overrides_may_make_cells_equal() -> None:
    found = varied("""
        [grid]
        protocol = ["skeen", "other"]
        topology.replicas = [3, 5]
        [[override]]
        where = { protocol = "skeen" }
        set = { topology.replicas = 1 }
    """)
    assert [(f["protocol"], f["topology.replicas"]) for f in found] == [("skeen", 1), ("other", 3), ("other", 5)]


def test_exclude_matches_fields_of_the_base() -> None:
    text = """
        protocol = "a"
        [grid]
        seed = "0..3"
        topology.groups = [2, 8]
        [[exclude]]
        protocol = "a"
        seed = [1, 2]
        topology.groups = 8
    """
    assert len(varied(text)) == 6


def test_choice_may_be_a_list() -> None:
    assert [f["workload.destinations"] for f in varied("[grid]\nworkload.destinations = [2, [1, 3]]")] == [2, [1, 3]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grid = 3", "grid = 3; expected a table"),
        ("[grid]\nseed = 3", "grid.seed = 3; expected a list of values, or a range"),
        ("[grid]\nseed = []", "grid.seed = []; expected a list of values"),
        ('[grid]\nseed = "9..0"', "grid.seed = '9..0'; expected a range A..B upwards"),
        ("[grid]\nseed = [1, 1]", "names a value twice"),
        ('[grid]\na = "0..999"\nb = "0..999"', "spans 1000000 cells; expected at most 250000"),
        ("[[zip]]\na = [1, 2]\nb = [1]", "expected lists of one length"),
        ("zip = 1", "expected tables, each written [[zip]]"),
        ("[[override]]\nwhere = {a = 1}", "expected two tables, where = {...} and set = {...}"),
        ("[[exclude]]", "exclude[0] is empty"),
        ("[grid]\na = [1]\n[[exclude]]\na = 1", "every cell is excluded"),
        ("a = 1\n[grid]\na.b = [1]", "a.b: a = 1; expected a table"),
    ],
)
def test_mistakes_are_one_sentence(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        expand_cells(parse_grid(tomllib.loads(text), "plan x.toml"), plain, "plan x.toml")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('protocol = "none-such"', "protocol 'none-such' does not exist"),
        ('protocol = "skeen"\n[topology]\nclients = 0', "expected at least 1 client"),
        ('protocol = "skeen"\n[workload]\nname = "none-such"', "none-such"),
        ('protocol = "skeen"\ncolour = 3', "colour"),
    ],
)
def test_invalid_cell_is_refused_before_any_run(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match="cell seed = 0") as refused:
        expand_cells(parse_grid(tomllib.loads(text + '\n[grid]\nseed = "0..1"'), "plan x"), normalise_plan, "plan x")
    assert expected in str(refused.value)


def test_normalised_plan_includes_defaults() -> None:
    short = normalise_plan({"protocol": "skeen"}, "plan")
    long = normalise_plan(
        {"protocol": "skeen", "seed": 0, "topology": {"groups": 3}, "workload": {"name": "micro"}}, "plan"
    )
    assert hash_plan(short) == hash_plan(long)
    assert short["workload"]["outstanding"] == 1


def test_fields_that_were_added_since_leave_ids_as_they_were() -> None:
    """Committed tables name cells by the hash of their plan."""
    plan = normalise_plan({"protocol": "skeen", "senders": "clients"}, "plan")
    assert "senders" not in plan
    assert normalise_plan({"protocol": "skeen", "senders": "all"}, "plan")["senders"] == "all"


def test_cell_id_is_stable() -> None:
    assert hash_plan({"protocol": "skeen", "seed": 1}) == hash_plan({"seed": 1, "protocol": "skeen"})
    assert hash_plan({"protocol": "skeen", "seed": 1}) == "25f05b75073210a9b41d"
    assert hash_plan({"protocol": "skeen", "seed": 1}) != hash_plan({"protocol": "skeen", "seed": 2})


def test_cell_description_has_identifying_columns() -> None:
    plan = normalise_plan({"protocol": "skeen", "seed": 4, "topology": {"groups": 5}}, "plan")
    row = describe_cell(SweepCell(hash_plan(plan), plan, {"seed": 4}))
    assert (row["protocol"], row["groups"], row["seed"], row["outstanding"]) == ("skeen", 5, 4, 1)
    assert row["varied"] == '{"seed":4}'


scalars = st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text(), st.floats(allow_nan=False))
tables = st.recursive(
    st.dictionaries(st.text(min_size=1), st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=4),
    lambda inner: st.dictionaries(
        st.text(min_size=1), st.one_of(scalars, inner, st.lists(inner, max_size=2)), max_size=3
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(tables)
def test_toml_round_trip(plan: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(plan)) == plan


def test_written_plan_equals_plan() -> None:
    values = {
        "protocol": "skeen",
        "faults": {"profile": "pause", "events": [{"at_ns": 5, "do": "pause", "process": 1}]},
    }
    plan = describe_plan(parse_plan(values))
    assert parse_plan(tomllib.loads(to_toml(plan))) == parse_plan(values)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 50), max_size=60), st.integers(1, 8))
def test_bundles_hold_every_cell_once(weights: list[float], slots: int) -> None:
    tasks = bundle_cells(weights, slots, least=1.0, most=20)
    assert sorted(place for task in tasks for place in task) == list(range(len(weights)))
    assert all(1 <= len(task) <= 20 for task in tasks)
    for task in tasks:
        # The cells before the last one were not enough for a task.
        assert sum(weights[place] for place in task[:-1]) < 1.0


def test_long_cells_come_first_and_alone() -> None:
    tasks = bundle_cells([0.125] * 48 + [30.0, 20.0], slots=2)
    assert tasks[0] == [48]
    assert tasks[1] == [49]
    sizes = [len(task) for task in tasks[2:]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 8
    assert sizes[-1] == 1


def test_repository_plan_has_two_hundred_cells() -> None:
    grid = parse_grid(tomllib.loads((ROOT / "plans" / "five.toml").read_text()))
    cells = expand_cells(grid, normalise_plan)
    assert len(cells) == 200
    assert len({cell.plan["protocol"] for cell in cells}) == 5

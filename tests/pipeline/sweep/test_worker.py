"""A sweep without Spark: isolation, the journal, resuming, and tables that do not depend on the grouping of cells."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.sweep_cell import normalise_plan, run_cell
from amcast.pipeline.rows.locations import Location
from amcast.pipeline.sweep import job as sweep
from amcast.pipeline.sweep.grid import SweepCell, expand_cells, parse_grid
from amcast.pipeline.sweep.job import SweepSettings
from amcast.pipeline.sweep.worker import run_isolated
from amcast.simulation.inputs.plan import parse_plan, read_plan
from tests import ROOT

PLAN = {
    "protocol": "skeen",
    "workload": {"messages": 20},
    "grid": {"seed": "0..5", "topology": {"groups": [2, 3]}},
}


def cells(plan: dict[str, Any] = PLAN) -> list[SweepCell]:
    return expand_cells(parse_grid(plan), normalise_plan)


def prepare(out: Path, plan: dict[str, Any] = PLAN, **settings: Any) -> SweepSettings:
    made = SweepSettings(out, **settings)
    sweep.prepare_sweep(made, plan, cells(plan), parse_grid(plan).paths)
    return made


# Isolation


def misbehave(what: str) -> dict[str, Any]:
    match what:
        case "raise":
            raise KeyError("no such thing")
        case "exit":
            os._exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(60)
        case "quit":
            raise SystemExit(0)
        case "nonsense":
            return {"a": float("nan")}
    return {"did": what, "long": "x" * 200_000}


def test_child_failures_become_outcomes() -> None:
    items = ["a", "raise", "exit", "b", "killed", "hang", "quit", "nonsense", "c"]
    found = list(run_isolated(misbehave, items, 1.0))
    assert [o.status for o in found] == ["done", "error", "crash", "done", "crash", "timeout", "error", "error", "done"]
    assert [o.value["did"] for o in found if o.status == "done"] == ["a", "b", "c"]
    assert "KeyError: 'no such thing'" in found[1].message
    assert "in misbehave" in found[1].message
    assert "exited with 3" in found[2].message
    assert "killed by SIGKILL; out of memory?" in found[4].message
    assert "no result within 1 s" in found[5].message


def children() -> set[str]:
    """The processes below this one; a Spark of other tests may be among them."""
    return {child for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()}


def test_no_child_process_survives() -> None:
    before = children()
    list(run_isolated(misbehave, ["hang", "a"], 0.2))
    assert children() <= before


# Rows


def test_rows_do_not_depend_on_grouping(tmp_path: Path) -> None:
    """Equal plans, equal bytes: cells alone or together, forwards or backwards."""
    one, two = prepare(tmp_path / "one"), prepare(tmp_path / "two", packets=True)
    sweep.run_bundle(cells(), run_cell, one)
    for cell in reversed(cells()):
        sweep.run_bundle([cell], run_cell, two)
    for settings in (one, two):
        sweep.merge_journal(settings.out)
    files = [sorted((s.out / "cells").rglob("*.parquet")) for s in (one, two)]
    assert [f.relative_to(one.out) for f in files[0]] == [f.relative_to(two.out) for f in files[1]]
    assert [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]
    rows = sweep.read_cells(one.out).to_pylist()
    assert len(rows) == 12
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["multicasts"] == 20 and row["latency_ns_p50"] >= 1_000_000 for row in rows)
    assert [(row["groups"], row["seed"]) for row in rows] == [(g, s) for g in (2, 3) for s in range(6)]


def run_misbehaving_cell(plan: dict[str, Any], folder: str | None, packets: bool) -> dict[str, Any]:
    """Cells that end in every way, by their seed."""
    misbehave({1: "raise", 2: "exit", 3: "hang"}.get(plan["seed"], ""))
    if plan["seed"] == 4:
        return {"status": "violated", "message": "P4 is violated: somebody was wrong"}
    return run_cell(plan, folder, packets)


def test_failed_cell_is_a_row_with_its_replay(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "s", timeout_s=1.0)
    few = [cell for cell in cells() if cell.plan["topology"]["groups"] == 2]
    assert sweep.run_bundle(few, run_misbehaving_cell, settings) == 6
    sweep.merge_journal(settings.out)
    rows = {row["seed"]: row for row in sweep.read_cells(settings.out).to_pylist()}
    assert {seed: row["status"] for seed, row in rows.items()} == {
        0: "ok", 1: "error", 2: "crash", 3: "timeout", 4: "violated", 5: "ok",
    }  # fmt: skip
    assert rows[0]["replay"] is None
    for seed in (1, 2, 3, 4):
        plan = settings.out / "plans" / f"{rows[seed]['cell']}.toml"
        assert rows[seed]["replay"] == f"amcast simulate --plan plans/{plan.name} --seed {seed}"
        assert parse_plan(read_plan(plan)) == parse_plan(json.loads(rows[seed]["plan"]))
    result = sweep.summarize_sweep(few, 6, time.monotonic(), settings.out)
    assert sweep.decide_verdict(result.statuses) == "violated"
    assert len(result.failures) == 4


def test_verdict_needs_every_cell() -> None:
    assert sweep.decide_verdict({"ok": 3}) == "holds"
    assert sweep.decide_verdict({"ok": 3, "timeout": 1}) == "unknown"
    assert sweep.decide_verdict({"ok": 3, "error": 1}) == "unknown"
    assert sweep.decide_verdict({"unknown": 1, "violated": 1}) == "violated"
    assert sweep.decide_verdict({}) == "unknown"


# Resuming


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "s", timeout_s=1.0)
    some = [cell for cell in cells() if cell.plan["topology"]["groups"] == 2]
    sweep.run_bundle(some[:5], run_misbehaving_cell, settings)
    ended = sweep.read_statuses(settings.out)
    assert len(ended) == 5
    assert {"ok", "error", "crash", "timeout", "violated"} == {*ended.values()}
    left = sweep.find_pending(some, settings)
    again = {cell.id for cell in some[:5]} & {cell.id for cell in left}
    assert {ended[id] for id in again} <= {"crash", "timeout"}
    assert {ended[cell.id] for cell in some[:5] if cell not in left} <= {"ok", "error", "violated"}
    sweep.merge_journal(settings.out)
    assert sweep.find_pending(some, settings) == left
    assert {cell.id for cell in sweep.find_pending(some, SweepSettings(settings.out, retry=True))} >= {
        id for id, status in ended.items() if status == "error"
    }


def test_result_replaces_a_timeout(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "s", timeout_s=0.5)
    slow = [cell for cell in cells() if cell.plan["seed"] == 3][:1]
    sweep.run_bundle(slow, run_misbehaving_cell, settings)
    sweep.merge_journal(settings.out)
    assert [row["status"] for row in sweep.read_cells(settings.out).to_pylist()] == ["timeout"]
    sweep.run_bundle(slow, run_cell, settings)
    sweep.merge_journal(settings.out)
    assert [row["status"] for row in sweep.read_cells(settings.out).to_pylist()] == ["ok"]


def test_partial_journal_line_loses_only_its_cell(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "s")
    two = cells()[:2]
    sweep.run_bundle(two, run_cell, settings)
    (journal,) = (settings.out / "journal").glob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + lines[1][:100])
    assert [cell.id for cell in sweep.find_pending(two, settings)] == [two[1].id]
    assert sweep.run_bundle(two, run_cell, settings) == 1
    sweep.merge_journal(settings.out)
    assert len(sweep.read_cells(settings.out)) == 2


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_interrupted_merge_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """A merge that ends before any file, or between two, is finished by the next one, with the same bytes."""
    plan = {**PLAN, "grid": {"seed": "0..1", "protocol": ["fastcast", "skeen"]}}
    some = cells(plan)
    whole, cut = prepare(tmp_path / "whole", plan), prepare(tmp_path / "cut", plan)
    for settings in (whole, cut):
        for part in (some[:3], some[3:]):
            sweep.run_bundle(part, run_cell, settings)
            if part is some[3:] and settings is cut:
                write, left = Location.write_bytes, [writes]

                def fail_later(file: Location, data: bytes, write: Any = write, left: list[int] = left) -> None:
                    if not left[0]:
                        raise KeyboardInterrupt
                    left[0] -= 1
                    write(file, data)

                monkeypatch.setattr(Location, "write_bytes", fail_later)
                with suppress(KeyboardInterrupt):
                    sweep.merge_journal(settings.out)
                monkeypatch.undo()
                assert sweep.find_pending(some, settings) == []
            sweep.merge_journal(settings.out)
    files = [sorted((settings.place / "cells").list_changes()) for settings in (whole, cut)]
    assert [name for name, _ in files[0]] == [name for name, _ in files[1]]
    for name, _ in files[0]:
        assert len({(settings.place / "cells" / name).read_bytes() for settings in (whole, cut)}) == 1
    assert len(sweep.read_cells(cut.out)) == 4
    assert not list((tmp_path / "cut").rglob(".*"))
    assert not list((tmp_path / "cut" / "journal").iterdir())


def test_larger_plan_adds_cells(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "s")
    sweep.run_bundle(cells(), run_cell, settings)
    sweep.merge_journal(settings.out)
    larger = {**PLAN, "grid": {"seed": "0..6", "topology": {"groups": [2, 3]}}}
    prepare(tmp_path / "s", larger)
    assert [cell.plan["seed"] for cell in sweep.find_pending(cells(larger), settings)] == [6, 6]


def test_traces_may_be_added_later(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "s")
    one = cells()[:1]
    sweep.run_bundle(one, run_cell, settings)
    sweep.merge_journal(settings.out)
    assert not list((settings.out / "runs").iterdir())
    traced = SweepSettings(settings.out, traces=True)
    assert sweep.find_pending(one, traced) == one
    sweep.run_bundle(one, run_cell, traced)
    assert (settings.out / "runs" / one[0].id / "run.json").is_file()
    assert sweep.find_pending(one, traced) == []


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda out: out.write_text("x"), "a file; expected a folder"),
        (lambda out: (out.mkdir(), (out / "thesis.txt").write_text("x")), "not empty and no sweep"),
    ],
)
def test_foreign_folder_is_refused(tmp_path: Path, spoil: Callable[[Path], Any], expected: str) -> None:
    spoil(tmp_path / "s")
    with pytest.raises(UsageError, match=expected):
        prepare(tmp_path / "s")


def test_sweep_without_results_is_refused(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "s")
    with pytest.raises(UsageError, match="no table of cells"):
        sweep.read_cells(settings.out)
    (settings.out / "cells" / "protocol=skeen").mkdir(parents=True)
    (settings.out / "cells" / "protocol=skeen" / "part-00000.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match="expected the tables of a sweep"):
        sweep.read_cells(settings.out)


def test_columns_are_documented() -> None:
    text = (ROOT / "docs" / "RESULTS.md").read_text()
    for name in [*sweep.CELLS.names, *sweep.TIMINGS.names]:
        assert f"`{name}`" in text, f"docs/RESULTS.md does not explain {name}"
    assert isinstance(sweep.CELLS, pa.Schema)

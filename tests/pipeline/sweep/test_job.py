"""A sweep in Spark tasks: the same rows as without Spark, failures included; and the commands."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from amcast.cli.main import run
from amcast.lab.sweep_cell import estimate_seconds, normalise_plan, run_cell
from amcast.pipeline.sweep import job as sweep
from amcast.pipeline.sweep.grid import expand_cells, parse_grid

# Workers cannot import test modules: pickle functions by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PLAN = {
    "protocol": "skeen",
    "topology": {"replicas": 1},
    "workload": {"messages": 20},
    "grid": {"seed": "0..4", "topology": {"groups": [2, 3]}},
}


def fail_sometimes(plan: dict[str, Any], folder: str | None, packets: bool) -> dict[str, Any]:
    if plan["seed"] == 1:
        os._exit(9)
    if plan["seed"] == 2:
        raise RuntimeError("as planned")
    return run_cell(plan, folder, packets)


def test_rows_do_not_depend_on_spark_or_grouping(spark: SparkSession, tmp_path: Path) -> None:
    cells = expand_cells(parse_grid(PLAN), normalise_plan)
    outs = {name: sweep.SweepSettings(tmp_path / name) for name in ("plain", "few", "many")}
    for settings in outs.values():
        sweep.prepare_sweep(settings, PLAN, cells, parse_grid(PLAN).paths)
    sweep.run_bundle(cells, fail_sometimes, outs["plain"])
    sweep.run_cells(spark, cells, fail_sometimes, estimate_seconds, outs["few"])
    sweep.run_cells(spark, list(reversed(cells)), fail_sometimes, lambda plan: 5.0, outs["many"])
    assert len(list((tmp_path / "many" / "journal").iterdir())) == 10
    assert len(list((tmp_path / "few" / "journal").iterdir())) < 10
    for settings in outs.values():
        sweep.merge_journal(settings.out)
    tables = [sorted((s.out / "cells").rglob("*.parquet")) for s in outs.values()]
    assert len({tuple(file.read_bytes() for file in files) for files in tables}) == 1
    rows = sweep.read_cells(tmp_path / "few").to_pylist()
    assert [row["status"] for row in rows] == ["ok", "crash", "error", "ok", "ok"] * 2


def test_command_sweeps_resumes_and_reports(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'protocol = "skeen"\n[topology]\nreplicas = 1\n[workload]\nmessages = 10\n'
        '[grid]\nseed = "0..3"\nworkload.outstanding = [1, 2]\n'
    )
    out = tmp_path / "out"
    assert run(["sweep", str(plan), "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"], result["cells"], result["run"], result["statuses"]) == ("holds", 8, 8, {"ok": 8})
    plan.write_text(plan.read_text().replace("0..3", "0..4"))
    assert run(["sweep", str(plan), "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["cells"], result["run"]) == (10, 2)
    assert run(["report", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "holds"
    assert Path(result["page"]).is_file()

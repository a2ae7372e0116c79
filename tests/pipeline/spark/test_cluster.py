"""A sweep and a check on a real cluster of a master and two workers, both of which are killed on the way."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from amcast.lab.sweep_cell import normalise_plan, run_cell
from amcast.pipeline.sweep import job as sweep
from amcast.pipeline.sweep.grid import SweepCell, expand_cells, parse_grid
from tests.pipeline.small_runs import plain, planted_runs, random_run, told, write
from tests.pipeline.spark.standalone import Cluster, cluster

PLAN = {
    "protocol": "primcast",
    "topology": {"groups": 2, "replicas": 3, "clients": 2},
    "workload": {"messages": 40},
    "grid": {"protocol": ["skeen", "primcast", "whitebox"], "seed": "0..7"},
    "override": [{"where": {"protocol": "skeen"}, "set": {"topology": {"replicas": 1}}}],
}

DRIVER = """
import json, os, signal, sys, threading, time
from pathlib import Path
from amcast.lab.sweep_cell import estimated, normalised, run_cell
from amcast.pipeline.sweep.grid import expand_cells, parse_grid
from amcast.pipeline.sweep import job as sweep
from amcast.pipeline.check.job import CheckLimits, check
from amcast.pipeline.spark.progress import counted
from amcast.pipeline.spark.session import session

plan, swept, small, large, master, victim = sys.argv[1:]
killed = []

def kill_when_busy(spark):
    # Once some tasks of a stage are done and others are not, a worker and its executor go away.
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not killed:
        done, total = counted(spark)
        if 0 < done < total:
            os.killpg(int(victim), signal.SIGKILL)
            killed.append(f"{done} of {total}")
        time.sleep(0.005)

def executors(spark):
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1

with session(master, settings={"spark.executor.memory": "512m"}) as spark:
    grid = parse_grid(json.loads(plan))
    cells = expand_cells(grid, normalised)
    settings = sweep.Settings(Path(swept), traces=True, least_s=0.1)
    sweep.begin(settings, json.loads(plan), cells, grid.paths)
    while executors(spark) < 2:
        time.sleep(0.1)
    before = executors(spark)
    sweep.run(spark, cells, run_cell, estimated, settings)
    sweep.merge(settings.out)
    while executors(spark) < 2:
        time.sleep(0.1)
    thread = threading.Thread(target=kill_when_busy, args=(spark,))
    thread.start()
    whole = check(small, master)
    thread.join()
    runs = check(str(settings.out / "runs"), master)
    road = check(large, master, limits=CheckLimits(small_rows=0, ragged_rows=0))
    print(json.dumps({"executors": before, "killed": killed, "whole": whole, "runs": runs, "road": road}))
"""


def replace_a_worker(made: Cluster, out: Path, cells: int, driver: subprocess.Popen[str]) -> int:
    """When some cells are done and others are not, the first worker is killed and a third one comes; how many were."""
    deadline = time.monotonic() + 240
    while driver.poll() is None and time.monotonic() < deadline:
        done = sum(1 for file in (out / "journal").glob("*.jsonl") for _ in sweep.journal_rows(file))
        if 0 < done < cells:
            made.kill("worker-0")
            made.start_worker(2)
            return done
        time.sleep(0.005)
    return 0


def alone(out: Path, cells: list[SweepCell]) -> bytes:
    """The table of the same sweep in this process, without Spark."""
    settings = sweep.Settings(out, traces=True)
    sweep.begin(settings, PLAN, cells, [])
    sweep.run_bundle(cells, run_cell, settings)
    sweep.merge(out)
    return table(out)


def table(out: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((out / "cells").rglob("*.parquet")))


@pytest.mark.slow
def test_a_sweep_and_a_check_survive_the_death_of_their_workers(tmp_path: Path) -> None:
    small, large, swept = tmp_path / "small", tmp_path / "large", tmp_path / "swept"
    runs = {f"random-{seed}": random_run(4000 + seed) for seed in range(20)} | planted_runs()
    wanted = {name: report for name, trace in runs.items() if isinstance(report := plain(trace), dict)}
    for name in wanted:
        write(small / name, runs[name])
    circle = planted_runs()["circle_of_three"]
    write(large / "circle", circle, rows_per_group=5, rows_per_file=12)
    cells = expand_cells(parse_grid(PLAN), normalise_plan)
    with cluster(tmp_path / "cluster") as made:
        victim = made.processes["worker-1"].pid
        command = [sys.executable, "-c", DRIVER, json.dumps(PLAN), *map(str, (swept, small, large))]
        with subprocess.Popen(
            [*command, made.master, str(victim)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        ) as driver:
            done = replace_a_worker(made, swept, len(cells), driver)
            out, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert "Exception" not in err
    assert done, "the sweep was over before a worker could be killed"
    answer: dict[str, Any] = json.loads(out)
    assert answer["executors"] == 2
    assert answer["killed"], "the check was over before a worker could be killed"
    assert table(swept) == alone(tmp_path / "alone", cells)
    assert {(report["run"], report["verdict"]) for report in answer["runs"]["runs"]} == {
        (cell.id, "holds") for cell in cells
    }
    found = {report["run"]: told(report) for report in answer["whole"]["runs"]}
    assert found == {run: json.loads(json.dumps(told(report))) for run, report in wanted.items()}
    assert told(answer["road"]["runs"][0]) == json.loads(json.dumps(told(plain(circle))))

"""A sweep and a check on a real cluster of a master and two workers, both of which are killed during the work."""

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
from amcast.pipeline.sweep.journal import read_journal
from tests.pipeline.small_runs import plain, planted_runs, random_run, without_run_name, write
from tests.pipeline.spark.standalone import QUICK_JVM, Cluster, cluster

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
from amcast.lab.sweep_cell import estimate_seconds, normalise_plan, run_cell
from amcast.pipeline.sweep.grid import expand_cells, parse_grid
from amcast.pipeline.sweep import job as sweep
from amcast.pipeline.check.job import CheckLimits, check
from amcast.pipeline.spark.progress import count_tasks
from amcast.pipeline.spark.session import open_session

plan, sweep_folder, small, large, master, victim, options = sys.argv[1:]
killed = []

def kill_when_busy(spark):
    # Once some tasks of a stage are done and others are not, a worker and its executor are killed.
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not killed:
        done, total = count_tasks(spark)
        if 0 < done < total:
            os.killpg(int(victim), signal.SIGKILL)
            killed.append(f"{done} of {total}")
        time.sleep(0.005)

def executors(spark):
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1

quick = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": options}
with open_session(master, brief=True, settings=quick) as spark:
    grid = parse_grid(json.loads(plan))
    cells = expand_cells(grid, normalise_plan)
    settings = sweep.SweepSettings(Path(sweep_folder), traces=True, least_s=0.1)
    sweep.prepare_sweep(settings, json.loads(plan), cells, grid.paths)
    while executors(spark) < 2:
        time.sleep(0.1)
    before = executors(spark)
    sweep.run_cells(spark, cells, run_cell, estimate_seconds, settings)
    sweep.merge_journal(settings.out)
    while executors(spark) < 2:
        time.sleep(0.1)
    thread = threading.Thread(target=kill_when_busy, args=(spark,))
    thread.start()
    whole = check(small, master)
    thread.join()
    runs = check(str(settings.out / "runs"), master)
    road = check(large, master, limits=CheckLimits(small_rows=0, gapped_rows=0))
    print(json.dumps({"executors": before, "killed": killed, "whole": whole, "runs": runs, "road": road}))
"""


def replace_worker(spark_cluster: Cluster, out: Path, cells: int, driver: subprocess.Popen[str]) -> int:
    """Kills the first worker once some cells are done and others are not, and starts a third one; returns how many were
    done.
    """
    deadline = time.monotonic() + 240
    while driver.poll() is None and time.monotonic() < deadline:
        done = sum(1 for file in (out / "journal").glob("*.jsonl") for _ in read_journal(file))
        if 0 < done < cells:
            spark_cluster.kill("worker-0")
            spark_cluster.start_worker(2)
            return done
        time.sleep(0.005)
    return 0


def run_without_spark(out: Path, cells: list[SweepCell]) -> bytes:
    """The table of the same sweep in this process, without Spark."""
    settings = sweep.SweepSettings(out, traces=True)
    sweep.prepare_sweep(settings, PLAN, cells, [])
    sweep.run_bundle(cells, run_cell, settings)
    sweep.merge_journal(out)
    return table(out)


def table(out: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((out / "cells").rglob("*.parquet")))


@pytest.mark.slow
def test_sweep_and_check_survive_lost_workers(tmp_path: Path) -> None:
    small, large, sweep_folder = tmp_path / "small", tmp_path / "large", tmp_path / "sweep_folder"
    runs = {f"random-{seed}": random_run(4000 + seed) for seed in range(20)} | planted_runs()
    wanted = {name: report for name, trace in runs.items() if isinstance(report := plain(trace), dict)}
    for name in wanted:
        write(small / name, runs[name])
    cyclic = planted_runs()["cycle_of_three"]
    write(large / "cyclic", cyclic, rows_per_group=5, rows_per_file=12)
    cells = expand_cells(parse_grid(PLAN), normalise_plan)
    with cluster(tmp_path / "cluster") as spark_cluster:
        victim = spark_cluster.processes["worker-1"].pid
        command = [sys.executable, "-c", DRIVER, json.dumps(PLAN), *map(str, (sweep_folder, small, large))]
        with subprocess.Popen(
            [*command, spark_cluster.master, str(victim), QUICK_JVM],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        ) as driver:
            done = replace_worker(spark_cluster, sweep_folder, len(cells), driver)
            out, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert "Exception" not in err
    assert done, "the sweep was over before a worker could be killed"
    answer: dict[str, Any] = json.loads(out)
    assert answer["executors"] == 2
    assert answer["killed"], "the check was over before a worker could be killed"
    assert table(sweep_folder) == run_without_spark(tmp_path / "run_without_spark", cells)
    assert {(report["run"], report["verdict"]) for report in answer["runs"]["runs"]} == {
        (cell.id, "holds") for cell in cells
    }
    found = {report["run"]: without_run_name(report) for report in answer["whole"]["runs"]}
    assert found == {run: json.loads(json.dumps(without_run_name(report))) for run, report in wanted.items()}
    assert without_run_name(answer["road"]["runs"][0]) == json.loads(json.dumps(without_run_name(plain(cyclic))))

"""The same check on a real cluster of a master and two workers, one of which is killed on the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import plain, planted_runs, random_run, told, write
from standalone import cluster

DRIVER = """
import json, os, signal, sys, threading, time
from amcast.pipeline.jobs.check import Limits, check
from amcast.pipeline.progress import counted
from amcast.pipeline.session import session

small, large, master, victim = sys.argv[1:]
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

with session(master, settings={"spark.executor.memory": "1g"}) as spark:
    whole = check(small, master)
    before = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    thread = threading.Thread(target=kill_when_busy, args=(spark,))
    thread.start()
    again = check(small, master)
    thread.join()
    road = check(large, master, limits=Limits(small_rows=0, ragged_rows=0))
    print(json.dumps({"executors": before, "killed": killed, "whole": whole, "again": again, "road": road}))
"""


@pytest.mark.slow
def test_a_check_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    runs = {f"random-{seed}": random_run(4000 + seed) for seed in range(20)} | planted_runs()
    wanted = {name: report for name, trace in runs.items() if isinstance(report := plain(trace), dict)}
    for name in wanted:
        write(small / name, runs[name])
    circle = planted_runs()["circle_of_three"]
    write(large / "circle", circle, rows_per_group=5, rows_per_file=12)
    with cluster(tmp_path / "cluster") as made:
        victim = made.processes["worker-0"].pid
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(small), str(large), made.master, str(victim)],
            capture_output=True,
            text=True,
            timeout=400,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stderr
    assert "Exception" not in done.stderr
    answer = json.loads(done.stdout)
    assert answer["executors"] == 2
    assert answer["killed"], "the check was over before a worker could be killed"
    for name in ("whole", "again"):
        found = {report["run"]: told(report) for report in answer[name]["runs"]}
        assert found == {run: json.loads(json.dumps(told(report))) for run, report in wanted.items()}, name
    assert told(answer["road"]["runs"][0]) == json.loads(json.dumps(told(plain(circle))))

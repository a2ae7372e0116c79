"""A sweep on Spark against a plain pool of processes, over the same cells.

    python benchmarks/sweep.py                     # cells of about 100 ms and of about 400 ms
    python benchmarks/sweep.py --cells 1000

The goal: at least 90 % of the pool's throughput for cells of 100 ms and more. The session's start is not counted; both
sides are warm: each runs a few cells first. They alternate, and which goes first changes from round to round. On a busy
machine compare the processor time of the whole tree of processes, Java included, not the wall time.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from amcast.lab.sweep_cell import estimate_seconds, normalise_plan, run_cell
from amcast.pipeline.spark.session import count_usable_cores, open_session
from amcast.pipeline.sweep import job as sweep
from amcast.pipeline.sweep.grid import SweepCell, expand_cells, parse_grid

sys.path.insert(0, str(Path(__file__).parent / "pipeline"))
from run import cpu_seconds


def cells(messages: int, count: int) -> list[SweepCell]:
    plan = {
        "protocol": "primcast",
        "topology": {"groups": 3, "replicas": 3, "clients": 6},
        "workload": {"messages": messages, "destinations": 2},
        "grid": {"seed": f"0..{count - 1}"},
    }
    return expand_cells(parse_grid(plan), normalise_plan)


def run_one(plan: dict[str, Any]) -> str:
    return str(run_cell(plan)["status"])


def run_in_pool(some: list[SweepCell], slots: int) -> tuple[float, float]:
    """Seconds of a plain pool: wall time and processor time."""
    with multiprocessing.get_context("fork").Pool(slots) as pool:
        pool.map(run_one, [cell.plan for cell in some[: 2 * slots]], chunksize=1)
        members = [process.pid for process in multiprocessing.active_children() if process.pid]
        begun, used = time.monotonic(), sum(map(cpu_seconds, members))
        statuses = list(pool.imap_unordered(run_one, [cell.plan for cell in some], chunksize=1))
        seconds = time.monotonic() - begun, sum(map(cpu_seconds, members)) - used
    assert set(statuses) == {"ok"}, set(statuses)
    return seconds


def run_sweep(spark: Any, some: list[SweepCell], folder: Path) -> tuple[float, float]:
    """Seconds of the sweep, its tables included: wall time and processor time."""
    warm = sweep.SweepSettings(folder / "warm")
    sweep.prepare_sweep(warm, {}, some, [])
    sweep.run_cells(spark, some[:8], run_cell, lambda plan: 5.0, warm)
    settings = sweep.SweepSettings(folder / "sweep")
    sweep.prepare_sweep(settings, {}, some, [])
    begun, used = time.monotonic(), cpu_seconds(os.getpid())
    sweep.run_cells(spark, some, run_cell, estimate_seconds, settings)
    sweep.merge_journal(settings.out)
    seconds = time.monotonic() - begun, cpu_seconds(os.getpid()) - used
    assert {row["status"] for row in sweep.read_cells(settings.out).to_pylist()} == {"ok"}
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200, help="cells per size")
    parser.add_argument("--messages", type=int, nargs="*", default=[100, 400], help="messages per cell, per size")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    slots = count_usable_cores()
    with open_session(brief=True) as spark:
        for messages in arguments.messages:
            some = cells(messages, arguments.cells)
            for number in range(arguments.rounds):
                load = os.getloadavg()[0]
                pool = run_in_pool(some, slots) if number % 2 else (0.0, 0.0)
                with tempfile.TemporaryDirectory() as folder:
                    ours = run_sweep(spark, some, Path(folder))
                pool = pool if number % 2 else run_in_pool(some, slots)
                result = {
                    "cell_cpu_ms": round(1000 * pool[1] / len(some), 1),
                    "cells": len(some),
                    "slots": slots,
                    "round": number,
                    "pool_s": round(pool[0], 2),
                    "sweep_s": round(ours[0], 2),
                    "share_of_pool": round(pool[0] / ours[0], 3),
                    "pool_cpu_s": round(pool[1], 2),
                    "sweep_cpu_s": round(ours[1], 2),
                    "share_of_pool_by_cpu": round(pool[1] / ours[1], 3),
                    "load_before": round(load, 1),
                    "peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
                }
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

"""A sweep on Spark against a plain pool of processes, over the same cells.

    python benchmarks/sweep.py                     # cells of about 100 ms and of about 400 ms
    python benchmarks/sweep.py --cells 1000

Wanted: at least 90 % of the pool's throughput for cells of 100 ms and more. The session's start is not counted; both
sides are warm: each runs a few cells first.
On a busy machine the ratio says little: look at load_before.
"""

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from amcast.lab.cells import estimated, normalised, run_cell
from amcast.pipeline.cells import Cell, cells_of, grid_of
from amcast.pipeline.jobs import sweep
from amcast.pipeline.session import session, usable_cores


def cells(messages: int, count: int) -> list[Cell]:
    plan = {
        "protocol": "primcast",
        "topology": {"groups": 3, "replicas": 3, "clients": 6},
        "workload": {"messages": messages, "destinations": 2},
        "grid": {"seed": f"0..{count - 1}"},
    }
    return cells_of(grid_of(plan), normalised)


def one(plan: dict[str, Any]) -> str:
    return str(run_cell(plan)["status"])


def pooled(some: list[Cell], slots: int) -> float:
    """Seconds that a plain pool takes."""
    with multiprocessing.get_context("fork").Pool(slots) as pool:
        pool.map(one, [cell.plan for cell in some[: 2 * slots]], chunksize=1)
        begun = time.monotonic()
        statuses = list(pool.imap_unordered(one, [cell.plan for cell in some], chunksize=1))
        seconds = time.monotonic() - begun
    assert set(statuses) == {"ok"}, set(statuses)
    return seconds


def swept(spark: Any, some: list[Cell], folder: Path) -> float:
    """Seconds that the sweep takes, its tables included."""
    warm = sweep.Settings(folder / "warm")
    sweep.begin(warm, {}, some, [])
    sweep.run(spark, some[:8], run_cell, lambda plan: 5.0, warm)
    settings = sweep.Settings(folder / "sweep")
    sweep.begin(settings, {}, some, [])
    begun = time.monotonic()
    sweep.run(spark, some, run_cell, estimated, settings)
    sweep.merge(settings.out)
    seconds = time.monotonic() - begun
    assert {row["status"] for row in sweep.read_cells(settings.out).to_pylist()} == {"ok"}
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200, help="cells per size")
    parser.add_argument("--messages", type=int, nargs="*", default=[100, 400], help="messages per cell, per size")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    slots = usable_cores()
    with session() as spark:
        for messages in arguments.messages:
            some = cells(messages, arguments.cells)
            for number in range(arguments.rounds):
                load = os.getloadavg()[0]
                with tempfile.TemporaryDirectory() as folder:
                    ours = swept(spark, some, Path(folder))
                pool = pooled(some, slots)
                told = {
                    "cell_ms": round(1000 * pool * slots / len(some), 1),
                    "cells": len(some),
                    "slots": slots,
                    "round": number,
                    "pool_s": round(pool, 2),
                    "sweep_s": round(ours, 2),
                    "share_of_pool": round(pool / ours, 3),
                    "load_before": round(load, 1),
                    "peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
                }
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()

"""The merge of a large run in one piece and in segments, by one and by two processes.

    python benchmarks/pipeline/segments.py --deliveries 50000000 --folder runs/bench --entries 2000000

Prints wall and CPU seconds of each step, and a model of a cluster that is fitted to them: what so many cores would take
for 10^10 deliveries, where reading and merging are spread over all cores and only the plan and the join are not.
"""

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from amcast.pipeline.check.examination import Examination
from amcast.pipeline.check.run_view import build_file_view
from amcast.pipeline.check.segments import build_merge_calls, join_segments, plan_segments
from amcast.pipeline.check.survey import merge_chains, plan_longest_chain
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import read_footers
from amcast.pipeline.rows.sequences import FileSequences

NODES, CORES, TARGET = 50, 16, 10**10


def call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    """The answer, and the CPU seconds that it took."""
    begun = time.process_time()
    return function(*arguments), time.process_time() - begun


class Pool:
    """Runs calls in some processes; adds up their CPU time."""

    def __init__(self, workers: int) -> None:
        self._pool = ProcessPoolExecutor(workers)
        self.cpu = 0.0
        list(self._pool.map(warm_up, range(4 * workers)))

    def __call__(self, calls: list[Any]) -> list[Any]:
        found = [future.result() for future in [self._pool.submit(call, *one) for one in calls]]
        self.cpu += sum(cpu for _, cpu in found)
        return [answer for answer, _ in found]


def warm_up(_: int) -> None:
    """Loads the kernels."""
    import numpy as np

    from amcast.pipeline.kernels.merge import ChainRows, LateWatch, merge

    rows = ChainRows(np.zeros(1, np.int64), np.array([0, 1], np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64))
    merge([iter([rows])], None, LateWatch([0], lambda found: True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, default=50_000_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--entries", type=int, default=2_000_000)
    options = parser.parse_args()
    source = read_trace_folder(str(options.folder / f"{options.deliveries}"))
    (meta,) = source.metas
    footers = {table: tuple(read_footers(table, files, [meta.run])) for table, files in source.tables.items()}
    sequences = FileSequences(list(footers["deliveries"]))
    view = build_file_view(source, footers, meta, sequences, is_sorted=True)
    judge = Examination(view)
    plans = [plan_longest_chain(group, members, judge.ends) for group, members in view.members.items()]
    entries = sum(plan.segments[0][2] for plan in plans)
    print(f"{entries:,} entries of {len(plans)} chains, load {os.getloadavg()[0]:.1f}", flush=True)

    def show(name: str, workers: int, work: Callable[[Pool], Any]) -> tuple[float, float]:
        pool = Pool(workers)
        begun, own = time.monotonic(), time.process_time()
        work(pool)
        wall, cpu = time.monotonic() - begun, pool.cpu + time.process_time() - own
        print(
            json.dumps({"work": name, "processes": workers, "wall": round(wall, 2), "cpu": round(cpu, 2)}), flush=True
        )
        return wall, cpu

    def merge_whole(pool: Pool) -> None:
        assert not pool([(merge_chains, (sequences, plans, judge.buckets, None))])[0][0].heads

    parts: dict[str, float] = {}

    def merge_segments(pool: Pool) -> None:
        steps = [("plan", pool.cpu, time.process_time())]
        segments = plan_segments(pool, sequences, plans, options.entries)
        steps.append(("merge", pool.cpu, time.process_time()))
        paths: list[str | None] = [None] * len(segments)
        found = pool(build_merge_calls(sequences, segments, judge.buckets, paths))
        steps.append(("join", pool.cpu, time.process_time()))
        joined = join_segments(pool, sequences, segments, found, paths)
        steps.append(("", pool.cpu, time.process_time()))
        assert joined is not None, "a segment is not closed"
        for (name, cpu, own), (_, later, own_later) in pairwise(steps):
            parts[name], parts[f"{name}, driver"] = later - cpu, own_later - own
        parts["segments"] = len(segments)

    show("one piece", 1, merge_whole)
    show("segments", 1, merge_segments)
    show("segments", 2, merge_segments)
    print(json.dumps({name: round(value, 3) for name, value in parts.items()}))
    scale = TARGET / options.deliveries
    spread = (parts["plan"] + parts["merge"] + parts["join"]) * scale / (NODES * CORES)
    driver = sum(value for name, value in parts.items() if name.endswith("driver")) * scale
    print(
        f"model: {TARGET:,} deliveries on {NODES} nodes of {CORES} cores: {spread:.0f} s spread, {driver:.0f} s in the"
        f" driver; peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
    )


if __name__ == "__main__":
    main()

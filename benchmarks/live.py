"""What a live cluster costs, as a table: the loads that docs/live.md tells about, one `amcast bench` after the other.

    python benchmarks/live.py                      all of them, 3 seconds each
    python benchmarks/live.py many --seconds 10    one of them

Each is a cluster of real processes with its order checked. A busy machine disturbs all numbers but the verdict; compare
rows of one run, and look at the best half second.
"""

import argparse
import json
import sys

from amcast.kernel.config import parse_config
from amcast.lab.live_benchmark import BenchmarkPlan, run_benchmark

LOADS: dict[str, list[dict[str, object]]] = {
    "many": [{"connections": 6, "outstanding": 170}],
    "connections": [{"connections": 258, "outstanding": 1}],
    "lone": [{"connections": 1, "outstanding": 1}],
    "local": [
        {
            "groups": groups,
            "replicas": 1,
            "destinations": 1,
            "connections": 2 * groups,
            "outstanding": 170,
            "rate": 8500,
        }
        for groups in (1, 2, 4, 8)
    ],
    "curve": [
        {"connections": 50, "rate": rate / 50, "arrivals": "poisson"}
        for rate in (100, 300, 1000, 3000, 10_000, 15_000, 20_000, 25_000)
    ],
    "durable": [
        {"durability": durability, "connections": 12, "outstanding": 1000} for durability in ("memory", "os", "fsync")
    ],
    "traces": [
        {"connections": connections, "outstanding": outstanding, "trace": trace}
        for connections, outstanding in ((6, 170), (60, 4))
        for trace in ("off", "sampled", "deliveries", "full")
    ],
}
COLUMNS = (
    "groups", "replicas", "destinations", "connections", "outstanding", "rate", "arrivals", "durability", "trace",
    "throughput_per_s", "replica_cpu_us", "replica_cpu_us_net", "replica_cpu_us_best", "client_cpu_us", "cores_used",
    "latency_us_p50", "latency_us_p99", "verdict",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", help=f"some of {', '.join(LOADS)}; default: all")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--protocol", default="primcast")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    given = parser.parse_args()
    unknown = [name for name in given.loads if name not in LOADS]
    if unknown:
        parser.error(f"load {unknown[0]!r}; expected some of {', '.join(LOADS)}")
    holds = True
    if not given.json:
        print(" | ".join(COLUMNS))
    for name in given.loads or LOADS:
        for load in LOADS[name]:
            plan = parse_config(BenchmarkPlan, {**load, "seconds": given.seconds, "protocol": given.protocol}, name)
            found = run_benchmark(plan)
            holds &= found["verdict"] == "holds"
            print(json.dumps(found) if given.json else " | ".join(str(found[column]) for column in COLUMNS), flush=True)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

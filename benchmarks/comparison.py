"""What the comparison of replicas costs: its share of the CPU time that hosts.py measures.

    python benchmarks/comparison.py              the three loads of docs/live.md

Every call that adds a delivery to the chain of a replica is timed. The share is the median of these times, for all
deliveries of a round, in the median round; medians, so that a busy machine disturbs little.
"""

import argparse
import asyncio
import gc
import statistics
import time

from hosts import GROUPS, LOADS, REPLICAS, Bench

from amcast.kernel.effects import Deliver
from amcast.parts.node.replica_comparison import ReplicaComparison

clock = time.perf_counter_ns
WARM_UP = 0.2
"""The part of the time that does not count."""


async def measured(clients: int, batch: int, payload: int, seconds: float) -> list[str]:
    """One row of the table."""
    record = ReplicaComparison.record
    times_ns: list[int] = []

    def timed_record(comparison: ReplicaComparison, delivery: Deliver) -> None:
        begin = clock()
        record(comparison, delivery)
        times_ns.append(clock() - begin)

    bench = Bench(clients, batch, payload)
    await asyncio.sleep(0)
    for host in bench.hosts:
        host.tick()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    ReplicaComparison.record = timed_record  # type: ignore[method-assign]
    begin, rounds = time.process_time(), list[float]()
    while (now := time.process_time()) < begin + seconds:
        if now < begin + WARM_UP * seconds:
            times_ns.clear()
            rounds.clear()
        done, used = bench.done, 0.0
        while bench.done - done < 10 * clients:
            used += bench.round()
        rounds.append(1e6 * used / (bench.done - done) * clients)
    ReplicaComparison.record = record  # type: ignore[method-assign]
    for host in bench.hosts:
        host._is_running = False
    call_us, round_us = statistics.median(times_ns) / 1e3 - measure_clock_us(), statistics.median(rounds)
    share = GROUPS * REPLICAS * call_us / round_us  # one bundle with a message of every client is delivered by all
    return [f"{clients} x {batch}", f"{call_us:.1f}", f"{round_us / clients / batch:.2f}", f"{100 * share:.1f} %"]


def measure_clock_us() -> float:
    """What reading the clock adds to each time."""
    return statistics.median(-clock() + clock() for _ in range(10_000)) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0, help="of CPU, for each load")
    given = parser.parse_args()
    print("clients x batch | us/delivery of a bundle | us/multicast | share")
    for clients, batch in LOADS:
        print(" | ".join(asyncio.run(measured(clients, batch, given.payload, given.seconds))), flush=True)


if __name__ == "__main__":
    main()

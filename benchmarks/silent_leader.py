"""What a silent leader costs: a leader stops (SIGSTOP) without a word to anybody; how long clients wait.

    python benchmarks/silent_leader.py                five clusters of two groups of three, one after the other
    python benchmarks/silent_leader.py --turns 10

Three clients send a message every 10 ms each: to the group of the leader alone, to the other group alone, and to both.
The longest wait of each kind is printed, in ms. A message to the other group waits behind messages to both that have no
final timestamp yet, so it waits for the election as well.
"""

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from pathlib import Path

from amcast.cluster import connect, local_cluster
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config

EVERY_S = 0.01
WARM_S = 3.0
STOPPED_S = 4.0
AFTER_S = 1.0
KINDS = {"its group": ["g0"], "the other group": ["g1"], "both": ["g0", "g1"]}


class Waits:
    """The longest wait of each kind of client since the last reset."""

    def __init__(self) -> None:
        self.longest_ms: dict[str, float] = {}
        self.stopping = False

    async def run_client(self, cluster: Cluster, kind: str) -> None:
        async with connect(cluster) as client:

            async def send() -> None:
                begin = time.perf_counter()
                await client.multicast(KINDS[kind], b"x", timeout_s=60)
                waited_ms = 1000 * (time.perf_counter() - begin)
                self.longest_ms[kind] = max(waited_ms, self.longest_ms.get(kind, 0.0))

            unanswered = []
            while not self.stopping:
                unanswered.append(asyncio.create_task(send()))
                await asyncio.sleep(EVERY_S)
            await asyncio.gather(*unanswered)


async def stop_leader(cluster: Cluster, running: LocalCluster, leader: str) -> dict[str, float]:
    """The longest waits while the leader is silent."""
    waits = Waits()
    clients = [asyncio.create_task(waits.run_client(cluster, kind)) for kind in KINDS]
    await asyncio.sleep(WARM_S)
    waits.longest_ms.clear()
    running.signal(leader, signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    running.signal(leader, signal.SIGCONT)
    await asyncio.sleep(AFTER_S)
    waits.stopping = True
    await asyncio.gather(*clients)
    return waits.longest_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="clusters that are started")
    turns = parser.parse_args().turns
    found: list[dict[str, float]] = []
    print(" | ".join(KINDS))
    for _ in range(turns):
        with tempfile.TemporaryDirectory(prefix="amcast-silent-") as folder:
            file = Path(folder) / "cluster.toml"
            file.write_text(format_local_config({"g0": 3, "g1": 3}, durability="memory"))
            cluster = read_cluster(file)
            with local_cluster(cluster) as running:
                found.append(asyncio.run(stop_leader(cluster, running, "g0/1")))
        print(" | ".join(f"{found[-1][kind]:.0f}" for kind in KINDS), flush=True)
    print("median: " + " | ".join(f"{statistics.median(row[kind] for row in found):.0f}" for kind in KINDS))


if __name__ == "__main__":
    main()

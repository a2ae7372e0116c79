"""What a live cluster costs: CPU microseconds per multicast, throughput and latency, over real processes and sockets.

    python benchmarks/live.py --groups 2 --replicas 1 --protocol skeen --clients 2 --outstanding 170 --seconds 3

Every client is one connection per server with `outstanding` messages on their way at any time, all in this process;
CPU of replicas and of clients is counted apart. The order is checked at the end of a run with --trace full.
"""

import argparse
import asyncio
import json
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

from amcast.check.judge import judge
from amcast.live.client import Client
from amcast.live.config import Cluster, read_cluster
from amcast.live.launch import Launcher, local_config
from amcast.live.node import run_loop
from amcast.service import connect, launcher
from amcast.trace.folder import FolderRecorder
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import read


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Load:
    """Keeps so many messages on their way until told to stop, and remembers how long each took."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.done = 0
        self.latencies_ns: list[int] = []
        self.stopping = False

    async def client(self, client: Client) -> None:
        await asyncio.gather(*(self._one(client, number) for number in range(self.given.outstanding)))

    async def _one(self, client: Client, number: int) -> None:
        groups = [(number + index) % self.given.groups for index in range(self.given.destinations)]
        payload = bytes(self.given.payload)
        while not self.stopping:
            begin = time.perf_counter_ns()
            await (await client.post(groups, payload))
            self.latencies_ns.append(time.perf_counter_ns() - begin)
            self.done += 1


async def measure(
    cluster: Cluster, running: Launcher, given: argparse.Namespace, recorder: FolderRecorder | None
) -> dict:
    load = Load(given)
    clients = [connect(cluster, me=1000 + number, recorder=recorder) for number in range(given.clients)]
    for client in clients:
        await client.__aenter__()
    jobs = [asyncio.create_task(load.client(client)) for client in clients]
    await asyncio.sleep(min(1.0, given.seconds / 3))
    load.latencies_ns.clear()
    before = (load.done, time.perf_counter(), sum(map(running.cpu_s, cluster.nodes())), cpu_s())
    await asyncio.sleep(given.seconds)
    after = (load.done, time.perf_counter(), sum(map(running.cpu_s, cluster.nodes())), cpu_s())
    load.stopping = True
    await asyncio.gather(*jobs)
    for client in clients:
        await client.__aexit__(None, None, None)
    count, seconds, replicas, here = (b - a for a, b in zip(before, after, strict=True))
    row = sorted(load.latencies_ns)
    return {
        "throughput_per_s": round(count / seconds),
        "replica_cpu_us": round(1e6 * replicas / count, 2),
        "client_cpu_us": round(1e6 * here / count, 2),
        "latency_us_p50": round(row[len(row) // 2] / 1000),
        "latency_us_p99": round(row[len(row) * 99 // 100] / 1000),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", default="skeen")
    for name, value in {
        "groups": 2,
        "replicas": 1,
        "destinations": 2,
        "clients": 1,
        "outstanding": 1,
        "payload": 64,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--durability", default="memory", choices=["memory", "os", "fsync"])
    parser.add_argument("--trace", default="off", choices=["off", "deliveries", "full"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "cluster.toml"
        groups = {f"g{number}": given.replicas for number in range(given.groups)}
        fields = {"protocol": given.protocol, "durability": given.durability, "trace": {"mode": given.trace}}
        file.write_text(local_config(groups, **fields))
        cluster = read_cluster(file)
        result: dict = {**vars(given), "python": platform.python_version()}
        recorder = None
        if given.trace != "off":
            meta = Meta(run=cluster.run, claims=RunClaims(complete=True, exactly_once=True))
            recorder = FolderRecorder(
                cluster.trace_folder, meta, packets=given.trace == "full", writer="clients", latest=False
            )
        with launcher(cluster) as running:

            async def go() -> None:
                result.update(await measure(cluster, running, given, recorder))

            run_loop(go())
        if recorder is not None:
            recorder.close()
            result["verdict"] = judge(read(cluster.trace_folder)).verdict
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

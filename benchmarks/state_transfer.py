"""A large state of an application goes to a member that was away, under load: how long, how much memory, which leaders.

    python benchmarks/state_transfer.py                          1024 MB in pieces, drawn in a thread
    python benchmarks/state_transfer.py --how forked             the same from a copy of the process
    python benchmarks/state_transfer.py --how bytes --mb 64      all at once, as a small state would be

Three replicas of one group, each in a process of its own with a program that keeps a table in memory. One is stopped,
the table grows, and the replica is started again while clients multicast without a pause. Its group has forgotten the
deliveries since then, so it fetches the table from another member.

Printed as JSON: seconds until the application has caught up, the most memory that each program used above its own
table, all memory of the member that was away when it had received the state and not installed it, leaders before and
after, the multicasts meanwhile and the slowest of them, and whether all tables are equal.
"""

import argparse
import asyncio
import hashlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import amcast
from amcast.cluster import connect, run_replica
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import GetNodeStatus, NodeStatus

BLOCK = 64 * 1024
LOADERS = 8


class Table:
    """The program's state: blocks that deliveries replace one by one."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.takes = self.installs = 0
        self.received_mb = 0
        """The most memory that the program had used when it had received the state, and not installed it."""

    def deliver(self, delivery: amcast.Delivery) -> None:
        command, number = delivery.payload.split()
        if command == b"grow":
            self.blocks += [b"%08d" % place * (BLOCK // 8) for place in range(int(number))]
        elif self.blocks:
            self.blocks[int(number) % len(self.blocks)] = b"%08d" % delivery.position * (BLOCK // 8)

    def take_pieces(self) -> Iterator[bytes]:
        self.takes += 1
        blocks = list(self.blocks)  # references, of this moment: blocks are replaced and never changed
        yield b"%d" % len(blocks)
        yield from blocks

    def take_bytes(self) -> bytes:
        self.takes += 1
        return b"".join(self.take_pieces())[len(b"%d" % len(self.blocks)) :]

    def install(self, state: bytes | Iterable[bytes], position: int) -> None:
        self.installs += 1
        self.received_mb = memory_mb("VmHWM")
        if isinstance(state, bytes):
            self.blocks = [state[start : start + BLOCK] for start in range(0, len(state), BLOCK)]
        else:
            pieces = iter(state)
            count = int(next(pieces))
            self.blocks = list(pieces)
            assert len(self.blocks) == count, f"{len(self.blocks)} of {count} blocks"

    def digest(self) -> str:
        digest = hashlib.blake2b()
        for block in self.blocks:
            digest.update(block)
        return digest.hexdigest()[:16]


def memory_mb(name: str, process: int | str = "self") -> int:
    """A line of /proc/self/status: VmRSS is the memory now, VmHWM the most that there was."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024


async def run_node(config: Path, node: str, how: str) -> None:
    """One replica with its table, until SIGTERM; writes a report beside cluster.toml when it has caught up, and at the
    end."""
    table = Table()
    takes = {"pieces": table.take_pieces, "forked": amcast.forked(table.take_pieces), "bytes": table.take_bytes}
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    file = config.parent / f"{node.replace('/', '-')}.json"
    began = time.monotonic()

    def report(**fields: object) -> None:
        file.with_suffix(".new").write_text(
            json.dumps({"received_mb": table.received_mb, "takes": table.takes, "installs": table.installs, **fields})
        )
        file.with_suffix(".new").replace(file)

    async with run_replica(config, node, table.deliver, take=takes[how], install=table.install) as replica:
        print("ready", flush=True)
        await replica.caught_up()
        caught_up_s = time.monotonic() - began
        report(caught_up_s=caught_up_s)
        await stopped.wait()
        position = replica.position
    report(caught_up_s=caught_up_s, digest=table.digest(), position=position, blocks=len(table.blocks))


async def leaders(cluster: Cluster) -> list[tuple[Any, Any]]:
    """The leader and the epoch that each running node names."""
    rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits)
    found = []
    for process in cluster.topology.servers:
        try:
            answer = await rpc.request(process, GetNodeStatus())
        except NoAnswerError:
            continue
        assert isinstance(answer, NodeStatus)
        status = json.loads(answer.json)["protocol_status"]
        found.append((status.get("leader"), status.get("epoch")))
    return found


async def load(cluster: Cluster, until: asyncio.Event, payload: int) -> list[float]:
    """Multicasts until an event; returns the seconds that each took."""
    taken: list[float] = []

    async def repeat(client: amcast.Client, number: int) -> None:
        while not until.is_set():
            begin = time.monotonic()
            await client.multicast({"orders"}, b"set %0*d" % (payload, number), timeout_s=120)
            taken.append(time.monotonic() - begin)
            number += LOADERS
            await asyncio.sleep(0.002)

    async with connect(cluster) as client:
        await asyncio.gather(*(repeat(client, number) for number in range(LOADERS)))
    return taken


async def transfer(running: LocalCluster, cluster: Cluster, mb: int, payload: int) -> dict[str, Any]:
    last = "orders/3"
    async with connect(cluster) as client:
        await client.multicast({"orders"}, b"set 0")
        await asyncio.to_thread(running.stop, last)
        for _ in range(mb):
            await client.multicast({"orders"}, b"grow %d" % (1024 * 1024 // BLOCK), timeout_s=120)
        for number in range(200):
            await client.multicast({"orders"}, b"set %d" % number, timeout_s=120)
    others = ("orders/1", "orders/2")
    table_mb = {node: memory_mb("VmRSS", running.pid(node)) for node in others}
    before = await leaders(cluster)
    done = asyncio.Event()
    loading = asyncio.create_task(load(cluster, done, payload))
    await asyncio.sleep(0.5)
    begin = time.monotonic()
    (cluster.file.parent / "orders-3.json").unlink()
    await asyncio.to_thread(running.start, last)
    while not (cluster.file.parent / "orders-3.json").exists():
        await asyncio.sleep(0.1)
        running.check()
    seconds = time.monotonic() - begin
    await asyncio.sleep(0.5)
    done.set()
    taken = await loading
    peak = {node: memory_mb("VmHWM", running.pid(node)) - table_mb[node] for node in others}
    after = await leaders(cluster)
    peak[last] = memory_mb("VmHWM", running.pid(last)) - mb
    return {
        "mb": mb,
        "seconds": round(seconds, 2),
        "peak_mb_above_table": peak,
        "leaders_before": before,
        "leaders_after": after,
        "multicasts": len(taken),
        "slowest_multicast_s": round(max(taken), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("node", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--how", choices=["pieces", "forked", "bytes"], default="pieces")
    parser.add_argument("--durability", default="os")
    parser.add_argument("--payload", type=int, default=1000, help="bytes of each multicast meanwhile")
    parser.add_argument("--folder", type=Path, help="where the cluster lives; a temporary folder by default")
    options = parser.parse_args()
    if options.node:
        asyncio.run(run_node(Path(options.node[0]), options.node[1], options.how))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        file = Path(name) / "cluster.toml"
        fields = {"protocol": "primcast", "durability": options.durability, "options": {"keep": 64}}
        file.write_text(format_local_config({"orders": 3}, **fields))
        cluster = read_cluster(file)
        # Otherwise the C library keeps apart what a thread allocated: here a table that another thread changes.
        command = ["env", "MALLOC_ARENA_MAX=1", sys.executable, str(Path(__file__).resolve()), "--how", options.how]
        with LocalCluster(cluster, command) as running:
            result = asyncio.run(transfer(running, cluster, options.mb, options.payload))
            running.wait_until_settled()
            running.stop(*cluster.nodes(), timeout_s=120)
        reports = {}
        for node in cluster.nodes():
            reports[node] = json.loads((file.parent / f"{node.replace('/', '-')}.json").read_text())
        tables = {(one["digest"], one["position"], one["blocks"]) for one in reports.values()}
        result["tables_are_equal"] = len(tables) == 1
        result["received_with_mb"] = reports["orders/3"]["received_mb"]
        result["takes"] = {node: one["takes"] for node, one in reports.items()}
        result["installs"] = {node: one["installs"] for node, one in reports.items()}
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""A large state of an application goes to a member that was away, under load: how long, how much memory, which leaders.

    python benchmarks/state_transfer.py                          1024 MB in pieces, drawn in a thread
    python benchmarks/state_transfer.py --how forked             the same from a copy of the process
    python benchmarks/state_transfer.py --how bytes --mb 64      all at once, as a small state would be
    python benchmarks/state_transfer.py --how service            a service with its state in memory
    python benchmarks/state_transfer.py --how files              a service with its state in a database

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
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import amcast
from amcast.cluster import connect, run_replica, run_service
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
            self.blocks += [make_block(place) for place in range(int(number))]
        elif self.blocks:
            self.blocks[int(number) % len(self.blocks)] = make_block(delivery.position)

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


class BlockService(amcast.Service):
    """The same table as a service: its state is in memory, and amcast cuts it into pieces."""

    def __init__(self, group: str) -> None:
        self.blocks: list[bytes] = []

    @amcast.command
    def grow(self, at: amcast.At, count: int) -> None:
        self.blocks += [make_block(place) for place in range(count)]

    @amcast.command
    def set(self, at: amcast.At, number: int, padding: str) -> None:
        if self.blocks:
            self.blocks[number % len(self.blocks)] = make_block(at.position)

    @amcast.query
    def digest(self) -> list[Any]:
        return digest_blocks(self.blocks)


class BlockDatabase(amcast.DiskService):
    """The same table as a service that keeps it in SQLite."""

    failures = (OSError, sqlite3.OperationalError)
    save_deliveries = 16

    def open(self, folder: Path) -> amcast.Applied | None:
        self.file = folder / "blocks.db"
        self.database = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "CREATE TABLE IF NOT EXISTS blocks (number INTEGER PRIMARY KEY, block BLOB)",
            "CREATE TABLE IF NOT EXISTS applied (only INTEGER PRIMARY KEY, position INTEGER, record BLOB)",
            "BEGIN",
        ):
            self.database.execute(statement)
        row = self.database.execute("SELECT position, record FROM applied").fetchone()
        return None if row is None else amcast.Applied(*row)

    def save(self, applied: amcast.Applied) -> None:
        self.database.execute("REPLACE INTO applied VALUES (1, ?, ?)", applied)
        self.database.execute("COMMIT")
        self.database.execute("BEGIN")

    def snapshot(self) -> Iterator[bytes]:
        reader = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        try:
            reader.execute("BEGIN")
            for (block,) in reader.execute("SELECT block FROM blocks ORDER BY number"):
                yield block
        finally:
            reader.close()

    def restore(self, pieces: Iterator[bytes]) -> None:
        self.database.executemany("INSERT INTO blocks VALUES (?, ?)", enumerate(pieces))

    def close(self) -> None:
        self.database.close()

    @property
    def count(self) -> int:
        count: int = self.database.execute("SELECT count(*) FROM blocks").fetchone()[0]
        return count

    @amcast.command
    def grow(self, at: amcast.At, count: int) -> None:
        first = self.count
        blocks = ((first + place, make_block(place)) for place in range(count))
        self.database.executemany("INSERT INTO blocks VALUES (?, ?)", blocks)

    @amcast.command
    def set(self, at: amcast.At, number: int, padding: str) -> None:
        if count := self.count:
            self.database.execute("REPLACE INTO blocks VALUES (?, ?)", (number % count, make_block(at.position)))

    @amcast.query
    def digest(self) -> list[Any]:
        return digest_blocks(row[0] for row in self.database.execute("SELECT block FROM blocks ORDER BY number"))


SERVICES: dict[str, type[amcast.Service]] = {"service": BlockService, "files": BlockDatabase}


def make_block(number: int) -> bytes:
    return b"%08d" % number * (BLOCK // 8)


def digest_blocks(blocks: Iterable[bytes]) -> list[Any]:
    """A digest of all blocks, and their number."""
    digest, count = hashlib.blake2b(), 0
    for block in blocks:
        digest.update(block)
        count += 1
    return [digest.hexdigest()[:16], count]


def memory_mb(name: str, process: int | str = "self") -> int:
    """A line of /proc/self/status: VmRSS is the memory now, VmHWM the most that there was."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024


async def run_node(config: Path, node: str, how: str) -> None:
    """One replica with its table, until SIGTERM; writes a report beside cluster.toml when it has caught up, and at the
    end."""
    table = Table()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    file = config.parent / f"{node.replace('/', '-')}.json"
    began = time.monotonic()

    def report(**fields: object) -> None:
        file.with_suffix(".new").write_text(
            json.dumps({"received_mb": table.received_mb, "takes": table.takes, "installs": table.installs, **fields})
        )
        file.with_suffix(".new").replace(file)

    if how in SERVICES:
        replica = run_service(config, node, SERVICES[how])
    else:
        takes = {"pieces": table.take_pieces, "forked": amcast.forked(table.take_pieces), "bytes": table.take_bytes}
        replica = run_replica(config, node, table.deliver, take=takes[how], install=table.install)
    async with replica:
        print("ready", flush=True)
        await replica.caught_up()
        caught_up_s = time.monotonic() - began
        report(caught_up_s=caught_up_s)
        await stopped.wait()
        position = replica.position
        if replica.service is not None:
            service: Any = replica.service.executor.service
            digest, blocks = service.digest()
        else:
            digest, blocks = digest_blocks(table.blocks)
    report(caught_up_s=caught_up_s, digest=digest, position=position, blocks=blocks)


def make_caller(client: amcast.Client, how: str) -> Any:
    return client.service(SERVICES[how]) if how in SERVICES else client


async def send(caller: Any, command: str, number: int, payload: int = 0) -> None:
    """Has the table grow, or one of its blocks replaced."""
    if isinstance(caller, amcast.Client):
        await caller.multicast({"orders"}, b"%s %0*d" % (command.encode(), payload, number), timeout_s=120)
    elif command == "grow":
        await caller.grow(number, timeout_s=120)
    else:
        await caller.set(number, "0" * payload, timeout_s=120)


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


async def load(cluster: Cluster, how: str, until: asyncio.Event, payload: int) -> list[float]:
    """Multicasts until an event; returns the seconds that each took."""
    taken: list[float] = []

    async def repeat(caller: Any, number: int) -> None:
        while not until.is_set():
            begin = time.monotonic()
            await send(caller, "set", number, payload)
            taken.append(time.monotonic() - begin)
            number += LOADERS
            await asyncio.sleep(0.002)

    async with connect(cluster) as client:
        caller = make_caller(client, how)
        await asyncio.gather(*(repeat(caller, number) for number in range(LOADERS)))
    return taken


async def transfer(running: LocalCluster, cluster: Cluster, how: str, mb: int, payload: int) -> dict[str, Any]:
    last = "orders/3"
    async with connect(cluster) as client:
        caller = make_caller(client, how)
        await send(caller, "set", 0)
        await asyncio.to_thread(running.stop, last)
        for _ in range(mb):
            await send(caller, "grow", 1024 * 1024 // BLOCK)
        for number in range(200):
            await send(caller, "set", number)
    others = ("orders/1", "orders/2")
    table_mb = {node: memory_mb("VmRSS", running.pid(node)) for node in others}
    before = await leaders(cluster)
    done = asyncio.Event()
    loading = asyncio.create_task(load(cluster, how, done, payload))
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
    table_mb[last] = 0 if how == "files" else mb
    peak[last] = memory_mb("VmHWM", running.pid(last)) - table_mb[last]
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
    parser.add_argument("--how", choices=["pieces", "forked", "bytes", *SERVICES], default="pieces")
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
            result = asyncio.run(transfer(running, cluster, options.how, options.mb, options.payload))
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

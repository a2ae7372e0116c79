"""What a service costs above plain multicasts.

    python benchmarks/services.py                     24 sessions (clients), 170 bytes of arguments
    python benchmarks/services.py --sessions 1000 --bytes 16
    python benchmarks/services.py --profile           the same, by function
    python benchmarks/services.py --load 5            what replicas spend on calls, beside multicasts: 6 clients x 170
    python benchmarks/services.py --latency 300       what a lone caller waits for, beside a lone multicast

The first three measure the CPU of one replica: commands are those of a session in order, each acknowledging the one
before, as those of callers that wait for answers. The shortest of several turns counts. Printed as JSON: microseconds
of CPU per command.

The others start two groups of three real nodes. Loads take turns of so many seconds; a replica's CPU is that of its
process, in microseconds per call, the mean of all turns but the first. Lone calls take turns, too: milliseconds, half
of the calls wait for less.
"""

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import amcast
from amcast.cluster import local_cluster
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.services.calls import CallSession
from amcast.services.declaration import describe_service
from amcast.services.executor import Executor
from amcast.services.messages import encode_payload

GROUPS = ("north", "south")
CLIENTS = 6
OUTSTANDING = 170
TURNS = 4


class Register(amcast.Service):
    """Keeps one text, and returns a small result."""

    def __init__(self, group: str) -> None:
        self.text: str = ""
        self.count: int = 0

    @amcast.command
    def write(self, at: amcast.At, key: amcast.Key, text: str) -> int:
        self.text = text
        self.count += 1
        return self.count

    @amcast.command
    def write_all(self, at: amcast.At, text: str) -> int:
        self.text = text
        return 1

    @amcast.command
    def agree(self, at: amcast.At, text: str) -> Generator[int, dict[str, int], int]:
        votes = yield 1
        self.text = text
        return sum(votes.values())

    @amcast.query
    def read(self, key: amcast.Key) -> int:
        return self.count


def make_payloads(sessions: int, commands: int, size: int) -> list[bytes]:
    """Commands of all sessions in turn; each session has the results of its earlier ones."""
    description = describe_service(Register)
    callers = [CallSession(description, GROUPS, number + 1) for number in range(sessions)]
    payloads: list[bytes] = []
    while len(payloads) < commands:
        for caller in callers:
            call = caller.make("write", ("key", "x" * size), {}, len(payloads), groups=["north"])
            payloads.append(encode_payload(call.command))
            caller.close(call)
    return payloads[:commands]


def measure(payloads: list[bytes]) -> float:
    """Seconds of CPU to execute all payloads."""
    executor = Executor(Register, "north", GROUPS)
    deliver, finished = executor.deliver, executor.finished
    begin = time.process_time()
    for position, payload in enumerate(payloads):
        deliver(position, ("north",), payload)
        finished.clear()
    took = time.process_time() - begin
    assert executor.executed == len(payloads)
    return took


def profile(payloads: list[bytes]) -> None:
    """Prints the functions in which the executor spends its time."""
    profiler = cProfile.Profile()
    profiler.runcall(measure, payloads)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


@contextmanager
def start_cluster() -> Iterator[LocalCluster]:
    """Two groups of three real nodes with the service."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "cluster.toml"
        config.write_text(format_local_config(dict.fromkeys(GROUPS, 3), order="real-time"))
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        with local_cluster(read_cluster(config), service="services:Register") as running:
            yield running


def measure_latency(turns: int, size: int) -> dict[str, float]:
    """Medians of what a lone caller waits for, in milliseconds."""
    with start_cluster() as running:
        return asyncio.run(_call_in_turns(running.cluster, turns, "x" * size))


def measure_load(seconds: float, size: int) -> dict[str, dict[str, float]]:
    """Microseconds of CPU of a leader and of its followers per call, by kind of call."""
    with start_cluster() as running:
        return asyncio.run(_load_in_turns(running, seconds, "x" * size))


Call = Callable[[amcast.Client, Any], Awaitable[Any]]


async def _load_in_turns(running: LocalCluster, seconds: float, text: str) -> dict[str, dict[str, float]]:
    kinds: dict[str, Call] = {
        "multicast to one group": lambda client, stub: client.multicast(["north"], text.encode()),
        "command of one group": lambda client, stub: stub.write("key", text, groups=["north"]),
        "multicast to two groups": lambda client, stub: client.multicast(GROUPS, text.encode()),
        "command of two groups": lambda client, stub: stub.write_all(text),
        "command of two groups with an exchange": lambda client, stub: stub.agree(text),
    }
    nodes = {"leader": ("north/1",), "follower": ("north/2", "north/3")}
    spent: dict[str, dict[str, list[float]]] = {kind: {role: [] for role in nodes} for kind in kinds}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(amcast.connect(running.cluster)) for _ in range(CLIENTS)]
        for turn in range(TURNS):
            for kind, call in kinds.items():
                before = {role: sum(map(running.cpu_s, own)) for role, own in nodes.items()}
                done = await _load(clients, call, seconds)
                for role, own in nodes.items():
                    if turn:
                        took = sum(map(running.cpu_s, own)) - before[role]
                        spent[kind][role].append(1e6 * took / done / len(own))
    return {
        kind: {role: round(statistics.mean(taken), 1) for role, taken in roles.items()} for kind, roles in spent.items()
    }


async def _load(clients: Sequence[amcast.Client], call: Call, seconds: float) -> int:
    """Keeps calls of all clients open for so long; returns how many were answered."""
    end, done = time.monotonic() + seconds, 0

    async def repeat(client: amcast.Client, stub: Any) -> None:
        nonlocal done
        while time.monotonic() < end:
            await call(client, stub)
            done += 1

    stubs = [(client, client.service(Register)) for client in clients]
    await asyncio.gather(*(repeat(*one) for one in stubs for _ in range(OUTSTANDING)))
    return done


async def _call_in_turns(cluster: Cluster, turns: int, text: str) -> dict[str, float]:
    async with amcast.connect(cluster, connect_s=60) as client:
        stub = client.service(Register)
        kinds: dict[str, Callable[[], Awaitable[Any]]] = {
            "multicast to one group": lambda: client.multicast(["north"], text.encode()),
            "command of one group": lambda: stub.write("key", text, groups=["north"]),
            "multicast to two groups": lambda: client.multicast(GROUPS, text.encode()),
            "command of two groups": lambda: stub.write_all(text),
            "command of two groups with an exchange": lambda: stub.agree(text),
            "linearizable query of one group": lambda: stub.read("key", groups=["north"]),
        }
        waits: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(turns + 20):
            for name, call in kinds.items():
                begin = time.perf_counter()
                await call()
                if turn >= 20:
                    waits[name].append(1e3 * (time.perf_counter() - begin))
        return {name: round(statistics.median(taken), 3) for name, taken in waits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--commands", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=170)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--latency", type=int, default=0, metavar="TURNS")
    parser.add_argument("--load", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.latency or options.load:
        found = measure_load(options.load, options.bytes) if options.load else None
        json.dump(found or measure_latency(options.latency, options.bytes), sys.stdout, indent=1)
        print()
        return
    payloads = make_payloads(options.sessions, options.commands, options.bytes)
    if options.profile:
        profile(payloads)
        return
    seconds = min(measure(payloads) for _ in range(options.turns))
    json.dump({"us_per_command": round(seconds / len(payloads) * 1e6, 3)}, sys.stdout)
    print()


if __name__ == "__main__":
    main()

"""Clusters with certificates, inside the test process or as real processes, and raw connections of unauthenticated
peers."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from amcast.cluster import run_replica
from amcast.kernel.ids import ProcessId
from amcast.live import log_output as logs
from amcast.live.config import certificates as certs
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.server.replica import Replica

CLIENTS = {
    "till": {"groups": "all", "operate": True},
    "guest": {"groups": ["stock"]},
}
GROUPS = {"orders": 1, "stock": 1}


def secured(
    folder: Path, groups: Mapping[str, int] = GROUPS, clients: Mapping[str, Any] = CLIENTS, **fields: Any
) -> Cluster:
    """A cluster.toml with TLS, and its certificates."""
    fields = {"protocol": "primcast", "durability": "memory", **fields}
    text = format_local_config(groups, security={"mode": "tls"}, clients=clients, **fields)
    file = folder / "cluster.toml"
    file.write_text(text)
    cluster = read_cluster(file)
    certs.make_certificates(cluster)
    return cluster


def plain(folder: Path, groups: Mapping[str, int] = GROUPS, **fields: Any) -> Cluster:
    """A cluster.toml with security.mode = "plain"."""
    file = folder / "cluster.toml"
    file.write_text(format_local_config(groups, **{"protocol": "primcast", "durability": "memory", **fields}))
    return read_cluster(file)


@asynccontextmanager
async def replicas(cluster: Cluster) -> AsyncIterator[dict[ProcessId, Replica]]:
    """Runs every node of a cluster in this process; each takes part, as a node does that has printed `ready`: before
    that, it refuses most requests."""
    async with AsyncExitStack() as stack:
        running = {}
        for name, me in cluster.nodes().items():
            running[me] = await stack.enter_async_context(run_replica(cluster, name))
        for replica in running.values():
            assert await replica.runtime.wait_admitted(10), replica.runtime.status.admission_reason()
        yield running


class Lines(logging.Handler):
    """Collected log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def having(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]


@contextmanager
def listening() -> Iterator[Lines]:
    """Collects the log of the live system, with fresh rate limits."""
    logs.rate_limited_log.reset()
    log = logging.getLogger("amcast.live")
    lines = Lines()
    log.addHandler(lines)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


async def say(address: tuple[str, int], data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Connects, sends bytes, and returns what is received until the peer closes."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        writer.write(data)
        async with asyncio.timeout(10):
            return await reader.read()
    except (OSError, TimeoutError):
        return b""
    finally:
        if writer is not None:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


async def until(holds: Any, timeout_s: float = 10.0) -> None:
    """Waits for a condition; fails if it never holds."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.01)

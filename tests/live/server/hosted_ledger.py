"""An application on a replica, for tests that kill it: python hosted_ledger.py CONFIG NODE, until SIGTERM.

It keeps all payloads in memory, and writes them beside cluster.toml after a graceful stop.
"""

import asyncio
import signal
import sys
from pathlib import Path

from amcast.cluster import run_replica


async def main(config: Path, node: str) -> None:
    rows: list[bytes] = []

    def install(state: bytes, position: int) -> None:
        rows[:] = state.split(b"|") if state else []

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    replica = run_replica(
        config, node, lambda delivery: rows.append(delivery.payload), take=lambda: b"|".join(rows), install=install
    )
    async with replica:
        print("ready", flush=True)
        await ended.wait()
    (config.parent / f"{node.replace('/', '-')}.rows").write_bytes(b"|".join(rows))


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

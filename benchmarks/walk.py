"""The walk of one live multicast: which calls, functions and files it takes from `client.multicast` to its receipt.

    .venv/bin/python benchmarks/walk.py [--json]

Six replicas in two groups and one client share this process and talk over loopback TCP, in memory. After a warm-up,
calls into amcast are counted while one message to both groups is multicast and acknowledged. A border is a call that
leaves one package (`kernel`, `parts`, `protocols`, `live`, ...) for another. Timers of nodes may add a few calls: the
smallest of several walks counts.
"""

import argparse
import asyncio
import json
import socket
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import amcast

PACKAGE = str(Path(amcast.__file__).parent)
WALKS = 200
CLUSTER = """\
name = "walk"
protocol = "primcast"
durability = "memory"
data = "{folder}"

[security]
mode = "plain"

[groups.orders]
replicas = [{orders}]

[groups.stock]
replicas = [{stock}]
"""


class Walk:
    """Counts calls into amcast while it is the profile function of the interpreter."""

    def __init__(self) -> None:
        self.calls = 0
        self.functions: set[tuple[str, int]] = set()
        self.files: set[str] = set()
        self.file_switches = 0
        self.borders = 0
        self._last = ("", "")

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(PACKAGE):
            return
        package = file[len(PACKAGE) + 1 :].split("/")[0]
        self.calls += 1
        self.functions.add((file, frame.f_code.co_firstlineno))
        self.files.add(file)
        self.file_switches += file != self._last[0]
        self.borders += package != self._last[1]
        self._last = (file, package)

    def as_dict(self) -> dict[str, int]:
        return {
            "calls": self.calls,
            "functions": len(self.functions),
            "files": len(self.files),
            "file_switches": self.file_switches,
            "borders": self.borders,
        }


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f'"127.0.0.1:{one.getsockname()[1]}"' for one in sockets]
    for one in sockets:
        one.close()
    return found


async def measure(folder: Path) -> dict[str, int]:
    addresses = free_addresses(6)
    file = folder / "cluster.toml"
    file.write_text(
        CLUSTER.format(folder=folder / "data", orders=", ".join(addresses[:3]), stock=", ".join(addresses[3:]))
    )
    async with AsyncExitStack() as stack:
        for name in ("orders/1", "orders/2", "orders/3", "stock/1", "stock/2", "stock/3"):
            await stack.enter_async_context(amcast.run_replica(file, name, lambda delivery: None))
        client = await stack.enter_async_context(amcast.connect(file))
        for _ in range(50):
            await client.multicast({"orders", "stock"}, b"warm up")
        walks = []
        for _ in range(WALKS):
            await asyncio.sleep(0.05)
            walk = Walk()
            sys.setprofile(walk)
            await client.multicast({"orders", "stock"}, b"one message")
            sys.setprofile(None)
            walks.append(walk)
        return min(walks, key=lambda walk: walk.calls).as_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder)))
    if given.json:
        print(json.dumps(found))
    else:
        for name, count in found.items():
            print(f"{name.replace('_', ' '):<14} {count:>6,}")


if __name__ == "__main__":
    main()

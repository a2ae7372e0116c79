"""FlexCast's memory over a long run: histories must stay flat when flushes are on, and grow when they are off.

    nice .venv/bin/python benchmarks/history.py                          # 1,000 to 1,000,000 messages, about 6 minutes
    .venv/bin/python benchmarks/history.py --messages 1000 10000 --flush-every 0
    .venv/bin/python benchmarks/history.py --notify next --groups 12 --messages 1000 10000

Groups of one process in the timed world, 4 clients with 8 messages outstanding each, to 1, 2 or 3 groups drawn at
random; links take a millisecond; nothing is recorded, and the world keeps no history of its own. A row is about the
messages since the row before: CPU microseconds per multicast (the median of ten slices, the simulator's own time
included), packets per multicast, the largest history of any group (messages, and links that some group was not told),
the largest number of messages waiting at any group, the size of the largest snapshot at the end of the row, and this
process' memory: what it holds then, and how much its peak rose.
"""

import argparse
import gc
import json
import platform
import resource
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import msgspec

import amcast
from amcast.assembly import assemble_bare
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.lab.protocol_lookup import find_protocol
from amcast.protocols.flexcast.process import FlexCast
from amcast.simulation.inputs.network import NetworkConfig
from amcast.simulation.simulate import Simulation, SimulationSetup

CLIENTS, OUTSTANDING, BYTES, DELAY_NS = 4, 8, 64, 1_000_000
SIZES = (1_000, 10_000, 100_000, 1_000_000)
SLICES = 10
SAMPLE_EVERY = 97
"""Messages between two looks at the histories: no divisor of anything, so that flushes are seen at every stage."""


class Meter:
    """Looks at the groups, and at the clock, as messages are drawn."""

    def __init__(self, sizes: list[int]) -> None:
        self.groups: list[FlexCast] = []
        self.simulation: Simulation | None = None
        self.drawn = 0
        self._sizes = sizes
        self._low = 0

    def begin(self) -> None:
        """What follows is the next row's."""
        self._cpu: list[float] = []
        self._at = (self.drawn, self._now())
        self._packets = self.simulation.world.packets if self.simulation else 0
        self._peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._most = {"vertices": 0, "untold": 0, "waiting": 0}

    @staticmethod
    def _now() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return 1e6 * (used.ru_utime + used.ru_stime)

    def count(self) -> dict[str, Any] | None:
        """One message more; a row when a size is reached."""
        self.drawn += 1
        if self.drawn % SAMPLE_EVERY == 0:
            self._look()
        if self.drawn - self._at[0] >= max(1, (self._sizes[0] - self._low) // SLICES):
            now = self._now()
            self._cpu.append((now - self._at[1]) / (self.drawn - self._at[0]))
            self._at = (self.drawn, now)
        if self.drawn < self._sizes[0]:
            return None
        return self._row()

    def _look(self) -> None:
        most = self._most
        for group in self.groups:
            history = group.history
            most["vertices"] = max(most["vertices"], len(history))
            most["untold"] = max(most["untold"], len(history._log))
            most["waiting"] = max(most["waiting"], len(group._pending) + len(group._notifications))

    def _row(self) -> dict[str, Any]:
        assert self.simulation is not None
        sent = self.simulation.world.packets - self._packets
        row = {
            "messages": self.drawn,
            "cpu_us_per_multicast": round(median(self._cpu), 1),
            "packets_per_multicast": round(sent / (self.drawn - self._low), 2),
            "history_messages_max": self._most["vertices"],
            "history_untold_max": self._most["untold"],
            "waiting_max": self._most["waiting"],
            "snapshot_bytes": max(len(msgspec.msgpack.encode(group.snapshot())) for group in self.groups),
            "memory_kib": _resident_kib(),
            "peak_growth_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._peak,
        }
        self._low = self._sizes.pop(0)
        self.begin()
        return row


def _resident_kib() -> int:
    """What this process holds now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize() // 1024


def run(
    groups: int, sizes: list[int], options: dict[str, Any], say: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    topology = Topology.grid(groups, 1, CLIENTS)
    spec = find_protocol("flexcast").for_topology(topology)
    assembly = assemble_bare(spec, spec.configure(options))
    random = Random(1)
    meter = Meter(list(sizes))
    rows: list[dict[str, Any]] = []

    def draw(client: int) -> tuple[tuple[int, ...], int, int]:
        row = meter.count() if meter._sizes else None
        if row is not None:
            rows.append(row)
            say(row)
        count = random.choice((1, 2, 2, 2, 3))
        return tuple(sorted(random.sample(range(groups), count))), BYTES, 0

    def make(process: int) -> Process:
        made = assembly.make(process, topology)
        if isinstance(made, FlexCast):
            meter.groups.append(made)
        return made

    setup = SimulationSetup(
        topology=topology,
        make=make,
        draw=draw,
        claims=spec.claims,
        network=NetworkConfig(delay_ns=DELAY_NS),
        seed=1,
        messages=sizes[-1],
        outstanding=OUTSTANDING,
    )
    meter.simulation = Simulation(setup)
    gc.collect()
    meter.begin()
    summary = meter.simulation.run()
    assert summary.end == "delivered", summary
    return rows


COLUMNS = ("messages", "CPU us", "packets", "history", "untold", "waiting", "snapshot B", "KiB", "peak +KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs="+", default=list(SIZES), help="rising sizes")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--flush-every", type=int, default=256, help="0: never")
    parser.add_argument("--notify", choices=("all", "next"), default="all")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options = {"flush_every": given.flush_every, "notify": given.notify}
    if not given.json:
        print(f"Python {platform.python_version()}, {given.groups} groups, {options}")
        print("".join(f"{column:>12}" for column in COLUMNS))

    def say(row: dict[str, Any]) -> None:
        if not given.json:
            print("".join(f"{value:>12,}" for value in row.values()), flush=True)

    rows = run(given.groups, sorted(given.messages), options, say)
    if given.json:
        about = {"python": platform.python_version(), "amcast": amcast.__version__, **options}
        print(json.dumps({**about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

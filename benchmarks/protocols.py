"""What a protocol costs: CPU microseconds per multicast, as messages go by, and as groups are added; memory likewise.

    .venv/bin/python benchmarks/protocols.py                                  # 1,000 to 100,000 messages, each protocol
    .venv/bin/python benchmarks/protocols.py primcast --million --json
    .venv/bin/python benchmarks/protocols.py --messages 1000 10000 --groups   # modest

The bare protocol in the timed world: 2 groups of 3 (single processes where only that is claimed), 4 clients, 8 messages
of 64 bytes outstanding each, to both groups; links take a millisecond, disks nothing; nothing is recorded or checked.
The simulator's own time is in the number. Time is CPU time, the median of ten slices, so that other work on the machine
matters less. One run goes through all sizes: a row is the cost of the messages since the row before, which must not
rise, and by how much the process' peak of memory rose meanwhile; each run is a process of its own. --groups adds groups
instead, each message to 2 of them drawn at random, for the strictly genuine protocols, after a warm-up. --calls counts
function calls in place of time: coarser, slow, and the same on every machine however busy.
"""

import argparse
import gc
import json
import multiprocessing
import platform
import resource
import sys
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import amcast
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.lab.protocols import find
from amcast.lab.runs import build
from amcast.protocols.catalogue import CATALOGUE
from amcast.world.network import NetworkConfig
from amcast.world.simulate import Setup, Simulation

CLIENTS, OUTSTANDING, BYTES, DELAY_NS = 4, 8, 64, 1_000_000
SIZES = (1_000, 10_000, 100_000)
GROUPS = (2, 16, 64, 256)
WARM = 5
SLICES = 10


class Calls:
    """Counts every call of a function, Python's own ones included."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1


class Meter:
    """Reads CPU time and the peak of memory as messages are drawn, ten times between one size and the next."""

    def __init__(self, sizes: list[int], calls: Calls | None) -> None:
        self.drawn = 0
        self._calls = calls
        self._sizes = sizes
        self._marks = {
            low + (high - low) * slice // SLICES for low, high in pairwise([0, *sizes]) for slice in range(SLICES)
        }
        self._readings: list[tuple[int, float, int]] = []

    def count(self) -> None:
        if self.drawn in self._marks:
            self.read()
        self.drawn += 1

    def read(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cost = self._calls.count if self._calls else 1e6 * (used.ru_utime + used.ru_stime)
        self._readings.append((self.drawn, cost, used.ru_maxrss))

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for low, high in pairwise([0, *self._sizes]):
            within = [reading for reading in self._readings if low <= reading[0] <= high]
            slices = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(within)]
            rows.append(
                {
                    "messages": high,
                    "calls_per_multicast" if self._calls else "cpu_us_per_multicast": round(median(slices), 1),
                    "peak_growth_kib": within[-1][2] - within[0][2],
                }
            )
        return rows


def run(spec: Spec, groups: int, sizes: list[int], calls: Calls | None = None) -> tuple[list[dict[str, Any]], float]:
    """A row for each size, and packets per multicast."""
    topology = Topology.grid(groups, 1 if spec.claims.single_replica else 3, CLIENTS)
    spec = spec.on(topology)
    config = spec.configure()
    random = Random(1)
    meter = Meter(sizes, calls)

    def draw(client: int) -> tuple[tuple[int, ...], int, int]:
        meter.count()
        first = int(random.random() * groups)
        second = (first + 1 + int(random.random() * (groups - 1))) % groups
        return (min(first, second), max(first, second)), BYTES, 0

    setup = Setup(
        topology=topology,
        make=lambda process: build(spec, config, topology, process, None),
        draw=draw,
        claims=spec.claims,
        network=NetworkConfig(delay_ns=DELAY_NS),
        seed=1,
        messages=sizes[-1],
        outstanding=OUTSTANDING,
    )
    simulation = Simulation(setup)
    gc.collect()
    sys.setprofile(calls)
    summary = simulation.run()
    sys.setprofile(None)
    meter.read()
    assert summary.end == "delivered", f"{spec.name}: {summary}"
    return meter.rows(), summary.packets / sizes[-1]


def _apart(name: str, groups: int, sizes: list[int], calls: bool) -> tuple[list[dict[str, Any]], float]:
    """A run in a fresh process, so that its peak of memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_named, (name, groups, sizes, calls))


def _named(name: str, groups: int, sizes: list[int], calls: bool) -> tuple[list[dict[str, Any]], float]:
    return run(find(name), groups, sizes, Calls() if calls else None)


def by_messages(names: list[str], sizes: list[int], calls: bool) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        found, packets = _apart(name, 2, sizes, calls)
        for row in found:
            rows.append({"protocol": name, "groups": 2, "packets_per_multicast": round(packets, 1), **row})
            _say(rows[-1])
    return rows


def by_groups(names: list[str], messages: int, calls: bool) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        for groups in GROUPS:
            # Each group warms up with some messages, so that what a pair of groups sets up once is not counted.
            found, packets = _apart(name, groups, [WARM * groups, WARM * groups + messages], calls)
            rows.append({"protocol": name, "groups": groups, "packets_per_multicast": round(packets, 1), **found[-1]})
            _say(rows[-1])
    return rows


def _say(row: dict[str, Any]) -> None:
    if not QUIET:
        print(
            f"{row['protocol']:<14}{row['groups']:>7}{row['messages']:>10}{row['packets_per_multicast']:>9}"
            f"{row.get('cpu_us_per_multicast', row.get('calls_per_multicast')):>12}{row['peak_growth_kib']:>12}",
            flush=True,
        )


QUIET = False


def main() -> None:
    global QUIET
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="protocols; all if none is named")
    parser.add_argument("--messages", type=int, nargs="+", default=list(SIZES), help="rising sizes")
    parser.add_argument("--million", action="store_true", help="go on to 1,000,000 messages")
    parser.add_argument("--groups", action="store_true", help="add groups instead of messages")
    parser.add_argument("--calls", action="store_true", help="count function calls in place of time")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    QUIET = given.json
    names = given.names or list(CATALOGUE)
    sizes = sorted({*given.messages, *([1_000_000] if given.million else [])})
    about = {"python": platform.python_version(), "amcast": amcast.__version__, "pure": _pure()}
    cost = "calls" if given.calls else "CPU us"
    if not QUIET:
        print(f"Python {about['python']}, protocols {'interpreted' if about['pure'] else 'compiled'}")
        print(f"{'protocol':<14}{'groups':>7}{'messages':>10}{'packets':>9}{cost:>12}{'peak +KiB':>12}")
    if given.groups:
        rows = by_groups([name for name in names if find(name).claims.genuine == "strict"], sizes[0], given.calls)
    else:
        rows = by_messages(names, sizes, given.calls)
    if given.json:
        print(json.dumps({**about, "rows": rows}, indent=1))


def _pure() -> bool:
    """Whether the protocols run as Python, not compiled."""
    from amcast.kernel import process

    return str(process.__file__).endswith(".py")


if __name__ == "__main__":
    main()

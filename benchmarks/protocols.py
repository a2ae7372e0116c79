"""What a protocol costs: CPU microseconds per multicast, as messages go by, and as groups are added; memory likewise.

    .venv/bin/python benchmarks/protocols.py                                  # 1,000 to 100,000 messages, each protocol
    .venv/bin/python benchmarks/protocols.py primcast --million --json
    .venv/bin/python benchmarks/protocols.py primcast whitebox --groups --calls

The bare protocol in the timed world: 2 groups of 3 (single processes where only that is claimed), 4 clients, 8 messages
of 64 bytes outstanding each, to both groups; links take a millisecond, disks nothing; nothing is recorded or checked.
The simulator's own time is in the number. Time is CPU time, the median of ten slices, so that other work on the machine
matters less. One run goes through all sizes: a row is the cost of the messages since the row before, which must not
rise, and by how much the process' peak of memory rose meanwhile; each run is a process of its own. --calls counts
function calls in place of time: coarser, slow, and the same on every machine however busy. --burst lets a process that
is busy (0.2 ms per packet) take everything that waits in one step, as the live host does, with 128 messages outstanding
and a snapshot after 16 records: several messages share a packet and a record, so that a million cost minutes.

--groups adds groups instead, for the strictly genuine protocols: each group brings a client with 4 messages
outstanding, so that the load of a group stays the same, and each message goes to 2 groups drawn at random. With --apart
it goes to two neighbours (0 and 1, 2 and 3 ...): 256 groups then do 128 times what 2 groups do, and nothing else; what
still rises is the price of simulating many processes on one machine. After a warm-up of two rounds, the mean of at
least three.
"""

import argparse
import gc
import json
import multiprocessing
import platform
import resource
from collections.abc import Callable
from cProfile import Profile
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import amcast
from amcast.assembly import assemble_bare
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.lab.protocol_lookup import find_protocol
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.network import NetworkConfig
from amcast.simulation.simulate import Simulation, SimulationSetup

CLIENTS, OUTSTANDING, BYTES, DELAY_NS = 4, 8, 64, 1_000_000
SIZES = (1_000, 10_000, 100_000)
GROUPS = (2, 16, 64, 256)
BURST_OUTSTANDING, BURST_NS, BURST_KEEP = 32, 200_000, 16
GROUP_OUTSTANDING = 4
GROUP_MESSAGES = 1_000
SLICES = 10


class Calls:
    """Counts every call of a function, Python's own ones included."""

    def __init__(self) -> None:
        self.profile = Profile()

    @property
    def count(self) -> int:
        return sum(entry.callcount for entry in self.profile.getstats())


class Meter:
    """Reads CPU time and the peak of memory as messages are drawn, ten times between one size and the next."""

    def __init__(self, sizes: list[int], calls: Calls | None) -> None:
        self.drawn = 0
        self.calls = calls
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
        cost = self.calls.count if self.calls else 1e6 * (used.ru_utime + used.ru_stime)
        self._readings.append((self.drawn, cost, used.ru_maxrss))

    def mean(self, low: int, high: int) -> float:
        """Cost per message between two sizes."""
        costs = {drawn: cost for drawn, cost, _ in reversed(self._readings)}
        return (costs[high] - costs[low]) / (high - low)

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for low, high in pairwise([0, *self._sizes]):
            within = [reading for reading in self._readings if low <= reading[0] <= high]
            slices = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(within)]
            rows.append(
                {
                    "messages": high,
                    "calls_per_multicast" if self.calls else "cpu_us_per_multicast": round(median(slices), 1),
                    "peak_growth_kib": within[-1][2] - within[0][2],
                }
            )
        return rows


Pick = Callable[[], tuple[int, int]]


def anywhere(groups: int, random: Random) -> Pick:
    """Two groups, any."""

    def pick() -> tuple[int, int]:
        first = int(random.random() * groups)
        second = (first + 1 + int(random.random() * (groups - 1))) % groups
        return min(first, second), max(first, second)

    return pick


def neighbours(groups: int, random: Random) -> Pick:
    """Two groups that have to do with each other alone."""

    def pick() -> tuple[int, int]:
        first = 2 * int(random.random() * (groups // 2))
        return first, first + 1

    return pick


def run(
    spec: Spec, topology: Topology, messages: int, outstanding: int, meter: Meter, pick: Pick, burst: bool = False
) -> float:
    """Multicast and read the meter as messages are drawn; packets per multicast."""
    spec = spec.for_topology(topology)
    assembly = assemble_bare(spec, spec.configure({"keep": BURST_KEEP} if burst else None))
    network = NetworkConfig(delay_ns=DELAY_NS, burst=burst, cpu_ns=BURST_NS if burst else 0)

    def draw(client: int) -> tuple[tuple[int, ...], int, int]:
        meter.count()
        return pick(), BYTES, 0

    setup = SimulationSetup(
        topology=topology,
        make=lambda process: assembly.make(process, topology),
        draw=draw,
        claims=spec.claims,
        network=network,
        seed=1,
        messages=messages,
        outstanding=outstanding,
    )
    simulation = Simulation(setup)
    gc.collect()
    if meter.calls:
        meter.calls.profile.enable()
    summary = simulation.run()
    meter.read()
    if meter.calls:
        meter.calls.profile.disable()
    assert summary.end == "delivered", f"{spec.name}: {summary}"
    return summary.packets / messages


Rows = tuple[list[dict[str, Any]], float]


def as_messages_go_by(name: str, sizes: list[int], calls: bool, burst: bool) -> Rows:
    """A row for each size, and packets per multicast."""
    spec = find_protocol(name)
    topology = Topology.grid(2, 1 if spec.claims.single_replica else 3, CLIENTS)
    meter = Meter(sizes, Calls() if calls else None)
    outstanding = BURST_OUTSTANDING if burst else OUTSTANDING
    packets = run(spec, topology, sizes[-1], outstanding, meter, anywhere(2, Random(1)), burst)
    return meter.rows(), packets


def with_groups(name: str, groups: int, apart: bool, calls: bool) -> Rows:
    """The one row of a number of groups. Messages come in rounds, so whole rounds are measured, and one more is
    multicast: as many messages are in flight when the meter is read last as when it was read first."""
    spec = find_protocol(name)
    topology = Topology.grid(groups, 1 if spec.claims.single_replica else 3, groups)
    flight = groups * GROUP_OUTSTANDING
    low = 2 * flight
    high = low + max(3, -(-GROUP_MESSAGES // flight)) * flight
    meter = Meter([low, high, high + flight], Calls() if calls else None)
    pick = (neighbours if apart else anywhere)(groups, Random(1))
    packets = run(spec, topology, high + flight, GROUP_OUTSTANDING, meter, pick)
    row = {**meter.rows()[1], "messages": high - low}
    row["calls_per_multicast" if calls else "cpu_us_per_multicast"] = round(meter.mean(low, high), 1)
    return [row], packets


def _apart(function: Callable[..., Rows], *arguments: Any) -> Rows:
    """A run in a fresh process, so that its peak of memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def by_messages(names: list[str], sizes: list[int], calls: bool, burst: bool) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        found, packets = _apart(as_messages_go_by, name, sizes, calls, burst)
        for row in found:
            rows.append({"protocol": name, "groups": 2, "packets_per_multicast": round(packets, 1), **row})
            _say(rows[-1])
    return rows


def by_groups(names: list[str], apart: bool, calls: bool) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        for groups in GROUPS:
            found, packets = _apart(with_groups, name, groups, apart, calls)
            rows.append({"protocol": name, "groups": groups, "packets_per_multicast": round(packets, 1), **found[0]})
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
    parser.add_argument("--apart", action="store_true", help="with --groups: messages to neighbours, not to any two")
    parser.add_argument("--burst", action="store_true", help="busy processes take all that waits in one step")
    parser.add_argument("--calls", action="store_true", help="count function calls in place of time")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    QUIET = given.json
    names = given.names or list(CATALOGUE)
    sizes = sorted({*given.messages, *([1_000_000] if given.million else [])})
    about = {"python": platform.python_version(), "amcast": amcast.__version__}
    cost = "calls" if given.calls else "CPU us"
    if not QUIET:
        print(f"Python {about['python']}")
        print(f"{'protocol':<14}{'groups':>7}{'messages':>10}{'packets':>9}{cost:>12}{'peak +KiB':>12}")
    if given.groups:
        rows = by_groups([n for n in names if find_protocol(n).claims.genuine == "strict"], given.apart, given.calls)
    else:
        rows = by_messages(names, sizes, given.calls, given.burst)
    if given.json:
        print(json.dumps({**about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

"""gTPC-C: TPC-C with geography. A client buys at its home warehouse; missing items come from a warehouse nearby.

Source: paper 000, section 5.3, in two versions.

`gtpcc` is the rule of the authors' clients ("aws-loc-file" in their repository), and so what was measured. With
locality l: two destinations with probability l, else three. Two: home and nearest with l, else home and second nearest.
Three: home, nearest and second with l, else home, second and third. "Nearest" is defined by the overlay's locality
file, not by the latencies. A transaction type by TPC-C's mix only sets the payload, whatever the destinations are.
Their runs with local messages (Fig. 6) made 90 % of the messages local: local_share = 0.9. Their think time, where
used, was exponential with a mean of 100 ms: think = "exponential", think_ns = 100000000.

`gtpcc-text` is the rule of the paper's text. Only new orders and payments, 45 : 43, always to two warehouses or more. A
payment addresses one more warehouse. A new order has 5 to 15 items, each remote with 2 %, at least one. A remote
warehouse is the nearest with probability l, else the next nearest with l, and so on to the farthest; "near" is defined
by latency. Messages to more than three groups are left out, as in the paper: they are drawn again.

Both need the twelve groups of the paper; the group at place n of the topology is the paper's number n + 1.
"""

from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import Literal

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.workloads.base import Workload, WorkloadConfig, draw_between
from amcast.workloads.tables import nearest_all, nearest_three
from amcast.workloads.tpcc import ITEMS, cumulate, remote_item_chances

MIX = {"new order": 45, "payment": 43, "order status": 4, "delivery": 4, "stock level": 4}
_KIND_AND_DATE = 1 + 8
"""Bytes of every payload in the authors' encoding: a type and a date."""
PAYLOAD = {"payment": _KIND_AND_DATE + 8, "order status": _KIND_AND_DATE, "delivery": _KIND_AND_DATE + 4}
PAYLOAD["stock level"] = PAYLOAD["delivery"]


def order_bytes(items: int) -> int:
    """A new order's payload: a count, and an item's id and quantity each."""
    return _KIND_AND_DATE + 4 + 8 * items


class GtpccTextConfig(WorkloadConfig, frozen=True):
    locality: float = 0.9
    local_share: float = 0.0
    """The share of messages to the home group alone; the papers' latencies are of the others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("locality")
        self._share("local_share")


class GtpccConfig(GtpccTextConfig, frozen=True):
    nearest: Literal["O1", "O2", "T1", "T2", "T3", "T3b", "P1", "latency", "fit"] = "O1"
    """The overlay whose table of near groups is used; latency: by the matrix; fit: tuned to Table 4."""


class Gtpcc(Workload):
    name = "gtpcc"

    def __init__(self, topology: Topology, seed: int, config: GtpccConfig) -> None:
        super().__init__(topology, seed, config)
        self._locality = config.locality
        self._local = config.local_share
        groups = topology.groups
        self._near = {
            groups[n - 1]: tuple(groups[m - 1] for m in row) for n, row in nearest_three(config.nearest).items()
        }
        self._kinds = tuple(MIX)
        self._mix = cumulate([float(weight) for weight in MIX.values()])

    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        return self._destinations(self.home_group(client), random), self._bytes(random)

    def _destinations(self, home: GroupId, random: Random) -> tuple[GroupId, ...]:
        if self._local and random.random() < self._local:
            return (home,)
        first, second, third = self._near[home]
        two = random.random() < self._locality
        near = random.random() < self._locality
        if two:
            return tuple(sorted((home, first if near else second)))
        return tuple(sorted((home, first, second) if near else (home, second, third)))

    def _bytes(self, random: Random) -> int:
        kind = self._kinds[bisect_right(self._mix, random.random())]
        return order_bytes(draw_between(random, *ITEMS)) if kind == "new order" else PAYLOAD[kind]


class GtpccText(Workload):
    name = "gtpcc-text"

    REMOTE_ITEM = 0.02

    def __init__(self, topology: Topology, seed: int, config: GtpccTextConfig) -> None:
        super().__init__(topology, seed, config)
        self._locality = config.locality
        self._local = config.local_share
        groups = topology.groups
        self._near = {groups[n - 1]: tuple(groups[m - 1] for m in row) for n, row in nearest_all().items()}
        self._new_order = MIX["new order"] / (MIX["new order"] + MIX["payment"])
        self._remote = cumulate(remote_item_chances(self.REMOTE_ITEM)[1:])

    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        home = self.home_group(client)
        local = self._local > 0 and random.random() < self._local
        order = random.random() < self._new_order
        size = order_bytes(draw_between(random, *ITEMS)) if order else PAYLOAD["payment"]
        if local:
            return (home,), size
        while True:
            remote = 1 + bisect_right(self._remote, random.random()) if order else 1
            chosen = {home, *(self._walk(self._near[home], random) for _ in range(remote))}
            if len(chosen) <= 3:
                return tuple(sorted(chosen)), size

    def _walk(self, near: Sequence[GroupId], random: Random) -> GroupId:
        for group in near[:-1]:
            if random.random() < self._locality:
                return group
        return near[-1]

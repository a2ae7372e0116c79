"""TPC-C as a pattern of destinations: a group is a warehouse, most transactions stay at home.

Source: paper 001, section 7.1: a share p of global messages (0.1 as in TPC-C, and 0.5), the vast majority of which
address two groups; 80 bytes on average; the sender's group is always addressed.

How many groups a global message addresses follows from TPC-C's own rules, which 001 adopts: a payment (43 of 100
transactions) is for a remote customer with 15 %, so it addresses one more warehouse; a new order (45 of 100) has 5 to
15 items, each from a remote warehouse with 1 %. Given that a transaction is global, these two compete by weight, and
the number of remote items is drawn from its distribution given that there is at least one. About 98 % of the global
messages then address two groups. Transactions are not executed; all messages have one size.
"""

from bisect import bisect_right
from itertools import accumulate
from math import comb
from random import Random

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.workloads.base import PayloadConfig, Workload, draw_below

NEW_ORDER, PAYMENT = 0.45, 0.43
ITEMS = (5, 15)
REMOTE_ITEM, REMOTE_PAYMENT = 0.01, 0.15


class TpccConfig(PayloadConfig, frozen=True):
    payload: int = 80
    global_share: float = 0.1
    """The papers' p: the share of messages to more than one group."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("global_share")


def remote_item_chances(remote: float) -> list[float]:
    """P(a new order has r remote items) for r = 0, 1 ... 15."""
    low, high = ITEMS
    chances = [0.0] * (high + 1)
    for items in range(low, high + 1):
        for count in range(items + 1):
            chances[count] += comb(items, count) * remote**count * (1 - remote) ** (items - count) / (high - low + 1)
    return chances


def cumulate(weights: list[float]) -> list[float]:
    """Weights as the upper ends of their parts of [0, 1]."""
    total = sum(weights)
    return [part / total for part in accumulate(weights)]


class Tpcc(Workload):
    name = "tpcc"

    def __init__(self, topology: Topology, seed: int, config: TpccConfig) -> None:
        super().__init__(topology, seed, config)
        if config.global_share and len(topology.groups) < 2:
            raise UsageError(f"workload tpcc: 1 group, global_share = {config.global_share}; expected 2 groups or more")
        self._global = config.global_share
        self._size = config.payload
        self._others = {g: tuple(h for h in topology.groups if h != g) for g in topology.groups}
        orders = remote_item_chances(REMOTE_ITEM)
        global_orders = NEW_ORDER * (1 - orders[0])
        self._payment = PAYMENT * REMOTE_PAYMENT / (PAYMENT * REMOTE_PAYMENT + global_orders)
        """P(payment), given that the message is global."""
        self._remote = cumulate(orders[1:])
        """Of the number of remote items less one, given that there is one."""

    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        home = self.home_group(client)
        if random.random() >= self._global:
            return (home,), self._size
        remote = 1 if random.random() < self._payment else 1 + bisect_right(self._remote, random.random())
        others = self._others[home]
        return tuple(sorted({home, *(others[draw_below(random, len(others))] for _ in range(remote))})), self._size

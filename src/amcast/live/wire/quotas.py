"""Quotas of clients at one node: connections, subscriptions, requests and multicasts per second and bytes that are not
ordered yet of each client name, and client connections in all.

Quotas count by the name in the certificate, so that one client cannot take the places of others however many programs
use its name; without TLS, they count by address. Nodes have no quota. Short requests (status, progress, client ids)
have places of their own besides those of clients and subscribers: an operator is answered at a node that is full.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from amcast.live.errors import RefusedError
from amcast.live.limits import Limits

REQUEST_PLACES: Final = 64
"""Short requests that are served at one time although the node has all the clients that it may have."""
BURST_S: Final = 5
"""A name that was quiet may make the requests of so many seconds at once."""
MAX_BUCKETS: Final = 10_000
"""Names whose rate is remembered; with more, those that have been quiet the longest are forgotten."""


class ClientQuotas:
    """Admits connections and requests of clients, or refuses them with the limit that was reached."""

    def __init__(self, limits: Limits) -> None:
        self.refused = 0
        """Connections and requests that a quota refused."""
        self.connections = 0
        """Client connections at present, over all names."""
        self._limits = limits
        self._capacity = 2 * limits.peers
        """Client connections at most, with and without a link."""
        self._capacity_reason = f"limits.peers = {limits.peers}"
        self._by_name: Counter[str] = Counter()
        self._subscriptions: Counter[str] = Counter()
        self._short = 0
        """Short requests that have a place of their own."""
        self._buckets: dict[str, tuple[float, float]] = {}
        """Name -> time of the last request, and requests that it could make then."""

        self._multicasts_left: dict[str, float] = {}
        """Name -> multicasts that it may still send at once; names that may send a whole second's are left out."""
        self._counted_at = 0.0
        self._over_bytes: frozenset[str] = frozenset()
        """Names that have too many unordered bytes."""

    def limit_total(self, connections: int, reason: str) -> None:
        """Lowers the number of client connections to what the node has descriptors for."""
        if connections < self._capacity:
            self._capacity, self._capacity_reason = connections, reason

    def count_request(self, name: str, now: float | None = None) -> None:
        """Refuses a HELLO or an RPC request of a name that makes too many per second."""
        now = time.monotonic() if now is None else now
        rate = self._limits.client_requests_per_s
        last, left = self._buckets.get(name, (now, float(BURST_S * rate)))
        left = min(float(BURST_S * rate), left + (now - last) * rate)
        if left < 1:
            self._refuse(f"{name} makes more than {rate} requests per second (limits.client_requests_per_s)")
        if len(self._buckets) >= MAX_BUCKETS and name not in self._buckets:
            # Half of them at once: addresses that never come again must not cost a search each.
            latest = sorted(self._buckets.items(), key=lambda item: item[1][0], reverse=True)
            self._buckets = dict(latest[: MAX_BUCKETS // 2])
        self._buckets[name] = (now, left - 1)

    def limit_multicasts(self, counts: Mapping[str, int], now: float) -> frozenset[str]:
        """Counts the multicasts of each name since the last call; returns the names that have sent too many."""
        rate = self._limits.client_multicasts_per_s
        elapsed_s, self._counted_at = max(now - self._counted_at, 0.0), now
        left = {}
        for name in {*counts, *self._multicasts_left}:
            before = self._multicasts_left.get(name, float(rate))
            allowance = min(float(rate), before + elapsed_s * rate) - counts.get(name, 0)
            if allowance < rate:
                left[name] = allowance
        self._multicasts_left = left
        return frozenset(name for name, allowance in left.items() if allowance < 0)

    def limit_unordered(self, bytes_by_name: Mapping[str, int]) -> tuple[frozenset[str], int]:
        """The names with too many bytes that are not ordered yet; those that had too many, until half are left. Also
        the bytes above the limit of each, which came before reading stopped and are not held against other names."""
        limit, before = self._limits.client_unordered_bytes, self._over_bytes
        self._over_bytes = frozenset(
            name for name, count in bytes_by_name.items() if count > (limit // 2 if name in before else limit)
        )
        return self._over_bytes, sum(max(count - limit, 0) for count in bytes_by_name.values())

    def open_connection(self, name: str, is_short: bool = False) -> Callable[[], None]:
        """Counts a connection of a client; returns the function that ends it. A short request may take a place of its
        own."""
        limit = self._limits.client_connections
        if self._by_name[name] >= limit:
            self._refuse(f"{name} has {limit} connections; limits.client_connections allows no more")
        takes_own_place = is_short and self.connections >= self._capacity
        if self.connections >= self._capacity and not (is_short and self._short < REQUEST_PLACES):
            self._refuse(f"{self._capacity} client connections are open; {self._capacity_reason} allows no more")
        self._by_name[name] += 1
        self.connections += not takes_own_place
        self._short += takes_own_place

        def close() -> None:
            _decrement(self._by_name, name)
            self.connections -= not takes_own_place
            self._short -= takes_own_place

        return close

    def open_subscription(self, name: str) -> Callable[[], None]:
        """Counts a subscription of a client; returns the function that ends it."""
        limit = self._limits.client_subscriptions
        if self._subscriptions[name] >= limit:
            self._refuse(f"{name} has {limit} subscriptions; limits.client_subscriptions allows no more")
        self._subscriptions[name] += 1
        return lambda: _decrement(self._subscriptions, name)

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        raise RefusedError(reason)


def _decrement(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]

"""An emulated wide-area network on one machine: delay, jitter, bandwidth and loss inside the links of real processes.

Every process delays its writes to a peer as long as a line between their two regions would. This needs no privileges,
and protocol, codec and sockets are the real ones. A line delivers in order, like the TCP connection behind it: a "lost"
packet arrives a retransmission time-out later, and everything behind it waits, which is the cost of loss on a TCP
connection.

    wait until the line is free -> bytes / bandwidth -> delay + jitter (+ time-out if lost) -> not before the last one
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import field

from amcast.kernel.config import MILLISECOND, Config

EARLY_S: Final = 0.000_05
"""Packets due within this time are written together: timers are not more exact."""


class EmulationTable(Config, frozen=True):
    """`[emulation]` of a cluster.toml; the fields mean what they mean in a plan's [network]."""

    matrix_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    """One-way delay, by region of the source, then of the target. Empty: nothing is emulated."""
    spread: float = 0.0
    """Standard deviation of a normal distribution, as a share of the delay."""
    bandwidth: int = 0
    """Bytes per second of each connection, each way; 0 is unlimited."""
    loss: float = 0.0
    retransmit_ns: int = 200 * MILLISECOND
    client_region: str = ""
    """Region of clients that state none."""
    seed: int = 0

    def __post_init__(self) -> None:
        for source, row in self.matrix_ns.items():
            if sorted(row) != sorted(self.matrix_ns):
                raise ValueError(f"matrix_ns.{source} names {sorted(row)}; expected {sorted(self.matrix_ns)}")
            for target, delay in row.items():
                if delay < 0:
                    raise ValueError(f"matrix_ns.{source}.{target} = {delay}; expected 0 or more")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss = {self.loss}; expected a probability below 1")
        for name in ("spread", "bandwidth", "retransmit_ns"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}; expected 0 or more")
        if self.client_region and self.client_region not in self.matrix_ns:
            raise ValueError(f"client_region = {self.client_region!r}; expected one of {sorted(self.matrix_ns)}")


@dataclass(frozen=True)
class EmulatedLine:
    """One direction between two regions."""

    delay_ns: int
    spread: float = 0.0
    bandwidth: int = 0
    loss: float = 0.0
    retransmit_ns: int = 200 * MILLISECOND


class EmulatedNetwork:
    """The lines from one region to all others."""

    def __init__(self, table: EmulationTable, region: str, salt: int) -> None:
        self.region = region
        self._table = table
        self._rng = random.Random(table.seed * 1_000_003 + salt)

    def to(self, region: str) -> EmulatedLine:
        """The line to a region; an unknown region has no delay."""
        table = self._table
        delay_ns = table.matrix_ns.get(self.region, {}).get(region, 0)
        return EmulatedLine(delay_ns, table.spread, table.bandwidth, table.loss, table.retransmit_ns)

    def make_writer(self, region: str, write: Callable[[bytes], None]) -> "DelayedWriter":
        """A write function for a connection to that region."""
        return DelayedWriter(self.to(region), write, self._rng)


class DelayedWriter:
    """Delays the writes of one connection: the packets on one line."""

    def __init__(self, line: EmulatedLine, write: Callable[[bytes], None], rng: random.Random) -> None:
        self._line = line
        self._write = write
        self._rng = rng
        self._queue: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0
        """When the line has taken all earlier packets."""
        self._last_at = 0.0
        """When the last packet arrives."""
        self._timer: asyncio.TimerHandle | None = None
        self.waiting_bytes = 0
        """Bytes on the line."""

    def __call__(self, data: bytes) -> None:
        """Puts bytes on the line; they are written to the socket when they arrive."""
        loop = asyncio.get_running_loop()
        arrival = self._compute_arrival(loop.time(), len(data))
        self._queue.append((arrival, data))
        self.waiting_bytes += len(data)
        if self._timer is None:
            self._timer = loop.call_at(arrival, self._write_arrived)

    def close(self) -> None:
        """Drops all packets on the line."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self.waiting_bytes = 0

    def flush(self) -> None:
        """Writes all packets on the line at once, before the connection is closed in good order."""
        queue, self._queue = self._queue, deque()
        self.close()
        for _, data in queue:
            self._write(data)

    def _compute_arrival(self, now: float, size: int) -> float:
        line = self._line
        begin = max(now, self._free_at)
        self._free_at = begin + (size / line.bandwidth if line.bandwidth else 0.0)
        delay_ns = line.delay_ns
        if line.spread:
            delay_ns = max(0, round(self._rng.gauss(line.delay_ns, line.spread * line.delay_ns)))
        while line.loss and self._rng.random() < line.loss:
            delay_ns += line.retransmit_ns
        self._last_at = max(self._last_at, self._free_at + delay_ns / 1e9)
        return self._last_at

    def _write_arrived(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time() + EARLY_S
        queue = self._queue
        ready: list[bytes] = []
        while queue and queue[0][0] <= now:
            ready.append(queue.popleft()[1])
        self._timer = loop.call_at(queue[0][0], self._write_arrived) if queue else None
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        self.waiting_bytes -= len(data)
        self._write(data)

"""The simulated network: delay by pair, jitter, bandwidth with queueing, retransmission of lost packets, order.

A link is FIFO and exactly-once unless the configuration says otherwise. A packet that is lost on such a link is sent
again after `retransmit_ns`, as by TCP: it is late, and so is everything behind it. On "raw" links it is lost.
"""

from collections.abc import Sequence
from math import cos, log, pi, sin, sqrt
from random import Random
from typing import Any, Final, Literal

from msgspec import field

from amcast.kernel.config import MILLISECOND, Config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Links
from amcast.kernel.topology import Topology

TWO_PI: Final = 2.0 * pi
MAX_DELAY_NS = 3600 * 1000 * MILLISECOND
DURATIONS = (
    "delay_ns", "self_ns", "retransmit_ns", "cpu_ns", "cpu_send_ns", "cpu_work_ns", "disk_ns", "clock_offset_ns",
)  # fmt: skip
"""Fields that are checked as times."""


class NetworkConfig(Config, frozen=True):
    """The plan's [network] table. Times are nanoseconds, one way."""

    links: Links = "fifo"
    delay_ns: int = MILLISECOND
    """Between two different processes, unless `matrix_ns` says otherwise."""
    self_ns: int = 0
    """From a process to itself."""
    matrix_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    """By region of the source, then of the target; both must list every region that the topology uses."""
    distribution: Literal["constant", "uniform", "normal", "exponential"] = "constant"
    spread: float = 0.0
    """As a share of the delay. normal: standard deviation; uniform: half the width; exponential: mean of the extra
    delay."""
    bandwidth: int = 0
    """Bytes per second of each pipe, full duplex; 0 is unlimited."""
    pipe: Literal["process", "group", "region", "uplink"] = "process"
    """Which packets share one pipe: those between two processes, two groups (a client is a group of its own), or two
    regions; or all that leave one region ("uplink")."""
    overhead_bytes: int = 0
    """Added to the size of every packet, for headers."""
    loss: float = 0.0
    duplication: float = 0.0
    retransmit_ns: int = 200 * MILLISECOND
    cpu_ns: int = 0
    """Time that a process needs for one packet; packets queue meanwhile."""
    cpu_send_ns: int = 0
    """Time to send one packet."""
    cpu_byte_ns: float = 0.0
    """Time for each byte of a packet, added at the process that receives it."""
    cpu_work_ns: int = 0
    """Time for each unit of work that a protocol counts beside its packets (`Process.work`): FlexCast counts the
    vertices and links of its history that it visits."""
    cpu_clients: bool = True
    """Whether clients need CPU time, too; False: only servers do."""
    io_thread: bool = False
    """A second thread of every process sends, and reads the bytes of packets (cpu_send_ns, cpu_byte_ns), while the
    first one handles them (cpu_ns, cpu_work_ns)."""
    burst: bool = False
    """A busy process handles all queued packets in one step, as a live host does."""
    disk_ns: int = 0
    """Time to make records durable."""
    clock_offset_ns: int = 0
    """The clock of every process is off by a constant, drawn uniformly up to so much either way, until it restarts."""

    def __post_init__(self) -> None:
        for name in (
            "delay_ns",
            "self_ns",
            "retransmit_ns",
            "cpu_ns",
            "cpu_send_ns",
            "cpu_work_ns",
            "disk_ns",
            "clock_offset_ns",
        ):
            value = getattr(self, name)
            if not 0 <= value <= MAX_DELAY_NS:
                raise ValueError(f"{name} = {value}; expected 0 to {MAX_DELAY_NS} (an hour)")
        if self.io_thread and self.burst:
            raise ValueError("io_thread = true with burst = true; expected one of them")
        if not 0 <= self.cpu_byte_ns <= MAX_DELAY_NS:
            raise ValueError(f"cpu_byte_ns = {self.cpu_byte_ns}; expected 0 to {MAX_DELAY_NS} (an hour)")
        for name in ("loss", "duplication"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} = {value}; expected a probability below 1")
        if self.spread < 0:
            raise ValueError(f"spread = {self.spread}; expected 0 or more")
        if self.spread > 1 and self.distribution == "uniform":
            raise ValueError(f"spread = {self.spread}; a uniform delay would be negative; expected 0 to 1")
        if self.bandwidth < 0:
            raise ValueError(f"bandwidth = {self.bandwidth}; expected bytes per second, or 0 for no limit")
        if self.overhead_bytes < 0:
            raise ValueError(f"overhead_bytes = {self.overhead_bytes}; expected 0 or more")
        for source, row in self.matrix_ns.items():
            for target, value in row.items():
                if not 0 <= value <= MAX_DELAY_NS:
                    raise ValueError(f"matrix_ns.{source}.{target} = {value}; expected 0 to {MAX_DELAY_NS}")


class _Row(dict[ProcessId, int]):
    """Delays from one process, each computed once."""

    def __init__(self, network: "Network", source: ProcessId) -> None:
        super().__init__()
        self._network = network
        self._source = source

    def __missing__(self, target: ProcessId) -> int:
        delay = self[target] = self._network.base_delay(self._source, target)
        return delay


class Network:
    """Draws when packets arrive. Its state: when pipes are free, and the last arrival on each FIFO link."""

    def __init__(self, config: NetworkConfig, topology: Topology, random: Random) -> None:
        self.config = config
        self.needs_sizes = config.bandwidth > 0 or config.cpu_byte_ns > 0
        """Whether sizes matter, so that the world must encode bodies."""
        self._random = random
        self.bases: dict[ProcessId, _Row] = {process: _Row(self, process) for process in topology.processes}
        """Delays without jitter, by source and target."""
        self._topology = topology
        self._last: dict[tuple[ProcessId, ProcessId], int] = {}
        self._free: dict[tuple[object, object], int] = {}
        self._fifo = config.links == "fifo"
        self.loss = config.loss
        self.is_constant = (config.distribution == "constant" or config.spread == 0) and not (
            config.loss or config.bandwidth
        )
        """No packet is delayed at random or queues: the delay of a pair is constant, which keeps the order."""
        self.has_fast_draws = (
            config.distribution == "normal"
            and config.spread > 0
            and not (config.loss or config.bandwidth)
            and config.links != "raw"
        )
        """Delays are normal, and nothing but them decides: `fast_draw_arrivals` may be used."""
        self._check_regions()

    def _check_regions(self) -> None:
        matrix = self.config.matrix_ns
        if not matrix:
            return
        used = sorted({self._topology.region(process) for process in self._topology.processes})
        for source in used:
            for target in used:
                if target not in matrix.get(source, {}):
                    raise UsageError(
                        f"network.matrix_ns: no delay from region {source!r} to {target!r}; expected one for each pair"
                    )

    def base_delay(self, source: ProcessId, target: ProcessId) -> int:
        """The delay of a pair without jitter, from the configuration."""
        if source == target:
            return self.config.self_ns
        if self.config.matrix_ns:
            return self.config.matrix_ns[self._topology.region(source)][self._topology.region(target)]
        return self.config.delay_ns

    def draw_arrival(self, source: ProcessId, target: ProcessId, size: int, now: int) -> int:
        """When a packet that is sent now arrives."""
        if self.is_constant:
            return now + self.bases[source][target]
        at = now + self._delay(source, target)
        if self.config.bandwidth and source != target:
            at += self._queue(source, target, size, now)
        if self.loss and source != target and self.config.links != "raw":
            while self._random.random() < self.loss:
                at += self.config.retransmit_ns
        if self._fifo:
            pair = (source, target)
            at = self._last[pair] = max(at, self._last.get(pair, 0))
        return at

    def fast_draw_arrivals(self, source: ProcessId, targets: Sequence[ProcessId], now: int) -> list[int]:
        """The fast twin of `draw_arrival`, for one body to several targets: the same draws, those of `Random.gauss`
        among them, in one call instead of four for each packet."""
        random: Any = self._random  # type stubs do not know `gauss_next`, which holds the second draw of a pair
        spread, last = self.config.spread, self._last
        delays = self.bases[source]
        arrivals = []
        for target in targets:
            base = delays[target]
            at = now
            if base:
                z = random.gauss_next
                random.gauss_next = None
                if z is None:
                    angle = random.random() * TWO_PI
                    radius = sqrt(-2.0 * log(1.0 - random.random()))
                    z = cos(angle) * radius
                    random.gauss_next = sin(angle) * radius
                delay = round(base + z * (base * spread))
                if delay > 0:
                    at = now + delay
            if self._fifo:
                pair = (source, target)
                if last.get(pair, 0) > at:
                    at = last[pair]
                else:
                    last[pair] = at
            arrivals.append(at)
        return arrivals

    def draw_loss(self) -> bool:
        """Whether a packet on a raw link is lost."""
        return self.config.links == "raw" and self.loss > 0 and self._random.random() < self.loss

    def set_loss(self, loss: float) -> None:
        """Sets the share of lost packets. Packets that were delayed keep their place, so delays are never constant
        again."""
        self.loss = loss
        self.is_constant = self.has_fast_draws = False

    def draw_duplicate(self) -> bool:
        """Whether a packet on a raw link is duplicated."""
        return (
            self.config.links == "raw"
            and self.config.duplication > 0
            and self._random.random() < self.config.duplication
        )

    def _delay(self, source: ProcessId, target: ProcessId) -> int:
        base = self.bases[source][target]
        config = self.config
        if config.spread == 0 or base == 0:
            return base
        match config.distribution:
            case "normal":
                return max(0, round(self._random.gauss(base, base * config.spread)))
            case "uniform":
                return round(self._random.uniform(base * (1 - config.spread), base * (1 + config.spread)))
            case "exponential":
                return base + round(self._random.expovariate(1.0) * base * config.spread)
            case _:
                return base

    def _queue(self, source: ProcessId, target: ProcessId, size: int, now: int) -> int:
        """Nanoseconds until the last byte is on the pipe, behind all earlier packets."""
        ends = (self._pipe_end(source), self._pipe_end(target))
        if ends[0] == ends[1]:
            return 0
        if self.config.pipe == "uplink":
            ends = ends[0], None
        start = max(now, self._free.get(ends, 0))
        done = start + (size + self.config.overhead_bytes) * 1_000_000_000 // self.config.bandwidth
        self._free[ends] = done
        return done - now

    def _pipe_end(self, process: ProcessId) -> object:
        if self.config.pipe == "process":
            return process
        if self.config.pipe in ("region", "uplink"):
            return self._topology.region(process)
        group = self._topology.group_of(process)
        return ("client", process) if group is None else group

"""Metrics for Prometheus: the status of `live/server/status.py` as named numbers. docs/operate.md lists them, and a
test compares that list with `METRICS`.

The package `prometheus-client` (extra `operate`) formats them; without it a node runs as well, and /metrics says why
there are none. A scrape costs one walk over the links; between scrapes metrics cost nothing.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amcast.kernel.errors import UsageError
from amcast.live.server.status import StatusReporter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

NODE_LABELS: Final = ("node", "cluster", "protocol", "durability", "version")
Status = dict[str, Any]
Values = Callable[[Status], list[tuple[tuple[str, ...], float]]]


class MetricDefinition(NamedTuple):
    """One metric: its name (a counter's without `_total`), kind, help text, labels, and the function that reads it."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    values: Values


def _value_at(*path: str) -> Values:
    def values(status: Status) -> list[tuple[tuple[str, ...], float]]:
        value: Any = status
        for name in path:
            value = (value or {}).get(name)
        return [] if value is None else [((), float(value))]

    return values


def _links(field: str) -> Values:
    return lambda status: [((str(link["peer"]),), float(link[field])) for link in status["links"]]


def _is_leader(status: Status) -> list[tuple[tuple[str, ...], float]]:
    leader = status["protocol_status"].get("leader")
    return [] if leader is None else [((), float(leader == status["process"]))]


def _info(status: Status) -> list[tuple[tuple[str, ...], float]]:
    return [(tuple(str(status[field]) for field in NODE_LABELS), 1.0)]


def _gauge(name: str, help: str, *path: str) -> MetricDefinition:
    return MetricDefinition(f"amcast_{name}", "gauge", help, (), _value_at(*path))


def _counter(name: str, help: str, *path: str) -> MetricDefinition:
    return MetricDefinition(f"amcast_{name}", "counter", help, (), _value_at(*path))


def _link(name: str, help: str, field: str) -> MetricDefinition:
    return MetricDefinition(f"amcast_link_{name}", "gauge", help, ("peer",), _links(field))


METRICS: Final = (
    MetricDefinition("amcast_node", "gauge", "Always 1; its labels identify the node.", NODE_LABELS, _info),
    _gauge("ready", "1 if this node is ready to serve.", "ready"),
    _gauge("replicas_differ", "1 if replicas of this group hold different deliveries or states.", "differs"),
    _gauge("diverged", "1 if this node has stopped, because a majority of its group contradicts it.", "diverged"),
    _gauge("log_damaged", "1 if old segments of this node's log are damaged.", "scrub", "damaged"),
    _counter("scrubbed_bytes", "Bytes of old segments read again and verified.", "scrub", "bytes"),
    _counter("scrub_passes", "How many times the whole log was read again.", "scrub", "passes"),
    _gauge("admitted", "1 if this node's group has admitted its data folder.", "admitted"),
    _gauge("has_state", "1 if this node has its group's state, 0 while it waits for it.", "group_state", "has_state"),
    _gauge("incarnation", "Number of restarts of this node.", "incarnation"),
    _gauge("uptime_seconds", "Seconds since this incarnation began.", "uptime_s"),
    _gauge("configuration", "Number of the membership configuration of this node.", "protocol_status", "configuration"),
    MetricDefinition("amcast_is_leader", "gauge", "1 if this node believes it leads its group.", (), _is_leader),
    _gauge("epoch", "Number of the group's leadership, where the protocol has one.", "protocol_status", "epoch"),
    _gauge("position", "Messages delivered here over all incarnations.", "protocol_status", "position"),
    _gauge("pending_messages", "Messages known here and not delivered.", "protocol_status", "pending"),
    _gauge(
        "unanswered_bundles",
        "Bundles that this gateway sent and that are not answered.",
        "protocol_status",
        "open_requests",
    ),
    _gauge("unordered_bytes", "Payload bytes in unanswered bundles.", "unordered_bytes"),
    _gauge("clients_paused", "1 if unordered_bytes is over its limit, so that clients wait.", "clients_paused"),
    _counter("delivered", "Messages delivered in this incarnation.", "delivered"),
    _counter("steps", "Steps of the protocol in this incarnation.", "steps"),
    _counter("events", "Events in these steps; events per step is the size of bursts.", "events"),
    _gauge("inbox_events", "Events that wait for the next step.", "queues", "inbox"),
    _gauge("held_effects", "Effects that wait for the disk.", "queues", "held"),
    _counter("appended_records", "Records appended to the log in this incarnation.", "queues", "appended"),
    _counter("durable_records", "Appended records that are durable.", "queues", "durable"),
    _link("up", "1 if connected to the other node.", "up"),
    _link("queued_bytes", "Bytes that the other node has not acknowledged.", "queued_bytes"),
    _link("congested", "1 if the other node is so slow that clients wait for it.", "congested"),
    _gauge("clients", "Clients that are connected or were a moment ago.", "clients"),
    _gauge("subscribers", "Readers of this node's deliveries.", "subscribers"),
    _gauge("pending_connections", "Connections that have not identified themselves.", "pending_connections"),
    _counter("evicted_connections", "Pending connections closed because there were too many.", "evicted_connections"),
    _counter("refused_connections", "Connections refused or closed because of what they sent.", "refused_connections"),
    _gauge("client_connections", "Connections of clients, links and RPC.", "client_connections"),
    _gauge("clients_over_rate", "Client names that send too fast and are not read from.", "clients_over_rate"),
    _gauge(
        "clients_over_bytes", "Client names that wait for too many bytes and are not read from.", "clients_over_bytes"
    ),
    _counter("quota_refusals", "Connections and requests of clients that a quota refused.", "quota_refusals"),
    _counter(
        "corrupted_frames", "Frames whose checksum did not match; each closed its connection.", "corrupted_frames"
    ),
    _counter("lost_sends", "Bodies for clients that had left.", "lost_sends"),
)


class _Collector:
    """Reads the status whenever the registry is scraped."""

    def __init__(self, reporter: StatusReporter) -> None:
        self._reporter = reporter

    def collect(self) -> "Iterator[Metric]":
        """Yields every metric with its current values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._reporter.status()
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.values(status):
                family.add_metric(labels, value)
            yield family


def make_registry(reporter: StatusReporter) -> "CollectorRegistry":
    """Makes a registry of the node's metrics and those of its operating-system process (CPU, memory, open files)."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError:
        raise UsageError(
            "the package prometheus-client is not installed; expected: pip install 'amcast[operate]'"
        ) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Collector(reporter))
    return registry


def format_metrics(registry: "CollectorRegistry") -> bytes:
    """Formats the metrics as Prometheus expects them."""
    from prometheus_client import generate_latest

    return generate_latest(registry)

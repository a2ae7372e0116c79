"""Metrics for Prometheus: what `live/server/status.py` tells, as numbers with names. docs/operate.md lists them, and a
test compares that list with this one.

The package `prometheus-client` (extra `operate`) writes the text; without it a node runs as well, and says why there
are no metrics. Reading them costs a walk over the links and nothing else; between two readings they cost nothing.
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
    """One metric: its name (a counter's without `_total`), what it says, its labels, and where its values come from."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    values: Values


def _value_at(*path: str) -> Values:
    def values(status: Status) -> list[tuple[tuple[str, ...], float]]:
        found: Any = status
        for name in path:
            found = (found or {}).get(name)
        return [] if found is None else [((), float(found))]

    return values


def _links(field: str) -> Values:
    return lambda status: [((str(link["peer"]),), float(link[field])) for link in status["links"]]


def _is_leader(status: Status) -> list[tuple[tuple[str, ...], float]]:
    leader = status["vitals"].get("leader")
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
    MetricDefinition("amcast_node", "gauge", "Always 1; who this is.", NODE_LABELS, _info),
    _gauge("ready", "1 if this node is ready to serve.", "ready"),
    _gauge("holds_state", "1 if this node holds its group's state, 0 while it waits for it.", "group_state", "holds"),
    _gauge("incarnation", "How often this node was restarted.", "incarnation"),
    _gauge("uptime_seconds", "Since this incarnation began.", "uptime_s"),
    _gauge(
        "topology", "How often the members of groups were changed, as this node knows it.", "vitals", "configuration"
    ),
    MetricDefinition("amcast_is_leader", "gauge", "1 if this node believes that it leads its group.", (), _is_leader),
    _gauge("epoch", "Number of the group's leadership, where the protocol has one.", "vitals", "epoch"),
    _gauge("position", "Messages delivered here over all incarnations.", "vitals", "position"),
    _gauge("pending_messages", "Heard of and not delivered.", "vitals", "pending"),
    _gauge("asked_bundles", "Asked for by this gateway and not answered.", "vitals", "asked"),
    _gauge("unordered_bytes", "Payload of that.", "unordered_bytes"),
    _gauge("full", "1 if that is too much, and clients wait.", "full"),
    _counter("delivered", "Messages delivered in this incarnation.", "delivered"),
    _counter("steps", "Steps of the protocol in this incarnation.", "steps"),
    _counter("events", "Events in these steps; events per step is the size of bursts.", "events"),
    _gauge("inbox_events", "Events that wait for the next step.", "queues", "inbox"),
    _gauge("held_effects", "Effects that wait for the disk.", "queues", "held"),
    _counter("appended_records", "Records given to the log in this incarnation.", "queues", "appended"),
    _counter("durable_records", "Of these, how many are durable.", "queues", "durable"),
    _link("up", "1 if connected with another node.", "up"),
    _link("queued_bytes", "What another node has not acknowledged.", "queued_bytes"),
    _link("pressed", "1 if another node is so slow that clients wait for it.", "pressed"),
    _gauge("clients", "Clients that are connected or were a moment ago.", "clients"),
    _gauge("subscribers", "Readers of this node's deliveries.", "subscribers"),
    _gauge("strangers", "Connections that have not said who they are.", "strangers"),
    _counter("dismissed_strangers", "Of these, closed because there were too many.", "dismissed"),
    _counter("refused_connections", "Connections refused or closed for what they said.", "refused"),
    _counter("lost_sends", "Bodies for clients that had left.", "lost_sends"),
)


class _Collector:
    """Asked by the registry whenever somebody reads the metrics."""

    def __init__(self, watch: StatusReporter) -> None:
        self._watch = watch

    def collect(self) -> "Iterator[Metric]":
        """Every metric with its present values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._watch.status()
        for told in METRICS:
            kind = CounterMetricFamily if told.kind == "counter" else GaugeMetricFamily
            family = kind(told.name, told.help, labels=told.labels)
            for labels, value in told.values(status):
                family.add_metric(labels, value)
            yield family


def make_registry(watch: StatusReporter) -> "CollectorRegistry":
    """The node's metrics, and those of its operating-system process (CPU, memory, open files)."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError:
        raise UsageError(
            "the package prometheus-client is not installed; expected: pip install 'amcast[operate]'"
        ) from None
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    made.register(_Collector(watch))
    return made


def format_metrics(registry: "CollectorRegistry") -> bytes:
    """In the form that Prometheus reads."""
    from prometheus_client import generate_latest

    return generate_latest(registry)

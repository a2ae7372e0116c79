"""amcast: atomic multicast as a library, a simulator, a checker and a laboratory on one protocol core.

async with amcast.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")
    async for delivery in client.deliveries("orders"):
        ...
"""

from typing import TYPE_CHECKING

from amcast.kernel.errors import CannotTellError, DeliveryUnknownError, Error, UsageError

if TYPE_CHECKING:
    from amcast.cluster import connect, connect_blocking, run_replica, run_service, subscribe
    from amcast.laboratory import AdviceResult, SimulatedRun, advise, simulate, sweep
    from amcast.live.client.blocking_client import BlockingClient, BlockingSubscription
    from amcast.live.client.client import Client
    from amcast.live.client.multicaster import BatchReceipt, Receipt
    from amcast.live.client.outbox import Outbox
    from amcast.live.client_batch import Delivery
    from amcast.live.config.cluster import Cluster, read_cluster
    from amcast.live.host.recent_deliveries import MissedDeliveriesError, NotClosedError
    from amcast.live.membership.topology_follower import RemovedFromGroupError
    from amcast.live.rpc.client import NoAnswerError
    from amcast.live.rpc.subscription import Subscription
    from amcast.live.server.forked_state import forked
    from amcast.live.server.replica import Replica
    from amcast.live.server.state_schedule import StateSchedule
    from amcast.pipeline.measure.loaded_run import load
    from amcast.services.calls import Outcome
    from amcast.services.declaration import Applied, At, DiskService, Key, Service, command, query
    from amcast.services.errors import (
        CommandError,
        GroupEndedError,
        OutcomeUnknownError,
        ReadRefusedError,
        ServiceFailedError,
    )

__version__ = "0.1.0"
__all__ = [
    "AdviceResult",
    "Applied",
    "At",
    "BatchReceipt",
    "BlockingClient",
    "BlockingSubscription",
    "CannotTellError",
    "Client",
    "Cluster",
    "CommandError",
    "Delivery",
    "DeliveryUnknownError",
    "DiskService",
    "Error",
    "GroupEndedError",
    "Key",
    "MissedDeliveriesError",
    "NoAnswerError",
    "NotClosedError",
    "Outbox",
    "Outcome",
    "OutcomeUnknownError",
    "ReadRefusedError",
    "Receipt",
    "RemovedFromGroupError",
    "Replica",
    "Service",
    "ServiceFailedError",
    "SimulatedRun",
    "StateSchedule",
    "Subscription",
    "UsageError",
    "__version__",
    "advise",
    "command",
    "connect",
    "connect_blocking",
    "forked",
    "load",
    "query",
    "read_cluster",
    "run_replica",
    "run_service",
    "simulate",
    "subscribe",
    "sweep",
]

if not TYPE_CHECKING:
    from importlib import import_module

    _MODULES = {
        "Applied": "amcast.services.declaration",
        "AdviceResult": "amcast.laboratory",
        "SimulatedRun": "amcast.laboratory",
        "advise": "amcast.laboratory",
        "simulate": "amcast.laboratory",
        "sweep": "amcast.laboratory",
        "At": "amcast.services.declaration",
        "BatchReceipt": "amcast.live.client.multicaster",
        "BlockingClient": "amcast.live.client.blocking_client",
        "BlockingSubscription": "amcast.live.client.blocking_client",
        "Client": "amcast.live.client.client",
        "Cluster": "amcast.live.config.cluster",
        "CommandError": "amcast.services.errors",
        "Delivery": "amcast.live.client_batch",
        "DiskService": "amcast.services.declaration",
        "GroupEndedError": "amcast.services.errors",
        "Key": "amcast.services.declaration",
        "MissedDeliveriesError": "amcast.live.host.recent_deliveries",
        "NoAnswerError": "amcast.live.rpc.client",
        "NotClosedError": "amcast.live.host.recent_deliveries",
        "Outbox": "amcast.live.client.outbox",
        "Outcome": "amcast.services.calls",
        "OutcomeUnknownError": "amcast.services.errors",
        "ReadRefusedError": "amcast.services.errors",
        "Receipt": "amcast.live.client.multicaster",
        "RemovedFromGroupError": "amcast.live.membership.topology_follower",
        "Replica": "amcast.live.server.replica",
        "Service": "amcast.services.declaration",
        "ServiceFailedError": "amcast.services.errors",
        "StateSchedule": "amcast.live.server.state_schedule",
        "Subscription": "amcast.live.rpc.subscription",
        "command": "amcast.services.declaration",
        "connect": "amcast.cluster",
        "connect_blocking": "amcast.cluster",
        "query": "amcast.services.declaration",
        "forked": "amcast.live.server.forked_state",
        "load": "amcast.pipeline.measure.loaded_run",
        "read_cluster": "amcast.live.config.cluster",
        "run_replica": "amcast.cluster",
        "run_service": "amcast.cluster",
        "subscribe": "amcast.cluster",
    }
    """Modules that are imported on first use: the laboratory works without sockets, and clients without Arrow."""

    def __getattr__(name):
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'amcast' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})

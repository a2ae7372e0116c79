"""amcast: atomic multicast as a library, a simulator, a checker and a laboratory on one protocol core.

async with amcast.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")
    async for delivery in client.deliveries("orders"):
        ...
"""

from typing import TYPE_CHECKING

from amcast.kernel.errors import CannotTellError, DeliveryUnknownError, Error, UsageError

if TYPE_CHECKING:
    from amcast.cluster import connect, connect_blocking, run_replica, subscribe
    from amcast.live.client.blocking_client import BlockingClient
    from amcast.live.client.client import Client
    from amcast.live.client.multicaster import Receipt
    from amcast.live.client_batch import Delivery
    from amcast.live.config.cluster import Cluster, read_cluster
    from amcast.live.host.recent_deliveries import MissedDeliveriesError
    from amcast.live.membership.topology_follower import RemovedFromGroupError
    from amcast.live.rpc.client import NoAnswerError
    from amcast.live.rpc.subscription import Subscription
    from amcast.live.server.replica import Replica

__version__ = "0.1.0"
__all__ = [
    "BlockingClient",
    "CannotTellError",
    "Client",
    "Cluster",
    "Delivery",
    "DeliveryUnknownError",
    "Error",
    "MissedDeliveriesError",
    "NoAnswerError",
    "Receipt",
    "RemovedFromGroupError",
    "Replica",
    "Subscription",
    "UsageError",
    "__version__",
    "connect",
    "connect_blocking",
    "read_cluster",
    "run_replica",
    "subscribe",
]

if not TYPE_CHECKING:
    from importlib import import_module

    _MODULES = {
        "BlockingClient": "amcast.live.client.blocking_client",
        "Client": "amcast.live.client.client",
        "Cluster": "amcast.live.config.cluster",
        "Delivery": "amcast.live.client_batch",
        "MissedDeliveriesError": "amcast.live.host.recent_deliveries",
        "NoAnswerError": "amcast.live.rpc.client",
        "Receipt": "amcast.live.client.multicaster",
        "RemovedFromGroupError": "amcast.live.membership.topology_follower",
        "Replica": "amcast.live.server.replica",
        "Subscription": "amcast.live.rpc.subscription",
        "connect": "amcast.cluster",
        "connect_blocking": "amcast.cluster",
        "read_cluster": "amcast.live.config.cluster",
        "run_replica": "amcast.cluster",
        "subscribe": "amcast.cluster",
    }
    """Modules of the live system, imported on first use: the laboratory works without sockets."""

    def __getattr__(name):
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'amcast' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})

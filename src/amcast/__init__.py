"""amcast: atomic multicast as a library, a simulator, a checker and a laboratory on one protocol core.

async with amcast.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")
    async for delivery in client.deliveries("orders"):
        ...
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from amcast.kernel.errors import CannotTellError, UsageError

if TYPE_CHECKING:
    from amcast.cluster import Replica, connect, connect_blocking, subscribe
    from amcast.live.client.multicaster import Receipt
    from amcast.live.client_batch import Delivery
    from amcast.live.host.recent_deliveries import MissedDeliveriesError

__version__ = "0.1.0"
__all__ = [
    "CannotTellError",
    "Delivery",
    "MissedDeliveriesError",
    "Receipt",
    "Replica",
    "UsageError",
    "__version__",
    "connect",
    "connect_blocking",
    "subscribe",
]
_PLACES = {
    "Delivery": "amcast.live.client_batch",
    "Missed": "amcast.live.host.recent_deliveries",
    "Receipt": "amcast.live.client.multicaster",
    "Replica": "amcast.cluster",
    "connect": "amcast.cluster",
    "connect_blocking": "amcast.cluster",
    "subscribe": "amcast.cluster",
}


def __getattr__(name: str) -> Any:
    """The live system is imported when it is first asked for: the laboratory works without sockets."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'amcast' has no attribute {name!r}")

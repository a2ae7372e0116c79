"""amcast: atomic multicast as a library, a simulator, a checker and a laboratory on one protocol core.

async with amcast.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amcast.service import connect, connect_blocking, replica

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "connect_blocking", "replica"]


def __getattr__(name: str) -> Any:
    """The live system is imported when it is first asked for: the laboratory works without sockets."""
    if name in ("connect", "connect_blocking", "replica"):
        from amcast import service

        return getattr(service, name)
    raise AttributeError(f"module 'amcast' has no attribute {name!r}")

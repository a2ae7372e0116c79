"""Transport options: plain or TLS, which wire versions, and which emulated network.

One object from the configuration down to the sockets; the default is plain TCP without emulation, for tests.
"""

import ssl
from dataclasses import dataclass
from typing import Final, Literal

from amcast.live.security.tls import Security
from amcast.live.wire.emulated_line import EmulatedNetwork
from amcast.live.wire.frames import OLDEST_VERSION, WIRE_VERSION

Versions = tuple[int, int]
"""Oldest and newest."""
VERSIONS: Final[Versions] = (OLDEST_VERSION, WIRE_VERSION)


@dataclass(frozen=True)
class TransportOptions:
    """How one host or client talks to others."""

    security: Security | None = None
    """None: plain TCP, and every process is believed to be who it says."""
    versions: Versions = VERSIONS
    lines: EmulatedNetwork | None = None
    """Emulated delay, jitter, bandwidth and loss from here to every peer."""
    order: Literal["", "acyclic", "real-time"] = ""
    """What a node's answers promise; "" at clients."""

    @property
    def secured(self) -> ssl.SSLContext | None:
        """The TLS context for connections that this process dials; None for plain TCP."""
        return None if self.security is None else self.security.client


PLAIN: Final = TransportOptions()

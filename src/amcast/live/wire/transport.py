"""How a process talks to others, apart from what it says: in the clear or secured, in which versions, through which
emulated lines. One object from the configuration down to the sockets; the default is a plain test bench."""

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amcast.live.wire.frames import OLDEST_VERSION, WIRE_VERSION

if TYPE_CHECKING:
    from amcast.live.security.tls import Security
    from amcast.live.wire.emulated_line import EmulatedNetwork

Versions = tuple[int, int]
"""Oldest and newest."""
VERSIONS: Final[Versions] = (OLDEST_VERSION, WIRE_VERSION)


@dataclass(frozen=True)
class TransportOptions:
    """Handed to hosts and clients."""

    security: "Security | None" = None
    """None: plain TCP, and every name is believed."""
    versions: Versions = VERSIONS
    lines: "EmulatedNetwork | None" = None
    """Delays, jitter, bandwidth and loss to imitate, from here to every peer."""

    @property
    def secured(self) -> ssl.SSLContext | None:
        """For who dials; None in the clear."""
        return None if self.security is None else self.security.client


PLAIN: Final = TransportOptions()

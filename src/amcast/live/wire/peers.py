"""Whom a network knows: servers and where they are, links, and how servers come and go at run time."""

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from amcast.kernel.ids import ProcessId
from amcast.live.limits import Limits

if TYPE_CHECKING:
    from amcast.live.wire.link import Link

Address = tuple[str, int]


class PeerTable(ABC):
    """The acquaintances of one process in one incarnation; `live/wire/network.py` talks to them."""

    # fmt: off
    __slots__ = (
        "_addresses", "_dialling", "_dirty", "_lazy", "_left", "_limits", "_pressed", "later", "links", "me",
    )
    # fmt: on

    def __init__(self, me: ProcessId, limits: Limits) -> None:
        self.me = me
        self.links: dict[ProcessId, Link] = {}
        self._limits = limits
        self._addresses: dict[ProcessId, Address] = {}
        self._left: set[ProcessId] = set()
        """Those that were servers, and are not talked to any more."""
        self._dialling: dict[ProcessId, asyncio.Task[None]] = {}
        self._lazy = False
        """Dial whom something is sent to, and nobody else."""
        self._dirty: dict[ProcessId, Link] = {}
        """Links that something was sent to in this tick."""
        self.later: dict[ProcessId, Link] = {}
        """Links that have something which can wait."""
        self._pressed: dict[ProcessId, Link] = {}
        """Links with peers that are slow."""

    @property
    def addresses(self) -> dict[ProcessId, Address]:
        """Where the servers are."""
        return self._addresses

    @abstractmethod
    def dial(self, peer: ProcessId) -> None:
        """Begin to dial a peer."""

    @abstractmethod
    def unlearn(self) -> None:
        """Forget what is remembered about sets of links: one of them is going."""

    def _dials(self, peer: ProcessId) -> bool:
        return self.me not in self._addresses or self.me > peer

    def meet(self, peer: ProcessId, address: Address) -> None:
        """One more server, found at this address."""
        self._left.discard(peer)
        self._addresses[peer] = address
        link = self.links.get(peer)
        if link is not None:
            link.become_server()
        elif self._dials(peer) and not self._lazy:
            self.dial(peer)

    def part(self, peer: ProcessId) -> None:
        """One that is no server any more."""
        self._left.add(peer)
        self._addresses.pop(peer, None)
        self.unlearn()
        for known in (self._dirty, self._pressed, self.later):
            known.pop(peer, None)
        dialling = self._dialling.pop(peer, None)
        if dialling is not None:
            dialling.cancel()
        link = self.links.pop(peer, None)
        if link is not None:
            link.forget()
            if link.connection is not None:
                link.connection.finish()

"""The peers of one process: the servers with their addresses, and the link to every process it has talked to."""

from collections.abc import Callable

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.live.limits import Limits
from amcast.live.wire.frames import Codec, Frame, Framing, LinkIncarnation
from amcast.live.wire.link import Link

Address = tuple[str, int]


class PeerTable:
    """Addresses of servers and links to all peers, in one incarnation of a process."""

    __slots__ = (
        "_codec", "_framing", "_incarnation", "_last_link", "_limits", "_on_bodies", "_on_frame", "_on_link_reset",
        "_on_lost", "addresses", "links", "me", "removed",
    )  # fmt: skip

    def __init__(
        self,
        me: ProcessId,
        incarnation: int,
        codec: Codec,
        on_bodies: Callable[[ProcessId, list[Body]], None],
        on_frame: Callable[[ProcessId, Frame], None],
        on_link_reset: Callable[[ProcessId, int], None],
        on_lost: Callable[[ProcessId, list[bytes]], None] | None,
        framing: Framing,
        start: int = 0,
    ) -> None:
        """`framing` is the shape of frames for peers that have not said which version they speak. `start` is a random
        number of this start: links are numbered from it, so that no earlier start of the process with the same
        incarnation had the same link incarnations."""
        self._framing = framing
        self.me = me
        self.links: dict[ProcessId, Link] = {}
        self.addresses: dict[ProcessId, Address] = {}
        """Of all servers."""
        self.removed: set[ProcessId] = set()
        """Former servers, which get no link any more."""
        self._incarnation = incarnation
        self._last_link = start
        self._codec = codec
        self._limits: Limits = codec.limits
        self._on_bodies = on_bodies
        self._on_frame = on_frame
        self._on_link_reset = on_link_reset
        self._on_lost = on_lost

    def dials(self, peer: ProcessId) -> bool:
        """Whether this process dials the peer: of two servers the one with the higher number does."""
        return self.me not in self.addresses or self.me > peer

    def is_connected(self, peer: ProcessId) -> bool:
        """Whether the link with a peer has a connection."""
        link = self.links.get(peer)
        return link is not None and link.connection is not None

    def link(self, peer: ProcessId) -> Link:
        """The link with a peer, made if there is none."""
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = Link(
                peer, self._codec, self._limits, self._on_bodies, self._on_frame, self._on_link_reset, self._on_lost,
                self._next_incarnation, peer in self.addresses, self._framing,
            )  # fmt: skip
        return link

    def _next_incarnation(self) -> LinkIncarnation:
        self._last_link += 1
        return self._incarnation, self._last_link

    def add_server(self, peer: ProcessId, address: Address) -> bool:
        """Adds a server, or records that a client is one; False if its link exists already."""
        self.removed.discard(peer)
        self.addresses[peer] = address
        link = self.links.get(peer)
        if link is not None:
            link.become_server()
        return link is None

    def remove_server(self, peer: ProcessId) -> None:
        """Removes a server that left the cluster, and its link."""
        self.removed.add(peer)
        self.addresses.pop(peer, None)
        link = self.links.pop(peer, None)
        if link is not None:
            link.reset()
            if link.connection is not None:
                link.connection.finish()

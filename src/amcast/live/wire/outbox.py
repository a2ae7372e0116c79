"""The outbox: collects the bodies of one tick and sends each peer one frame at its end.

Most ticks send the same bodies to many peers: an acknowledgement goes to every replica of every destination. A set of
targets is therefore looked up as a whole (`Fanout`), its bodies are joined once, and the work per peer is little more
than a frame number and a write. Only where two fan-outs of one tick share a peer, which must get all bodies in order,
is each peer served by itself. Replies are the other extreme: as many clients as messages, and one short body for each
(`fast_send_each`).

A body may be deferrable for some targets (`Send.deferrable`): it waits until there is more for the peer, until
DEFERRED_BODIES of them wait, or until `flush_deferred`.
"""

from collections.abc import Callable
from typing import Final, cast

from amcast.kernel.checksum import crc32
from amcast.kernel.effects import About, Send, SendEach
from amcast.kernel.ids import ProcessId
from amcast.live.limits import Limits
from amcast.live.wire.frames import encode_body, join_parts
from amcast.live.wire.link import Link, fast_send_single_parts
from amcast.live.wire.peers import PeerTable

CACHED_TARGETS: Final = 4096
"""Sets of targets whose links are cached; with more, the caches are emptied."""
DEFERRED_BODIES: Final = 64
"""A peer with this many deferred bodies gets them at the end of the tick: the sender is awake anyway."""


class Fanout:
    """Servers that often get the same bodies."""

    __slots__ = ("links", "parts", "size")

    def __init__(self, links: tuple[Link, ...]) -> None:
        self.links = links
        self.parts: list[bytes] = []
        """Encoded bodies of this tick, for all links."""
        self.size = 0
        """Bytes of `parts`."""


class Outbox:
    """Sends bodies to the peers of one process."""

    # fmt: off
    __slots__ = (
        "_active", "_congested", "_deferrable_links", "_deferred_now", "_dial", "_dirty", "_fanouts",
        "_frame_target_bytes", "_has_checksums", "_is_mixed", "_links", "_peers", "_queue_bytes", "_single_replies",
        "_single_targets", "_urgent_targets", "deferred", "is_traced",
    )
    # fmt: on

    def __init__(
        self,
        peers: PeerTable,
        limits: Limits,
        dial: Callable[[ProcessId], None],
        is_traced: bool,
        has_checksums: bool,
    ) -> None:
        """`dial` is called with a server that gets its link by the first send to it; `has_checksums` is False with
        TLS, where frames carry none."""
        self._has_checksums = has_checksums
        self.is_traced = is_traced
        """Packets are traced: frames carry the message that each body is about."""
        self.deferred: dict[ProcessId, Link] = {}
        """Links with deferred bodies only."""
        self._peers = peers
        self._links = peers.links
        self._dial = dial
        self._queue_bytes = limits.queue_bytes
        self._frame_target_bytes = limits.frame_target_bytes
        self._dirty: dict[ProcessId, Link] = {}
        """Links with parts to flush at the end of this tick."""
        self._congested: dict[ProcessId, Link] = {}
        """Links that were under back-pressure when last written to."""
        self._fanouts: dict[tuple[ProcessId, ...], Fanout] = {}
        """By targets, in the order in which they were given."""
        self._active: list[Fanout] = []
        """Fan-outs with parts in this tick; no two of them share a link."""
        self._is_mixed = False
        """In this tick some server gets a body apart from its fan-out: no fan-out is used until the next tick."""
        self._single_replies: list[tuple[list[Link], list[bytes]]] = []
        """Clients that get one body each in this tick, and the bodies."""
        self._single_targets: set[ProcessId] = set()
        """All clients of `_single_replies`."""
        self._deferrable_links: dict[tuple[ProcessId, ...], tuple[Link, ...]] = {}
        """Links of deferrable targets."""
        self._urgent_targets: dict[tuple[tuple[ProcessId, ...], tuple[ProcessId, ...]], tuple[ProcessId, ...]] = {}
        """By all targets and the deferrable ones: the others."""
        self._deferred_now: list[tuple[tuple[Link, ...], bytes, About]] = []
        """Deferrable bodies of this tick that no link has yet."""

    # Sending

    def send(self, targets: tuple[ProcessId, ...], part: bytes, about: About) -> tuple[ProcessId, ...]:
        """Sends one encoded body to some processes, except this one; returns the targets that are unknown.

        A set of servers has a fan-out; `_send_to_links` is the slow way of the same, and tests/live/wire/test_outbox.py
        holds both equal.
        """
        fanout = self._fanouts.get(targets)
        if fanout is None:
            return self._send_uncached(targets, part, about)
        if self._deferred_now:
            self._queue_deferred_in_order()
        if fanout.parts:
            fanout.parts.append(part)
            fanout.size += len(part)
        elif self._is_mixed or self.is_traced or (self._active and not self._claim_links(fanout)):
            self._is_mixed = True
            self._send_to_links(fanout.links, part, about)
        else:
            fanout.parts.append(part)
            fanout.size = len(part)
            self._active.append(fanout)
        return ()

    def _send_uncached(self, targets: tuple[ProcessId, ...], part: bytes, about: About) -> tuple[ProcessId, ...]:
        """Sends to targets without a cached fan-out; a set of servers gets one."""
        if self._deferred_now:
            self._queue_deferred_in_order()
        links, unknown = self._find_links(targets)
        servers = [link for link in links if link.is_server]
        if len(servers) == len(links) > 0 and not unknown:
            if len(self._fanouts) >= CACHED_TARGETS:
                self._fanouts.clear()  # those of this tick are in `_active`
            self._fanouts[targets] = Fanout(links)
            return self.send(targets, part, about)
        if servers:
            self._split_fanouts()
            self._is_mixed = True
        self._send_to_links(links, part, about)
        return unknown

    def _send_to_links(self, links: tuple[Link, ...], part: bytes, about: About) -> None:
        size = len(part)
        if self._single_targets and not self._single_targets.isdisjoint([link.peer for link in links]):
            self._split_single_replies()
        for link in links:
            if not link.is_broken:
                link.parts.append(part)
                link.parts_bytes += size
                if self.is_traced:
                    link.abouts.append(about)
                self._dirty[link.peer] = link
                if link.queued_bytes + link.parts_bytes > self._queue_bytes and link.is_overfull():
                    link.overflow()

    def fast_send_each(self, effect: SendEach) -> list[Send]:
        """Sends each of many clients one body, which is all that most get in one tick.

        The fast twin of `send` for each of them; tests/live/wire/test_outbox.py holds them equal. Returns the sends
        that must take the slow way: some target is a server, unknown, or has a single reply in this tick already.
        """
        targets = effect.targets
        is_usual = (
            self._single_targets.isdisjoint(targets)
            and self._peers.addresses.keys().isdisjoint(targets)
            and not self.is_traced
        )
        links = list(map(self._links.get, targets))
        parts = list(map(encode_body, effect.bodies))
        if not is_usual or None in links or max(map(len, parts), default=0) > self._frame_target_bytes:
            return effect.expand()
        self._single_targets.update(targets)
        self._single_replies.append((cast("list[Link]", links), parts))
        return []

    def send_deferrable(
        self, targets: tuple[ProcessId, ...], deferrable: tuple[ProcessId, ...], part: bytes, about: About
    ) -> tuple[ProcessId, ...]:
        """Like `send`, where some of the targets can wait until there is more for them, or until `flush_deferred`."""
        urgent = self._urgent_targets.get((targets, deferrable))
        if urgent is None:
            me = self._peers.me
            urgent = tuple([target for target in targets if target not in deferrable and target != me])
            if len(self._urgent_targets) >= CACHED_TARGETS:
                self._urgent_targets.clear()
                self._deferrable_links.clear()
            self._urgent_targets[targets, deferrable] = urgent
        unknown = self.send(urgent, part, about) if urgent else ()
        links = self._deferrable_links.get(deferrable)
        if links is None:
            links, missing = self._find_links(deferrable)
            if missing:
                return unknown + self.send(deferrable, part, about)
            self._deferrable_links[deferrable] = links
        self._deferred_now.append((links, part, about))
        return unknown

    def _find_links(self, targets: tuple[ProcessId, ...]) -> tuple[tuple[Link, ...], tuple[ProcessId, ...]]:
        """The links of some targets, made for servers that have none; and the unknown targets."""
        links: list[Link] = []
        unknown: list[ProcessId] = []
        for target in targets:
            link = self._links.get(target)
            if link is None and target != self._peers.me:
                if target not in self._peers.addresses:
                    unknown.append(target)
                    continue
                link = self._peers.link(target)
                self._dial(target)
            if link is not None:
                links.append(link)
        return tuple(links), tuple(unknown)

    # Order within one tick

    def _queue_deferred_in_order(self) -> None:
        """Gives deferred bodies to their links before an urgent body follows, maybe to the same peers."""
        self._split_fanouts()
        self._is_mixed = True
        self._queue_deferred()

    def _queue_deferred(self) -> None:
        """Gives deferred bodies to their links, for the next frame to each peer; for this tick's, if they are many."""
        deferred, self._deferred_now = self._deferred_now, []
        for links, part, about in deferred:
            for link in links:
                if not link.is_broken:
                    link.parts.append(part)
                    link.parts_bytes += len(part)
                    if self.is_traced:
                        link.abouts.append(about)
                    if len(link.parts) >= DEFERRED_BODIES:
                        self._dirty[link.peer] = link
                    else:
                        self.deferred[link.peer] = link

    def _claim_links(self, fanout: Fanout) -> bool:
        """Claims the links of a further fan-out of this tick. Returns False if another fan-out has some of them; then
        the bodies of all fan-outs have gone to each link by itself."""
        if len(self._active) == 1:
            for link in self._active[0].links:
                link.in_fanout = True
        for link in fanout.links:
            if link.in_fanout:
                self._split_fanouts()
                return False
        for link in fanout.links:
            link.in_fanout = True
        return True

    def _split_fanouts(self) -> None:
        """Gives the bodies of all fan-outs to each link by itself; later bodies of this tick follow there."""
        active, self._active = self._active, []
        for fanout in active:
            self._is_mixed = True
            self._split_fanout(fanout)

    def _split_fanout(self, fanout: Fanout) -> None:
        parts, fanout.parts = fanout.parts, []
        for link in fanout.links:
            link.in_fanout = False
        for part in parts:
            self._send_to_links(fanout.links, part, None)

    def _split_single_replies(self) -> None:
        """Gives single replies to each link by itself, because some client gets more than one body in this tick."""
        for links, parts in self._single_replies:
            for link, part in zip(links, parts, strict=True):
                self._append(link, part)
        self._single_replies.clear()
        self._single_targets.clear()

    def _append(self, link: Link, part: bytes) -> None:
        if not link.is_broken:
            link.parts.append(part)
            link.parts_bytes += len(part)
            self._dirty[link.peer] = link

    # The end of a tick

    def flush(self, sent_ns: int | None) -> None:
        """Ends a tick: one write to every peer that has something, with trace data if `sent_ns` is given."""
        active = self._active
        if active:
            self._active = []
            for fanout in active:
                self._send_fanout(fanout, len(active) > 1)
        if self._single_replies:
            self._send_single_replies()
        if self._deferred_now:
            self._queue_deferred()
        if self._dirty:
            for link in self._dirty.values():
                if link.flush(sent_ns):
                    self._record_pressure(link)
            self._dirty.clear()
        self._is_mixed = False

    def flush_deferred(self, sent_ns: int | None) -> None:
        """Sends everything that was deferred."""
        self._dirty.update(self.deferred)
        self.deferred.clear()
        self.flush(sent_ns)

    def _send_single_replies(self) -> None:
        for links, parts in self._single_replies:
            congested, left = fast_send_single_parts(links, parts)
            for link in congested:
                self._record_pressure(link)
            for link, part in left:
                self._append(link, part)
        self._single_replies.clear()
        self._single_targets.clear()

    def _send_fanout(self, fanout: Fanout, is_claimed: bool) -> None:
        """Sends one frame to each link of a fan-out."""
        if fanout.size > self._frame_target_bytes:
            self._split_fanout(fanout)
            return
        parts, fanout.parts = fanout.parts, []
        tail = join_parts(parts)
        tail_crc = crc32(tail) if self._has_checksums else 0
        for link in fanout.links:
            if is_claimed:
                link.in_fanout = False
            if link.parts:
                # Deferred bodies waited for the next frame to this peer.
                link.parts += parts
                link.parts_bytes += fanout.size
                self._dirty[link.peer] = link
            elif link.send_frame(tail, tail_crc):
                self._record_pressure(link)

    # Back-pressure

    def _record_pressure(self, link: Link) -> None:
        if link.queued_bytes > self._queue_bytes and link.is_overfull():
            link.overflow()
        elif link.is_congested:
            self._congested[link.peer] = link

    @property
    def is_congested(self) -> bool:
        """Some connected peer takes its frames too slowly."""
        return bool(self._congested)

    async def wait_for_capacity(self) -> None:
        """Waits until every connected peer has taken enough of what was sent to it."""
        while self._congested:
            for link in list(self._congested.values()):
                await link.wait_for_capacity()
                self._congested.pop(link.peer, None)

    # Peers that come and go

    def invalidate_fanouts(self) -> None:
        """Drops all cached sets of links, because a link is removed."""
        self._queue_deferred_in_order()
        self._fanouts.clear()
        self._deferrable_links.clear()
        self._urgent_targets.clear()

    def remove_peer(self, peer: ProcessId) -> None:
        """Sends nothing more to a peer whose link is removed."""
        self.invalidate_fanouts()
        for links in (self._dirty, self._congested, self.deferred):
            links.pop(peer, None)

    def add_server(self) -> None:
        """Keeps the order for a new server that may have got something in this tick as a client."""
        if self._dirty or self._single_targets:
            self._is_mixed = True

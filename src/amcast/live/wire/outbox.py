"""What one tick says to whom: bodies are given while it runs, and at its end each peer gets one frame.

Most ticks say the same to many: an acknowledgement goes to every replica of every destination. So a set of targets is
looked up as a whole (`Fan`), its bodies are joined once, and what is done for each peer is little more than a number
and a write. Only where two fans of one tick share a peer, which must hear all in order, is each peer served by itself.
Answers are the other extreme: as many clients as messages, and one short body for each (`live/wire/client_inbox.py`).
"""

import random
from collections.abc import Callable
from typing import Final, cast

from amcast.kernel.effects import About, Send, SendEach
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.live.wire import frames as codec
from amcast.live.wire.client_inbox import send_single_replies
from amcast.live.wire.frames import AFTER_LENGTH, Codec, Frame, LinkIncarnation
from amcast.live.wire.link import Link
from amcast.live.wire.peers import Address, PeerTable

MOST_REMEMBERED: Final = 4096
"""Sets of targets; beyond that, they are looked up anew."""
MOST_KEPT: Final = 64
"""So many bodies that can wait are worth a frame: its sender is awake anyway."""


class Fanout:
    """Peers that are often told the same."""

    __slots__ = ("links", "parts", "size")

    def __init__(self, links: tuple[Link, ...]) -> None:
        self.links = links
        self.parts: list[bytes] = []
        """Encoded bodies of this tick, for all of them."""
        self.size = 0


class Outbox(PeerTable):
    """The half of a network that talks."""

    # fmt: off
    __slots__ = (
        "_busy",
        "_chance",
        "_coder",
        "_crowds",
        "_fans",
        "_hurried",
        "_incarnation",
        "_join_bytes",
        "_kept",
        "_mixed",
        "_most_bytes",
        "_numbers",
        "_on_bodies",
        "_on_frame",
        "_on_link_reset",
        "_on_lost",
        "_patient",
        "_told",
        "traces",
    )
    # fmt: on

    def __init__(
        self,
        me: ProcessId,
        incarnation: int,
        coder: Codec,
        on_bodies: Callable[[ProcessId, list[Body]], None],
        on_frame: Callable[[ProcessId, Frame], None],
        on_link_reset: Callable[[ProcessId, int], None],
        on_lost: Callable[[ProcessId, list[bytes]], None] | None,
        chance: random.Random,
        traces: bool,
    ) -> None:
        super().__init__(me, coder.limits)
        self.traces = traces
        """Packets are traced: what each body is about goes along with it."""
        self._on_lost = on_lost
        self._incarnation = incarnation
        self._coder = coder
        self._on_bodies = on_bodies
        self._on_frame = on_frame
        self._on_link_reset = on_link_reset
        self._chance = chance
        self._numbers = 0
        self._most_bytes = self._limits.queue_bytes
        self._join_bytes = self._limits.frame_target_bytes
        self._fans: dict[tuple[ProcessId, ...], Fanout] = {}
        """By targets, in the order in which they were given."""
        self._busy: list[Fanout] = []
        """Fans that something was sent to in this tick; no two of them share a link."""
        self._mixed = False
        """In this tick a server was told something by itself: there are no fans until the next one."""
        self._crowds: list[tuple[list[Link], list[bytes]]] = []
        """Many clients that were told one thing each in this tick, and what."""
        self._told: set[ProcessId] = set()
        """All of them."""
        self._patient: dict[tuple[ProcessId, ...], tuple[Link, ...]] = {}
        """Links with those who can wait, by targets."""
        self._hurried: dict[tuple[tuple[ProcessId, ...], tuple[ProcessId, ...]], tuple[ProcessId, ...]] = {}
        """By all targets and those who can wait: the others."""
        self._kept: list[tuple[tuple[Link, ...], bytes, About]] = []
        """Given in this tick to those who can wait."""

    def link(self, peer: ProcessId) -> Link:
        link = self.links.get(peer)
        if link is None:
            link = Link(
                peer, self._next_mark(), self._coder, self._limits, self._on_bodies, self._on_frame,
                self._on_link_reset, self._on_lost, self._next_mark, peer in self._addresses,
            )  # fmt: skip
            self.links[peer] = link
        return link

    def _next_mark(self) -> LinkIncarnation:
        self._numbers += 1
        return self._incarnation, self._numbers

    def send_each(self, effect: SendEach) -> list[Send]:
        """Tell each of many clients one thing, which is all that most are told in one tick. What comes back takes the
        long way: somebody is no client, or not known, or was told something in this way before."""
        targets = effect.targets
        usual = self._told.isdisjoint(targets) and self._addresses.keys().isdisjoint(targets) and not self.traces
        links = list(map(self.links.get, targets))
        parts = list(map(codec.encoded, effect.bodies))
        if not usual or None in links or max(map(len, parts), default=0) > self._join_bytes:
            return effect.expand()
        self._told.update(targets)
        self._crowds.append((cast("list[Link]", links), parts))
        return []

    def send(self, targets: tuple[ProcessId, ...], part: bytes, about: About) -> tuple[ProcessId, ...]:
        """Give one encoded body to the links with some processes, but me; those come back who are nobody."""
        fan = self._fans.get(targets)
        if fan is None:
            return self._send_anew(targets, part, about)
        if self._kept:
            self._overtake()
        if fan.parts:
            fan.parts.append(part)
            fan.size += len(part)
        elif self._mixed or self.traces or (self._busy and not self._claim(fan)):
            self._mixed = True
            self._send_each(fan.links, part, about)
        else:
            fan.parts.append(part)
            fan.size = len(part)
            self._busy.append(fan)
        return ()

    def _send_anew(self, targets: tuple[ProcessId, ...], part: bytes, about: About) -> tuple[ProcessId, ...]:
        """To targets that are no fan: one, or clients, or servers that become one now."""
        if self._kept:
            self._overtake()
        links, nobody = self._found(targets)
        servers = [link for link in links if link.serves]
        if len(servers) == len(links) > 0 and not nobody:
            if len(self._fans) >= MOST_REMEMBERED:
                self._fans.clear()  # those of this tick are in `_busy`
            self._fans[targets] = Fanout(links)
            return self.send(targets, part, about)
        if servers:
            self._spill()
            self._mixed = True
        self._send_each(links, part, about)
        return nobody

    def send_unhurried(
        self, targets: tuple[ProcessId, ...], later: tuple[ProcessId, ...], part: bytes, about: About
    ) -> tuple[ProcessId, ...]:
        """The same where some of the targets can wait until there is more for them, or until `let_go`."""
        hurried = self._hurried.get((targets, later))
        if hurried is None:
            hurried = tuple([target for target in targets if target not in later and target != self.me])
            if len(self._hurried) >= MOST_REMEMBERED:
                self._hurried.clear()
                self._patient.clear()
            self._hurried[targets, later] = hurried
        nobody = self.send(hurried, part, about) if hurried else ()
        links = self._patient.get(later)
        if links is None:
            links, unknown = self._found(later)
            if unknown:
                return nobody + self.send(later, part, about)
            self._patient[later] = links
        self._kept.append((links, part, about))
        return nobody

    def let_go(self, sent_ns: int | None) -> None:
        """What could wait has waited for long enough."""
        self._dirty.update(self.later)
        self.later.clear()
        self.flush(sent_ns)

    def _overtake(self) -> None:
        """Something urgent follows what can wait, maybe to the same peers: each must hear all in order."""
        self._spill()
        self._mixed = True
        self._put_aside()

    def _put_aside(self) -> None:
        """What can wait goes with the next frame to each peer, or now if that is enough for one."""
        kept, self._kept = self._kept, []
        for links, part, about in kept:
            for link in links:
                if not link.broken:
                    link.parts.append(part)
                    link.parts_bytes += len(part)
                    if self.traces:
                        link.abouts.append(about)
                    if len(link.parts) >= MOST_KEPT:
                        self._dirty[link.peer] = link
                    else:
                        self.later[link.peer] = link

    def _found(self, targets: tuple[ProcessId, ...]) -> tuple[tuple[Link, ...], tuple[ProcessId, ...]]:
        """Their links, made if there are none yet; and those who are nobody."""
        links: list[Link] = []
        nobody: list[ProcessId] = []
        for target in targets:
            link = self.links.get(target)
            if link is None and target != self.me:
                if target not in self._addresses:
                    nobody.append(target)
                    continue
                link = self.link(target)
                if self._lazy:
                    self.dial(target)
            if link is not None:
                links.append(link)
        return tuple(links), tuple(nobody)

    def meet(self, peer: ProcessId, address: Address) -> None:
        super().meet(peer, address)
        if self._dirty or self._told:
            self._mixed = True  # it may be a client that was told something in this tick

    def unlearn(self) -> None:
        """Some link is no more: fans are made anew."""
        self._overtake()
        self._fans.clear()
        self._patient.clear()
        self._hurried.clear()

    def _claim(self, fan: Fanout) -> bool:
        """Not the first of this tick: its links hear of it only; False if another fan has some of them, and then what
        fans have so far has gone to each link by itself."""
        if len(self._busy) == 1:
            for link in self._busy[0].links:
                link.claimed = True
        for link in fan.links:
            if link.claimed:
                self._spill()
                return False
        for link in fan.links:
            link.claimed = True
        return True

    def _spill(self) -> None:
        """Fans of this tick overlap: what they have goes to each link by itself, and so does what follows."""
        busy, self._busy = self._busy, []
        for fan in busy:
            self._mixed = True
            self._open(fan)

    def _open(self, fan: Fanout) -> None:
        parts, fan.parts = fan.parts, []
        for link in fan.links:
            link.claimed = False
        for part in parts:
            self._send_each(fan.links, part, None)

    def _send_each(self, links: tuple[Link, ...], part: bytes, about: About) -> None:
        size = len(part)
        if self._told and not self._told.isdisjoint([link.peer for link in links]):
            self._scatter()
        for link in links:
            if not link.broken:
                link.parts.append(part)
                link.parts_bytes += size
                if self.traces:
                    link.abouts.append(about)
                self._dirty[link.peer] = link
                if link.queued_bytes + link.parts_bytes > self._most_bytes and link.overfull():
                    link.overflow()

    def _scatter(self) -> None:
        """Somebody in a crowd is told more than one thing in this tick: each has its own frame to be made."""
        for links, parts in self._crowds:
            for link, part in zip(links, parts, strict=True):
                self._add(link, part)
        self._crowds.clear()
        self._told.clear()

    def _add(self, link: Link, part: bytes) -> None:
        if not link.broken:
            link.parts.append(part)
            link.parts_bytes += len(part)
            self._dirty[link.peer] = link

    def flush(self, sent_ns: int | None) -> None:
        """End of a tick: one write to every peer that something was sent to."""
        busy = self._busy
        if busy:
            self._busy = []
            for fan in busy:
                self._post(fan, len(busy) > 1)
        if self._crowds:
            self._post_crowds()
        if self._kept:
            self._put_aside()
        if self._dirty:
            for link in self._dirty.values():
                if link.flush(sent_ns):
                    self._press(link)
            self._dirty.clear()
        self._mixed = False

    def _post_crowds(self) -> None:
        """One frame to each client; those with whom there is more to it are served by themselves."""
        for links, parts in self._crowds:
            pressed, left = send_single_replies(links, parts)
            for link in pressed:
                self._press(link)
            for link, part in left:
                self._add(link, part)
        self._crowds.clear()
        self._told.clear()

    def _post(self, fan: Fanout, claimed: bool) -> None:
        """One frame to each link of a fan."""
        if fan.size > self._join_bytes:
            self._open(fan)
            return
        parts, fan.parts = fan.parts, []
        tail = codec.tail(parts)
        length = len(tail) + AFTER_LENGTH
        for link in fan.links:
            if claimed:
                link.claimed = False
            if link.parts:
                # Something waited for the next frame to this one.
                link.parts += parts
                link.parts_bytes += fan.size
                self._dirty[link.peer] = link
            elif link.post(tail, length):
                self._press(link)

    def _press(self, link: Link) -> None:
        """Much waits for this peer."""
        if link.queued_bytes > self._most_bytes and link.overfull():
            link.overflow()
        elif link.pressed:
            self._pressed[link.peer] = link

    @property
    def pressed(self) -> bool:
        """Some peer takes what it is sent too slowly."""
        return bool(self._pressed)

    async def room(self) -> None:
        """Wait until every peer that is there has taken enough of what was sent to it."""
        while self._pressed:
            for link in list(self._pressed.values()):
                await link.room()
                self._pressed.pop(link.peer, None)

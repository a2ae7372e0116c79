"""A group's history: which messages were delivered before which, as far as this group was told.

Source: paper 000, section 4 (strategy (a)); the bookkeeping is ours.

Every group delivers in a line; a `Link` says "right before this message that one was delivered", at some group. Links
of many groups together make a graph. Three questions are asked of it, and the authors' prototype searches the whole
graph for each:

- What does a descendant not know yet? Links are kept in a log in the order in which they were learned, with a cursor
  per descendant: a diff is a slice.
- Must something be delivered here before x? Only open messages count: addressed to this group and not delivered. All
  that lies before a delivered message is *settled*: nothing open can be found there, now or ever (that is what the
  protocol proves), so a search backwards from x never enters it. If the search finds nothing open, x is delivered and
  everything it visited becomes settled; if it finds something, x need not be asked about again before that is
  delivered. So a search pays for a delivery, and each link is walked about once in its incarnation: near-constant time.
- Is there a message to d that k does not get? Counted per pair of groups, not searched for.

Forgetting: when a message to all groups (a flush) is delivered, and its links have been sent to every descendant, all
that is settled can go.
"""

from collections.abc import Sequence

from amcast.kernel.ids import GroupId, MessageId
from amcast.parts.ordering.messages import HistoryState, Link, Links, Vertex


class _Vertex:
    """A message that some group delivered."""

    __slots__ = ("before", "destinations", "open", "settled", "touched")

    def __init__(self, destinations: tuple[GroupId, ...], open: bool) -> None:
        self.destinations = destinations
        self.before: list[MessageId] = []
        """What came right before it, at the groups that said so."""
        self.open = open
        """Addressed to this group and not delivered here."""
        self.settled = 0
        """In which version of the history it was found to be delivered here, or before something that is; 0: not."""
        self.touched = 0
        """In which version `before` last grew."""


class History:
    """What one group knows."""

    def __init__(self, group: GroupId, descendants: Sequence[GroupId]) -> None:
        self.group = group
        self._vertices: dict[MessageId, _Vertex] = {}
        self.last: MessageId | None = None
        """What was delivered here last."""
        self._log: list[Link] = []
        """Links that some descendant may not have been told, in the order in which they were learned."""
        self._base = 0
        """How many links were dropped from the front of the log."""
        self._cursors: dict[GroupId, int] = dict.fromkeys(descendants, 0)
        """How many links each descendant was told."""
        self.version = 0
        """How many links were ever learned: a version of this history."""
        self._to: dict[GroupId, int] = {}
        """How many messages of the history each group gets; messages to all groups are not counted."""
        self._to_both: dict[tuple[GroupId, GroupId], int] = {}

    def __len__(self) -> int:
        return len(self._vertices)

    def __contains__(self, message: MessageId) -> bool:
        return message in self._vertices

    # Growing

    def learn(self, links: Links) -> None:
        """Take in what another group told."""
        for link in links:
            self._add(link)

    def append(self, message: MessageId, destinations: tuple[GroupId, ...]) -> None:
        """This group delivers a message now: it comes after the last one, and all that lies before it is settled."""
        self._add(Link(message, destinations, self.last))
        self.last = message
        vertex = self._vertices[message]
        vertex.open = False
        self._settle(message)

    def _add(self, link: Link) -> None:
        before = link.before if link.before in self._vertices else None
        vertex = self._vertices.get(link.id)
        if vertex is None:
            vertex = self._vertices[link.id] = _Vertex(link.destinations, self.group in link.destinations)
            self._count(link.id, link.destinations)
        elif before is None or before in vertex.before:
            return
        if before is not None:
            vertex.before.append(before)
        self.version += 1
        vertex.touched = self.version
        self._log.append(link)

    def _settle(self, message: MessageId) -> None:
        """Mark a delivered message and all that lies before it."""
        stack = [message]
        while stack:
            vertex = self._vertices[stack.pop()]
            if not vertex.settled:
                vertex.settled = self.version
                stack += vertex.before

    # Asking

    def find_blocker(self, message: MessageId) -> MessageId | None:
        """Some open message that lies before this one; None if there is none."""
        return self._search(message)[0]

    def last_change(self, message: MessageId) -> int:
        """A version in or after which what lies before this message last grew; asked when nothing open lies there."""
        return self._search(message)[1]

    def _search(self, message: MessageId) -> tuple[MessageId | None, int]:
        start = self._vertices.get(message)
        if start is None:
            return (None, self.version)
        if start.settled:
            return (None, start.settled)
        version = start.touched
        seen = {message}
        stack = list(start.before)
        while stack:
            id = stack.pop()
            if id in seen:
                continue
            seen.add(id)
            vertex = self._vertices[id]
            if vertex.open:
                return (id, version)
            if vertex.settled:
                version = max(version, vertex.settled)
            else:
                version = max(version, vertex.touched)
                stack += vertex.before
        return (None, version)

    def has_message_only_to(self, one: GroupId, others: Sequence[GroupId]) -> bool:
        """Whether some message of the history goes to `one` and not to all of `others`."""
        known = self._to.get(one, 0)
        return known > 0 and any(self._to_both.get((one, other), 0) < known for other in others)

    # Telling

    def take_diff(self, descendant: GroupId) -> Links:
        """What this descendant was not told yet; from now on it counts as told."""
        start = self._cursors[descendant] - self._base
        self._cursors[descendant] = self._base + len(self._log)
        return tuple(self._log[start:])

    # Forgetting

    def prune(self) -> None:
        """The last message went to all groups: what is settled was told to everybody and matters to nobody."""
        end = self._base + len(self._log)
        assert all(cursor == end for cursor in self._cursors.values()), "a descendant was not told of the flush"
        kept = {id: vertex for id, vertex in self._vertices.items() if not vertex.settled or id == self.last}
        self._vertices = kept
        self._to = {}
        self._to_both = {}
        for id, vertex in kept.items():
            vertex.before = [before for before in vertex.before if before in kept]
            self._count(id, vertex.destinations)
        self._log = []
        self._base = end

    def _count(self, id: MessageId, destinations: tuple[GroupId, ...]) -> None:
        if id < 0:
            return  # a flush: everybody gets it, so it is no reason to ask anybody
        for group in destinations:
            self._to[group] = self._to.get(group, 0) + 1
            for other in destinations:
                if other != group:
                    self._to_both[(group, other)] = self._to_both.get((group, other), 0) + 1

    # Memory

    def snapshot(self) -> HistoryState:
        return HistoryState(
            tuple(
                Vertex(id, v.destinations, tuple(v.before), v.open, v.settled, v.touched)
                for id, v in sorted(self._vertices.items())
            ),
            self.last,
            tuple(self._log),
            self._base,
            tuple(sorted(self._cursors.items())),
            self.version,
        )

    def restore(self, state: HistoryState) -> None:
        self._vertices = {}
        self._to = {}
        self._to_both = {}
        for kept in state.vertices:
            vertex = self._vertices[kept.id] = _Vertex(kept.destinations, kept.open)
            vertex.before = list(kept.before)
            vertex.settled = kept.settled
            vertex.touched = kept.touched
            self._count(kept.id, kept.destinations)
        self.last = state.last
        self._log = list(state.log)
        self._base = state.base
        self._cursors = dict(state.cursors)
        self.version = state.learned

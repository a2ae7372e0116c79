"""A group's history: which messages were delivered before which, as far as this group knows.

Source: paper 000, section 4 (strategy (a)); the data structure is not in the paper.

Every group delivers in sequence; a `Link` states that some group delivered one message right before another. The links
of many groups make a graph. It answers three questions, for each of which the authors' prototype searches the whole
graph:

- Which links does a descendant lack? Links are stored in a log in the order in which they were learned, with a cursor
  per descendant: a diff is a slice.
- Must another message be delivered here before x? Only open messages count: addressed to this group and not delivered.
  Everything before a delivered message is *settled*: nothing open is there, now or later (the protocol proves that), so
  a search backwards from x never enters it. If the search finds nothing open, x is delivered and everything visited
  becomes settled; if it finds an open message, x need not be searched again before that message is delivered. So each
  search pays for a delivery, and each link is visited about once: near-constant time.
- Is there a message to d that k does not get? Counted per pair of groups, without a search.

Pruning: once a message to all groups (a flush) is delivered, and its links have been sent to every descendant, every
settled message can be dropped.
"""

from collections.abc import Sequence

from amcast.kernel.ids import GroupId, MessageId
from amcast.parts.ordering.messages import HistoryState, Link, Links, Vertex


class _Vertex:
    """A message that some group has delivered."""

    __slots__ = ("before", "destinations", "open", "settled", "touched")

    def __init__(self, destinations: tuple[GroupId, ...], open: bool) -> None:
        self.destinations = destinations
        self.before: list[MessageId] = []
        """The messages delivered right before it, at the groups that reported so."""
        self.open = open
        """Addressed to this group and not delivered here."""
        self.settled = 0
        """The version of the history in which it was delivered here, or before a delivered message; 0: not settled."""
        self.touched = 0
        """The version of the history in which `before` grew last."""


class History:
    """The history that one group knows."""

    def __init__(self, group: GroupId, descendants: Sequence[GroupId]) -> None:
        self.group = group
        self._vertices: dict[MessageId, _Vertex] = {}
        self.last: MessageId | None = None
        """The last message delivered here."""
        self._log: list[Link] = []
        """Links that some descendant may lack, in the order in which they were learned."""
        self._base = 0
        """How many links were dropped from the front of the log."""
        self._cursors: dict[GroupId, int] = dict.fromkeys(descendants, 0)
        """How many links each descendant was sent."""
        self.version = 0
        """How many links were ever learned."""
        self.visits = 0
        """How many vertices and links were added, searched or sent: the work that grows with the history. No part of
        the state: it measures this object."""
        self._to: dict[GroupId, int] = {}
        """How many messages of the history are addressed to each group, without those to all groups."""
        self._to_both: dict[tuple[GroupId, GroupId], int] = {}

    def __len__(self) -> int:
        return len(self._vertices)

    def __contains__(self, message: MessageId) -> bool:
        return message in self._vertices

    # Growing

    def learn(self, links: Links) -> None:
        """Adds links that another group sent."""
        self.visits += len(links)
        for link in links:
            self._add(link)

    def append(self, message: MessageId, destinations: tuple[GroupId, ...]) -> None:
        """Appends a message that this group delivers now; everything before it becomes settled."""
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
        """Marks a delivered message and everything before it as settled."""
        stack = [message]
        while stack:
            vertex = self._vertices[stack.pop()]
            self.visits += 1
            if not vertex.settled:
                vertex.settled = self.version
                stack += vertex.before

    # Asking

    def find_blocker(self, message: MessageId) -> MessageId | None:
        """Some open message before this one; None if there is none."""
        return self._search(message)[0]

    def last_change(self, message: MessageId) -> int:
        """A version in or after which the part of the history before this message grew last. Valid while no open
        message is there."""
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
            self.visits += 1
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
        """Whether some message of the history is addressed to `one` and not to all of `others`."""
        known = self._to.get(one, 0)
        return known > 0 and any(self._to_both.get((one, other), 0) < known for other in others)

    # Diffs

    def take_diff(self, descendant: GroupId) -> Links:
        """The links that a descendant was not sent yet; they count as sent from now on."""
        start = self._cursors[descendant] - self._base
        self._cursors[descendant] = self._base + len(self._log)
        self.visits += len(self._log) - start
        return tuple(self._log[start:])

    # Pruning

    def prune(self) -> None:
        """Drops every settled message. Called after a flush, when every descendant was sent every link."""
        end = self._base + len(self._log)
        assert all(cursor == end for cursor in self._cursors.values()), "a descendant was not sent the flush"
        remaining = {id: vertex for id, vertex in self._vertices.items() if not vertex.settled or id == self.last}
        self._vertices = remaining
        self._to = {}
        self._to_both = {}
        for id, vertex in remaining.items():
            vertex.before = [before for before in vertex.before if before in remaining]
            self._count(id, vertex.destinations)
        self._log = []
        self._base = end

    def _count(self, id: MessageId, destinations: tuple[GroupId, ...]) -> None:
        if id < 0:
            return  # a flush goes to every group, so it never makes one group differ from another
        for group in destinations:
            self._to[group] = self._to.get(group, 0) + 1
            for other in destinations:
                if other != group:
                    self._to_both[(group, other)] = self._to_both.get((group, other), 0) + 1

    # Snapshots

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
        for saved in state.vertices:
            vertex = self._vertices[saved.id] = _Vertex(saved.destinations, saved.open)
            vertex.before = list(saved.before)
            vertex.settled = saved.settled
            vertex.touched = saved.touched
            self._count(saved.id, saved.destinations)
        self.last = state.last
        self._log = list(state.log)
        self._base = state.base
        self._cursors = dict(state.cursors)
        self.version = state.version

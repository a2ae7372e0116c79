"""Comparison of replicas: members of a group tell each other digests of what they delivered, with their heartbeats.

All members of a group deliver the same messages at the same positions. Nothing in a protocol notices when one of them
does not, be it for a bug, for bad memory or for an edited log: each goes on, and answers, for ever. So each member
keeps a digest of its deliveries and compares it with those of the others.

    positions   0 ........ 1024 ........ 2048 ... 2300
    digests     |--- d1 ---|---- d2 -----|-- d3 --|        each block of positions has a digest of its own

A digest covers a block from its first position on, so a replica that has just restarted or installed a snapshot, and
does not know how the current block began, compares again from the next block on. A heartbeat carries samples: the
digests of the blocks that ended since the last heartbeat, and the digest of the current block so far.

A member that finds a sample which differs from its own digest at that position repeats its own with every heartbeat,
and takes no new messages. All members learn the digests of all others in this way:

- A majority has another digest than this member: its deliveries are wrong. It stops, and starts again as a member
  whose data folder is doubtful (`parts/node/admission.py`): it gets its state from the others.
- A majority has the same digest: this member goes on, and names those that differ to operators.
- Neither: nobody can tell which deliveries are right. No member takes new messages until an operator decides.

Digests find mistakes, not attacks: they are sums, and no secrets. A divergence that ended before the oldest digest that
both members still hold is not found.
"""

from collections import deque
from typing import Final

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import ProcessId
from amcast.parts.consensus.quorum import majority
from amcast.parts.node.messages import ComparisonState, Sample

BLOCK: Final = 1024
"""Positions per block."""
MAX_SAMPLES: Final = 32
"""Blocks that one heartbeat reports; of more, the latest."""
KEPT_BLOCKS: Final = 256
RECENT: Final = 512
"""Deliveries whose digests are kept beside those of blocks."""
_FACTOR: Final = 0x1F3A_5C7E_9B24_D683
_MASK: Final = (1 << 61) - 1


class ReplicaComparison:
    """The digests of one member, and what it knows of those of the others."""

    __slots__ = (
        "_block",
        "_blocks",
        "_digest",
        "_disputed",
        "_is_whole",
        "_me",
        "_members",
        "_next",
        "_recent",
        "_unsent",
        "differing",
        "is_disputed",
        "is_diverged",
    )

    def __init__(self, me: ProcessId, members: tuple[ProcessId, ...]) -> None:
        self._me = me
        self._members = members
        self._next = 0
        """The position after the last delivery."""
        self._block = 0
        self._digest = 0
        """The digest of the current block so far."""
        self._is_whole = True
        """Whether the digest covers the current block from its first position on."""
        self._blocks: dict[int, int] = {}
        """By the position where a block ended: its digest."""
        self._recent: deque[Sample] = deque(maxlen=RECENT)
        self._unsent: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        """Digests of blocks that ended since the last heartbeat."""
        self._disputed: dict[int, dict[ProcessId, int]] = {}
        """By position: the digests of members, this one included, where some differ."""
        self.is_disputed = False
        """A digest differs, and no majority is known to have the same one."""
        self.is_diverged = False
        """A majority has another digest than this member."""
        self.differing: tuple[ProcessId, ...] = ()
        """Members whose digests differ from that of a majority, or, while it is disputed, of this member."""

    @property
    def is_sound(self) -> bool:
        """Whether this member may take new messages."""
        return not self.is_disputed and not self.is_diverged

    def follow_members(self, members: tuple[ProcessId, ...]) -> None:
        """Follows a reconfiguration."""
        self._members = members
        self._decide()

    def record(self, delivery: Deliver) -> None:
        """Adds a delivery to the digest of its block."""
        count = 1 if delivery.message_count < 0 else delivery.message_count
        if count == 0:
            return
        position = delivery.position
        if position != self._next:
            self._block, self._digest = position // BLOCK, 0
            self._is_whole = position % BLOCK == 0
        elif position // BLOCK != self._block:
            self._end_block(position)
        digest = self._digest
        self._digest = digest = (digest * _FACTOR + delivery.message.id * 31 + position * 7 + count) & _MASK
        self._next = position + count
        if self._is_whole:
            self._recent.append((self._next, digest))

    def _end_block(self, position: int) -> None:
        if self._is_whole:
            self._blocks[position] = self._digest
            self._unsent.append((position, self._digest))
            if len(self._blocks) > KEPT_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
        self._block, self._digest, self._is_whole = position // BLOCK, 0, True

    def take_samples(self) -> tuple[Sample, ...]:
        """The samples of the next heartbeat."""
        samples = [*self._unsent, *list(self._recent)[-1:]]
        self._unsent.clear()
        samples += [(position, known[self._me]) for position, known in sorted(self._disputed.items())]
        return tuple(samples)

    def compare(self, sender: ProcessId, samples: tuple[Sample, ...]) -> None:
        """Compares the samples of another member with the digests of this one."""
        for position, digest in samples:
            disputed = self._disputed.get(position)
            if disputed is not None:
                disputed[sender] = digest
                self._decide()
            elif not self._disputed:
                own = self._find(position)
                if own is not None and own != digest:
                    self._disputed[position] = {self._me: own, sender: digest}
                    self._decide()

    def _find(self, position: int) -> int | None:
        known = self._blocks.get(position)
        if known is None:
            known = next((digest for end, digest in reversed(self._recent) if end == position), None)
        return known

    def _decide(self) -> None:
        """Decides what the digests at the disputed position mean."""
        self.is_disputed = self.is_diverged = False
        self.differing = ()
        for known in self._disputed.values():
            mine = known[self._me]
            held = [known[member] for member in self._members if member in known]
            common = next((digest for digest in held if held.count(digest) >= majority(len(self._members))), None)
            self.is_disputed = common is None
            self.is_diverged = common is not None and common != mine
            right = mine if common is None else common
            self.differing = tuple(member for member in self._members if known.get(member, right) != right)

    def describe(self) -> str:
        """A sentence for operators; empty as long as no difference is known."""
        if not self._disputed:
            return ""
        position, known = next(iter(self._disputed.items()))
        held = ", ".join(f"process {member} {digest:016x}" for member, digest in sorted(known.items()))
        where = f"replicas differ in what they delivered before position {position}: {held}"
        if self.is_diverged:
            return f"{where}; this replica is wrong: a majority has another digest"
        if self.is_disputed:
            return f"{where}; no majority agrees, so no new messages are taken"
        return f"{where}; wrong are the replicas {list(self.differing)}: a majority agrees with this one"

    # Snapshots

    def snapshot(self) -> ComparisonState:
        return ComparisonState(
            self._next,
            self._block,
            self._digest,
            self._is_whole,
            tuple(self._blocks.items()),
            tuple(self._recent),
            tuple(self._unsent),
            tuple((position, tuple(sorted(known.items()))) for position, known in sorted(self._disputed.items())),
        )

    def restore(self, state: ComparisonState) -> None:
        self._next, self._block = state.next, state.block
        self._digest, self._is_whole = state.digest, state.is_whole
        self._blocks = dict(state.blocks)
        self._recent = deque(state.recent, RECENT)
        self._unsent = deque(state.unsent, MAX_SAMPLES)
        self._disputed = {position: dict(known) for position, known in state.disputed}
        self._decide()

"""The leader oracle Omega, by heartbeats: in the end all members of a group name the same correct member.

Source: Chandra, Hadzilacos, Toueg, "The weakest failure detector for solving consensus" (1996); 003 section 2.2.

Every member sends heartbeats to the others; who is silent for too long is suspected, and trusted again, with twice the
patience, when it is heard. The leader is the trusted member that has run longest, by its own clock; among equals, and
all are equal in their first incarnations, the one with the lowest (incarnation, place). A member that restarted does
not take the lead back from one that ran on, so leadership moves only when it must. Clocks and mistakes are harmless: no
protocol's safety depends on the oracle.
"""

from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.parts.client.messages import Farewell
from amcast.parts.node.messages import Heartbeat, OmegaConfig, OmegaState

BEAT: Final = "omega"
PATIENCE: Final = "omega-"
MAX_DOUBLINGS: Final = 6


class Omega:
    """One member's oracle about its own group."""

    def __init__(self, owner: Process, members: tuple[ProcessId, ...], config: OmegaConfig) -> None:
        self.owner = owner
        self.members = members
        self.others = tuple(member for member in members if member != owner.me)
        self.config = config
        self.incarnation = 0
        self.leader = members[0]
        self._incarnations: dict[ProcessId, int] = dict.fromkeys(members, 0)
        self._since: dict[ProcessId, int] = dict.fromkeys(members, 0)
        self._suspected: set[ProcessId] = set()
        self._mistakes: dict[ProcessId, int] = {}
        self._left: dict[ProcessId, int] = {}
        """Who said that it leaves, and in which incarnation: what it says after that, in the same incarnation, does not
        count."""

    def begin(self, incarnation: int, joins: bool = False) -> None:
        """An incarnation of mine begins; in a group that ran before, perhaps."""
        self.incarnation = self._incarnations[self.owner.me] = incarnation
        self._since[self.owner.me] = self.owner.now if incarnation > 0 or joins else 0
        if self.others:
            self._beat()
            for member in self.others:
                self._watch(member)

    def hear(self, sender: ProcessId, body: Heartbeat) -> ProcessId | None:
        """A heartbeat came; the leader, if it is another one now."""
        if sender not in self._incarnations or self._left.get(sender, -1) >= body.incarnation:
            return None
        if sender in self._suspected:
            self._suspected.discard(sender)
            if body.incarnation <= self._incarnations[sender]:
                # In a later incarnation it had been away indeed: no mistake.
                self._mistakes[sender] = min(self._mistakes.get(sender, 0) + 1, MAX_DOUBLINGS)
        if body.incarnation >= self._incarnations[sender]:
            self._incarnations[sender] = body.incarnation
            self._since[sender] = body.since_ns
        self._watch(sender)
        return self._changed()

    def part(self, sender: ProcessId, body: Farewell) -> ProcessId | None:
        """A member says that it leaves; the leader, if it is another one now."""
        if body.incarnation < self._incarnations.get(sender, body.incarnation + 1):
            return None
        self._left[sender] = body.incarnation
        self._suspected.add(sender)
        self.owner.cancel_timer(f"{PATIENCE}{sender}")
        self.owner.note("left", value=float(sender))
        return self._changed()

    def tick(self, name: str) -> ProcessId | None:
        """A timer whose name begins with "omega" ran out; the leader, if it is another one now."""
        if name == BEAT:
            self._beat()
            return None
        return self.suspect(int(name.removeprefix(PATIENCE)))

    def suspect(self, member: ProcessId) -> ProcessId | None:
        """A member is silent, or its address is; the leader, if it is another one now."""
        if member in self._suspected or member not in self.others:
            return None
        self._suspected.add(member)
        self.owner.note("suspected", value=float(member))
        return self._changed()

    def follow(self, members: tuple[ProcessId, ...]) -> None:
        """The members have changed: watch the new ones, forget those that left."""
        me = self.owner.me
        fresh = [member for member in members if member not in self._incarnations]
        for member in [member for member in self.others if member not in members]:
            self.owner.cancel_timer(f"{PATIENCE}{member}")
            for memory in (self._incarnations, self._since, self._mistakes, self._left):
                memory.pop(member, None)
            self._suspected.discard(member)
        self.members = members
        self.others = tuple(member for member in members if member != me)
        for member in fresh:
            self._incarnations[member] = 0
            self._since[member] = self.owner.now
            self._watch(member)
        if fresh and len(self.others) == len(fresh):
            self._beat()
        self._changed()

    def leave(self) -> None:
        """I am no member any more."""
        for member in self.others:
            self.owner.cancel_timer(f"{PATIENCE}{member}")
        self.owner.cancel_timer(BEAT)
        self.members, self.others = (), ()
        self._incarnations = {}

    def trusts(self, member: ProcessId) -> bool:
        """Whether it is not known to be silent."""
        return member not in self._suspected

    def _beat(self) -> None:
        self.owner.send_all(self.others, Heartbeat(self.incarnation, self._since[self.owner.me]))
        # At the same instants of everybody's clock, so that members wake up for each other's heartbeats only once.
        heartbeat_ns = self.config.heartbeat_ns
        after_ns = heartbeat_ns - self.owner.now % heartbeat_ns
        if after_ns < heartbeat_ns // 2:
            after_ns += heartbeat_ns
        self.owner.set_timer(BEAT, (after_ns, after_ns))

    def _watch(self, member: ProcessId) -> None:
        low, high = self.config.suspect_after_ns
        factor = 1 << self._mistakes.get(member, 0)
        self.owner.set_timer(f"{PATIENCE}{member}", (low * factor, high * factor))

    def _changed(self) -> ProcessId | None:
        trusted = (member for member in self.members if member not in self._suspected)
        leader = min(trusted, key=self._rank)
        if leader == self.leader:
            return None
        self.leader = leader
        return leader

    def _rank(self, member: ProcessId) -> tuple[int, int, int]:
        return self._since[member], self._incarnations[member], self.members.index(member)

    def snapshot(self) -> OmegaState:
        return OmegaState(
            self.incarnation,
            self.leader,
            tuple(sorted(self._incarnations.items())),
            tuple(sorted(self._suspected)),
            tuple(sorted(self._mistakes.items())),
            tuple(sorted(self._left.items())),
            tuple(sorted(self._since.items())),
            self.members,
        )

    def restore(self, state: OmegaState) -> None:
        self.incarnation = state.incarnation
        self.leader = state.leader
        self._incarnations = dict(state.incarnations)
        self._suspected = set(state.suspected)
        self._mistakes = dict(state.mistakes)
        self._left = dict(state.left)
        self._since = dict(state.since)
        self.members = state.members
        self.others = tuple(member for member in self.members if member != self.owner.me)

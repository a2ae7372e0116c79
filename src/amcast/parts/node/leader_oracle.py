"""The leader oracle Omega, by heartbeats: eventually all members of a group name the same correct member.

Source: Chandra, Hadzilacos, Toueg, "The weakest failure detector for solving consensus" (1996); 003 section 2.2.

Every member sends heartbeats to the others. A member that is silent for too long is suspected. It is trusted again,
with twice the timeout, when a heartbeat arrives: on a machine that is too busy for heartbeats elections end after a
few. Each minute without a wrong suspicion halves the timeout again, so a busy minute does not delay elections for ever.

The leader is the trusted member that has run longest, by its own clock; among equals (in their first incarnations, all
are equal) the one with the lowest (incarnation, index). A member that restarted does not take the lead back from one
that ran on, so leadership moves only when it must: in a rolling restart once, and not back to the first member when the
incarnations are equal again. Clocks and wrong suspicions are harmless: no protocol's safety depends on the oracle.
"""

from collections.abc import Callable
from typing import Final

from amcast.kernel.config import MILLISECOND
from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.parts.client.messages import Farewell
from amcast.parts.node.messages import ComparisonReport, Heartbeat, OmegaConfig, OmegaState

HEARTBEAT_TIMER: Final = "omega"
TIMEOUT_PREFIX: Final = "omega-"
"""The timer "omega-3" expires when member 3 has been silent for too long."""
MAX_DOUBLINGS: Final = 6
FORGIVE_NS: Final = 60_000 * MILLISECOND
"""The time after which a wrong suspicion is forgiven, one after the other."""


class Omega:
    """One member's oracle about its own group. It sends and sets timers through its owner's verbs."""

    def __init__(
        self,
        owner: Process,
        members: tuple[ProcessId, ...],
        config: OmegaConfig,
        suspected: set[ProcessId] | None = None,
        count_records: Callable[[], int] = lambda: 0,
        make_report: Callable[[], ComparisonReport | None] = lambda: None,
    ) -> None:
        """`suspected` is the set in which the oracle keeps the suspected members, for others that read it;
        `count_records` tells how many records the owner has made durable, `make_report` what it has delivered."""
        self.owner = owner
        self.members = members
        self.others = tuple(member for member in members if member != owner.me)
        self.config = config
        self._count_records = count_records
        self._make_report = make_report
        self.incarnation = 0
        self.leader = members[0]
        self._incarnations: dict[ProcessId, int] = dict.fromkeys(members, 0)
        """The latest known incarnation of each member."""
        self._since: dict[ProcessId, int] = dict.fromkeys(members, 0)
        """When that incarnation began, on the member's clock."""
        self._suspected: set[ProcessId] = set() if suspected is None else suspected
        self._mistakes: dict[ProcessId, tuple[int, int]] = {}
        """How many suspicions of each member were wrong and are not forgiven, and when the last one was found out."""
        self._met: set[ProcessId] = set()
        """Members that sent a heartbeat. One that starts later than the owner is not suspected wrongly before."""
        self._left: dict[ProcessId, int] = {}
        """The incarnation in which a member announced that it leaves: its later heartbeats of that incarnation do not
        count."""

    # The methods below return the new leader if it has changed, and None otherwise.

    def start(self, incarnation: int, joins: bool = False) -> ProcessId | None:
        """Starts an incarnation of the owner; `joins` if its group ran before it was a member. A restarted member
        follows another one from the beginning: if it took itself for the leader until the first heartbeat came, it
        would depose the leader that the group has elected meanwhile."""
        self.incarnation = self._incarnations[self.owner.me] = incarnation
        self._since[self.owner.me] = self.owner.now if incarnation > 0 or joins else 0
        if self.others:
            self._send_heartbeat()
            for member in self.others:
                self._restart_timeout(member)
        return self._elect()

    def handle_heartbeat(self, sender: ProcessId, body: Heartbeat) -> ProcessId | None:
        if sender not in self._incarnations or self._left.get(sender, -1) >= body.incarnation:
            return None
        if sender in self._suspected:
            self._suspected.discard(sender)
            if body.incarnation <= self._incarnations[sender] and sender in self._met:
                # In a later incarnation it had crashed, and the suspicion was right.
                self._mistakes[sender] = min(self._count_mistakes(sender) + 1, MAX_DOUBLINGS), self.owner.now
        self._met.add(sender)
        if body.incarnation >= self._incarnations[sender]:
            self._incarnations[sender] = body.incarnation
            self._since[sender] = body.since_ns
        self._restart_timeout(sender)
        return self._elect()

    def handle_farewell(self, sender: ProcessId, body: Farewell) -> ProcessId | None:
        if body.incarnation < self._incarnations.get(sender, body.incarnation + 1):
            return None
        self._left[sender] = body.incarnation
        self._suspected.add(sender)
        self.owner.cancel_timer(f"{TIMEOUT_PREFIX}{sender}")
        self.owner.note("left", value=float(sender))
        return self._elect()

    def handle_timer(self, name: str) -> ProcessId | None:
        """A timer whose name begins with "omega" expired."""
        if name == HEARTBEAT_TIMER:
            self._send_heartbeat()
            return None
        return self.suspect(int(name.removeprefix(TIMEOUT_PREFIX)))

    def suspect(self, member: ProcessId) -> ProcessId | None:
        """Suspects a member that is silent, or whose address does not answer."""
        if member in self._suspected or member not in self.others:
            return None
        self._suspected.add(member)
        self.owner.note("suspected", value=float(member))
        return self._elect()

    def follow_members(self, members: tuple[ProcessId, ...]) -> None:
        """Follows a reconfiguration: watches new members and forgets removed ones."""
        me = self.owner.me
        new = [member for member in members if member not in self._incarnations]
        for member in [member for member in self.others if member not in members]:
            self.owner.cancel_timer(f"{TIMEOUT_PREFIX}{member}")
            for table in (self._incarnations, self._since, self._mistakes, self._left):
                table.pop(member, None)
            self._suspected.discard(member)
            self._met.discard(member)
        self.members = members
        self.others = tuple(member for member in members if member != me)
        for member in new:
            self._incarnations[member] = 0
            self._since[member] = self.owner.now
            self._restart_timeout(member)
        if new and len(self.others) == len(new):
            self._send_heartbeat()
        self._elect()

    def stop(self) -> None:
        """Stops watching: the owner is not a member any more."""
        for member in self.others:
            self.owner.cancel_timer(f"{TIMEOUT_PREFIX}{member}")
        self.owner.cancel_timer(HEARTBEAT_TIMER)
        self.members, self.others = (), ()
        self._incarnations = {}

    def announce_end(self) -> None:
        """Sends a last heartbeat, with what the owner found when it was compared, and a farewell behind it: the owner
        stops, and others need not wait for its silence."""
        self.owner.send_all(self.others, self._make_heartbeat())
        self.owner.send_all(self.others, Farewell(self.incarnation))

    def trusts(self, member: ProcessId) -> bool:
        """Whether a member is not suspected."""
        return member not in self._suspected

    def _make_heartbeat(self) -> Heartbeat:
        since_ns = self._since[self.owner.me]
        return Heartbeat(self.incarnation, since_ns, self._count_records(), self._make_report())

    def _send_heartbeat(self) -> None:
        self.owner.send_all(self.others, self._make_heartbeat())
        # All members send at the same instants of their clocks, so that each wakes up once for all heartbeats.
        heartbeat_ns = self.config.heartbeat_ns
        after_ns = heartbeat_ns - self.owner.now % heartbeat_ns
        if after_ns < heartbeat_ns // 2:
            after_ns += heartbeat_ns
        self.owner.set_timer(HEARTBEAT_TIMER, (after_ns, after_ns))

    def _restart_timeout(self, member: ProcessId) -> None:
        low, high = self.config.suspect_after_ns
        factor = 1 << self._count_mistakes(member)
        self.owner.set_timer(f"{TIMEOUT_PREFIX}{member}", (low * factor, high * factor))

    def _count_mistakes(self, member: ProcessId) -> int:
        """How many wrong suspicions are not forgiven."""
        count, at_ns = self._mistakes.get(member, (0, 0))
        return max(0, count - (self.owner.now - at_ns) // FORGIVE_NS)

    def _elect(self) -> ProcessId | None:
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
            tuple(sorted(self._met)),
        )

    def restore(self, state: OmegaState) -> None:
        self.incarnation = state.incarnation
        self.leader = state.leader
        self._incarnations = dict(state.incarnations)
        self._suspected.clear()
        self._suspected.update(state.suspected)
        self._mistakes = dict(state.mistakes)
        self._left = dict(state.left)
        self._met = set(state.met)
        self._since = dict(state.since)
        self.members = state.members
        self.others = tuple(member for member in self.members if member != self.owner.me)

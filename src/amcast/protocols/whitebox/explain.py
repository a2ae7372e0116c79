"""White-Box for operators: what a message waits for here, phase by phase, and who is late.

    text       the message itself is here
    stamped    the leader of every destination group has stamped it
    accepted   a majority of each of these groups has accepted the stamps (leaders count that)
    first      nothing that its leader stamped may come before it
    delivered  a follower delivers when its leader says so

Only what this process knows is told; the leader of its group knows more.
"""

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import MessageId, ProcessId
from amcast.parts.consensus.quorum import round_of
from amcast.protocols.whitebox.whitebox_order import Item
from amcast.protocols.whitebox.whitebox_repair import Repair


class Insight(Repair):
    """A member that can tell how it is."""

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._role,
            "epoch": round_of(self._epoch),
            "promised": round_of(self._promised),
            "leader": self._leader_of(self._epoch),
            "pending": len(self._pending),
            "clock": self._clock,
            "slowest": min(self._positions),
            "joined": int(self._role != "joining"),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._delivered:
            return [Phase("delivered", True, f"process {self.me} has delivered it")]
        item = self._pending.get(message)
        if item is None:
            return [Phase("text", False, f"process {self.me} has never heard of it")]
        groups = item.message.destinations
        told = [Phase("text", True, f"the message is here, for groups {list(groups)}")]
        missing = [group for group in groups if group not in item.accepts]
        if missing:
            late = tuple(member for group in missing for member in self.topology.members(group))
            return [*told, Phase("stamped", False, f"no stamp has come from the leaders of groups {missing}", late)]
        told.append(Phase("stamped", True, "the leader of every group has"))
        if not self._leading():
            leader = self._leader_of(self._promised)
            return [*told, Phase("delivered", False, f"process {leader} leads and has not said so", (leader,))]
        if item.final < 0:
            said = "no majority of every group has accepted the stamps"
            return [*told, Phase("accepted", False, said, self._silent(item))]
        return [*told, Phase("accepted", True, f"its final timestamp is {item.final}"), self._told_first(item)]

    def _silent(self, item: Item) -> tuple[ProcessId, ...]:
        """Whose word for the stamps that I heard has not come."""
        tally = item.tallies.get(item.ballots(), {})
        return tuple(
            member
            for group in item.message.destinations
            for place, member in enumerate(self.topology.members(group))
            if not tally.get(group, 0) >> place & 1
        )

    def _told_first(self, item: Item) -> Phase:
        older = sorted(
            id
            for bound, id in self._queue
            if id != item.id and id in self._pending and (bound, id) < (item.final, item.id)
        )
        if not older:
            return Phase("first", True, "nothing that is known comes before it")
        some = ", ".join(str(id) for id in older[:5])
        return Phase("first", False, f"{len(older)} messages may come before it and are not delivered: {some}")

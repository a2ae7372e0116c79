"""Groups that stamp, for operators: what a message waits for here, phase by phase, and who is late.

    text       the message itself is here
    ordered    the group's log has stamped it
    stamped    every destination group has told its stamp
    final      the final timestamp is known
    first      nothing that may come before it is undelivered
    delivered

Only what this process knows is told; another member may know more.
"""

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import MessageId
from amcast.parts.groups.stamps_memory import StampMemory, TimestampPending


class StampInsight(StampMemory):
    """A member that can tell how it is."""

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._paxos.role,
            "pending": len(self._waiting) + sum(not entry.delivered for entry in self._pending.values()),
            "clock": self._clock,
            "joined": int(self._paxos.joined()),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if self.has_delivered(message):
            return [Phase("delivered", True, f"process {self.me} has delivered it")]
        entry = self._pending.get(message)
        if entry is not None:
            groups = list(entry.message.destinations)
            return [
                Phase("text", True, f"the message is here, for groups {groups}"),
                Phase("ordered", True, f"the log of group {self.home} has stamped it {entry.own}"),
                *self._told_stamps(entry),
                self._told_first(message, entry),
            ]
        if message in self._waiting:
            return [
                Phase("text", True, f"the message is here, for groups {list(self._waiting[message].destinations)}"),
                Phase("ordered", False, f"the log of group {self.home} has not stamped it", self._fellows),
            ]
        stamped = sorted(self._early.get(message, ()))
        if stamped:
            return [Phase("text", False, f"groups {stamped} have stamped it; the message itself has not come")]
        return [Phase("text", False, f"process {self.me} has never heard of it")]

    def _told_stamps(self, entry: TimestampPending) -> list[Phase]:
        if entry.final:
            return [Phase("stamped", True, "every group has"), Phase("final", True, f"it is {entry.final}")]
        missing = [group for group in entry.message.destinations if group not in entry.heard]
        if missing:
            late = tuple(member for group in missing for member in self.topology.members(group))
            return [Phase("stamped", False, f"no stamp has come from groups {missing}", late)]
        said = f"the log of group {self.home} does not have every stamp"
        return [Phase("stamped", True, "every group has"), Phase("final", False, said, self._fellows)]

    def _told_first(self, message: MessageId, entry: TimestampPending) -> Phase:
        rank = (entry.final or entry.own, message)
        older = sorted(
            id
            for id, other in self._pending.items()
            if id != message and not other.delivered and (other.final or other.own, id) < rank
        )
        if not older:
            return Phase("first", True, "nothing that is known comes before it")
        some = ", ".join(str(id) for id in older[:5])
        return Phase("first", False, f"{len(older)} messages may come before it and are not delivered: {some}")

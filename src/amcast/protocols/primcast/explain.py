"""PrimCast for operators: what a message waits for here, phase by phase, and who is late.

    text       the message itself is here
    proposed   every destination group's primary has stamped it
    decided    a majority of each of these groups has acknowledged its stamp: the final timestamp is known
    clocks     no later message can be stamped below it: my primary's clock and a majority's have passed it
    first      nothing that may come before it is still undecided
    delivered

Only what this process knows is told; another member may know more.
"""

from amcast.kernel.bundle import bundle_messages, is_bundle
from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.parts.consensus.quorum import place_of, round_of
from amcast.protocols.primcast.primcast_repair import Repair
from amcast.protocols.primcast.progress import Item


class Insight(Repair):
    """A member that can tell how it is."""

    __slots__ = ()

    def status(self) -> ProcessStatus:
        delivered = sorted(self._positions)
        return {
            "position": self.position,
            "role": self._role,
            "epoch": round_of(self._epoch),
            "promised": round_of(self._promised),
            "leader": self._leader_of(self._epoch),
            "pending": len(self._pending),
            "log": self._length - self._base,
            "undecided": self._length - self._decided,
            "clock": self._clock,
            "slowest": delivered[0],
            "joined": int(self._role != "joining"),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._delivered:
            return [Phase("delivered", True, f"process {self.me} has delivered it")]
        item = self._open_with(message)
        if item is None:
            return [Phase("text", False, f"process {self.me} has never heard of it", ())]
        told: list[Phase] = []
        if item.id != message:
            told.append(Phase("bundle", True, f"it travels in bundle {item.id}"))
        if item.message is None:
            heard = sorted(item.heard)
            told.append(Phase("text", False, f"groups {heard} have stamped it; the message itself has not come"))
            return told
        told.append(Phase("text", True, f"the message is here, for groups {list(item.message.destinations)}"))
        told += self._told_stamps(item)
        if item.final >= 0:
            told += self._told_order(item)
        return told

    def _open_with(self, message: MessageId) -> Item | None:
        """The open item that is this message, or a bundle with it."""
        item = self._pending.get(message)
        if item is not None:
            return item
        for item in self._pending.values():
            text = item.message
            if text is not None and is_bundle(item.id) and any(part.id == message for part in bundle_messages(text)):
                return item
        return None

    def _told_stamps(self, item: Item) -> list[Phase]:
        assert item.message is not None
        groups = item.message.destinations
        stamped = {*item.heard, *item.decided} | ({self.home} if item.index >= 0 else set())
        missing = [group for group in groups if group not in stamped]
        told = [Phase("proposed", True, "every group's primary has stamped it")]
        if missing:
            late = tuple(self._primary_of(group) for group in missing)
            told = [Phase("proposed", False, f"no stamp has come from the primaries of groups {missing}", late)]
        undecided = [group for group in groups if group not in item.decided]
        if not undecided:
            return [*told, Phase("decided", True, f"its final timestamp is {item.final}")]
        lagging = [member for group in undecided if group not in missing for member in self._silent(group, item)]
        said = f"no majority of groups {undecided} has acknowledged its stamp"
        return [*told, Phase("decided", False, said, tuple(lagging))]

    def _primary_of(self, group: GroupId) -> ProcessId:
        """As far as this process knows."""
        if group == self.home:
            return self._leader_of(self._epoch)
        return self.topology.members(group)[place_of(self._other(group).epoch)]

    def _silent(self, group: GroupId, item: Item) -> list[ProcessId]:
        """Members whose acknowledgement of the stamp has not come here."""
        view = self._view if group == self.home else self._other(group)
        epoch = self._epoch if group == self.home else view.epoch
        index = item.index
        if group != self.home:
            index = next((place for place, id, _ in view.waiting if id == item.id), -1)
        if index < 0:
            return []
        return [
            member
            for member, at, length in zip(view.members, view.epochs, view.lengths, strict=True)
            if at != epoch or length <= index
        ]

    def _told_order(self, item: Item) -> list[Phase]:
        """The final timestamp is known; what else stands before the delivery."""
        told: list[Phase] = []
        limit = self._limit()
        behind = tuple(
            member for member, clock in zip(self._members, self._clocks.snapshot(), strict=True) if clock < item.final
        )
        if limit >= item.final:
            told.append(Phase("clocks", True, f"clocks have passed {item.final}"))
        else:
            if self._leader_clock < item.final:
                behind = tuple(dict.fromkeys((self._leader_of(self._epoch), *behind)))
            told.append(Phase("clocks", False, f"clocks have reached {limit}, not {item.final}", behind))
        if not self._established or self._promised != self._epoch:
            told.append(
                Phase("epoch", False, f"epoch {self._promised} is not established; this member delivers nothing before")
            )
        older = [
            other.id
            for other in self._pending.values()
            if other.id != item.id and other.index >= 0 and (other.bound, other.id) < (item.final, item.id)
        ]
        if older:
            some = ", ".join(str(id) for id in sorted(older)[:5])
            told.append(
                Phase("first", False, f"{len(older)} messages may come before it and are not delivered: {some}")
            )
        else:
            told.append(Phase("first", True, "nothing that is known comes before it"))
        return told

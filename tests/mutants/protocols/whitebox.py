"""White-Box with one mistake each. Our checks must catch every one."""

from typing import Any

from amcast.protocols.whitebox.messages import NewLeaderAck
from amcast.protocols.whitebox.process import SPEC, WhiteBox
from amcast.protocols.whitebox.whitebox_order import Item
from tests.mutants.protocols.primcast import BARE, Mutant
from tests.protocols.whitebox import test_process as scenes


class FirstAckOnly(WhiteBox):
    """A new leader takes over what the first answer says, and not what all of a majority say."""

    def _begin(self, promises: list[NewLeaderAck]) -> None:
        super()._begin(promises[:1])


class PatchedClock(WhiteBox):
    """A new leader adds a constant to its own clock instead of taking the highest of a majority."""

    def _begin(self, promises: list[NewLeaderAck]) -> None:
        own = self._clock
        super()._begin([_clocked(promise, own + 1) for promise in promises])


def _clocked(promise: NewLeaderAck, clock: int) -> NewLeaderAck:
    return NewLeaderAck(
        promise.ballot,
        promise.current,
        clock,
        promise.position,
        promise.entries,
        promise.story,
        promise.memory_losses,
    )


class StaleClock(WhiteBox):
    """A member that accepts does not raise its clock to the other groups' timestamps."""

    def _consider(self, item: Item) -> None:
        clock = self._clock
        super()._consider(item)
        self._clock = clock


class Impatient(WhiteBox):
    """A leader delivers what is committed, whatever it stamped lower."""

    def _order(self) -> None:
        queue = self._queue
        self._queue = sorted((i.final, i.id) for _, id in queue if (i := self._pending.get(id)) and i.final >= 0)
        super()._order()
        self._queue = [(rank, id) for rank, id in queue if id in self._pending and not self._pending[id].ordered]


class NewStamps(WhiteBox):
    """A new leader gives accepted messages new timestamps."""

    def _lead(self) -> None:
        for item in self._pending.values():
            item.local = 0
        super()._lead()


class Gaps(WhiteBox):
    """A follower delivers whatever its leader tells next, and does not look at the position."""

    def _hear_delivery(self, body: Any) -> None:
        super()._hear_delivery(type(body)(body.ballot, self.position, body.deliveries))


class Forgetful(WhiteBox):
    """Nothing is made durable before it is said."""

    def _make_durable(self) -> None:
        self._undurable = []


class Shameless(WhiteBox):
    """A member that lost its memory votes at once."""

    def _start_joining(self) -> None:
        self._is_lagging = True


MUTANTS = [
    Mutant("first ack only", FirstAckOnly, "merge of one answer", "leaders", BARE, range(40), SPEC),
    Mutant("patched clock", PatchedClock, "clock by a constant", spec=SPEC, scene=scenes.a_candidate_behind),
    Mutant("stale clock", StaleClock, "no clock update", spec=SPEC, scene=scenes.a_candidate_behind),
    Mutant("impatient", Impatient, "no blocking", "none", BARE, range(40), SPEC),
    Mutant("new stamps", NewStamps, "no re-accept", "leaders", BARE, range(40), SPEC),
    Mutant("gaps", Gaps, "positions ignored", "links", {}, range(60), SPEC),
    Mutant("forgetful", Forgetful, "no record before an answer", "recovery", {}, range(40), SPEC),
    Mutant("shameless", Shameless, "no re-admission", "amnesia", {}, range(100), SPEC),
]

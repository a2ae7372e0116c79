"""The replicated-group adapter with channels that lose, double or overtake. Searches must find every one of them."""

from dataclasses import replace
from typing import Any, Final

from amcast.kernel.spec import Spec
from amcast.parts.consensus.messages import Entry
from amcast.parts.groups.replicated import GROUP_MESSAGE, ReplicatedGroup
from amcast.protocols.ring.messages import End, Pass, RingState
from amcast.protocols.ring.process import SPEC, Ring


class NotSentAgain(ReplicatedGroup):
    """What a leader said is gone with it."""

    def _send_again(self, *arguments: Any) -> None:
        pass


class TakenTwice(ReplicatedGroup):
    """A body that two leaders proposed is fed to the protocol twice."""

    def _enter(self, entry: Entry) -> None:
        if entry.kind == GROUP_MESSAGE and entry.timestamp < self._taken.get(entry.group, 0):
            self._taken[entry.group] = entry.timestamp
        super()._enter(entry)


class Overtaken(ReplicatedGroup):
    """A body is taken although the one before it was not."""

    def _enter(self, entry: Entry) -> None:
        if entry.kind == GROUP_MESSAGE and entry.timestamp > self._taken.get(entry.group, 0):
            self._taken[entry.group] = entry.timestamp
        super()._enter(entry)


class AskedTwice(ReplicatedGroup):
    """A client that asks again is served again."""

    def _enter(self, entry: Entry) -> None:
        if entry.kind != GROUP_MESSAGE:
            self._asked = type(self._asked)()
        super()._enter(entry)


def lifted(process: type[ReplicatedGroup]) -> Spec:
    """The ring, which notices everything, in groups whose adapter is a mutant."""

    def make(me: Any, topology: Any, config: Any) -> ReplicatedGroup:
        return process(me, topology, config, Ring, (Pass, End), RingState)

    return replace(SPEC, process=make)


MUTANTS: Final = (NotSentAgain, TakenTwice, Overtaken, AskedTwice)

"""Mutants of replicated groups whose channels lose, duplicate or reorder bodies. Searches must find every one."""

from dataclasses import replace
from typing import Any, Final

from amcast.kernel.spec import Spec
from amcast.parts.consensus.messages import Entry
from amcast.parts.groups.replicated import GROUP_MESSAGE, ReplicatedGroup
from amcast.protocols.ring.messages import End, Pass, RingState
from amcast.protocols.ring.process import SPEC, Ring


class NoResend(ReplicatedGroup):
    """Bodies of a leader are lost with it."""

    def _resend(self, *arguments: Any) -> None:
        pass


class DuplicateBody(ReplicatedGroup):
    """Accepts a body twice if two leaders proposed it."""

    def _apply_entry(self, entry: Entry) -> None:
        if entry.kind == GROUP_MESSAGE and entry.timestamp < self._received.get(entry.group, 0):
            self._received[entry.group] = entry.timestamp
        super()._apply_entry(entry)


class ReorderedBody(ReplicatedGroup):
    """Accepts a body before its predecessor."""

    def _apply_entry(self, entry: Entry) -> None:
        if entry.kind == GROUP_MESSAGE and entry.timestamp > self._received.get(entry.group, 0):
            self._received[entry.group] = entry.timestamp
        super()._apply_entry(entry)


class DuplicateRequest(ReplicatedGroup):
    """Orders a request again if the client retries."""

    def _apply_entry(self, entry: Entry) -> None:
        if entry.kind != GROUP_MESSAGE:
            self._ordered = type(self._ordered)()
        super()._apply_entry(entry)


def make_ring_spec(process: type[ReplicatedGroup]) -> Spec:
    """The ring protocol, which detects any violation of its channels, in groups with a mutated replication."""

    def make(me: Any, topology: Any, config: Any) -> ReplicatedGroup:
        return process(me, topology, config, Ring, (Pass, End), RingState)

    return replace(SPEC, process=make)


MUTANTS: Final = (NoResend, DuplicateBody, ReorderedBody, DuplicateRequest)

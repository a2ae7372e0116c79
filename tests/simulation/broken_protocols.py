"""Protocols with planted bugs, by name for commands and campaigns: `tests.simulation.broken_protocols:NAME`."""

from dataclasses import replace
from typing import Any

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import Voted
from amcast.protocols.multipaxos.process import SPEC, MultiPaxos


class ForgetfulMultiPaxos(MultiPaxos):
    """Votes are never durable."""

    def persist(self, record: Record, replaces: bool = False, after_deliveries: bool = False) -> None:
        if not isinstance(record, Voted):
            super().persist(record, replaces, after_deliveries)


def _make(me: ProcessId, topology: Topology, config: Any) -> Process:
    return ForgetfulMultiPaxos(me, topology, config)


FORGETFUL = replace(SPEC, name="forgetful", process=_make)

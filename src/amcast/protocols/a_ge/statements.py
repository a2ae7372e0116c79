"""What bodies of A_ge state (`kernel/statements.py`)."""

from dataclasses import replace
from typing import Any

from amcast.kernel.ids import ProcessId
from amcast.kernel.statements import Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.groups.statements import build_timestamp_table
from amcast.protocols.a_ge.messages import GroupTransfer


def build_a_ge_table(topology: Topology, config: Any) -> StatementTable:
    table = build_timestamp_table(topology, config)
    return replace(table, bodies={**table.bodies, GroupTransfer: _state_transfer})


def _state_transfer(listener: Listener, source: ProcessId, body: GroupTransfer) -> None:
    for message, timestamp in body.timestamps:
        listener.agree(source, f"group {body.group}'s timestamp of message", message, timestamp)

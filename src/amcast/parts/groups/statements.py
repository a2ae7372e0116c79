"""What bodies between replicated groups, and between groups that agree on timestamps, state (`kernel/statements.py`).

Each group has a log of its own, so the statements of Paxos are among them.
"""

from dataclasses import replace
from typing import Any

from amcast.kernel.ids import ProcessId
from amcast.kernel.statements import Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus.statements import build_group_paxos_table
from amcast.parts.groups.replicated_messages import GroupMessage
from amcast.parts.groups.timestamped_messages import FinalReply, GroupTimestamp


def build_timestamp_table(topology: Topology, config: Any) -> StatementTable:
    """The table of BaseCast, FastCast and A_ge."""
    table = build_group_paxos_table(topology, config)
    return replace(table, bodies={**table.bodies, GroupTimestamp: _state_timestamp, FinalReply: _state_finals})


def _state_timestamp(listener: Listener, source: ProcessId, body: GroupTimestamp) -> None:
    listener.agree(source, f"group {body.group}'s timestamp of message", body.message, body.timestamp)


def _state_finals(listener: Listener, source: ProcessId, body: FinalReply) -> None:
    for message, final in body.finals:
        listener.agree(source, "the final timestamp of message", message, final)


def build_replicated_table(topology: Topology, config: Any) -> StatementTable:
    """The table of protocols that `parts/groups/replicated.py` runs in groups of several."""
    table = build_group_paxos_table(topology, config)

    def state_group_message(listener: Listener, source: ProcessId, body: GroupMessage) -> None:
        channel = (body.group, topology.group_of(listener.targets[0]), body.number)
        listener.agree(source, "body on the channel (from, to, number)", channel, body.body)

    return replace(table, bodies={**table.bodies, GroupMessage: state_group_message})

"""What bodies between replicated groups, and between groups that agree on timestamps, state (`kernel/statements.py`).

Each group has a log of its own, so the statements of Paxos are among them.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import msgspec

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import State
from amcast.kernel.statements import Domain, Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus.statements import build_group_paxos_table
from amcast.parts.groups.leader_group_messages import DeliveredPrefix
from amcast.parts.groups.replicated_messages import GroupMessage, ReplicatedState
from amcast.parts.groups.timestamped_messages import FinalReply, GroupTimestamp, TimestampState

LOG_STATE = "the state of (group, length of the log)"


def build_timestamp_table(topology: Topology, config: Any) -> StatementTable:
    """The table of BaseCast, FastCast and A_ge."""
    table = build_group_paxos_table(topology, config)

    def state_log(listener: Listener, source: ProcessId, state: TimestampState) -> None:
        """The log alone determines the clock, what is ordered, and what it has of timestamps that are not final."""
        checkpoint = state.checkpoint
        open_messages = [(one.message.id, one.own, one.logged) for one in checkpoint.pending if not one.is_final_logged]
        log = (topology.group_of(source), state.paxos.log.decided_until)
        listener.agree(source, LOG_STATE, log, (checkpoint.clock, checkpoint.ordered, tuple(open_messages)))

    return replace(
        table,
        bodies={**table.bodies, GroupTimestamp: _state_timestamp, FinalReply: _state_finals},
        states={TimestampState: state_log},
    )


def _state_timestamp(listener: Listener, source: ProcessId, body: GroupTimestamp) -> None:
    listener.agree(source, f"group {body.group}'s timestamp of message", body.message, body.timestamp)


def _state_finals(listener: Listener, source: ProcessId, body: FinalReply) -> None:
    for message, final in body.finals:
        listener.agree(source, "the final timestamp of message", message, final)


def make_replicated_table(
    inner: type[State], describe: Callable[[Any], Hashable] | None = None
) -> Callable[[Topology, Any], StatementTable]:
    """The table of a protocol that `parts/groups/replicated.py` runs in groups of several; `inner`: its state, of which
    `describe` keeps what follows from the log. By default that is all but fields of time."""
    describe = describe or _drop_times
    decode = msgspec.msgpack.Decoder(inner).decode

    def build_table(topology: Topology, config: Any) -> StatementTable:
        table = build_group_paxos_table(topology, config)

        def state_group_message(listener: Listener, source: ProcessId, body: GroupMessage) -> None:
            channel = (body.group, topology.group_of(listener.targets[0]), body.number)
            listener.agree(source, "body on the channel (from, to, number)", channel, body.body)

        def state_log(listener: Listener, source: ProcessId, state: ReplicatedState) -> None:
            """The log alone determines the state of the inner protocol, and what it has received and sent."""
            one = state.checkpoint
            log = (topology.group_of(source), state.paxos.log.decided_until)
            content = (describe(decode(one.inner)), one.ordered, one.delivered, one.received, one.sent)
            listener.agree(source, LOG_STATE, log, content)

        return replace(
            table,
            bodies={**table.bodies, GroupMessage: state_group_message},
            states={ReplicatedState: state_log},
        )

    return build_table


def _drop_times(value: Any) -> Any:
    """A state without local times, which differ."""
    if isinstance(value, tuple):
        return tuple([_drop_times(one) for one in value])
    if not isinstance(value, msgspec.Struct):
        return value
    return tuple([_drop_times(getattr(value, name)) for name in value.__struct_fields__ if not name.endswith("_ns")])


def state_delivered(
    listener: Listener, source: ProcessId, domain: Domain, position: int, prefix: DeliveredPrefix
) -> None:
    """Members of one group have delivered the same before a position, whoever told them."""
    content = (prefix.time, prefix.tie, prefix.delivered)
    listener.agree(source, f"what {domain.name} delivers before position", position, content)

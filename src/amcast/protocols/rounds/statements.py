"""What the bodies of the round-based protocols state (`kernel/statements.py`)."""

from dataclasses import replace
from typing import Any

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.statements import Domain, Listener, StateBody, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.broadcast.messages import TOP, Ack, Frozen, GlobalPaxos, Item
from amcast.parts.consensus.messages import Accept
from amcast.parts.consensus.statements import build_body_statements, build_group_paxos_table, make_group_domains
from amcast.protocols.rounds.messages import ADtState, ANgState, DurableRound, RoundBatch, RoundsCore


def _state_core(listener: Listener, source: ProcessId, group: GroupId | None, core: RoundsCore) -> None:
    """The log of a group and the rounds of all determine what is ordered and delivered."""
    at = (group, core.instance, core.round)
    content = (core.position, tuple([one.id for one in core.collected]), core.ordered, core.delivered)
    listener.agree(source, "the state of (group, instance, round)", at, content)


def build_a_ng_table(topology: Topology, config: Any) -> StatementTable:
    """Groups with logs, which exchange batches."""
    table = build_group_paxos_table(topology, config)
    domains = make_group_domains(topology)

    def state_durable(listener: Listener, source: ProcessId, body: DurableRound) -> None:
        listener.reach(domains[source], source, "durable round", body.round)

    def state_batch(listener: Listener, source: ProcessId, body: RoundBatch) -> None:
        batch = (body.round, body.group, topology.group_of(listener.targets[0]))
        listener.agree(source, "batch (round, from, to)", batch, tuple([message.id for message in body.messages]))
        domain = domains[topology.members(body.group)[0]]
        if len(domain.members) > 1:  # the only member tells nobody what is durable
            listener.claim(domain, source, "durable round", body.safe)

    def state_snapshot(listener: Listener, source: ProcessId, state: ANgState) -> None:
        _state_core(listener, source, topology.group_of(source), state.base.core)

    bodies: dict[type[Body], StateBody] = {DurableRound: state_durable, RoundBatch: state_batch}
    return replace(table, bodies={**table.bodies, **bodies}, states={ANgState: state_snapshot})


def build_a_dt_table(topology: Topology, config: Any) -> StatementTable:
    """Groups with logs, and generic broadcast among all servers. Processes do not recover, so what the broadcast
    states need not be durable."""
    table = build_group_paxos_table(topology, config)
    everybody = Domain("all servers", topology.servers, is_durable=False)
    places = {stream: place for place, stream in enumerate(topology.groups)}
    statements = build_body_statements(lambda process: everybody)

    def state_global(listener: Listener, source: ProcessId, body: GlobalPaxos) -> None:
        inner = body.body
        state = statements.get(type(inner))
        if state is not None:
            state(listener, source, inner)
        if type(inner) is Accept:
            ends = {places[entry.group]: entry.timestamp for entry in inner.value if entry.kind == TOP}
            listener.end_epoch(everybody, source, inner.instance, ends)

    def state_ack(listener: Listener, source: ProcessId, body: Ack) -> None:
        listener.acknowledge(everybody, source, body.epoch, body.tops)

    def state_frozen(listener: Listener, source: ProcessId, body: Frozen) -> None:
        listener.freeze(everybody, source, body.epoch, body.tops)

    def state_item(listener: Listener, source: ProcessId, body: Item) -> None:
        content = tuple([message.id for message in body.messages])
        listener.agree(source, "item (stream, number)", (body.stream, body.number), content)

    def state_snapshot(listener: Listener, source: ProcessId, state: ADtState) -> None:
        _state_core(listener, source, topology.group_of(source), state.base.core)

    bodies: dict[type[Body], StateBody] = {
        GlobalPaxos: state_global,
        Ack: state_ack,
        Frozen: state_frozen,
        Item: state_item,
    }
    return replace(table, bodies={**table.bodies, **bodies}, states={ADtState: state_snapshot})

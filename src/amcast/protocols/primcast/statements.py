"""What PrimCast's bodies and records state (`kernel/statements.py`). A slot is an index of a group's log."""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.kernel.statements import Domain, Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus.statements import make_group_domains, make_probe
from amcast.parts.groups.leader_group_messages import Entry
from amcast.protocols.primcast.messages import (
    Ack,
    CatchUp,
    Checkpoint,
    Decided,
    NewEpoch,
    NewState,
    PrimCastConfig,
    Progress,
    Promise,
    Propose,
    Sync,
)

FINAL = "the final timestamp of message"


def build_statement_table(topology: Topology, config: PrimCastConfig) -> StatementTable:
    return PrimCastStatements(topology).build_table()


class PrimCastStatements:
    """Translates bodies and records of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._domains = make_group_domains(topology)
        self._by_group = {topology.group_of(member): domain for member, domain in self._domains.items()}

    def build_table(self) -> StatementTable:
        return StatementTable(
            bodies={
                Ack: self._state_ack,
                Propose: self._state_propose,
                Promise: self._state_promise,
                NewState: self._state_new_state,
                Decided: self._state_decided,
                Sync: self._state_sync,
                CatchUp: self._state_catch_up,
            },
            records={Progress: self._state_progress, Checkpoint: self._state_checkpoint},
            probe=make_probe(self._domains.get, self._ask),
        )

    def _state_ack(self, listener: Listener, source: ProcessId, ack: Ack) -> None:
        domain = self._domains[source]
        listener.hold(domain, source, ack.epoch, ack.length)
        listener.publish_clock(domain, source, ack.epoch, ack.clock)
        listener.reach(domain, source, "position", ack.position)
        listener.reach(domain, source, "memory losses", ack.memory_losses)

    def _state_propose(self, listener: Listener, source: ProcessId, body: Propose) -> None:
        domain = self._domains[source]
        for index, id, timestamp in body.proposals:
            listener.propose(domain, source, body.ack.epoch, index, timestamp, id, timestamp)
        self._state_ack(listener, source, body.ack)
        for position, id, final in body.notices:
            listener.agree(source, f"delivery of {domain.name}", position, (id, final))
            listener.agree(source, FINAL, id, final)

    def _state_promise(self, listener: Listener, source: ProcessId, body: Promise) -> None:
        domain = self._domains[source]
        held = (body.current, body.base + len(body.entries))
        listener.publish_clock(domain, source, body.current, body.clock)
        listener.reach(domain, source, "memory losses", body.memory_losses)
        listener.promise(domain, source, body.epoch)
        entries = _list_slots(body.base, body.entries)
        listener.report_state(domain, source, body.epoch, held, body.clock, entries, body.memory_losses)
        listener.claim(domain, source, "position", body.floor)
        _state_entries(listener, domain, source, body.current, body.base, body.entries)

    def _state_new_state(self, listener: Listener, source: ProcessId, body: NewState) -> None:
        domain = self._domains[source]
        length = body.base + len(body.entries)
        entries = _list_slots(body.base, body.entries)
        listener.start_ballot(domain, source, body.epoch, length, body.clock, entries)
        listener.claim(domain, source, "position", body.floor)
        _state_entries(listener, domain, source, body.epoch, body.base, body.entries)

    def _state_decided(self, listener: Listener, source: ProcessId, body: Decided) -> None:
        listener.decide_timestamp(self._by_group[body.group], source, body.id, body.timestamp)

    def _state_sync(self, listener: Listener, source: ProcessId, body: Sync) -> None:
        if body.epoch >= 0:
            listener.reach(self._domains[source], source, "position", body.position)

    def _state_catch_up(self, listener: Listener, source: ProcessId, body: CatchUp) -> None:
        domain = self._domains[source]
        for position, delivery in enumerate(body.deliveries, body.first):
            id = delivery.message.id
            listener.agree(source, f"delivery of {domain.name}", position, (id, delivery.final))
            listener.agree(source, FINAL, id, delivery.final)
            listener.decide_timestamp(domain, source, id, delivery.timestamp)

    def _state_progress(self, listener: Listener, source: ProcessId, record: Progress) -> None:
        domain = self._domains[source]
        listener.promise(domain, source, record.promised)
        listener.publish_clock(domain, source, -1, record.clock)
        listener.hold(domain, source, -1, record.first + len(record.entries))

    def _state_checkpoint(self, listener: Listener, source: ProcessId, record: Checkpoint) -> None:
        domain = self._domains[source]
        listener.promise(domain, source, record.promised)
        listener.publish_clock(domain, source, record.epoch, record.clock)
        listener.hold(domain, source, record.epoch, record.base + len(record.entries))

    def _ask(self, epoch: int, _: int) -> Body:
        return NewEpoch(epoch)


def _state_entries(
    listener: Listener, domain: Domain, source: ProcessId, epoch: int, base: int, entries: tuple[Entry, ...]
) -> None:
    for index, entry in enumerate(entries, base):
        listener.propose(domain, source, epoch, index, entry.timestamp, entry.message.id)


def _list_slots(base: int, entries: tuple[Entry, ...]) -> dict[int, tuple[int, int]]:
    return {index: (entry.message.id, entry.timestamp) for index, entry in enumerate(entries, base)}

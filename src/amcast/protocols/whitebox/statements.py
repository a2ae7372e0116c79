"""What White-Box's bodies and records state (`kernel/statements.py`). A slot is a message, its value the timestamp."""

from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.statements import Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus.statements import make_group_domains, make_probe
from amcast.parts.groups.leader_group_messages import Entry
from amcast.protocols.whitebox.messages import (
    Accept,
    AcceptAck,
    CatchUp,
    Checkpoint,
    Decided,
    Delivery,
    DeliveryHistory,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Progress,
    Sync,
    WhiteBoxConfig,
)

FINAL = "the final timestamp of message"


def build_statement_table(topology: Topology, config: WhiteBoxConfig) -> StatementTable:
    return WhiteBoxStatements(topology).build_table()


class WhiteBoxStatements:
    """Translates bodies and records of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._domains = make_group_domains(topology)
        self._by_group = {topology.group_of(member): domain for member, domain in self._domains.items()}

    def build_table(self) -> StatementTable:
        return StatementTable(
            bodies={
                Accept: self._state_accept,
                AcceptAck: self._state_accept_ack,
                Delivery: self._state_delivery,
                NewLeaderAck: self._state_promise,
                NewState: self._state_new_state,
                NewStateAck: self._state_new_state_ack,
                Decided: self._state_decided,
                Sync: self._state_sync,
                CatchUp: self._state_catch_up,
            },
            records={Progress: self._state_progress, Checkpoint: self._state_checkpoint},
            probe=make_probe(self._domains.get, self._ask),
        )

    def _state_accept(self, listener: Listener, source: ProcessId, body: Accept) -> None:
        domain = self._domains[source]
        listener.claim(domain, source, "rank", (body.time, body.tie) if body.time else None)
        for entry in body.entries:
            listener.know(entry.message)
            listener.propose(
                domain, source, body.ballot, entry.message.id, entry.timestamp, entry.message.id, entry.timestamp
            )

    def _state_accept_ack(self, listener: Listener, source: ProcessId, body: AcceptAck) -> None:
        domain = self._domains[source]
        listener.reach(domain, source, "position", body.position)
        listener.reach(domain, source, "rank", (body.time, body.tie))
        listener.reach(domain, source, "memory losses", body.memory_losses)
        own = self._topology.group_of(source)
        for id, ballots in body.acks:
            groups = listener.find_destinations(id)
            if own not in groups:
                continue  # a message whose proposal the listener did not hear
            if len(ballots) < len(groups):
                listener.vote(domain, source, ballots[0], id)  # the own leader told the final timestamp
                continue
            ballot = ballots[groups.index(own)]
            listener.vote(domain, source, ballot, id)
            for group, other in zip(groups, ballots, strict=True):
                timestamp = listener.find_proposal(self._by_group[group], other, id)
                if timestamp is not None:
                    listener.raise_clock(domain, source, ballot, timestamp)

    def _state_delivery(self, listener: Listener, source: ProcessId, body: Delivery) -> None:
        for position, (id, final) in enumerate(body.deliveries, body.first):
            listener.order(self._domains[source], source, body.ballot, id)
            self._state_delivered(listener, source, position, id, final)

    def _state_history(self, listener: Listener, source: ProcessId, history: DeliveryHistory) -> None:
        for position, delivered in enumerate(history.deliveries, history.first):
            self._state_delivered(listener, source, position, delivered.message.id, delivered.final)

    def _state_delivered(self, listener: Listener, source: ProcessId, position: int, id: MessageId, final: int) -> None:
        listener.agree(source, f"delivery of {self._domains[source].name}", position, (id, final))
        listener.agree(source, FINAL, id, final)

    def _state_promise(self, listener: Listener, source: ProcessId, body: NewLeaderAck) -> None:
        domain = self._domains[source]
        listener.publish_clock(domain, source, body.current, body.clock)
        listener.reach(domain, source, "position", body.position)
        listener.reach(domain, source, "memory losses", body.memory_losses)
        listener.promise(domain, source, body.ballot)
        entries = _list_slots(body.entries)
        held = (body.current, 0)
        listener.report_state(domain, source, body.ballot, held, body.clock, entries, body.memory_losses)
        for id, timestamp in entries.items():
            listener.propose(domain, source, body.current, id, timestamp, id)
        self._state_history(listener, source, body.history)

    def _state_new_state(self, listener: Listener, source: ProcessId, body: NewState) -> None:
        domain = self._domains[source]
        entries = _list_slots(body.entries)
        listener.start_ballot(domain, source, body.ballot, 0, body.clock, entries)
        for entry in body.entries:
            listener.know(entry.message)
        for id, timestamp in entries.items():
            listener.propose(domain, source, body.ballot, id, timestamp, id)
        self._state_history(listener, source, body.history)

    def _state_new_state_ack(self, listener: Listener, source: ProcessId, body: NewStateAck) -> None:
        listener.hold(self._domains[source], source, body.ballot, 0)

    def _state_decided(self, listener: Listener, source: ProcessId, body: Decided) -> None:
        listener.agree(source, FINAL, body.id, body.final)

    def _state_sync(self, listener: Listener, source: ProcessId, body: Sync) -> None:
        if body.ballot >= 0:
            listener.reach(self._domains[source], source, "position", body.position)

    def _state_catch_up(self, listener: Listener, source: ProcessId, body: CatchUp) -> None:
        self._state_history(listener, source, body.history)

    def _state_progress(self, listener: Listener, source: ProcessId, record: Progress) -> None:
        domain = self._domains[source]
        listener.promise(domain, source, record.promised)
        listener.publish_clock(domain, source, -1, record.clock)
        for entry in record.accepted:
            listener.vote(domain, source, -1, entry.message.id)
        for delivered in record.delivered:
            listener.settle_slot(domain, source, delivered.message.id)

    def _state_checkpoint(self, listener: Listener, source: ProcessId, record: Checkpoint) -> None:
        domain = self._domains[source]
        listener.promise(domain, source, record.promised)
        listener.publish_clock(domain, source, record.epoch, record.clock)
        listener.hold(domain, source, record.epoch, 0)
        for entry in record.entries:
            listener.vote(domain, source, record.epoch, entry.message.id)
        for delivered in record.history:
            listener.settle_slot(domain, source, delivered.message.id)

    def _ask(self, ballot: int, position: int) -> Body:
        return NewLeader(ballot, position)


def _list_slots(entries: tuple[Entry, ...]) -> dict[MessageId, int]:
    return {entry.message.id: entry.timestamp for entry in entries}

"""What White-Box's bodies and records state (`kernel/statements.py`). A slot is a message, its value the timestamp."""

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.statements import Answers, Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import place_of
from amcast.parts.consensus.statements import make_group_domains, make_probe
from amcast.parts.groups.leader_group_messages import AdmissionVote, Entry, Nack
from amcast.parts.groups.statements import state_delivered
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
    Retry,
    Sync,
    WhiteBoxConfig,
    WhiteBoxState,
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
                NewLeader: self._state_new_leader,
                NewLeaderAck: self._state_promise,
                NewState: self._state_new_state,
                NewStateAck: self._state_new_state_ack,
                Decided: self._state_decided,
                Sync: self._state_sync,
                CatchUp: self._state_catch_up,
                AdmissionVote: self._state_admission_vote,
            },
            records={Progress: self._state_progress, Checkpoint: self._state_checkpoint},
            delivery=self._state_own_delivery,
            states={WhiteBoxState: self._state_snapshot},
            losses={Accept: lambda body: body.memory_losses, AcceptAck: lambda body: body.memory_losses},
            duties={Retry: self._owe_answer, Accept: self._owe_refusal},
            has_first_record=True,
            probe=make_probe(self._domains.get, self._ask),
        )

    def _state_accept(self, listener: Listener, source: ProcessId, body: Accept) -> None:
        domain = self._domains[source]
        listener.claim(domain, source, "rank", (body.time, body.tie) if body.time else None)
        listener.lead_with_losses(domain, source, body.ballot, body.memory_losses)
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
                # The own leader told the final timestamp.
                listener.vote(domain, source, ballots[0], id, True, body.memory_losses)
                continue
            ballot = ballots[groups.index(own)]
            listener.vote(domain, source, ballot, id, True, body.memory_losses)
            for group, other in zip(groups, ballots, strict=True):
                timestamp = listener.find_proposal(self._by_group[group], other, id)
                if timestamp is not None:
                    listener.raise_clock(domain, source, ballot, timestamp)

    def _state_delivery(self, listener: Listener, source: ProcessId, body: Delivery) -> None:
        """A leader orders messages by their final timestamps, and gives higher ones from then on."""
        listener.pass_own_clock(source, max(final for _, final in body.deliveries))
        for position, (id, final) in enumerate(body.deliveries, body.first):
            listener.order(self._domains[source], source, body.ballot, id)
            self._state_delivered(listener, source, position, id, final)

    def _state_own_delivery(self, listener: Listener, source: ProcessId, delivery: Deliver) -> None:
        """Some leader counted, in every destination, a majority that accepted the message in one ballot; it counted
        nobody of whom another one knew that it has lost its memory since."""
        for group in delivery.message.destinations:
            listener.count_votes(self._by_group[group], source, delivery.message.id)

    def _state_snapshot(self, listener: Listener, source: ProcessId, state: WhiteBoxState) -> None:
        """Who hears that a member of any group has lost its memory forgets what it accepted before."""
        losses = dict(state.remote_memory_losses)
        home = self._topology.group_of(source)
        assert home is not None, f"process {source} is a client"
        losses[home] = state.checkpoint.memory_losses
        state_delivered(listener, source, self._by_group[home], state.member.position, state.checkpoint.prefix)
        for pending in state.pending:
            id, groups = pending.message.id, pending.message.destinations
            for ballots, acks in pending.acks:
                for group, voters in acks:
                    if not voters:
                        continue
                    ballot = ballots[groups.index(group)] if len(ballots) == len(groups) else ballots[0]
                    domain = self._by_group[group]
                    for place, member in enumerate(domain.members):
                        if voters >> place & 1 and member != source:
                            loss = losses[group][place] if group in losses else 0
                            listener.rely_on_vote(domain, source, member, ballot, id, loss)

    def _owe_answer(self, listener: Listener, process: ProcessId, sender: ProcessId, body: Retry) -> Answers | None:
        """A group answers for a delivered message until a majority of each other destination has delivered it."""
        domain, id = self._domains.get(sender), body.message.id
        if domain is None or domain is self._domains[process] or not listener.may_be_asked(domain, process, id):
            return None
        return lambda answer: type(answer) is Decided and answer.id == id

    def _owe_refusal(self, listener: Listener, process: ProcessId, sender: ProcessId, body: Accept) -> Answers | None:
        """A deposed leader is told so by every member that has promised a higher ballot."""
        domain = self._domains[process]
        if sender not in domain.places or domain.members[place_of(body.ballot)] != sender:
            return None
        return _is_nack if listener.has_promised_above(domain, process, body.ballot) else None

    def _state_new_leader(self, listener: Listener, source: ProcessId, body: NewLeader) -> None:
        listener.stand(self._domains[source], source, body.ballot)

    def _state_history(self, listener: Listener, source: ProcessId, history: DeliveryHistory) -> None:
        for position, delivered in enumerate(history.deliveries, history.first):
            self._state_delivered(listener, source, position, delivered.message.id, delivered.final)

    def _state_delivered(self, listener: Listener, source: ProcessId, position: int, id: MessageId, final: int) -> None:
        listener.agree(source, f"delivery of {self._domains[source].name}", position, (id, final))
        listener.agree(source, FINAL, id, final)

    def _state_admission_vote(self, listener: Listener, source: ProcessId, body: AdmissionVote) -> None:
        listener.admit(self._domains[source], source, body.memory_loss, body.clock)

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
        listener.lead_with_losses(domain, source, body.ballot, body.memory_losses)
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
        listener.retain(source, record.history_start)
        for entry in record.entries:
            listener.vote(domain, source, record.epoch, entry.message.id)
        for delivered in record.history:
            listener.settle_slot(domain, source, delivered.message.id)

    def _ask(self, ballot: int, position: int) -> Body:
        return NewLeader(ballot, position)


def _list_slots(entries: tuple[Entry, ...]) -> dict[MessageId, int]:
    return {entry.message.id: entry.timestamp for entry in entries}


def _is_nack(answer: Body) -> bool:
    return type(answer) is Nack

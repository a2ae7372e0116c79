"""What PrimCast's bodies and records state (`kernel/statements.py`). A slot is an index of a group's log."""

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.kernel.statements import Answers, Domain, Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import place_of
from amcast.parts.consensus.statements import make_group_domains, make_probe
from amcast.parts.groups.leader_group_messages import AdmissionVote, Entry, Nack
from amcast.parts.groups.statements import state_delivered
from amcast.protocols.primcast.messages import (
    Ack,
    CatchUp,
    Checkpoint,
    Decided,
    DeliveryNotice,
    NewEpoch,
    NewState,
    Offer,
    PrimCastConfig,
    PrimCastState,
    Progress,
    Promise,
    Proposal,
    Propose,
    Query,
    Start,
    Sync,
)

FINAL = "the final timestamp of message"


def build_statement_table(topology: Topology, config: PrimCastConfig) -> StatementTable:
    return PrimCastStatements(topology).build_table(config.records)


class PrimCastStatements:
    """Translates bodies and records of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._domains = make_group_domains(topology)
        self._by_group = {topology.group_of(member): domain for member, domain in self._domains.items()}

    def build_table(self, has_records: bool) -> StatementTable:
        return StatementTable(
            bodies={
                Ack: self._state_ack,
                Propose: self._state_propose,
                Offer: self._state_offer,
                NewEpoch: self._state_new_epoch,
                Promise: self._state_promise,
                NewState: self._state_new_state,
                Decided: self._state_decided,
                Sync: self._state_sync,
                CatchUp: self._state_catch_up,
                AdmissionVote: self._state_admission_vote,
            },
            records={Progress: self._state_progress, Checkpoint: self._state_checkpoint},
            delivery=self._state_delivery,
            states={PrimCastState: self._state_snapshot},
            losses={Ack: lambda body: body.memory_losses, Propose: lambda body: body.ack.memory_losses},
            duties={Query: self._owe_answer, Propose: self._owe_refusal, Offer: self._owe_refusal},
            has_first_record=has_records,
            probe=make_probe(self._domains.get, self._ask),
        )

    def _state_ack(self, listener: Listener, source: ProcessId, ack: Ack) -> None:
        domain = self._domains[source]
        listener.hold(domain, source, ack.epoch, ack.length)
        listener.publish_clock(domain, source, ack.epoch, ack.clock)
        listener.reach(domain, source, "position", ack.position)
        listener.reach(domain, source, "rank", (ack.time, ack.tie))
        listener.reach(domain, source, "memory losses", ack.memory_losses)
        leads = domain.members[place_of(ack.epoch)] == source
        listener.limit_timestamps(domain, source, ack.epoch, ack.clock, ack.memory_losses, leads)

    def _state_delivery(self, listener: Listener, source: ProcessId, delivery: Deliver) -> None:
        """Whoever delivers knows that nothing will come before: so its primary said, whose epoch a majority holds, and
        a majority, without which there is no later primary."""
        if delivery.rank_time is not None:
            listener.pass_timestamp(self._domains[source], source, delivery.rank_time)

    def _state_snapshot(self, listener: Listener, source: ProcessId, state: PrimCastState) -> None:
        """Who hears that a member has lost its memory forgets the clock that it had before."""
        domain = self._domains[source]
        state_delivered(listener, source, domain, state.member.position, state.checkpoint.prefix)
        losses = state.checkpoint.memory_losses
        for member, clock, loss in zip(domain.members, state.clocks, losses, strict=True):
            if clock and member != source:  # it says the same in this step
                listener.rely_on_clock(domain, source, member, clock, loss)

    def _owe_answer(self, listener: Listener, process: ProcessId, sender: ProcessId, body: Query) -> Answers | None:
        """A group answers for a delivered message until a majority of each other destination has delivered it, and
        who has a message sends it to whoever lacks it."""
        if sender not in self._domains or sender == process:
            return None
        if body.message is None and listener.holds_message(process, body.id):
            return lambda answer: type(answer) is Start and answer.message.id == body.id
        domain = self._domains[sender]
        if domain is not self._domains[process] and listener.may_be_asked(domain, process, body.id):
            return lambda answer: type(answer) is Decided and answer.id == body.id
        return None

    def _owe_refusal(
        self, listener: Listener, process: ProcessId, sender: ProcessId, body: Propose | Offer
    ) -> Answers | None:
        """A deposed primary is told so by every member that has promised a later epoch."""
        domain, epoch = self._domains[process], body.epoch if isinstance(body, Offer) else body.ack.epoch
        if sender not in domain.places or domain.members[place_of(epoch)] != sender:
            return None
        return _is_nack if listener.has_promised_above(domain, process, epoch) else None

    def _state_new_epoch(self, listener: Listener, source: ProcessId, body: NewEpoch) -> None:
        listener.stand(self._domains[source], source, body.epoch)

    def _state_propose(self, listener: Listener, source: ProcessId, body: Propose) -> None:
        self._state_proposals(listener, source, body.ack.epoch, body.proposals)
        self._state_ack(listener, source, body.ack)
        self._state_notices(listener, source, body.notices)

    def _state_offer(self, listener: Listener, source: ProcessId, body: Offer) -> None:
        self._state_proposals(listener, source, body.epoch, body.proposals)
        self._state_notices(listener, source, body.notices)

    def _state_proposals(
        self, listener: Listener, source: ProcessId, epoch: int, proposals: tuple[Proposal, ...]
    ) -> None:
        for index, id, timestamp in proposals:
            listener.propose(self._domains[source], source, epoch, index, timestamp, id, timestamp)

    def _state_notices(self, listener: Listener, source: ProcessId, notices: tuple[DeliveryNotice, ...]) -> None:
        for position, id, final in notices:
            listener.agree(source, f"delivery of {self._domains[source].name}", position, (id, final))
            listener.agree(source, FINAL, id, final)

    def _state_admission_vote(self, listener: Listener, source: ProcessId, body: AdmissionVote) -> None:
        listener.admit(self._domains[source], source, body.memory_loss, body.clock)

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
        listener.lead_with_losses(domain, source, body.epoch, body.memory_losses)
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
        listener.retain(source, record.deliveries[0].messages_before if record.deliveries else record.message_count)

    def _ask(self, epoch: int, _: int) -> Body:
        return NewEpoch(epoch)


def _state_entries(
    listener: Listener, domain: Domain, source: ProcessId, epoch: int, base: int, entries: tuple[Entry, ...]
) -> None:
    for index, entry in enumerate(entries, base):
        listener.propose(domain, source, epoch, index, entry.timestamp, entry.message.id)


def _list_slots(base: int, entries: tuple[Entry, ...]) -> dict[int, tuple[int, int]]:
    return {index: (entry.message.id, entry.timestamp) for index, entry in enumerate(entries, base)}


def _is_nack(answer: Body) -> bool:
    return type(answer) is Nack

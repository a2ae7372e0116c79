"""The rules: what a process says may not contradict what it or others said before, nor run ahead of its records.

    persist before send   a promise, a vote or a clock leaves a process after the record that it depends on is durable
    promise kept          no vote in a ballot below a promise that was sent
    nothing forgotten     a promise reports every vote that was sent; clocks, logs and positions never go back. A
                          restart from the durable records alone is held to the same ("restart"), and a member that
                          lost its memory to what its votes helped to decide, and to the clock that a majority had
                          passed: those who admit it again, some of whom were in that majority, tell it their clocks,
                          and never forget the loss
    rising ballots        in one incarnation, a candidate never goes back to a lower ballot
    losses passed on      a promise names the loss of memory that its candidate stated with the ballot; and who lost its
                          memory takes part in ballots whose leaders have heard of that
    majority of others    a member that lost its memory votes again when a majority of the others promised it a ballot,
                          or every majority that it was part of contains one that has voted to admit it
    first record          a process begins with a record, so that an empty disk means that it lost its memory
    one value             in one ballot, a slot has one value
    own ballots           a candidate that lost its memory asks for no ballot that it asked for before: ballots contain
                          the incarnation
    promises heard        a leader has the promises of a majority, and proposes what follows from them
    chosen value          no later ballot proposes another value for a slot for which a majority has voted, and nobody
                          passes on a decision that no majority made
    ballot's clock        a ballot begins above every clock that a majority published in earlier ballots
    majority's progress   what needs a majority's progress has it
    home majority         a leader orders a delivery only after a majority of its own group accepted it in its ballot
    votes remembered      what is delivered was accepted, in every destination, by a majority in one ballot, of whom
                          nobody knows that another has lost its memory since: leaders discard such votes when they
                          hear of the loss
    nothing unsaid        a process relies on the clocks and votes of members only if they sent them with the memory
                          that they have, as far as it knows; snapshots show what it relies on
    delivery limit        a process delivers a timestamp when nobody can give a lower one: a majority takes part in a
                          ballot, its leader's clock has passed the timestamp, and so have the clocks of a majority in
                          this ballot or earlier ones; lost memories count as for votes
    clock of deliveries   the clock of a process has passed what it delivers, or orders others to deliver
    answers               a process that delivered a message answers members of its other destinations until majorities
                          of these have delivered it, and sends the message to those that lack it, if it has it; who
                          has promised a higher ballot refuses what the leader of a lower one proposes
    frozen epoch          a process that froze an epoch acknowledges nothing more in it, and the epoch ends nowhere
                          below what a majority has acknowledged
    skipped deliveries    a restart from records repeats what the process had delivered and what has not left it
    ascending ranks       a process delivers in the order of the ranks that all agree on
    agreement             timestamps, positions, batches and numbered bodies are the same whoever states them; and so is
                          the state that follows from the same prefix of a log, also of who restarts from its records

Each rule is a theorem of the protocols that claim to survive the faults of the run: it never fails for a correct one.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.statements import Domain, Listener, Slot
from amcast.simulation.monitors.domain_ledger import DomainLedger, MemberWords
from amcast.simulation.monitors.durable_state import DurableState, MemberRecords
from amcast.simulation.monitors.promise_reports import StateReport, VoteReport

MAX_TEXT: Final = 200
"""The most characters of a value in a sentence: a state may be long."""
Report = Callable[[ProcessId, str, str], None]
"""Takes the process, the rule that it broke, and how."""


class Ledger(Listener):
    """Everything that processes have said, and the rules. While `rehearsed` is set, the statements are those of a
    process that was rebuilt from its records: they are compared with what the real one said, and not remembered."""

    def __init__(
        self,
        report: Report,
        durable: Callable[[ProcessId], DurableState],
        delivered: Callable[[ProcessId], Any],
        is_partial: bool = False,
        discards: bool = False,
        holds: Callable[[ProcessId, MessageId], bool] = lambda process, message: False,
        find_own_clock: Callable[[ProcessId], int | None] = lambda process: None,
    ) -> None:
        self._report = report
        self._durable = durable
        self._delivered = delivered
        """The messages that a process has delivered."""
        self._holds = holds
        """Whether a process has the content of a message."""
        self._find_own_clock = find_own_clock
        """The clock that a process shows; None if it shows none."""
        self._is_partial = is_partial
        """What was said before is unknown: a majority that is missing here may have been there."""
        self._discards = discards
        """Members change: a process discards what an instance delivers after its last message."""
        self._domains: dict[Domain, DomainLedger] = {}
        self._facts: dict[tuple[str, Hashable], tuple[Hashable, ProcessId]] = {}
        self._destinations: dict[MessageId, tuple[int, ...]] = {}
        self._ranks: dict[ProcessId, dict[MessageId, tuple[int, int]]] = {}
        """By process, then by message: the ranks of its deliveries in this incarnation."""
        self._promising: set[ProcessId] = set()
        """The processes that have promised a ballot in their present incarnation."""
        self._own_clocks: dict[ProcessId, int] = {}
        """By process: the clock that it showed last, in its present incarnation."""
        self.rehearsed = False
        self.refuses_promise = False
        """In a rehearsal: the process was asked for a promise that an earlier one forbids."""

    def forget(self, process: ProcessId) -> None:
        """A process lost its memory: it may contradict itself from now on, but for what others preserve."""
        for ledger in self._domains.values():
            place = ledger.domain.places.get(process)
            if place is not None:
                ledger.forget(place)

    def find_promise(self, process: ProcessId) -> int:
        """The highest promise that a process has sent, or implied by a vote, in configuration 0; -1 if it sent none."""
        return max(
            (
                ledger.words[ledger.domain.places[process]].find_promise()
                for ledger in self._domains.values()
                if process in ledger.domain.places and ledger.domain.is_durable and ledger.configuration == 0
            ),
            default=-1,
        )

    def _of(self, domain: Domain) -> DomainLedger:
        ledger = self._domains.get(domain)
        if ledger is None:
            ledger = self._domains[domain] = DomainLedger(domain, self.configuration)
        return ledger

    def _records(self, domain: Domain, source: ProcessId) -> MemberRecords | None:
        """What is durable of a member; None if nothing needs to be."""
        if not domain.is_durable or self.rehearsed:
            return None
        durable = self._durable(source)
        return durable.of(domain) if durable.has_records else None

    def _break(self, source: ProcessId, rule: str, sentence: str) -> None:
        self._report(source, "restart" if self.rehearsed else rule, sentence)

    # Votes and promises

    def propose(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        slot: Slot,
        value: Hashable,
        message: MessageId | None = None,
        timestamp: int | None = None,
        needs_reports: bool = False,
    ) -> None:
        ledger = self._of(domain)
        key = (ballot, slot)
        known = ledger.proposals.get(key)
        if known is not None:
            if known[0] != value or known[1] != message:
                sentence = f"states {value} for slot {slot} of {domain.name} in ballot {ballot}, which has {known[0]}"
                self._break(source, "one value", sentence)
            return
        if self.rehearsed:
            return
        ledger.proposals[key] = (value, message)
        chosen = ledger.chosen.get(slot)
        if chosen is not None and chosen[0] < ballot and (chosen[1] != value or chosen[2] != message):
            sentence = (
                f"proposes {value} for slot {slot} of {domain.name} in ballot {ballot},"
                f" after a majority accepted {chosen[1]} in ballot {chosen[0]}"
            )
            self._break(source, "chosen value", sentence)
        if needs_reports and ballot and not ledger.reports.justify_value(ballot, slot, value):
            sentence = (
                f"proposes {value} for slot {slot} of {domain.name} in ballot {ballot},"
                " which does not follow from the promises of any majority"
            )
            self._break(source, "promises heard", sentence)
        if timestamp is not None and len(ledger.clocks) > 1:
            passed = ledger.find_majority_clock(ballot)
            if timestamp <= passed:
                sentence = (
                    f"gives timestamp {timestamp} to message {message} in ballot {ballot} of {domain.name},"
                    f" whose majority had passed {passed} before"
                )
                self._break(source, "ballot's clock", sentence)
        if ledger.has_majority(ballot, slot):  # a restarted member may acknowledge what it never sent
            self._choose(ledger, source, ballot, slot)

    def vote(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        slot: Slot,
        needs_proposal: bool = False,
        memory_losses: tuple[int, ...] = (),
    ) -> None:
        place = domain.places.get(source)
        if place is None or self.rehearsed:
            return
        records = self._records(domain, source)
        if records is not None and not (records.covers_vote(ballot, slot) or self._may_have_delivered(source, slot)):
            sentence = f"sends its vote for slot {slot} of {domain.name} in ballot {ballot}, which is not durable"
            self._break(source, "persist before send", sentence)
        ledger = self._of(domain)
        if needs_proposal and not self._is_partial and (ballot, slot) not in ledger.proposals:
            sentence = f"votes for slot {slot} of {domain.name} in ballot {ballot}, in which nobody proposed anything"
            self._break(source, "one value", sentence)
        if memory_losses:
            ledger.add_vote_with_losses(place, ballot, slot, memory_losses)
            self._check_leader_knows(domain, source, ballot, memory_losses)
        words = ledger.words[place]
        previous = words.votes.get(slot, -1)
        if (
            ballot < words.promised
            and previous < ballot
            and slot >= words.reported_below
            and slot not in words.reported
        ):
            sentence = (
                f"votes for slot {slot} of {domain.name} in ballot {ballot} after its promise of {words.promised}"
            )
            self._break(source, "promise kept", sentence)
        if ballot > previous:
            words.votes[slot] = ballot
            words.voted = max(words.voted, ballot)
        if ledger.count_vote(place, ballot, slot):
            self._choose(ledger, source, ballot, slot)

    def hold(self, domain: Domain, source: ProcessId, ballot: int, length: int) -> None:
        place = domain.places.get(source)
        if place is None:
            return
        ledger = self._of(domain)
        words = ledger.words[place]
        held = (ballot, length)
        self._check_held(words, domain, source, held)
        if self.rehearsed:
            return
        if ballot < words.promised:
            sentence = f"acknowledges ballot {ballot} of {domain.name} after its promise of {words.promised}"
            self._break(source, "promise kept", sentence)
        if held == words.held:
            return
        words.held = held
        records = self._records(domain, source)
        if records is not None and records.held < held:
            sentence = (
                f"acknowledges {length} entries of ballot {ballot} of {domain.name};"
                f" durable are {records.held[1]} of ballot {records.held[0]}"
            )
            self._break(source, "persist before send", sentence)
        for slot in ledger.count_length(place, ballot, length):
            self._choose(ledger, source, ballot, slot)

    def _choose(self, ledger: DomainLedger, source: ProcessId, ballot: int, slot: Slot) -> None:
        """A majority has voted for a slot's value."""
        proposal = ledger.proposals.get((ballot, slot))
        if proposal is None:
            return
        value, message = proposal
        known = ledger.chosen.get(slot)
        if known is None or ballot < known[0]:
            ledger.chosen[slot] = (ballot, value, message)
        if known is not None and (known[1] != value or known[2] != message):
            sentence = (
                f"completes a majority for {value} in slot {slot} of {ledger.domain.name} in ballot {ballot},"
                f" after one for {known[1]} in ballot {known[0]}"
            )
            self._break(source, "chosen value", sentence)
        if message is not None:
            before = ledger.timestamps.setdefault(message, value)
            if before != value:
                sentence = f"decides {value} for message {message} in {ledger.domain.name}, after {before}"
                self._break(source, "chosen value", sentence)

    def promise(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        place = domain.places.get(source)
        if place is None:
            return
        words = self._of(domain).words[place]
        if self.rehearsed:
            if self.refuses_promise:
                sentence = f"promises ballot {ballot} of {domain.name}; it had promised {words.find_promise()}"
                self._break(source, "restart", sentence)
            return
        records = self._records(domain, source)
        if records is not None and records.promised < ballot:
            sentence = f"sends its promise of ballot {ballot} of {domain.name}, which is not durable"
            self._break(source, "persist before send", sentence)
        if ballot < words.find_promise():
            sentence = f"promises ballot {ballot} of {domain.name} after its promise of {words.find_promise()}"
            self._break(source, "promise kept", sentence)
        words.promised = max(words.promised, ballot)
        self._promising.add(source)

    def admit(self, domain: Domain, source: ProcessId, loss: int, clock: int) -> None:
        ledger = self._of(domain)
        known = ledger.words[domain.places[source]].known_losses
        for target in self.targets:
            place = domain.places[target]
            ledger.admit(place, domain.places[source], loss, clock)
            known[place] = max(loss, known.get(place, 0))

    def _check_admission(self, domain: Domain, source: ProcessId, place: int, clock: int | None = None) -> None:
        """A member that lost its memory takes part after enough others have voted for that, with their clocks."""
        if self.rehearsed or self._is_partial:
            return
        least = self._of(domain).find_admission_clock(place)
        if least is None:
            sentence = f"takes part in {domain.name} without memory; too few others have voted to admit it"
            self._break(source, "majority of others", sentence)
        elif clock is not None and clock < least:
            sentence = f"states clock {clock} in {domain.name}; those that admitted it told it {least}"
            self._break(source, "nothing forgotten", sentence)

    def stand(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        place = domain.places.get(source)
        if place is None or self.rehearsed:
            return
        self._check_admission(domain, source, place)
        if self._of(domain).stand(place, ballot):
            return
        sentence = f"asks for promises of ballot {ballot} of {domain.name}, as it did before it lost its memory"
        self._break(source, "own ballots", sentence)

    def campaign(self, domain: Domain, source: ProcessId, ballot: int, incarnation: int, memory_loss: int) -> None:
        place = domain.places.get(source)
        if place is None or self.rehearsed:
            return
        ledger = self._of(domain)
        words = ledger.words[place]
        if (incarnation, ballot) < words.campaign:
            sentence = f"asks for promises of ballot {ballot} of {domain.name} after ballot {words.campaign[1]}"
            self._break(source, "rising ballots", sentence)
        words.campaign = (incarnation, ballot)
        if memory_loss > 0:
            ledger.losses[ballot] = (place, memory_loss)

    def _check_losses(
        self, ledger: DomainLedger, source: ProcessId, ballot: int, memory_losses: tuple[int, ...]
    ) -> None:
        """Whoever promises a ballot has heard of the loss of memory that its candidate stated with it: only then do the
        candidate's earlier promises count for nobody."""
        place, loss = ledger.losses.get(ballot, (0, 0))
        if loss and memory_losses and memory_losses[place] < loss:
            sentence = (
                f"promises ballot {ballot} of {ledger.domain.name} to process {ledger.domain.members[place]}, which"
                f" lost its memory in incarnation {loss}, and passes on {memory_losses[place]}"
            )
            self._break(source, "losses passed on", sentence)

    def lead(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        if self.rehearsed or self._is_partial or self._of(domain).reports.have_majority(ballot):
            return
        sentence = f"leads ballot {ballot} of {domain.name}, which no majority has promised with the memory it has now"
        self._break(source, "promises heard", sentence)

    def report_votes(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        below: Slot,
        votes: Mapping[Slot, tuple[int, Hashable]],
        memory_losses: tuple[int, ...] = (),
    ) -> None:
        place = domain.places.get(source)
        if place is None:
            return
        ledger = self._of(domain)
        words = ledger.words[place]
        self._check_join(ledger, source, place, ballot)
        self._check_losses(ledger, source, ballot, memory_losses)
        for slot, chosen in ledger.list_chosen_by(place, ballot):
            if slot >= below and (slot not in votes or votes[slot][0] < chosen):
                self._break_report(domain, source, slot, chosen)
        for slot, voted in words.votes.items():
            if slot >= below and (slot not in votes or votes[slot][0] < voted):
                self._break_report(domain, source, slot, voted)
        if not self.rehearsed:
            words.reported.update(votes)
            words.reported_below = max(words.reported_below, below)
            ledger.reports.add_votes(ballot, place, VoteReport(below, votes, memory_losses))
            for target in self.targets:
                joins = ledger.joins.get(domain.places.get(target, -1))
                if joins is not None:
                    joins[ballot] = joins.get(ballot, 0) | 1 << place

    def _check_join(self, ledger: DomainLedger, source: ProcessId, place: int, ballot: int) -> None:
        """A member that lost its memory votes again when a majority of the others has promised it a ballot."""
        joins = ledger.joins.get(place)
        if joins is None or self._is_partial:
            return
        most = max((voters.bit_count() for voters in joins.values()), default=0)
        if most < ledger.domain.quorum:
            sentence = (
                f"promises ballot {ballot} of {ledger.domain.name} after it lost its memory;"
                f" {most} others have promised it a ballot, and {ledger.domain.quorum} must"
            )
            self._break(source, "majority of others", sentence)

    def report_state(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        held: tuple[int, int],
        clock: int,
        entries: Mapping[Slot, Hashable],
        memory_losses: tuple[int, ...] = (),
    ) -> None:
        place = domain.places.get(source)
        if place is None:
            return
        self._check_admission(domain, source, place, clock)
        ledger = self._of(domain)
        words = ledger.words[place]
        self._check_held(words, domain, source, held)
        for slot, chosen in ledger.list_chosen_by(place, ballot):
            if slot not in entries and not self._may_have_delivered(source, slot):
                self._break_report(domain, source, slot, chosen)
        for slot, voted in words.votes.items():
            if voted >= held[0] and slot not in entries and not self._may_have_delivered(source, slot):
                self._break_report(domain, source, slot, voted)
        if not self.rehearsed:
            ledger.reports.add_state(ballot, place, StateReport(held, clock, entries, memory_losses))

    def _may_have_delivered(self, source: ProcessId, slot: Slot) -> bool:
        """Whether a process may have delivered the message that a slot is about."""
        return self._discards or slot in self._delivered(source)

    def _break_report(self, domain: Domain, source: ProcessId, slot: Slot, ballot: int) -> None:
        sentence = f"leaves out of its promise its vote for slot {slot} of {domain.name} in ballot {ballot}"
        self._break(source, "nothing forgotten", sentence)

    def _check_held(self, words: MemberWords, domain: Domain, source: ProcessId, held: tuple[int, int]) -> None:
        if held < words.held:
            sentence = (
                f"holds {held[1]} entries of ballot {held[0]} of {domain.name};"
                f" it had acknowledged {words.held[1]} of ballot {words.held[0]}"
            )
            self._break(source, "nothing forgotten", sentence)

    # Clocks and progress

    def publish_clock(self, domain: Domain, source: ProcessId, ballot: int, clock: int) -> None:
        place = domain.places.get(source)
        if place is None:
            return
        words = self._of(domain).words[place]
        if clock < words.clock:
            self._break(source, "nothing forgotten", f"states clock {clock} in {domain.name} after {words.clock}")
        self.raise_clock(domain, source, ballot, clock)

    def raise_clock(self, domain: Domain, source: ProcessId, ballot: int, clock: int) -> None:
        place = domain.places.get(source)
        if place is None or self.rehearsed:
            return
        ledger = self._of(domain)
        words = ledger.words[place]
        if clock > words.clock:
            words.clock = clock
            records = self._records(domain, source)
            if records is not None and records.clock < clock:
                sentence = f"sends clock {clock} of {domain.name}; durable is {records.clock}"
                self._break(source, "persist before send", sentence)
        # A clock that was raised after a promise tells nothing to the ballot that was promised.
        ledger.publish_clock(place, max(ballot, words.promised), clock)

    def limit_timestamps(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        clock: int,
        memory_losses: tuple[int, ...],
        leads: bool,
    ) -> None:
        if not self.rehearsed:
            place = domain.places[source]
            self._check_admission(domain, source, place, clock)
            self._of(domain).limit.add(place, ballot, clock, memory_losses, leads)
            if leads:
                self.lead_with_losses(domain, source, ballot, memory_losses)
            self._check_leader_knows(domain, source, ballot, memory_losses)

    def lead_with_losses(self, domain: Domain, source: ProcessId, ballot: int, memory_losses: tuple[int, ...]) -> None:
        if not self.rehearsed:
            known = self._of(domain).leader_losses
            known[ballot] = tuple(map(max, known.get(ballot, memory_losses), memory_losses))

    def _check_leader_knows(
        self, domain: Domain, source: ProcessId, ballot: int, memory_losses: tuple[int, ...]
    ) -> None:
        """A member that lost its memory takes part in ballots whose leaders have heard of that: others would count what
        it said before, together with what it says now."""
        place = domain.places[source]
        loss = memory_losses[place]
        known = self._of(domain).leader_losses.get(ballot)
        if not loss or self._is_partial or (known is not None and known[place] >= loss):
            return
        sentence = (
            f"takes part in ballot {ballot} of {domain.name}, whose leader has not heard that it lost its memory in"
            f" incarnation {loss}"
        )
        self._break(source, "losses passed on", sentence)

    def pass_timestamp(self, domain: Domain, source: ProcessId, timestamp: int) -> None:
        # The only member of a group may have said nothing to anybody.
        if self._is_partial or len(domain.members) == 1 or self._of(domain).limit.passes(timestamp):
            return
        sentence = (
            f"delivers timestamp {timestamp} of {domain.name}; no majority that takes part in one ballot, with its"
            " leader, has passed it"
        )
        self._break(source, "delivery limit", sentence)

    def pass_own_clock(self, source: ProcessId, timestamp: int) -> None:
        if self._discards or self.rehearsed or timestamp <= self._own_clocks.get(source, -1):
            return
        clock = self._find_own_clock(source)
        if clock is None:
            return
        self._own_clocks[source] = clock
        if clock < timestamp:
            sentence = f"delivers timestamp {timestamp}, or orders that; its clock is {clock}"
            self._break(source, "clock of deliveries", sentence)

    def start_ballot(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        length: int,
        clock: int,
        entries: Mapping[Slot, Hashable],
    ) -> None:
        if self.rehearsed:
            return
        ledger = self._of(domain)
        passed = ledger.find_majority_clock(ballot)
        if clock < passed:
            sentence = (
                f"begins ballot {ballot} of {domain.name} with clock {clock}; its majority had passed {passed} before"
            )
            self._break(source, "ballot's clock", sentence)
        if ballot in ledger.started or ballot == 0 or self._is_partial:
            return
        ledger.started.add(ballot)
        if not ledger.reports.justify_state(ballot, length, clock, entries):
            sentence = (
                f"begins ballot {ballot} of {domain.name} with clock {clock} and entries {dict(entries)},"
                " which do not follow from the promises of any majority"
            )
            self._break(source, "promises heard", sentence)

    def reach(self, domain: Domain, source: ProcessId, measure: str, value: Any) -> None:
        place = domain.places.get(source)
        if place is None:
            return
        ledger = self._of(domain)
        words = ledger.words[place]
        if measure == "memory losses" and not all(value[other] >= loss for other, loss in words.known_losses.items()):
            sentence = f"states memory losses {value} in {domain.name}, after its votes to admit {words.known_losses}"
            self._break(source, "nothing forgotten", sentence)
        previous = words.reached.get(measure)
        if previous is not None and value < previous:
            self._break(source, "nothing forgotten", f"states {measure} {value} in {domain.name} after {previous}")
        if not self.rehearsed and value != previous:
            words.reached[measure] = value
            ledger.reach(place, measure, value)

    def claim(self, domain: Domain, source: ProcessId, measure: str, value: Any) -> None:
        if self.rehearsed or self._is_partial or not value:
            return
        reached = self._of(domain).find_majority_reach(measure)
        if reached is None or reached < value:
            sentence = (
                f"takes it that a majority of {domain.name} has reached {measure} {value}; it has reached {reached}"
            )
            self._break(source, "majority's progress", sentence)

    # Decisions

    def decide(self, domain: Domain, source: ProcessId, slot: Slot, value: Hashable) -> None:
        chosen = self._of(domain).chosen.get(slot)
        if chosen is None:
            if not self.rehearsed and not self._is_partial:
                sentence = f"passes on {value} for slot {slot} of {domain.name}, for which no majority has voted"
                self._break(source, "chosen value", sentence)
        elif chosen[1] != value:
            sentence = f"passes on {value} for slot {slot} of {domain.name}, where {chosen[1]} was chosen"
            self._break(source, "chosen value", sentence)

    def order(self, domain: Domain, source: ProcessId, ballot: int, slot: Slot) -> None:
        if not self._is_partial and not self._of(domain).has_majority(ballot, slot):
            sentence = (
                f"orders the delivery of {slot} in ballot {ballot} of {domain.name},"
                " which no majority of the group has accepted in that ballot"
            )
            self._break(source, "home majority", sentence)

    def count_votes(self, domain: Domain, source: ProcessId, slot: Slot) -> None:
        if self._is_partial or self._of(domain).have_votes(slot):
            return
        sentence = f"delivers {slot}; no majority of {domain.name} has accepted it in one ballot and remembers that"
        self._break(source, "votes remembered", sentence)

    def rely_on_clock(self, domain: Domain, source: ProcessId, member: ProcessId, clock: int, loss: int) -> None:
        if not self._is_partial and not self._of(domain).limit.has_acknowledged(domain.places[member], clock, loss):
            sentence = (
                f"relies on clock {clock} of process {member} in {domain.name}, which it has not acknowledged with the"
                f" memory that it has since incarnation {loss}"
            )
            self._break(source, "nothing unsaid", sentence)

    def rely_on_vote(
        self, domain: Domain, source: ProcessId, member: ProcessId, ballot: int, slot: Slot, loss: int
    ) -> None:
        if not self._is_partial and not self._of(domain).has_voted(domain.places[member], ballot, slot, loss):
            sentence = (
                f"relies on a vote of process {member} for slot {slot} of {domain.name} in ballot {ballot}, which it"
                f" has not sent with the memory that it has since incarnation {loss}"
            )
            self._break(source, "nothing unsaid", sentence)

    def decide_timestamp(self, domain: Domain, source: ProcessId, message: MessageId, timestamp: int) -> None:
        timestamps = self._of(domain).timestamps
        if len(domain.places) == 1:
            timestamps.setdefault(message, timestamp)  # a vote that is durable decides, also if nobody ever heard it
        chosen = timestamps.get(message)
        if chosen != timestamp and not (chosen is None and self._is_partial):
            sentence = (
                f"passes on timestamp {timestamp} of {domain.name} for message {message}; a majority has {chosen}"
            )
            self._break(source, "chosen value", sentence)

    def agree(self, source: ProcessId, what: str, key: Hashable, value: Hashable) -> None:
        fact = (what, (self.configuration, key))
        known = self._facts.get(fact)
        if known is None:
            if not self.rehearsed:
                self._facts[fact] = (value, source)
        elif known[0] != value:
            stated, before = _shorten(value), _shorten(known[0])
            self._break(source, "agreement", f"states {stated} as {what} {key}; process {known[1]} stated {before}")

    # Generic broadcast

    def freeze(self, domain: Domain, source: ProcessId, epoch: int, tops: tuple[int, ...]) -> None:
        words = self._of(domain).words[domain.places[source]]
        self._check_frozen(words, domain, source, epoch, tops)
        words.frozen = (epoch, tops)
        self.acknowledge(domain, source, epoch, tops)

    def acknowledge(self, domain: Domain, source: ProcessId, epoch: int, tops: tuple[int, ...]) -> None:
        ledger = self._of(domain)
        place = domain.places[source]
        self._check_frozen(ledger.words[place], domain, source, epoch, tops)
        ledger.acknowledge(place, epoch, tops)
        if epoch in ledger.ends:
            self._check_end(ledger, source, epoch)

    def end_epoch(self, domain: Domain, source: ProcessId, epoch: int, ends: Mapping[int, int]) -> None:
        ledger = self._of(domain)
        known = ledger.ends.setdefault(epoch, {})
        for stream, end in ends.items():
            known[stream] = min(end, known.get(stream, end))
        self._check_end(ledger, source, epoch)

    def _check_end(self, ledger: DomainLedger, source: ProcessId, epoch: int) -> None:
        for stream, end in ledger.ends[epoch].items():
            passed = ledger.find_acknowledged(epoch, stream)
            if passed > end:
                sentence = (
                    f"ends epoch {epoch} of {ledger.domain.name} at number {end} of stream {stream};"
                    f" a majority has acknowledged {passed}"
                )
                self._break(source, "frozen epoch", sentence)

    def _check_frozen(
        self, words: MemberWords, domain: Domain, source: ProcessId, epoch: int, tops: tuple[int, ...]
    ) -> None:
        frozen_epoch, limit = words.frozen
        if epoch == frozen_epoch and any(top > most for top, most in zip(tops, limit, strict=True)):
            sentence = f"acknowledges {tops} in epoch {epoch} of {domain.name}, which it froze at {limit}"
            self._break(source, "frozen epoch", sentence)

    # Messages

    def know(self, message: Message) -> None:
        self._destinations[message.id] = message.destinations

    def find_destinations(self, message: MessageId) -> tuple[int, ...]:
        return self._destinations.get(message, ())

    def find_proposal(self, domain: Domain, ballot: int, slot: Slot) -> Any:
        proposal = self._of(domain).proposals.get((ballot, slot))
        return None if proposal is None else proposal[0]

    # Questions

    def deliver(self, process: ProcessId, message: MessageId, rank: tuple[int, int]) -> None:
        """A process delivers a message, or the bundle of this id."""
        self._ranks.setdefault(process, {})[message] = rank

    def start(self, process: ProcessId) -> None:
        """A process starts: it may not remember deliveries that were not durable yet."""
        self._ranks.pop(process, None)
        self._own_clocks.pop(process, None)
        self._promising.discard(process)

    def may_be_asked(self, domain: Domain, process: ProcessId, message: MessageId) -> bool:
        rank = self._ranks.get(process, {}).get(message)
        if rank is None:
            return False
        reached = self._of(domain).find_majority_reach("rank")
        return reached is None or reached < rank

    def has_promised_above(self, domain: Domain, process: ProcessId, ballot: int) -> bool:
        place = domain.places.get(process)
        return place is not None and process in self._promising and self._of(domain).words[place].promised > ballot >= 0

    def holds_message(self, process: ProcessId, message: MessageId) -> bool:
        return self._holds(process, message)


def _shorten(value: Hashable) -> str:
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

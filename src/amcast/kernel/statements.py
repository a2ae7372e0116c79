"""Statements: what bodies and records say, in words that all protocols share, so that one judge understands them all.

A protocol's Spec has a table from each type of body or record to a function that tells a listener what it states: a
promise, a vote, a clock, a decision. A simulated world listens to every packet that leaves a process and to every
durable record, and holds them against the rules in `amcast/simulation/monitors/`. The functions only translate; they
judge nothing, and the running protocol never calls them.

Words. A domain is a set of members that agree on something by ballots. A slot is one question that it decides: an
instance of Paxos, an index of PrimCast's log, a message of White-Box.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record

Slot = int


class Domain:
    """Members that agree by ballots and majorities. Two domains with the same members are different."""

    __slots__ = ("is_durable", "members", "name", "places", "quorum")

    def __init__(self, name: str, members: tuple[ProcessId, ...], is_durable: bool = True) -> None:
        self.name = name
        self.members = members
        self.quorum = len(members) // 2 + 1
        self.places = {member: place for place, member in enumerate(members)}
        self.is_durable = is_durable
        """Whether promises and votes must survive a restart."""


class Listener:
    """Is told what one body or record of a process states. Every method does nothing, so that a listener overrides
    those that concern it."""

    targets: tuple[ProcessId, ...] = ()
    """The processes to which the present body goes; none for a record."""
    configuration: int = 0
    """The configuration of the instance that sends the present body."""

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
        """In this ballot the slot has this value. `message`: the value is that message's. `timestamp`: the leader has
        just chosen it, rather than inherited the value from an earlier ballot. `needs_reports`: the votes that were
        reported with the promises of the ballot leave no other choice."""

    def vote(self, domain: Domain, source: ProcessId, ballot: int, slot: Slot) -> None:
        """The source accepted the value that was proposed for a slot in a ballot. In a record, a ballot of -1 stands
        for the one that the records before it name."""

    def hold(self, domain: Domain, source: ProcessId, ballot: int, length: int) -> None:
        """The source takes part in a ballot, and accepted every slot of its log below `length`. In a record, a ballot
        of -1 stands for the one that the records before it name."""

    def settle(self, domain: Domain, source: ProcessId, below: Slot) -> None:
        """The source knows the decision of every slot below: it need not remember its votes for them."""

    def settle_slot(self, domain: Domain, source: ProcessId, slot: Slot) -> None:
        """The same for one slot."""

    def promise(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        """The source takes no part in lower ballots from now on."""

    def lead(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        """The source leads its ballot: a majority has promised it."""

    def report_votes(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        below: Slot,
        votes: Mapping[Slot, tuple[int, Hashable]],
        memory_losses: tuple[int, ...] = (),
    ) -> None:
        """With its promise of a ballot: all votes of the source, ballot and value by slot, but for slots below `below`,
        whose decisions it knows; and the last incarnation of each member that it knows to have begun without memory."""

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
        """With its promise of a ballot: the last ballot in which the source took part and the length of its log (0 if
        there is no log), its clock, what it accepted in that ballot, but for what it has delivered, and the last
        incarnation of each member that it knows to have begun without memory."""

    def publish_clock(self, domain: Domain, source: ProcessId, ballot: int, clock: int) -> None:
        """The source gives no timestamp at or below its clock, and reports it to every later ballot."""

    def raise_clock(self, domain: Domain, source: ProcessId, ballot: int, clock: int) -> None:
        """The same for a clock that is at least so high."""

    def start_ballot(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        length: int,
        clock: int,
        entries: Mapping[Slot, Hashable],
    ) -> None:
        """The leader sends the state of its ballot: its clock, and the entries of its log of this length (0 if there
        is no log). The first that it sends is the one that it chose from the promises."""

    def reach(self, domain: Domain, source: ProcessId, measure: str, value: Any) -> None:
        """The source has come so far: "position" is the number of its deliveries, "rank" that of the last one, "memory
        losses" the last incarnation of each member that is known to have begun without memory."""

    def claim(self, domain: Domain, source: ProcessId, measure: str, value: Any) -> None:
        """The source acts on the belief that a majority has come so far."""

    def decide(self, domain: Domain, source: ProcessId, slot: Slot, value: Hashable) -> None:
        """The source passes on the decision of a slot."""

    def order(self, domain: Domain, source: ProcessId, ballot: int, slot: Slot) -> None:
        """The source, as the leader of a ballot, orders its group to deliver what the slot decides."""

    def decide_timestamp(self, domain: Domain, source: ProcessId, message: MessageId, timestamp: int) -> None:
        """The source passes on the decided timestamp of a message."""

    def agree(self, source: ProcessId, what: str, key: Hashable, value: Hashable) -> None:
        """The source states a fact that has the same value wherever and whenever it is stated."""

    def freeze(self, domain: Domain, source: ProcessId, epoch: int, tops: tuple[int, ...]) -> None:
        """The source acknowledges nothing in this epoch beyond these numbers."""

    def acknowledge(self, domain: Domain, source: ProcessId, epoch: int, tops: tuple[int, ...]) -> None:
        """The source has in this epoch acknowledged each stream up to these numbers."""

    def end_epoch(self, domain: Domain, source: ProcessId, epoch: int, ends: Mapping[int, int]) -> None:
        """The source proposes that the epoch ends at these numbers, by the place of the stream: nothing above them
        is ever delivered."""

    def know(self, message: Message) -> None:
        """The body contains this message."""

    # Questions that a translation may ask

    def find_destinations(self, message: MessageId) -> tuple[int, ...]:
        """The destinations of a message that some body contained; none if it is unknown."""
        return ()

    def find_proposal(self, domain: Domain, ballot: int, slot: Slot) -> Any:
        """The value that was proposed for a slot in a ballot; None if none was."""
        return None


StateBody = Callable[[Listener, ProcessId, Any], None]
"""Tells a listener what a body, sent by this process, states. Also: what a record of this process states."""
Probe = Callable[[ProcessId, int], tuple[ProcessId, Body] | None]
"""From a process and a ballot: a candidate of a ballot, and its request for a promise. The ballot is the highest one
below the given ballot; for -1 it is higher than any that occurs. None: there is no such candidate."""


@dataclass(frozen=True)
class StatementTable:
    """The statements of a protocol in one topology and configuration."""

    bodies: Mapping[type[Body], StateBody] = field(default_factory=dict)
    records: Mapping[type[Record], StateBody] = field(default_factory=dict)
    probe: Probe | None = None
    """What a restarted member is asked, to compare its answer with everything that it has said. None: nothing."""

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

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State

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

    def vote(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        slot: Slot,
        needs_proposal: bool = False,
        memory_losses: tuple[int, ...] = (),
    ) -> None:
        """The source accepted the value that was proposed for a slot in a ballot. In a record, a ballot of -1 stands
        for the one that the records before it name. `needs_proposal`: it was proposed in a body, also to the leader
        itself. `memory_losses`: the last incarnation of each member that it knows to have begun without memory."""

    def hold(self, domain: Domain, source: ProcessId, ballot: int, length: int) -> None:
        """The source takes part in a ballot, and accepted every slot of its log below `length`. In a record, a ballot
        of -1 stands for the one that the records before it name."""

    def settle(self, domain: Domain, source: ProcessId, below: Slot) -> None:
        """The source knows the decision of every slot below: it need not remember its votes for them."""

    def settle_slot(self, domain: Domain, source: ProcessId, slot: Slot) -> None:
        """The same for one slot."""

    def retain(self, source: ProcessId, first: int) -> None:
        """The source repeats its deliveries from this position on if it restarts: all before have left it."""

    def promise(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        """The source takes no part in lower ballots from now on."""

    def stand(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        """The source asks for promises of a ballot that it has made up."""

    def admit(self, domain: Domain, source: ProcessId, loss: int, clock: int) -> None:
        """The source votes for the admission of a member that began an incarnation (`loss`) without memory: the target
        of the present body. It tells it its clock."""

    def campaign(self, domain: Domain, source: ProcessId, ballot: int, incarnation: int, memory_loss: int) -> None:
        """The source, in this incarnation, asks for promises of its ballot. Its last incarnation that began without
        memory was `memory_loss`: whoever promises the ballot passes that on."""

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

    def limit_timestamps(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        clock: int,
        memory_losses: tuple[int, ...],
        leads: bool,
    ) -> None:
        """The source takes part in a ballot and gives no timestamp at or below its clock from now on. `leads`: it leads
        the ballot."""

    def pass_timestamp(self, domain: Domain, source: ProcessId, timestamp: int) -> None:
        """The source acts on the belief that nobody in the domain, present leader or later one, will give a timestamp
        at or below this one."""

    def pass_own_clock(self, source: ProcessId, timestamp: int) -> None:
        """The source acts on the belief that its own clock has passed a timestamp."""

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

    def lead_with_losses(self, domain: Domain, source: ProcessId, ballot: int, memory_losses: tuple[int, ...]) -> None:
        """The source leads a ballot, or stands for it, and has heard of these losses of memory: what those members sent
        before counts for nothing in the ballot."""

    def reach(self, domain: Domain, source: ProcessId, measure: str, value: Any) -> None:
        """The source has come so far: "position" is the number of its deliveries, "rank" that of the last one, "memory
        losses" the last incarnation of each member that is known to have begun without memory, "durable round" the
        round after which it would restart."""

    def claim(self, domain: Domain, source: ProcessId, measure: str, value: Any) -> None:
        """The source acts on the belief that a majority has come so far."""

    def decide(self, domain: Domain, source: ProcessId, slot: Slot, value: Hashable) -> None:
        """The source passes on the decision of a slot."""

    def order(self, domain: Domain, source: ProcessId, ballot: int, slot: Slot) -> None:
        """The source, as the leader of a ballot, orders its group to deliver what the slot decides."""

    def count_votes(self, domain: Domain, source: ProcessId, slot: Slot) -> None:
        """The source acts on the belief that a majority accepted what the slot has in one ballot, and remembers it."""

    def rely_on_clock(self, domain: Domain, source: ProcessId, member: ProcessId, clock: int, loss: int) -> None:
        """The source relies on the clock that a member acknowledged; `loss`: the last incarnation that it knows the
        member to have begun without memory."""

    def rely_on_vote(
        self, domain: Domain, source: ProcessId, member: ProcessId, ballot: int, slot: Slot, loss: int
    ) -> None:
        """The same for a member's vote."""

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

    def may_be_asked(self, domain: Domain, process: ProcessId, message: MessageId) -> bool:
        """Whether a process has delivered a message, in its present incarnation, that no majority of another domain is
        known to have delivered."""
        return False

    def has_promised_above(self, domain: Domain, process: ProcessId, ballot: int) -> bool:
        """Whether a process has promised a higher ballot in its present incarnation."""
        return False

    def holds_message(self, process: ProcessId, message: MessageId) -> bool:
        """Whether a process has the content of a message at the end of the present step."""
        return False


StateBody = Callable[[Listener, ProcessId, Any], None]
"""Tells a listener what a body, sent by this process, states. Also: what a record or a snapshot of this process
states."""
StateDelivery = Callable[[Listener, ProcessId, Deliver], None]
"""Tells a listener on which beliefs a process delivers."""
FindLosses = Callable[[Any], tuple[int, ...]]
"""The last incarnation of each member of its sender's group that a body says to have begun without memory."""
Answers = Callable[[Body], bool]
"""Whether a body, sent to who asked, answers a question."""
Duty = Callable[[Listener, ProcessId, ProcessId, Any], Answers | None]
"""From a process, a sender and a body that the process receives from it: what the process must send it in the same
step; None: nothing."""
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
    delivery: StateDelivery | None = None
    has_first_record: bool = False
    """Whether a process begins with a record, so that an empty disk means that it lost its memory."""
    states: Mapping[type[State], StateBody] = field(default_factory=dict)
    """From types of snapshots: what a process relies on, as its snapshot shows."""
    losses: Mapping[type[Body], FindLosses] = field(default_factory=dict)
    """Bodies that tell which members lost their memory: the snapshot of who hears of another loss is heard at once."""
    duties: Mapping[type[Body], Duty] = field(default_factory=dict)
    """What processes owe to the senders of bodies."""

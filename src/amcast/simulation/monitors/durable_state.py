"""What the durable records of each process state: a restart knows this and nothing else."""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.kernel.statements import Domain, Listener, Slot, StatementTable


class MemberRecords:
    """What the records of one member state about one domain."""

    __slots__ = ("clock", "held", "promised", "settled_below", "settled_slots", "votes")

    def __init__(self) -> None:
        self.promised = -1
        self.clock = 0
        self.held = (0, 0)
        """Ballot, and length of its log."""
        self.votes: dict[Slot, int] = {}
        """By slot: the ballot of the vote."""
        self.settled_below = 0
        self.settled_slots: set[Slot] = set()

    def covers_vote(self, ballot: int, slot: Slot) -> bool:
        return slot < self.settled_below or self.votes.get(slot, -1) >= ballot or slot in self.settled_slots


class DurableState(Listener):
    """The statements of the records on one process' disk. It follows the list of records without being told of each
    write: a list that begins with another record was replaced."""

    def __init__(self, table: StatementTable) -> None:
        self._table = table
        self._first: Record | None = None
        self._count = 0
        self._domains: dict[Domain, MemberRecords] = {}
        self.has_records = False
        """Whether the process ever had a record. One that never persists, because its nodes are in memory, has nothing
        to wait for."""

    def follow(self, process: ProcessId, records: list[Record]) -> None:
        """Takes the statements of records that were added."""
        count = len(records)
        if count < self._count or (count and records[0] is not self._first):
            self._domains = {}
            self._count = 0
        if count:
            self.has_records = True
            self._first = records[0]
        for record in records[self._count :]:
            state = self._table.records.get(type(record))
            if state is not None:
                state(self, process, record)
        self._count = count

    def of(self, domain: Domain) -> MemberRecords:
        found = self._domains.get(domain)
        if found is None:
            found = self._domains[domain] = MemberRecords()
        return found

    # Statements of records

    def promise(self, domain: Domain, source: ProcessId, ballot: int) -> None:
        member = self.of(domain)
        member.promised = max(member.promised, ballot)

    def vote(
        self,
        domain: Domain,
        source: ProcessId,
        ballot: int,
        slot: Slot,
        needs_proposal: bool = False,
        memory_losses: tuple[int, ...] = (),
    ) -> None:
        member = self.of(domain)
        if ballot < 0:
            ballot = member.held[0]
        member.votes[slot] = max(ballot, member.votes.get(slot, -1))

    def hold(self, domain: Domain, source: ProcessId, ballot: int, length: int) -> None:
        member = self.of(domain)
        if ballot < 0:
            ballot = member.held[0]
        member.held = max(member.held, (ballot, length))

    def publish_clock(self, domain: Domain, source: ProcessId, ballot: int, clock: int) -> None:
        member = self.of(domain)
        member.clock = max(member.clock, clock)

    def settle(self, domain: Domain, source: ProcessId, below: Slot) -> None:
        member = self.of(domain)
        member.settled_below = max(member.settled_below, below)

    def settle_slot(self, domain: Domain, source: ProcessId, slot: Slot) -> None:
        self.of(domain).settled_slots.add(slot)


class RetainedDeliveries(Listener):
    """From where on a checkpoint has the deliveries of its process."""

    def __init__(self) -> None:
        self.first = 0

    def retain(self, source: ProcessId, first: int) -> None:
        self.first = first

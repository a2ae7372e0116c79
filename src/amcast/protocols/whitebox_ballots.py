"""White-Box when the leader changes, and when a member has lost its memory.

    candidate             fellows
       |----NewLeader------->|      with how much it delivered
       |<---NewLeaderAck-----|      ballot and clock, accepted messages, deliveries beyond the candidate's
       |----NewState-------->|      all of a majority merged: deliveries; accepted under the highest ballot; clock
       |<---NewStateAck------|      held, and everything delivered that the candidate had delivered
    leader                          stamps again what was accepted, with the same timestamps, and then the rest

A member without memory has no vote until so many fellows have said Welcome that every majority it was part of has one
of them, and the leader of a ballot at least as high as any they had promised has sent it its state: that has
everything which lost acceptances may have helped to commit, because the leader stamped it. The Welcomes restore the
clock. Acceptances and acknowledgements from before that life are discarded by whoever hears of it (`births`), and every
body of whoever said Welcome tells of it.
"""

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.parts.quorum import next_ballot
from amcast.protocols.bodies.whitebox import (
    Entry,
    Fact,
    Join,
    Jump,
    Nack,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Story,
    Sync,
    Welcome,
    WhiteBoxConfig,
)
from amcast.protocols.whitebox_order import Item, Order, about


class Ballots(Order):
    """A member that can change ballots."""

    def __init__(self, me: ProcessId, topology: Topology, config: WhiteBoxConfig) -> None:
        super().__init__(me, topology, config)
        self._life = 0
        self._oracle = self._members[0]
        """Whom the oracle named last."""
        self._heard_ballot = 0
        """The highest that anybody of my group spoke of."""
        self._promises: dict[int, NewLeaderAck] = {}
        self._chosen: NewState | None = None
        """How my ballot begins, once a majority has answered."""
        self._holders = 0
        """Who holds it, bits by place."""
        self._welcomes: dict[int, Welcome] = {}
        self._turn = 0
        """Whom to ask next."""
        self._checkpoint_due = False

    # A candidate

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group != self.home or leader not in self._members:
            return
        self._oracle = leader
        if leader == self.me and self._role != "joining":
            if self._role == "member":
                self._campaign()
            else:
                self._write(self._fellows, Sync(self._ballot, self.position))

    def _campaign(self) -> None:
        self._role = "candidate"
        self._promised = next_ballot(max(self._promised, self._heard_ballot), self._life, self._place)
        self._promises = {}
        self._chosen = None
        self._holders = 0
        self._write(self._members, NewLeader(self._promised, self.position))

    def _hear_nack(self, ballot: int) -> None:
        """I am refused. If the oracle still means me, I go above; else whoever it means will."""
        self._heard_ballot = max(self._heard_ballot, ballot)
        if ballot > self._promised and self._role in ("leader", "candidate") and self._oracle == self.me:
            self.note("nack")
            self._campaign()

    def _hear_new_leader(self, sender: ProcessId, body: NewLeader) -> None:
        self._heard_ballot = max(self._heard_ballot, body.ballot)
        if self._role == "joining":
            return
        if body.ballot < self._promised:
            self._write((sender,), Nack(self._promised))
        elif body.ballot > self._ballot:
            if body.ballot > self._promised:
                self._promised = body.ballot
                self._role = "member"
            entries = tuple(Entry(item.message, item.local) for item in self._sorted() if item.local)
            ack = NewLeaderAck(
                body.ballot,
                self._ballot,
                self._clock,
                self.position,
                entries,
                self._story(body.position),
                self._births[self.home],
            )
            self._write((sender,), ack)

    def _sorted(self) -> list[Item]:
        return [item for _, item in sorted(self._items.items())]

    def _hear_promise(self, sender: ProcessId, body: NewLeaderAck) -> None:
        if self._role != "candidate" or body.ballot != self._promised or self._chosen is not None:
            return
        self._hear_births(self.home, body.births)
        self._promises[self._places[sender]] = body
        births = self._births[self.home]
        valid = [promise for place, promise in sorted(self._promises.items()) if promise.births[place] == births[place]]
        if len(valid) >= self._quorum:
            self._begin(valid)

    def _begin(self, promises: list[NewLeaderAck]) -> None:
        for promise in promises:
            self._take(promise.story)
        entries = self._merged(promises)
        clock = max(promise.clock for promise in promises)
        self._chosen = NewState(
            self._promised, clock, self.position, entries, Story(self.position, ()), self._births[self.home]
        )
        for place, member in enumerate(self._members):
            known = self._promises.get(place)
            self._send_state(member, self._first if known is None else known.position)

    def _merged(self, promises: list[NewLeaderAck]) -> tuple[Entry, ...]:
        """What anybody of them accepted under the highest ballot among them, and nobody is known to have delivered."""
        current = max(promise.current for promise in promises)
        merged: dict[int, Entry] = {}
        for promise in promises:
            if promise.current == current:
                for entry in promise.entries:
                    id = entry.message.id
                    if id not in self._seen:
                        known = merged.setdefault(id, entry)
                        assert known.timestamp == entry.timestamp, (
                            f"process {self.me}: message {id} was accepted at {known.timestamp} and {entry.timestamp}"
                        )
        return tuple(entry for _, entry in sorted(merged.items()))

    def _send_state(self, member: ProcessId, position: int) -> None:
        """How my ballot began, with the deliveries that this member lacks."""
        begun = self._chosen
        if begun is not None:
            story = self._story(position)
            self._write(
                (member,), NewState(begun.ballot, begun.clock, begun.position, begun.entries, story, begun.births)
            )
        elif self._leading():
            entries = tuple(Entry(item.message, item.proposed) for item in self._sorted() if item.proposed)
            self._write(
                (member,),
                NewState(
                    self._ballot,
                    self._clock,
                    self.position,
                    entries,
                    self._story(position),
                    self._births[self.home],
                ),
            )

    # A follower

    def _hear_state(self, sender: ProcessId, body: NewState) -> None:
        assert sender == self._leader(body.ballot), f"process {sender} sent the state of ballot {body.ballot}"
        self._heard_ballot = max(self._heard_ballot, body.ballot)
        if self._role == "joining":
            if not self._admits(body):
                return
        elif body.ballot < self._promised:
            self._write((sender,), Nack(self._promised))
            return
        self._take(body.story)
        if self.position < body.position:
            self._write((sender,), Sync(-1, self.position))
            return
        if self._role == "joining":
            self._role = "member"
            self._welcomes = {}
            self.note("admitted")
            self._adopt(body)
        elif body.ballot > self._ballot:
            self._adopt(body)
        self._write((sender,), NewStateAck(body.ballot))

    def _adopt(self, body: NewState) -> None:
        self._hear_births(self.home, body.births)
        if body.ballot > self._promised or self._leader(body.ballot) != self.me:
            self._role = "member"
        self._ballot = self._promised = body.ballot
        self._clock = max(self._clock, body.clock)
        for item in self._items.values():
            item.local = item.proposed = 0
            item.accepts.pop(self.home, None)
            item.tallies = {}
            item.ordered = False
        for entry in body.entries:
            if entry.message.id not in self._seen:
                self._item(entry.message).local = entry.timestamp
        self._stamped, self._accepted, self._ordered = [], [], []
        self._checkpoint_due = True
        self.note("adopted", value=float(body.ballot))

    def _hear_held(self, sender: ProcessId, ballot: int) -> None:
        """Somebody holds my state. A majority makes me leader; who comes later lacks the stamps given since."""
        if ballot != self._promised or ballot != self._ballot:
            return
        self._holders |= 1 << self._places[sender]
        if self._leading():
            self._repeat_stamps(sender)
        elif self._role == "candidate" and self._holders.bit_count() >= self._quorum:
            self._lead()

    def _lead(self) -> None:
        self._role = "leader"
        self._promises = {}
        self._chosen = None
        self._next = self.position
        self._queue = []
        self.note("epoch", value=float(self._ballot))
        rest = []
        for item in self._sorted():
            if item.local:
                item.proposed = item.local
                self._clock = max(self._clock, item.local)
                self._queue.append((item.local, item.id))
                self._stamped.append(item)
            else:
                rest.append(item)
        self._queue.sort()
        for item in rest:
            self.note("reproposed", item.id)
            self._stamp(item)

    def _repeat_stamps(self, only: ProcessId) -> None:
        """My stamps of what is open, again, to one process."""
        group = self.topology.group_of(only)
        items = [item for item in self._sorted() if item.proposed and group in item.message.destinations]
        if items:
            self._write((only,), self._accept(items), about([item.id for item in items]))

    # Deliveries told

    def _story(self, position: int) -> Story:
        """What this process delivered from a position on."""
        if position >= self._first:
            return Story(position, tuple(self._past.values())[position - self._first :])
        return Story(self.position, (), Jump(*self._mark, self._seen.snapshot(), self._known_facts()))

    def _known_facts(self) -> tuple[Fact, ...]:
        return tuple(Fact(id, final, tuple(sorted(groups))) for id, (final, groups) in self._facts.items())

    def _take(self, story: Story) -> None:
        if story.jump is not None and story.first > self.position:
            self._jump(story.first, story.jump)
        if story.first <= self.position:
            for past in story.past[self.position - story.first :]:
                self.note("caught-up", past.message.id)
                self._hand_over(past, None)

    def _jump(self, position: int, jump: Jump) -> None:
        self.installed(position)
        self._seen.restore(jump.seen)
        self._mark = (jump.time, jump.tie)
        self._items = {id: item for id, item in self._items.items() if id not in self._seen}
        self._past = {}
        self._first = position
        self._undurable = []
        self._facts = {}
        self._owed = {}
        for fact in jump.facts:
            self._owe(fact.id, fact.final, fact.groups)
        self._clock = max(self._clock, jump.time)
        self._checkpoint_due = True

    # Lost memory

    def _join(self) -> None:
        self._role = "joining"
        births = list(self._births[self.home])
        births[self._place] = self._life
        self._births[self.home] = tuple(births)
        self._ask_to_join(-1)

    def _ask_to_join(self, helper: ProcessId) -> None:
        self._write(self._fellows, Join(self._life, helper))

    def _hear_join(self, sender: ProcessId, body: Join) -> None:
        if self._role == "joining":
            return
        births = list(self._births[self.home])
        place = self._places[sender]
        births[place] = max(births[place], body.birth)
        self._hear_births(self.home, tuple(births))
        self._write((sender,), Welcome(body.birth, self._promised, self._clock))
        if body.helper == self.me:
            self.note("helped")
            self._campaign()
        elif self._leading():
            self._send_state(sender, 0)

    def _hear_welcome(self, sender: ProcessId, body: Welcome) -> None:
        if self._role != "joining" or body.birth != self._life:
            return
        before = self._welcomed()
        self._welcomes[self._places[sender]] = body
        self._clock = max(self._clock, body.clock)
        if self._welcomed() and not before:
            self._seek_admission()

    def _welcomed(self) -> bool:
        """Every majority that I was part of contains one of those who answered."""
        return len(self._welcomes) > len(self._members) - self._quorum

    def _lowest_ballot(self) -> int:
        return max(welcome.promised for welcome in self._welcomes.values())

    def _seek_admission(self) -> None:
        """Ask the leader for its state, or, if it was I, the next fellow to become leader."""
        leader = self._leader(max(self._lowest_ballot(), self._heard_ballot))
        if leader == self.me or self._turn > 1:
            self._ask_to_join(self._fellows[self._turn % len(self._fellows)])
        else:
            self._write((leader,), Sync(-1, self.position))
        self._turn += 1

    def _admits(self, body: NewState) -> bool:
        """Its leader must know of my lost memory, and tell it with every stamp from now on."""
        return self._welcomed() and body.ballot >= self._lowest_ballot() and body.births[self._place] == self._life

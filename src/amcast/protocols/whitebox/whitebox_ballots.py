"""White-Box when the leader changes, and when a member has lost its memory.

    candidate             fellows
       |----NewLeader------->|      with how much it delivered
       |<---NewLeaderAck-----|      ballot and clock, accepted messages, deliveries beyond the candidate's
       |----NewState-------->|      all of a majority merged: deliveries; accepted under the highest ballot; clock
       |<---NewStateAck------|      held, and everything delivered that the candidate had delivered
    leader                          stamps again what was accepted, with the same timestamps, and then the rest

A member that lost its memory comes back as `parts/groups/leader_group.py` tells; the state it is sent has everything
which its lost acceptances may have helped to commit, because the leader stamped it. Its acceptances from before are
discarded, in other groups too.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology
from amcast.parts.groups.leader_group import select_valid_promises
from amcast.parts.groups.messages import Entry, Nack
from amcast.protocols.whitebox.messages import (
    Jump,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    OwedTimestamp,
    Story,
    Sync,
    WhiteBoxConfig,
)
from amcast.protocols.whitebox.whitebox_order import Item, Order, about


class Ballots(Order):
    """A member that can change ballots."""

    def __init__(self, me: ProcessId, topology: Topology, config: WhiteBoxConfig) -> None:
        super().__init__(me, topology, config)
        self._promises: dict[int, NewLeaderAck] = {}
        self._chosen: NewState | None = None
        """How my ballot begins, once a majority has answered."""
        self._holders = 0
        """Who holds it, bits by place."""

    def _sync_request(self, full: bool) -> Sync:
        return Sync(-1 if self._role == "joining" else self._epoch, self.position)

    # A candidate

    def _campaign(self) -> None:
        self._promises = {}
        self._chosen = None
        self._holders = 0
        super()._campaign()

    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        if self._chosen is None:
            self._send_after_persist(members, NewLeader(self._promised, self.position))
        else:
            for member in members:
                known = self._promises.get(self._places[member])
                self._send_state(member, self._history_start if known is None else known.position)

    def _hear_new_leader(self, sender: ProcessId, body: NewLeader) -> None:
        if self._promise_candidate(sender, body.ballot):
            ack = NewLeaderAck(
                body.ballot,
                self._epoch,
                self._clock,
                self.position,
                self._entries(),
                self._story(body.position),
                self._memory_losses,
            )
            self._send_after_persist((sender,), ack)

    def _entries(self) -> tuple[Entry, ...]:
        """What I accepted."""
        return tuple(Entry(item.message, item.local) for item in self._sorted() if item.local)

    def _sorted(self) -> list[Item]:
        return [item for _, item in sorted(self._pending.items())]

    def _hear_promise(self, sender: ProcessId, body: NewLeaderAck) -> None:
        if self._role != "candidate" or body.ballot != self._promised or self._chosen is not None:
            return
        self._merge_memory_losses(body.memory_losses)
        self._promises[self._places[sender]] = body
        valid = select_valid_promises(self._promises, self._memory_losses)
        if len(valid) >= self._quorum:
            self._begin(valid)

    def _begin(self, promises: list[NewLeaderAck]) -> None:
        for promise in promises:
            self._take(promise.story)
        entries = self._merged(promises)
        clock = max(promise.clock for promise in promises)
        self._chosen = NewState(
            self._promised, clock, self.position, entries, Story(self.position, ()), self._memory_losses
        )
        self._send_candidacy(self._members)

    def _merged(self, promises: list[NewLeaderAck]) -> tuple[Entry, ...]:
        """What anybody of them accepted under the highest ballot among them, and nobody is known to have delivered."""
        current = max(promise.current for promise in promises)
        merged: dict[int, Entry] = {}
        for promise in promises:
            if promise.current == current:
                for entry in promise.entries:
                    id = entry.message.id
                    if id not in self._delivered:
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
            self._send_after_persist(
                (member,),
                NewState(begun.ballot, begun.clock, begun.position, begun.entries, story, begun.memory_losses),
            )
        elif self._leading():
            entries = tuple(Entry(item.message, item.proposed) for item in self._sorted() if item.proposed)
            self._send_after_persist(
                (member,),
                NewState(
                    self._epoch,
                    self._clock,
                    self.position,
                    entries,
                    self._story(position),
                    self._memory_losses,
                ),
            )

    # A follower

    def _hear_state(self, sender: ProcessId, body: NewState) -> None:
        assert sender == self._leader_of(body.ballot), f"process {sender} sent the state of ballot {body.ballot}"
        self._highest_epoch = max(self._highest_epoch, body.ballot)
        if self._role == "joining":
            if not self._may_admit(body.ballot, body.memory_losses):
                return
        elif body.ballot < self._promised:
            self._send_after_persist((sender,), Nack(self._promised))
            return
        self._take(body.story)
        if self.position < body.position:
            self._send_after_persist((sender,), Sync(-1, self.position))
            return
        if self._role == "joining":
            self._complete_admission()
            self._adopt(body)
        elif body.ballot > self._epoch:
            self._adopt(body)
        self._send_after_persist((sender,), NewStateAck(body.ballot))

    def _adopt(self, body: NewState) -> None:
        self._enter_epoch(body.ballot, body.clock, body.memory_losses)
        for item in self._pending.values():
            item.local = item.proposed = 0
            item.accepts.pop(self.home, None)
            item.tallies = {}
            item.ordered = False
        for entry in body.entries:
            if entry.message.id not in self._delivered:
                self._item(entry.message).local = entry.timestamp
        self._stamped, self._accepted, self._ordered = [], [], []

    def _hear_held(self, sender: ProcessId, ballot: int) -> None:
        """Somebody holds my state. A majority makes me leader; who comes later lacks the stamps given since."""
        if ballot != self._promised or ballot != self._epoch:
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
        self.note("epoch", value=float(self._epoch))
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
            self._send_after_persist((only,), self._accept(items), about([item.id for item in items]))

    # Deliveries told

    def _story(self, position: int) -> Story:
        """What this process delivered from a position on."""
        if position >= self._history_start:
            return Story(position, tuple(self._past.values())[position - self._history_start :])
        return Story(
            self.position, (), Jump(*self._last_delivered_rank, self._delivered.snapshot(), self._known_facts())
        )

    def _known_facts(self) -> tuple[OwedTimestamp, ...]:
        return tuple([OwedTimestamp(id, final, groups) for id, _, final, groups in self._obligations.listed()])

    def _take(self, story: Story) -> None:
        if story.jump is not None and story.first > self.position:
            self._jump(story.first, story.jump)
        if story.first <= self.position:
            for past in story.past[self.position - story.first :]:
                self.note("caught-up", past.message.id)
                self._hand_over(past, None)

    def _jump(self, position: int, jump: Jump) -> None:
        self.install_position(position)
        self._adopt_position(position, (jump.time, jump.tie), jump.seen)
        self._pending = {id: item for id, item in self._pending.items() if id not in self._delivered}
        self._past = {}
        self._undurable = []
        for fact in jump.facts:
            self._owe(fact.id, fact.final, fact.groups)

    def _send_epoch_state(self, sender: ProcessId) -> None:
        if self._leading():
            self._send_state(sender, 0)

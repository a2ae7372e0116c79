"""PrimCast when the primary changes, and when a member has lost its memory (002, algorithm 3).

    candidate            fellows
       |----NewEpoch------>|        to all members, itself among them
       |<---Promise--------|        epoch and log held, clock; nothing lower is accepted from now on
       |----NewState------>|        the longest log of the highest epoch, the highest clock, of a majority
       |<---Ack----------->|        everybody to everybody: "I hold it", with the clock; a majority establishes it
    primary

A member that lost its memory comes back as `parts/groups/leader_group.py` tells; an epoch's state is its log. Fellows
discard its clock, and what it said in epochs that they have not reached.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology
from amcast.parts.groups.leader_group import select_valid_promises
from amcast.parts.groups.messages import Entry, Nack
from amcast.protocols.primcast.announcements import Telling
from amcast.protocols.primcast.messages import (
    Ack,
    NewEpoch,
    NewState,
    PrimCastConfig,
    Promise,
    Sync,
)
from amcast.protocols.primcast.progress import Item, about


class Epochs(Telling):
    """A member that can change epochs."""

    __slots__ = ("_later", "_promises", "_state")

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config)
        self._promises: dict[int, Promise] = {}
        self._state: NewState | None = None
        """What I, a candidate, chose from the promises and sent."""
        self._later: dict[int, Ack] = {}
        """By place: the last word of fellows in epochs that I have not reached."""

    def _sync_request(self, full: bool) -> Sync:
        if self._role == "joining":
            return Sync(-1, 0, self.position, True)
        return Sync(self._epoch, self._length, self.position, full)

    # A candidate

    def _campaign(self) -> None:
        self._promises = {}
        self._state = None
        super()._campaign()

    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        self._send_after_persist(members, self._state or NewEpoch(self._promised))

    def _promise(self) -> Promise:
        return Promise(
            self._promised,
            self._epoch,
            self._clock,
            self._base,
            self._floor,
            self._entries(self._base),
            self._memory_losses,
        )

    def _entries(self, first: int) -> tuple[Entry, ...]:
        entries = []
        for index in range(first, self._length):
            item = self._log[index]
            assert item.message is not None
            entries.append(Entry(item.message, item.timestamp))
        return tuple(entries)

    def _hear_promise(self, sender: ProcessId, body: Promise) -> None:
        if self._role != "candidate" or body.epoch != self._promised or self._state is not None:
            return
        self._merge_memory_losses(body.memory_losses)
        self._promises[self._places[sender]] = body
        valid = select_valid_promises(self._promises, self._memory_losses)
        if len(valid) < self._quorum:
            return
        longest = max(valid, key=lambda promise: (promise.current, promise.base + len(promise.entries)))
        clock = max(promise.clock for promise in valid)
        self._state = NewState(self._promised, clock, longest.base, longest.floor, longest.entries, self._memory_losses)
        self._send_after_persist(self._members, self._state)

    # A follower

    def _hear_state(self, sender: ProcessId, body: NewState) -> None:
        assert sender == self._leader_of(body.epoch), f"process {sender} sent the state of epoch {body.epoch}"
        self._highest_epoch = max(self._highest_epoch, body.epoch)
        if self._role == "joining":
            if self._may_admit(body.epoch, body.memory_losses):
                self._complete_admission()
                self._adopt(body)
        elif body.epoch < self._promised:
            self._send_after_persist((sender,), Nack(self._promised))
        elif body.epoch > self._epoch:
            self._adopt(body)
        elif sender != self.me:
            self._extend(body)

    def _adopt(self, body: NewState) -> None:
        """Hold another log from now on."""
        self._enter_epoch(body.epoch, body.clock, body.memory_losses)
        self._established = False
        self._leader_clock = 0
        self._said = (0, 0)
        self._replace(body)
        self._due = True
        for place, ack in sorted(self._later.items()):
            if ack.epoch <= self._epoch:
                del self._later[place]
                self.fast_receive(self._members[place], ack)
        if self._leader_of(self._epoch) != self.me:
            self._tell_others(self._open(), None)

    def _extend(self, body: NewState) -> None:
        """The same log, of which I missed something."""
        end = body.base + len(body.entries)
        if end > self._length:
            self.note("extended")
            if body.base > self._length:
                self._replace(body)
                self._checkpoint_due = True
                self._due = True
                self._tell_others(self._open(), None)
            else:
                self._stream.clear()
                for entry in body.entries[self._length - body.base :]:
                    self._append(self._held(entry), entry.timestamp)
        if self._said[0] <= self._length and self._said[1] > self._leader_clock:
            self._leader_clock = self._said[1]

    def _replace(self, body: NewState) -> None:
        """Put the log of a state in the place of mine; what it lacks has no timestamp of my group any more."""
        for item in self._pending.values():
            item.index = -1
            item.timestamp = 0
            item.bound = max(item.decided.values(), default=0)
            if item.message is not None:
                self._unproposed[item.id] = item
        self._log = {}
        self._queue = []
        self._stream.clear()
        self._fresh = []
        self._base = self._length = self._decided = body.base
        self._floor = max(self._floor, body.floor)
        for entry in body.entries:
            self._place_in_log(self._held(entry), entry.timestamp)
        for item in self._pending.values():
            assert item.index >= 0 or self.home not in item.decided or self.position < self._floor, (
                f"process {self.me}: epoch {body.epoch} lost message {item.id}, whose timestamp was decided"
            )

    def _held(self, entry: Entry) -> Item:
        if entry.message.id in self._delivered:
            return self._buried(entry.message)
        item = self._item(entry.message.id)
        item.message = entry.message
        self._commit(item)
        return item

    def _open(self) -> list[Item]:
        """What has a place in the log and is not delivered, in the log's order."""
        return [item for index in range(self._base, self._length) if (item := self._log[index]).delivered_at < 0]

    def _tell_others(self, items: list[Item], only: ProcessId | None) -> None:
        """Say again to other groups (or to one process of theirs) how my group's log stands for what is open."""
        for group, mine in self._by_group(items):
            targets = self.topology.members(group)
            if only is None:
                self._send_after_persist(targets, self._said_of(mine), about(mine))
            elif only in targets:
                self._send_after_persist((only,), self._said_of(mine), about(mine))

    def _hear_later(self, place: int, ack: Ack) -> None:
        """A fellow is in an epoch that I have not reached: its state is on its way, or lost."""
        self._observe_epoch(ack.epoch)
        self._later[place] = ack

    def _establish(self) -> None:
        if self._role == "candidate" and self._leader_of(self._epoch) == self.me and self._is_active():
            self._role = "primary"
            self._promises = {}
            self._state = None
            self.note("epoch", value=float(self._epoch))
            for item in self._unproposed.values():
                self.note("reproposed", item.id)
            self._tell_others(self._open(), None)

    # Lost memory

    def _start_joining(self) -> None:
        super()._start_joining()
        self._established = False

    def _discard_votes(self, place: int) -> None:
        self._clocks.forget(place)
        self._later.pop(place, None)

    def _send_epoch_state(self, sender: ProcessId) -> None:
        if self._role == "primary" and self._is_active():
            self._send_after_persist((sender,), self._whole_state())

    def _whole_state(self) -> NewState:
        return NewState(
            self._epoch, self._clock, self._base, self._floor, self._entries(self._base), self._memory_losses
        )

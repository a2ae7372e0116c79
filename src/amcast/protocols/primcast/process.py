"""PrimCast: primaries stamp, everybody acknowledges to everybody, three message delays at every destination.

Source: Pacheco, Coelho, Pedone, "PrimCast: A Latency-Efficient Atomic Multicast" (2023), paper 002.

    client     primary of g   members of g   primary of h   members of h
      |--Request-->|------------>|------------->|------------->|     to every member of every destination
      |            |--Propose--->|------------->|------------->|     clock + 1, to all destinations (h's primary alike)
      |            |             |--Ack-------->|------------->|     from every member to all destinations
      |         deliver       deliver        deliver        deliver

A message's final timestamp is the highest of its groups' timestamps; each is decided when a majority of the group has
acknowledged it in one epoch. A process delivers in the order of (final timestamp, message id), once its primary's
clock and a majority's clocks have passed it. PrimCast-HC: a primary also never proposes below its local time.

Claims: genuine; three delays everywhere; k(n + kn^2) packets for k groups of n, requests and self-sends included, and
BUMPs only where a group's timestamp was below another's; minorities may crash, restart, lose their memory.

Modules: `primcast_order` (nothing fails), `primcast_telling` (what is said, and how soon), `primcast_epochs` (primary
change), `primcast_repair` (what was missed), `primcast_insight` (what operators ask), and this one, which says who
hears what. Deviations, each with its reason, are in docs/protocols/primcast.md.
"""

from dataclasses import replace
from heapq import heapify

from amcast.kernel.bundle import bundle_messages
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, State
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.groups.claims import ROBUST
from amcast.parts.groups.messages import AdmissionVote, JoinRequest, LeaderGroupState, Nack
from amcast.protocols.primcast.explain import Insight
from amcast.protocols.primcast.messages import (
    BODIES,
    RECORDS,
    Ack,
    CatchUp,
    Decided,
    Install,
    ItemState,
    NewEpoch,
    NewState,
    PrimCastConfig,
    PrimCastState,
    Promise,
    Propose,
    Query,
    Start,
    Sync,
    ViewState,
)
from amcast.protocols.primcast.progress import GroupProgress, Item


class PrimCast(Insight):
    """One member of one group."""

    __slots__ = ()

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Propose():
                self._hear_proposals(sender, body)
            case Start(message):
                self.on_request(message)
            case Query():
                self._answer(sender, body)
            case Decided():
                self._hear_decided(body)
            case Sync():
                self._hear_sync(sender, body)
            case CatchUp():
                self._catch_up(body)
            case Install():
                self._install(body)
            case NewEpoch(epoch):
                if self._hear_candidate(sender, epoch):
                    self._write((sender,), self._promise())
            case Promise():
                self._hear_promise(sender, body)
            case NewState():
                self._hear_state(sender, body)
            case Nack(ballot):
                self._hear_nack(ballot)
            case JoinRequest():
                self._hear_join(sender, body)
            case AdmissionVote():
                self._hear_welcome(sender, body)
            case Ack():
                self.fast_receive(sender, body)
            case _:
                raise AssertionError(f"PrimCast's processes do not say {body!r}")

    def on_step_end(self) -> None:
        """Propose, deliver, and then speak, once what was changed is on its way to the disk."""
        if self._unproposed:
            self._propose()
        while True:
            if self._moved and self._decided < self._length:
                self._decide_own()
            if self._told and self._active():
                self._take_word()
            if self._finals:
                self._deliver_ready()
            if len(self._word) > self._looked and self._role == "primary":
                self._tell_askers()
            if self._committed:
                self._committed.clear()
            if not (self._sends_after_persist or self._fresh or self._due):
                break
            self._trim()
            self._make_durable()
            for targets, body, about in self._sends_after_persist:
                self.send_all(targets, body, about)
            self._sends_after_persist = []
            self._tell()
            if self._recorded:
                break  # my own word comes back to me when it is durable
        if self._word:
            self._promise_word()
        if not self._repair_armed:
            self._watch()

    # Snapshots

    def snapshot(self) -> PrimCastState:
        return PrimCastState(
            self._checkpoint(),
            self._member_state(),
            self._established,
            self._published,
            self._leader_clock,
            self._said,
            tuple(self._stream),
            tuple(self._log[index].delivered_at for index in range(self._base, self._length)),
            tuple(_item_state(item) for _, item in sorted(self._pending.items())),
            tuple(self._unproposed),
            tuple(_view_state(view) for view in (self._view, *(self._views[g] for g in sorted(self._views)))),
            self._clocks.snapshot(),
            tuple(sorted(self._later.items())),
            tuple(sorted(self._promises.items())),
            self._state,
            self._durable_length,
            self._decided,
            tuple(self._undurable),
            tuple(self._word),
            tuple([(position, *told) for position, told in sorted(self._told.items())]),
            self._word_due,
            self._word_ns,
            self._proposed_ns,
            self._streams,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, PrimCastState)
        self._pending = {}
        self._unproposed = {}
        self._restore_kept(state.kept)
        self._restore_member(state.member)
        self._established = state.established
        self._published = state.published
        self._leader_clock = state.leader_clock
        self._said = state.said
        self._stream.clear()
        self._stream.extend(state.stream)
        for index, delivered_at in enumerate(state.delivered_at, self._base):
            self._log[index].delivered_at = delivered_at
        for kept in state.items:
            _fill(self._item(kept.id), kept)
        self._finals = sum(item.final >= 0 for item in self._pending.values())
        self._queue = [(item.bound, item.id) for item in self._pending.values() if item.index >= 0]
        heapify(self._queue)
        self._unproposed = {id: self._pending[id] for id in state.unproposed}
        self._view = _view(state.views[0], self.topology)
        self._views = {kept.group: _view(kept, self.topology) for kept in state.views[1:]}
        self._afar = {}
        self._patient = {}
        self._moved = True
        self._clocks.restore(state.clocks)
        self._later = dict(state.later)
        self._promises = dict(state.promises)
        self._state = state.state
        self._durable_length = state.durable_length
        self._decided = state.decided
        self._undurable = list(state.undurable)
        self._word = list(state.word)
        self._told = {position: (id, final) for position, id, final in state.told}
        self._looked = len(state.word)
        self._word_due = state.word_due
        self._word_ns = state.word_ns
        self._proposed_ns = state.proposed_ns
        self._streams = state.streams


def _item_state(item: Item) -> ItemState:
    return ItemState(
        item.id,
        item.message,
        item.index,
        item.timestamp,
        item.highest,
        tuple(sorted(item.decided.items())),
        tuple(sorted(item.heard)),
        item.committed_ns,
        item.old,
    )


def _fill(item: Item, kept: ItemState) -> None:
    item.message = kept.message
    item.index = kept.index
    item.timestamp = kept.timestamp
    item.highest = kept.highest
    item.decided = dict(kept.decided)
    item.heard = set(kept.heard)
    item.committed_ns = kept.committed_ns
    item.old = kept.old
    item.bound = max(item.timestamp if item.index >= 0 else 0, max(item.decided.values(), default=0))
    if item.committed_ns >= 0:
        item.final = item.bound


def _view_state(view: GroupProgress) -> ViewState:
    return ViewState(
        view.group,
        view.epoch,
        tuple(view.epochs),
        tuple(view.lengths),
        tuple(view.marks),
        tuple(sorted(view.waiting)),
    )


def _view(kept: ViewState, topology: Topology) -> GroupProgress:
    view = GroupProgress(kept.group, topology)
    view.epoch = kept.epoch
    view.epochs = list(kept.epochs)
    view.lengths = list(kept.lengths)
    view.marks = list(kept.marks)
    view.waiting = list(kept.waiting)
    return view


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Three; fewer only where a follower's own word and its primary's are a majority, or a process is its group."""
    if replicas == 1:
        return 2 if destinations > 1 else 1
    return 2 if role == "member" and destinations == 1 and replicas <= 3 else 3


SPEC = Spec(
    name="primcast",
    summary="primaries stamp, everybody acknowledges to everybody: three delays at every destination",
    source="paper 002: Pacheco, Coelho, Pedone 2023",
    process=PrimCast,
    config=PrimCastConfig,
    bodies=BODIES,
    records=RECORDS,
    states=(PrimCastState, LeaderGroupState, ItemState, ViewState),
    claims=replace(
        ROBUST,
        delays=_delays,
        bound=lambda role, skew: 5,
        packets=lambda destinations, replicas: destinations * (replicas + destinations * replicas * replicas),
    ),
    roles=lambda topology, process: (
        "primary" if process in (topology.members(group)[0] for group in topology.groups) else "member"
    ),
    open_bundle=bundle_messages,
    goals=("waited", "early", "bump", "epoch", "reproposed", "asked", "caught-up", "extended", "nack", "admitted"),
)

HYBRID = replace(
    SPEC,
    name="primcast-hc",
    summary="PrimCast whose primaries stamp with the time of day, against the convoy effect",
    source="paper 002, section 6",
    claims=replace(SPEC.claims, bound=lambda role, skew: min(5, 4 + 2 * skew)),
    options={"hybrid": True},
)

"""White-Box: leaders stamp, members accept once every leader has stamped, leaders commit and tell their group.

Source: Gotsman, Lefort, Chockler, "White-Box Atomic Multicast" (2019), as told in paper 002, section 4.2.

    client    leader of g   members of g   leader of h   members of h
      |--Request-->|             |              |             |      to the leaders alone
      |------------------------------Request--->|             |
      |            |--Accept---->|------------->|------------>|      clock + 1 with the message, to all destinations
      |            |<-AcceptAck--|------------->|             |      from every member to every leader, once all stamps
      |         deliver       (and of h)     deliver          |      are here
      |            |--Delivery-->|              |--Delivery-->|
      |                       deliver                      deliver

A leader commits a message at the highest of its stamps when a majority of every destination accepted it under the same
ballots, and delivers in the order of (final timestamp, message id) once no stamp of its own is lower.

Claims: genuine; three delays at leaders, four at followers; k(1 + 2kn + n) packets for k groups of n, requests and
self-sends included; minorities may crash, restart, lose their memory.

Modules: `whitebox_order` (nothing fails), `whitebox_ballots` (leader change), `whitebox_repair` (what was missed), and
this one, which says who hears what. Deviations, each with its reason, are in docs/protocols/whitebox.md.
"""

from dataclasses import replace

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, State
from amcast.kernel.spec import Spec
from amcast.parts.consensus.quorum import role
from amcast.parts.groups.claims import ROBUST
from amcast.parts.groups.messages import AdmissionVote, JoinRequest, LeaderGroupState, Nack
from amcast.protocols.whitebox.explain import Insight
from amcast.protocols.whitebox.messages import (
    BODIES,
    RECORDS,
    Accept,
    AcceptAck,
    CatchUp,
    Decided,
    Delivery,
    ItemState,
    Mark,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Retry,
    Sync,
    WhiteBoxConfig,
    WhiteBoxState,
)
from amcast.protocols.whitebox.whitebox_order import Item, contact


class WhiteBox(Insight):
    """One member of one group."""

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Accept():
                self._hear_accept(sender, body)
            case AcceptAck():
                self._hear_acks(sender, body)
            case Delivery():
                self._hear_delivery(body)
            case Retry(message):
                self._hear_retry(sender, message)
            case Decided():
                self._hear_decided(body)
            case Sync():
                self._hear_sync(sender, body)
            case CatchUp(story):
                self._take(story)
            case NewLeader():
                self._hear_new_leader(sender, body)
            case NewLeaderAck():
                self._hear_promise(sender, body)
            case NewState():
                self._hear_state(sender, body)
            case NewStateAck(ballot):
                self._hear_held(sender, ballot)
            case Nack(ballot):
                self._handle_nack(ballot)
            case Mark(position):
                self._hear_mark(position)
            case JoinRequest():
                if self._handle_join_request(sender, body):
                    self._send_epoch_state(sender)
            case AdmissionVote():
                self._handle_admission_vote(sender, body)
            case _:
                raise AssertionError(f"White-Box's processes do not say {body!r}")

    def on_step_end(self) -> None:
        """Order, and then speak, once what was changed is on its way to the disk."""
        if self._queue and self._leading():
            self._order()
        self._committed.clear()
        if not self._is_active():
            self._stamped, self._accepted, self._ordered = [], [], []
        if self._sends_after_persist or self._stamped or self._accepted or self._ordered or self._checkpoint_due:
            self._make_durable()
            for targets, body, about in self._sends_after_persist:
                self.send_all(targets, body, about)
            self._sends_after_persist = []
            self._tell()
        self._arm_repair_timer()

    # Snapshots

    def snapshot(self) -> WhiteBoxState:
        return WhiteBoxState(
            self._build_checkpoint(),
            self._snapshot_member(),
            self._next,
            tuple(_item_state(item) for item in self._pending.values()),
            tuple(self._marks),
            tuple(sorted(self._stable.items())),
            tuple(sorted(self._far_memory_losses.items())),
            tuple(sorted(self._promises.items())),
            self._holders,
            self._chosen,
            tuple(self._undurable),
            self._marked,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, WhiteBoxState)
        self._stable = {}
        self._restore_kept(state.kept)
        self._restore_member(state.member)
        self._next = state.next
        self._pending = {kept.id: _item(kept) for kept in state.items}
        self._queue = sorted((item.proposed, item.id) for item in self._pending.values() if item.proposed)
        self._marks = list(state.marks)
        self._stable = dict(state.stable)
        self._far_memory_losses = dict(state.far_memory_losses)
        self._promises = dict(state.promises)
        self._holders = state.holders
        self._chosen = state.chosen
        self._undurable = list(state.undurable)
        self._marked = state.marked


def _item_state(item: Item) -> ItemState:
    return ItemState(
        item.id,
        item.message,
        item.local,
        item.proposed,
        tuple((group, *said) for group, said in sorted(item.accepts.items())),
        tuple((ballots, tuple(sorted(tally.items()))) for ballots, tally in sorted(item.tallies.items())),
        item.final,
        item.committed_ns,
        item.ordered,
        item.is_overdue,
    )


def _item(kept: ItemState) -> Item:
    item = Item(kept.message)
    item.local = kept.local
    item.proposed = kept.proposed
    item.accepts = {group: (ballot, timestamp) for group, ballot, timestamp in kept.accepts}
    item.tallies = {ballots: dict(tally) for ballots, tally in kept.tallies}
    item.final = kept.final
    item.committed_ns = kept.committed_ns
    item.ordered = kept.ordered
    item.is_overdue = kept.is_overdue
    return item


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Three at leaders, one more at followers; a process that is its group has nobody to wait for."""
    if replicas == 1:
        return 1 if destinations == 1 else 3
    return 3 if role == "leader" else 4


SPEC = Spec(
    name="whitebox",
    summary="leaders stamp and commit, followers accept: three delays at leaders, four at followers",
    source="paper 002 section 4.2: Gotsman, Lefort, Chockler 2019",
    process=WhiteBox,
    config=WhiteBoxConfig,
    bodies=BODIES,
    records=RECORDS,
    states=(WhiteBoxState, LeaderGroupState, ItemState),
    claims=replace(
        ROBUST,
        delays=_delays,
        bound=lambda role, skew: 5 if role == "leader" else 6,
        packets=lambda destinations, replicas: destinations * (1 + 2 * destinations * replicas + replicas),
    ),
    contacts=contact,
    roles=role,
    goals=("waited", "epoch", "reproposed", "asked", "caught-up", "nack", "admitted", "forwarded"),
)

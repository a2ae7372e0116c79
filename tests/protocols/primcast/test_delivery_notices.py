"""PrimCast followers deliver by their primary's notices, in the same order, whatever happens to the notices.

Nodes of most scenes defer what is not urgent, as live hosts do (`tests/protocols/deferring_nodes.py`): a follower that
ignores notices delivers when deferred acknowledgements arrive after `DEFER_NS`, and not before.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from amcast import assembly
from amcast.kernel.bundle import gateway_process, gateway_sender, make_bundle
from amcast.kernel.effects import Deliver, Effect, Send, SetTimer
from amcast.kernel.events import Event, Receive, Started, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.message import Body, Message, Record
from amcast.kernel.topology import Topology
from amcast.lab import runs
from amcast.parts.consensus.quorum import next_ballot
from amcast.parts.groups.leader_group_messages import DeliveredPrefix, Entry
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.primcast.delivery_notices import BATCH_NOTICES, IDLE_NS, MAX_AHEAD, STREAM_NS
from amcast.protocols.primcast.messages import Ack, DeliveryNotice, Install, NewState, Progress, Propose, Start, Sync
from amcast.protocols.primcast.process import NOTICE_TIMER, PrimCast
from amcast.protocols.primcast.progress import PendingMulticast
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.fuzz import Fuzzer, FuzzOutcome
from amcast.trace.recorder import Recorder
from tests.mutants.outcome import is_caught
from tests.protocols.deferring_nodes import DEFER_NS, DeferringNode, EagerPrimCast
from tests.protocols.gateway_stage import GatewayStage

NO_LOSSES = (0, 0, 0)
MS = 1_000_000


def bundle(number: int, *destinations: GroupId, gateway: ProcessId = 3) -> Message:
    """A gateway's bundle of two messages."""
    parts = [Message(message_id(9, 2 * number + place), 9, destinations) for place in range(2)]
    return make_bundle(gateway_sender(gateway, 0), number, destinations, parts)


class LoneProcess:
    """One process of two groups of three, which receives what a test gives it and nothing else."""

    def __init__(self, me: ProcessId, groups: int = 2, restart_with: tuple[Record, ...] = (), **options: Any) -> None:
        spec = CATALOGUE["primcast"]
        self.process = PrimCast(me, Topology.grid(groups, 3), spec.configure(options))  # type: ignore[arg-type]
        self.now = 0
        self.effects: list[Effect] = []
        self.step(Started(restart_with, int(bool(restart_with))))

    def step(self, *events: Event) -> list[Effect]:
        effects = self.process.step(events, self.now)
        self.effects += effects
        return effects

    def receive(self, sender: ProcessId, *bodies: Body) -> list[Effect]:
        return self.step(*[Receive(sender, body) for body in bodies])

    def receive_proposals(self, *proposals: tuple[Message, int], first: int = 0) -> list[Effect]:
        """Messages, and process 0's proposals of their timestamps from a log index on."""
        listed = tuple((index, message.id, timestamp) for index, (message, timestamp) in enumerate(proposals, first))
        clock = max((timestamp for _, timestamp in proposals), default=0)
        ack = Ack(0, first + len(proposals), clock, 0, 0, 0, NO_LOSSES)
        return self.receive(0, *[Start(message) for message, _ in proposals], Propose(listed, ack))

    def receive_notices(self, *notices: DeliveryNotice, epoch: int = 0, sender: ProcessId = 0) -> list[Effect]:
        return self.receive(sender, Propose((), Ack(epoch, 0, 0, 0, 0, 0, NO_LOSSES), notices))

    @property
    def delivered(self) -> list[tuple[int, MessageId, int | None]]:
        return [(e.position, e.message.id, e.rank_time) for e in self.effects if isinstance(e, Deliver)]


ONE, TWO, THREE = (bundle(number, 0, 1) for number in range(3))


# Followers


def test_follower_delivers_by_notices_alone() -> None:
    follower = LoneProcess(1)
    follower.receive_proposals((ONE, 1), (TWO, 2), (THREE, 3))
    assert follower.delivered == [], "nothing of the other group has arrived"
    follower.receive_notices((0, TWO.id, 2), (1, ONE.id, 7))
    assert follower.delivered == [(0, TWO.id, 2), (2, ONE.id, 7)], "a bundle of two messages takes two positions"
    assert follower.process.position == 2
    follower.receive_notices((1, ONE.id, 7), (2, THREE.id, 8))
    assert follower.delivered[2:] == [(4, THREE.id, 8)], "a repeated notice delivers nothing"


def test_delivery_by_notice_is_recorded() -> None:
    follower = LoneProcess(1)
    follower.receive_proposals((ONE, 1))
    follower.receive_notices((0, ONE.id, 7))
    follower.receive_proposals((TWO, 8), first=1)
    records = [effect.record for effect in follower.effects if hasattr(effect, "record")]
    deliveries = [one for record in records if isinstance(record, Progress) for one in record.delivered]
    assert [(one.id, one.timestamp, one.final) for one in deliveries] == [(ONE.id, 1, 7)]
    restarted = LoneProcess(1, restart_with=tuple(records))
    assert restarted.delivered == follower.delivered
    assert restarted.process.position == 1


@pytest.mark.parametrize("position", [1, 5])
def test_follower_does_not_use_notices_after_a_gap(position: int) -> None:
    follower = LoneProcess(1)
    follower.receive_proposals((ONE, 1), (TWO, 2))
    follower.receive_notices((position, TWO.id, 2), (position + 1, ONE.id, 7))
    assert follower.delivered == []


def test_notices_wait_for_a_missing_message() -> None:
    follower = LoneProcess(1)
    follower.receive_proposals((ONE, 1))
    ack = Ack(0, 3, 3, 0, 0, 0, NO_LOSSES)
    notices = ((0, ONE.id, 1), (1, TWO.id, 2), (2, THREE.id, 3))
    follower.receive(0, Start(THREE), Propose(((1, TWO.id, 2), (2, THREE.id, 3)), ack, notices))
    assert [id for _, id, _ in follower.delivered] == [ONE.id], "the second message has not arrived"
    follower.receive(3, Start(TWO))
    assert [id for _, id, _ in follower.delivered] == [ONE.id, TWO.id, THREE.id]


def test_notice_of_a_message_outside_the_log_is_not_used() -> None:
    follower = LoneProcess(1)
    follower.receive(3, Start(ONE))
    follower.receive_notices((0, ONE.id, 1))
    assert follower.delivered == []


EPOCH = next_ballot(0, 0, 2)
"""The first epoch in which process 2 is the primary."""


def adopt_epoch(follower: LoneProcess, *entries: Entry, base: int = 0, floor: int = 0) -> None:
    follower.receive(2, NewState(EPOCH, 5, base, floor, entries, NO_LOSSES))


def test_notices_of_a_later_epoch_wait_until_it_is_established() -> None:
    follower = LoneProcess(1)
    follower.receive_proposals((ONE, 1))
    follower.receive_notices((0, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [], "the log of that epoch is not here"
    adopt_epoch(follower, Entry(ONE, 1))
    ack = Ack(EPOCH, 1, 5, 0, 0, 0, NO_LOSSES)
    follower.receive_notices((0, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [], "no majority is known to hold that log: an earlier epoch might be resumed"
    follower.receive(2, ack)
    follower.receive(1, ack)
    assert follower.delivered == [(0, ONE.id, 7)], "a majority holds it"


def test_notices_are_stored_up_to_a_limit_and_until_passed() -> None:
    follower = LoneProcess(1)
    follower.receive_notices((1, TWO.id, 2), (MAX_AHEAD - 1, THREE.id, 3), (MAX_AHEAD, ONE.id, 7))
    assert [position for position, _, _ in follower.process.snapshot().notices.announced] == [1, MAX_AHEAD - 1]
    follower.receive_proposals((ONE, 1), (TWO, 2))
    follower.receive_notices((0, ONE.id, 1))
    assert [id for _, id, _ in follower.delivered] == [ONE.id, TWO.id]
    assert [position for position, _, _ in follower.process.snapshot().notices.announced] == [MAX_AHEAD - 1]


def test_follower_rejects_notices_of_an_earlier_epoch() -> None:
    follower = LoneProcess(1)
    follower.receive_proposals((ONE, 1))
    adopt_epoch(follower, Entry(ONE, 1))
    ack = Ack(EPOCH, 1, 5, 0, 0, 0, NO_LOSSES)
    follower.receive(2, ack)
    follower.receive(1, ack)
    follower.receive_notices((0, ONE.id, 7))
    assert follower.delivered == []
    follower.receive_notices((0, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [(0, ONE.id, 7)]


def test_follower_that_misses_deliveries_below_its_log_uses_no_notice() -> None:
    follower = LoneProcess(1)
    adopt_epoch(follower, Entry(ONE, 6), base=3, floor=3)
    for member in (1, 2):
        follower.receive(member, Ack(EPOCH, 4, 6, 0, 0, 0, NO_LOSSES))
    for position in (0, 3):
        follower.receive_notices((position, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == []
    follower.receive(2, Install(3, DeliveredPrefix(5, 1, (), ()), 30))
    follower.receive_notices((3, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [(30, ONE.id, 7)]


@pytest.mark.parametrize(("me", "lagging", "installs"), [(1, 2, False), (1, 0, True), (0, 1, True)])
def test_followers_do_not_install_positions_at_each_other(me: ProcessId, lagging: ProcessId, installs: bool) -> None:
    """The lagging follower has the messages, and its primary lets it deliver them; an installed position skips them."""
    member = LoneProcess(me)
    member.receive(2, Install(3, DeliveredPrefix(5, 1, (), ()), 30))
    effects = member.receive(lagging, Sync(0, 0, 1, True))
    assert any(isinstance(one, Send) and isinstance(one.body, Install) for one in effects) == installs


def test_notice_with_another_final_timestamp_is_an_error() -> None:
    follower = LoneProcess(1, groups=1)
    for number, index in ((5, 0), (6, 1)):
        follower.receive_proposals((bundle(number, 0, gateway=0), 9 - index), first=index)
    known = bundle(7, 0, gateway=0)
    pending = follower.process._ensure_pending(known.id)
    pending.message, pending.index, pending.final = known, 2, 4
    with pytest.raises(AssertionError, match=f"timestamp of message {known.id} is 4; its primary has 5"):
        follower.receive_notices((follower.process.position, known.id, 5))


# Gateways


def test_gateway_waits_until_it_knows_the_final_timestamp_itself() -> None:
    gateway = LoneProcess(1)
    own, other = bundle(0, 0, 1, gateway=1), bundle(1, 0, 1)
    gateway.receive_proposals((own, 1), (other, 2))
    gateway.receive_notices((0, own.id, 7), (1, other.id, 8))
    assert gateway.delivered == []
    gateway.receive(1, Ack(0, 2, 2, 0, 0, 0, NO_LOSSES))
    gateway.receive(3, Propose(((0, own.id, 7),), Ack(0, 1, 7, 0, 0, 0, NO_LOSSES)))
    assert gateway.delivered == [], "no majority of group 1 has acknowledged that"
    gateway.receive(4, Ack(0, 1, 7, 0, 0, 0, NO_LOSSES))
    assert gateway.delivered == [(0, own.id, 7), (2, other.id, 8)], "it knows the final timestamp"
    assert next(effect for effect in gateway.effects if isinstance(effect, Deliver)).ordered_elsewhere == (1,)


def test_gateway_that_is_a_follower_replies_soon() -> None:
    stage = GatewayStage(node=DeferringNode)
    stage.suggest_leader(1, 4)
    stage.drain()
    began = stage.world.now
    first = stage.multicast(0, 0, 1)
    stage.step_until(lambda: first in stage.world.resolved)
    gateways = {gateway_process(effect.message.sender) for effect in stage.deliveries_of(3)}
    assert gateways == {3}, "process 3 is the gateway, and 4 is the primary"
    assert stage.world.now - began < IDLE_NS
    stage.finish()
    stage.check()
    assert stage.world.now - began < DEFER_NS


def test_gateway_that_is_a_follower_does_not_wait_for_others_bundles() -> None:
    stage = GatewayStage(node=DeferringNode, groups=3, small_bundle_bytes=0)
    stage.suggest_leader(1, 4)
    stage.drain()
    for steps in range(0, 30, 5):
        began = stage.world.now
        first = stage.multicast(0, 1, 2)
        stage.steps(steps)
        second = stage.multicast(1, 0, 1)
        stage.step_until(lambda: second in stage.world.resolved)  # noqa: B023
        assert stage.world.history[3][-2:] == [first, second], "process 3 is the gateway of the second"
        assert stage.world.now - began < IDLE_NS
        stage.finish()
        stage.world.now += DEFER_NS
    stage.check()


# Primaries


def list_notices(effects: Sequence[Effect]) -> list[DeliveryNotice]:
    """All notices that some effects send, in order."""
    bodies = [effect.body for effect in effects if isinstance(effect, Send)]
    return [notice for body in bodies if isinstance(body, Propose) for notice in body.notices]


def test_notices_are_sent_alone_if_no_proposal_follows() -> None:
    stage = GatewayStage()
    stage.multicast(0, 0, 1)
    stage.finish()
    began = stage.world.now
    assert not list_notices(stage.sends_of(0, Propose))
    stage.step_until(lambda: list_notices(stage.sends_of(0, Propose)) and list_notices(stage.sends_of(3, Propose)))
    assert IDLE_NS - MS < stage.world.now - began < IDLE_NS + MS
    for primary in (0, 3):
        proposal, alone = stage.sends_of(primary, Propose)
        delivery = stage.deliveries_of(primary)[0]
        assert alone.targets == tuple(range(primary + 1, primary + 3))
        assert alone.deferrable == ()
        assert alone.body.proposals == ()
        assert alone.body.notices == ((0, delivery.message.id, delivery.rank_time),)
        assert proposal.body.notices == ()
    assert NOTICE_TIMER not in [name for _, name in stage.list_timers()], "no notice is left"


def stream(count: int, apart_ns: int) -> list[tuple[int, int]]:
    """Lets a primary propose and deliver bundles one after the other. Which proposals carried how many notices."""
    primary = LoneProcess(0, groups=1, records=False)
    primary.now = 1000 * MS
    carried: list[tuple[int, int]] = []
    for number in range(count):
        notices = list_notices(primary.receive(0, Start(bundle(number, 0))))
        if notices:
            carried.append((number, len(notices)))
        primary.receive(1, Ack(0, number + 1, number + 1, number, 0, 0, NO_LOSSES))
        assert primary.process.position == number + 1
        primary.now += apart_ns
    sent = list_notices(primary.effects)
    assert sent == [(place, bundle(place, 0).id, place + 1) for place in range(len(sent))], "in order, each once"
    return carried


def test_proposal_in_a_stream_carries_old_notices() -> None:
    assert stream(20, 5 * MS) == [(5, 5), (10, 5), (15, 5)]
    assert stream(9, STREAM_NS // 2) == [(number, 1) for number in range(1, 9)]


def test_proposal_in_a_stream_carries_many_notices() -> None:
    assert stream(100, MS // 10) == [(BATCH_NOTICES * times, BATCH_NOTICES) for times in (1, 2, 3)]


def test_notice_timer_waits_longer_in_a_stream_and_then_sends_the_rest() -> None:
    primary = LoneProcess(0, groups=1, records=False)
    primary.now = 1000 * MS
    for number in range(2):
        primary.now += 5 * MS
        primary.receive(0, Start(bundle(number, 0)))
        primary.receive(1, Ack(0, number + 1, number + 1, number, 0, 0, NO_LOSSES))
    began = primary.now - 5 * MS
    primary.now = began + IDLE_NS
    assert [e.low_ns for e in primary.step(Timer(NOTICE_TIMER)) if isinstance(e, SetTimer)] == [STREAM_NS - IDLE_NS]
    assert not list_notices(primary.effects)
    primary.now = began + STREAM_NS
    assert [position for position, _, _ in list_notices(primary.step(Timer(NOTICE_TIMER)))] == [0, 1]
    assert not primary.step(Timer(NOTICE_TIMER))


def test_deposed_primary_sends_no_notices() -> None:
    primary = LoneProcess(0)
    primary.receive(0, Start(bundle(0, 0, gateway=0)))
    primary.receive(0, Ack(0, 1, 1, 0, 0, 0, NO_LOSSES))
    primary.receive(1, Ack(0, 1, 1, 0, 0, 0, NO_LOSSES))
    assert len(primary.delivered) == 1
    primary.receive(2, NewState(EPOCH, 5, 0, 0, (), NO_LOSSES))
    primary.now = 1000 * MS
    primary.step(Timer(NOTICE_TIMER))
    assert not list_notices(primary.effects)


def test_messages_outside_bundles_have_no_notices() -> None:
    primary = LoneProcess(0, groups=1, records=False)
    message = Message(message_id(9, 1), 9, (0,))
    primary.receive(9, Start(message))
    primary.receive(1, Ack(0, 1, 1, 0, 0, 0, NO_LOSSES))
    assert [id for _, id, _ in primary.delivered] == [message.id]
    assert not [effect for effect in primary.effects if isinstance(effect, SetTimer) and effect.name == NOTICE_TIMER]


def test_gateway_is_notified_at_once_of_deliveries_before_its_own() -> None:
    primary = LoneProcess(0, groups=1, records=False)

    def notified(number: int, gateway: ProcessId) -> list[tuple[tuple[ProcessId, ...], list[int]]]:
        """A bundle is delivered: which processes are notified of which positions."""
        primary.receive(0, Start(bundle(number, 0, gateway=gateway)))
        effects = primary.receive(1, Ack(0, number + 1, number + 1, number, 0, 0, NO_LOSSES))
        sends = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.body, Propose)]
        return [(send.targets, [position for position, _, _ in send.body.notices]) for send in sends]

    assert notified(0, gateway=1) == notified(1, gateway=1) == [], "it learns about its own bundles itself"
    assert notified(2, gateway=0) == [], "the primary is the gateway"
    assert notified(3, gateway=1) == [((1,), [0, 1, 2, 3])]
    assert notified(4, gateway=2) == [((2,), [0, 1, 2, 3, 4])]
    assert notified(5, gateway=9) == [], "the gateway is of another group"


# All members


class IgnoringNotices(PrimCast):
    """Followers ignore notices."""

    def _handle_notices(self, notices: tuple[DeliveryNotice, ...]) -> None:
        pass


def time_to_deliver(kind: type[PrimCast], messages: int = 12) -> int:
    """How long it takes until every member has delivered some messages, with nodes that defer for long."""
    stage = GatewayStage(kind, DeferringNode)
    for number in range(messages):
        stage.multicast(number % 2, 0, 1)
        stage.steps(3 * number)
    stage.finish()
    stage.check()
    return stage.world.now


def test_followers_need_no_deferred_acknowledgements() -> None:
    assert time_to_deliver(PrimCast) < DEFER_NS <= time_to_deliver(IgnoringNotices)


class WithTwin(PrimCast):
    """Before each step a twin is restored from a snapshot, and must produce the same effects."""

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        twin = PrimCast(self.me, self.topology, self._config)  # type: ignore[arg-type]
        twin.restore(self.snapshot())
        expected = twin.step(events, now)
        effects: list[Effect] = super().step(events, now)
        assert expected == effects, f"process {self.me} has effects {effects}, its twin {expected}"
        assert twin.snapshot() == self.snapshot()
        return effects


def test_snapshot_contains_the_notices() -> None:
    stage = GatewayStage(WithTwin, DeferringNode)
    for number in range(8):
        stage.multicast(number % 2, 0, 1)
        stage.steps(18)
        stage.world.now += 12 * MS
    stage.finish()
    stage.steps(100)
    stage.check()
    notices = list_notices([send for primary in (0, 3) for send in stage.sends_of(primary, Propose)])
    assert len(notices) == len(stage.deliveries_of(0)) + len(stage.deliveries_of(3))
    assert any(send.body.notices and send.body.proposals for send in stage.sends_of(0, Propose)), (
        "some travel with a proposal"
    )


# Another group's new primary


def test_new_primary_of_another_group_is_acknowledged_at_once() -> None:
    member = LoneProcess(1)
    epoch = next_ballot(0, 0, 1)
    propose = Propose(((0, ONE.id, 3),), Ack(epoch, 1, 3, 0, 0, 0, NO_LOSSES))
    member.receive(3, Start(ONE))
    sends = [e for e in member.receive(4, propose) if isinstance(e, Send) and e.targets == (4,)]
    assert [(type(send.body), send.about, send.deferrable) for send in sends] == [(Ack, (ONE.id,), ())]
    sends = [e for e in member.receive(4, propose) if isinstance(e, Send) and e.targets == (4,)]
    assert sends == [], "only once"
    first = Propose(((0, TWO.id, 3),), Ack(0, 1, 3, 0, 0, 0, NO_LOSSES))
    sends = [e for e in LoneProcess(1).receive(3, Start(TWO), first) if isinstance(e, Send) and e.targets == (3,)]
    assert sends == [], "the first primary gets no extra acknowledgement"


class SilentToNewPrimary(PrimCast):
    """What was deferred for a follower is not sent when it becomes the primary."""

    def _acknowledge_new_primary(self, primary: ProcessId, proposals: Any) -> None:
        pass


def time_to_take_over(kind: type[PrimCast]) -> int:
    """Group 1's primary crashes after its proposal has reached all members; when the next primary has delivered."""
    stage = GatewayStage(kind, DeferringNode, small_bundle_bytes=0)
    first = stage.multicast(0, 0, 1)
    stage.step_until(lambda: all(stage.protocol(process)._log.length for process in stage.topology.servers))
    stage.drain()
    assert first in stage.world.history[0]
    assert first not in stage.world.history[4]
    stage.crash(3)
    stage.suggest_leader(1, 4)
    stage.step_until(lambda: first in stage.world.history[4])
    return stage.world.now


def test_new_primary_receives_what_was_deferred_for_it() -> None:
    assert time_to_take_over(PrimCast) < IDLE_NS
    assert time_to_take_over(SilentToNewPrimary) >= DEFER_NS


# Random schedules


def deferring_plan(seed: int, **options: Any) -> dict[str, Any]:
    """Groups of five: followers receive nothing urgent from a majority, so most deliveries are by notice."""
    return {
        "protocol": "primcast",
        "options": {"keep": 3, **options},
        "gateways": True,
        "nodes": True,
        "topology": {"groups": 2, "replicas": 5, "clients": 4},
        "workload": {"messages": 16, "outstanding": 2, "destinations": [1, 2]},
        "faults": {"profile": "all" if seed % 2 else "none"},
    }


def fuzz(kind: type[PrimCast], seed: int) -> FuzzOutcome:
    """A random run with deferring nodes. A deferred body leaves after later ones to other processes, which monitors of
    what is sent would take for a process that forgets; and it is in no snapshot of its process."""
    spec = replace(CATALOGUE["primcast"], process=kind, statements=None)
    prepared = runs.prepare_run(parse_plan(deferring_plan(seed)), spec)
    case = replace(prepared.make_case(), restores=False)
    return Fuzzer(case, seed, Recorder()).run(runs.make_judge(prepared, seed))


@pytest.fixture
def deferring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "Node", DeferringNode)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.usefixtures("deferring")
def test_followers_deliver_the_same_order_by_notices(seed: int) -> None:
    outcome = fuzz(EagerPrimCast, seed)
    assert outcome.status == "holds", f"seed {seed}, {outcome.status}: {outcome.story}"


class IgnoringPositions(EagerPrimCast):
    """A follower uses notices whatever their positions."""

    def _handle_notices(self, notices: tuple[DeliveryNotice, ...]) -> None:
        for _, id, final in notices:
            super()._handle_notices(((self.position, id, final),))


class NotifyingEarly(EagerPrimCast):
    """A primary sends a notice as soon as it knows a final timestamp, when something may still come before."""

    def _commit(self, pending: PendingMulticast) -> None:
        before = pending.final
        super()._commit(pending)
        if before < 0 <= pending.final and self._role == "primary":
            unannounced = self._notices.unannounced
            unannounced.append((self.position + len(unannounced), pending.id, pending.final))


@pytest.mark.parametrize("kind", [IgnoringPositions, NotifyingEarly])
@pytest.mark.usefixtures("deferring")
def test_mutants_of_notices_are_caught(kind: type[PrimCast]) -> None:
    seeds = range(100, 260)
    caught = any(is_caught(fuzz(kind, seed)) for seed in seeds)
    assert caught, f"no seed of {seeds} violates anything although: {kind.__doc__}"

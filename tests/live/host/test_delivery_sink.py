"""The delivery sink: subscribers, trace and application get every delivery once, in bulk or one by one."""

import random

import pytest

from amcast.kernel.bundle import bundle_messages, gateway_sender, make_bundle
from amcast.kernel.effects import Deliver
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import make_marker
from amcast.live.host.delivery_sink import DeliverySink
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.trace.recorder import Recorder

PLENTY = 10_000_000


class Sampling(Recorder):
    """Records every third message."""

    sample_every = 3


class SlowSink(DeliverySink):
    """Takes every bundle message by message."""

    def _fast_deliver_bundle(self, effect: Deliver, now: int) -> None:
        for one in effect.expand():
            self._deliver_one(one, now)


def deliveries(rng: random.Random, count: int) -> list[Deliver]:
    """Single messages and bundles, some with duplicates, at consecutive positions."""
    made, position = [], 0
    for number in range(count):
        rank, tie = 10 * number, number % 3
        parts = [
            Message(message_id(9, position + place), 9, (0, 1), rng.randbytes(8)) for place in range(rng.randint(1, 6))
        ]
        if rng.random() < 0.3:
            made.append(Deliver(parts[0], position, rank, tie))
            position += 1
            continue
        duplicates = tuple(place for place in range(len(parts)) if rng.random() < 0.2)
        fresh = len(parts) - len(duplicates)
        bundle = make_bundle(gateway_sender(1, 0), number, (0, 1), parts)
        made.append(Deliver(bundle, position, rank, tie, message_count=fresh, duplicate_places=duplicates))
        position += fresh
    return made


def observe(
    kind: type[DeliverySink], recorder: Recorder | None, some: list[Deliver], delivered: int, recorded: int
) -> list[object]:
    """Everything that can be seen of a sink after some deliveries."""
    recent = RecentDeliveries(PLENTY, bundle_messages)
    fresh: list[int] = []
    sink = kind(
        0,
        0,
        on_fresh=lambda delivery: fresh.extend(message.id for message in delivery.messages()),
        recorder=recorder,
        recent=recent,
        delivered_until=delivered,
        recorded_until=recorded,
    )
    for now, delivery in enumerate(some):
        sink.deliver(delivery, now)
    rows = None if recorder is None else (recorder.deliveries, recorder.notes)
    return [sink.count, fresh, rows, recent.next, recent.read_from(recent.first, PLENTY)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", [None, Recorder, Sampling])
def test_bundles_in_bulk_equal_bundles_message_by_message(seed: int, kind: type[Recorder] | None) -> None:
    rng = random.Random(seed)
    some = deliveries(rng, 60)
    delivered, recorded = rng.choice([(0, 0), (7, 0), (0, 7), (11, 5)])
    seen = [
        observe(sink, None if kind is None else kind(), some, delivered, recorded) for sink in (DeliverySink, SlowSink)
    ]
    assert seen[0] == seen[1]
    assert seen[0][0] == sum(max(1, one.message_count) if one.message_count else 0 for one in some) - delivered


def test_application_gets_each_message_once_after_a_restart() -> None:
    some = deliveries(random.Random(3), 30)
    got: list[int] = []
    sink = DeliverySink(
        0, 0, on_deliver=lambda one: got.append(one.position), on_fresh=lambda delivery: None, delivered_until=9
    )
    for delivery in [*some, *some]:
        sink.deliver(delivery, 0)
    assert got == list(range(9, some[-1].position + max(1, some[-1].message_count)))


def test_snapshot_skips_deliveries_before_its_position() -> None:
    recorder, recent = Recorder(), RecentDeliveries(PLENTY, bundle_messages)
    sink = DeliverySink(0, 0, on_fresh=lambda delivery: None, recorder=recorder, recent=recent)
    sink.skip_to(20)
    assert (recent.first, recent.next) == (20, 20)
    message = Message(message_id(9, 1), 9, (0,), b"")
    sink.deliver(Deliver(message, 19), 0)
    sink.deliver(Deliver(message, 20), 0)
    assert sink.count == 1
    assert [row[2] for row in recorder.deliveries] == [20]


def test_marker_of_a_member_without_memory_is_recorded_as_a_multicast_by_whoever_delivers_it() -> None:
    """Its own process may be killed before its trace is written."""
    recorder = Recorder()
    sink = DeliverySink(0, 0, on_fresh=lambda effect: None, recorder=recorder)
    marker = make_marker(2, 0, 3)
    sink.deliver(Deliver(marker, 0), 77)
    assert [(row[0], row[1], row[2], row[3]) for row in recorder.multicasts] == [(marker.id, 2, (0,), 0)]
    assert [row[3] for row in recorder.deliveries] == [marker.id]

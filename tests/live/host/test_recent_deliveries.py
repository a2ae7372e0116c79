"""Recent deliveries: recent as whole bundles that readers open, and searched from either end."""

import asyncio

import pytest

from amcast.kernel.bundle import bundle_messages, gateway_sender, make_bundle
from amcast.kernel.effects import Deliver
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message
from amcast.live.host.delivery_sink import DeliverySink
from amcast.live.host.recent_deliveries import LARGE_SHARE, OVERHEAD_BYTES, RecentDeliveries
from tests.live.cluster import run

PLENTY = 10_000_000


def bundle(first: int, count: int, size: int = 10) -> tuple[Message, list[Message]]:
    """A bundle and its messages, numbered by their positions."""
    parts = [Message(message_id(9, number), 9, (0,), bytes(size)) for number in range(first, first + count)]
    return make_bundle(gateway_sender(1, 0), first, (0,), parts), parts


def add_next(recent: RecentDeliveries, count: int, size: int = 10) -> int:
    """Adds a bundle at the next position; returns the size of its payload."""
    made, parts = bundle(recent.next, count, size)
    if not recent.add_bundle(recent.next, made, count):
        recent.add_all(recent.next, parts)
    return len(made.payload)


def numbers(messages: list[Message]) -> list[int]:
    return [message.id % 1_000_000_000 for message in messages]


class OpeningLog:
    """Opens bundles, and lists the first number of each."""

    def __init__(self) -> None:
        self.first: list[int] = []

    def __call__(self, made: Message) -> list[Message]:
        parts = bundle_messages(made)
        self.first.append(numbers(parts)[0])
        return parts


def test_reading_starts_at_any_position_also_inside_bundles() -> None:
    recent = RecentDeliveries(PLENTY, bundle_messages)
    for count in (3, 1, 8, 2, 5, 1, 1, 9):
        add_next(recent, count)
        recent.add(recent.next, bundle(recent.next, 1)[1][0])
    end = recent.next
    assert (recent.first, end) == (0, 38)
    for position in range(end + 1):
        assert numbers(recent.read_from(position, PLENTY)) == list(range(position, end))


def test_only_bundles_that_are_read_are_opened() -> None:
    opened = OpeningLog()
    recent = RecentDeliveries(PLENTY, opened)
    for _ in range(100):
        add_next(recent, 10)
    assert opened.first == []
    assert numbers(recent.read_from(984, PLENTY)) == list(range(984, 1000))
    assert opened.first == [980, 990], "searched from the end"
    opened.first.clear()
    assert numbers(recent.read_from(980, PLENTY)) == list(range(980, 1000))
    assert opened.first == [980, 990], "and no bundle before a boundary"
    opened.first.clear()
    assert len(recent.read_from(15, 10 * (10 + OVERHEAD_BYTES))) == 10
    assert opened.first == [10, 20], "searched from the beginning, and no more than requested"


def test_reader_continues_inside_a_bundle() -> None:
    recent = RecentDeliveries(PLENTY, bundle_messages)
    for _ in range(5):
        add_next(recent, 7)
    got: list[Message] = []
    while recent.next > len(got):
        some = recent.read_from(len(got), 3 * (10 + OVERHEAD_BYTES))
        assert 1 <= len(some) <= 3
        got += some
    assert numbers(got) == list(range(35))


def test_full_buffer_drops_whole_bundles() -> None:
    large = RecentDeliveries(PLENTY, bundle_messages)
    size = add_next(large, 10) + OVERHEAD_BYTES
    recent = RecentDeliveries(LARGE_SHARE * 2 * size, bundle_messages)
    for number in range(100):
        add_next(recent, 10)
        assert recent.next == 10 * (number + 1)
        assert recent.first % 10 == 0
        assert numbers(recent.read_from(recent.first, PLENTY)) == list(range(recent.first, recent.next))
    # Ids have as many digits, so bundles do not differ much in length.
    assert 25 * 10 <= recent.next - recent.first <= 33 * 10


def test_bundle_costs_less_than_its_messages() -> None:
    whole, single = RecentDeliveries(20_000, bundle_messages), RecentDeliveries(20_000)
    for _ in range(100):
        add_next(whole, 10)
        add_next(single, 10)
    assert whole.next == single.next
    assert whole.next - whole.first > 2 * (single.next - single.first)


def test_large_bundle_is_kept_message_by_message() -> None:
    opened = OpeningLog()
    recent = RecentDeliveries(LARGE_SHARE * 1000, opened)
    add_next(recent, 5)
    add_next(recent, 40, size=100)
    assert numbers(recent.read_from(5, PLENTY)) == list(range(recent.next))[5:]
    assert opened.first == []
    assert recent.first == 0
    add_next(recent, 40, size=100)
    assert 5 < recent.first < 45, "it is dropped message by message, too"
    assert numbers(recent.read_from(recent.first, PLENTY)) == list(range(recent.first, recent.next))


def test_positions_restart_behind_a_skip() -> None:
    recent = RecentDeliveries(PLENTY, bundle_messages)
    add_next(recent, 4)
    recent.skip_to(50)
    assert (recent.first, recent.next) == (50, 50)
    assert recent.read_from(50, PLENTY) == []
    add_next(recent, 4)
    assert numbers(recent.read_from(52, PLENTY)) == [52, 53]
    made, parts = bundle(80, 3)
    assert not recent.add_bundle(80, made, 3), "not the next position"
    recent.add_all(80, parts)
    assert (recent.first, recent.next) == (80, 83), "a gap is a skip"
    made, parts = bundle(81, 3)
    assert not recent.add_bundle(81, made, 3)
    recent.add_all(81, parts)
    assert numbers(recent.read_from(80, PLENTY)) == [80, 81, 82, 83], "a repeated delivery changes nothing"


def test_only_fresh_messages_of_a_bundle_with_duplicates_are_kept() -> None:
    """A bundle with duplicates cannot be opened by readers, because positions count fresh messages only."""
    recent = RecentDeliveries(PLENTY, bundle_messages)
    sink = DeliverySink(0, 0, recent=recent, on_fresh=lambda delivery: None)
    made, parts = bundle(0, 6)
    sink.deliver(Deliver(made, 0, message_count=len(parts)), 0)
    again, _ = bundle(4, 5)
    sink.deliver(Deliver(again, 6, message_count=3, duplicate_places=(0, 1)), 0)
    last, rest = bundle(9, 2)
    sink.deliver(Deliver(last, 9, message_count=len(rest)), 0)
    assert numbers(recent.read_from(0, PLENTY)) == list(range(11))
    for position in range(11):
        assert numbers(recent.read_from(position, 1)) == [position]


def test_bundle_with_another_message_count_is_noticed() -> None:
    recent = RecentDeliveries(PLENTY, bundle_messages)
    recent.add_bundle(0, bundle(0, 6)[0], 4)
    with pytest.raises(AssertionError, match="bundle at 0: 6 messages, and 4 were delivered"):
        recent.read_from(0, PLENTY)


def test_waiting_reader_wakes_once_per_bundle() -> None:
    async def main() -> None:
        recent = RecentDeliveries(PLENTY, bundle_messages)
        waiting = asyncio.ensure_future(recent.wait_for_news(10))
        await asyncio.sleep(0)
        add_next(recent, 5)
        assert await waiting
        assert not await recent.wait_for_news(0.01)
        assert len(recent.read_from(0, PLENTY)) == 5

    run(main())

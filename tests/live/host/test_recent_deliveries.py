"""What a replica keeps for subscribers: whole bundles, opened by who reads them, and found from either end."""

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
    """A bundle, and the messages in it; they are numbered as they will be delivered."""
    parts = [Message(message_id(9, number), 9, (0,), bytes(size)) for number in range(first, first + count)]
    return make_bundle(gateway_sender(1, 0), first, (0,), parts), parts


def keep(kept: RecentDeliveries, count: int, size: int = 10) -> int:
    """One more bundle; how many bytes its text has."""
    made, parts = bundle(kept.next, count, size)
    if not kept.add_bundle(kept.next, made, count):
        kept.add_all(kept.next, parts)
    return len(made.payload)


def numbers(messages: list[Message]) -> list[int]:
    return [message.id % 1_000_000_000 for message in messages]


class Opened:
    """What was opened, bundle by bundle."""

    def __init__(self) -> None:
        self.first: list[int] = []

    def __call__(self, made: Message) -> list[Message]:
        parts = bundle_messages(made)
        self.first.append(numbers(parts)[0])
        return parts


def test_every_position_is_found_from_either_end_and_in_the_middle_of_bundles() -> None:
    kept = RecentDeliveries(PLENTY, bundle_messages)
    for count in (3, 1, 8, 2, 5, 1, 1, 9):
        keep(kept, count)
        kept.add(kept.next, bundle(kept.next, 1)[1][0])
    end = kept.next
    assert (kept.first, end) == (0, 38)
    for position in range(end + 1):
        assert numbers(kept.read_from(position, PLENTY)) == list(range(position, end))


def test_only_what_is_read_is_opened() -> None:
    opened = Opened()
    kept = RecentDeliveries(PLENTY, opened)
    for _ in range(100):
        keep(kept, 10)
    assert opened.first == []
    assert numbers(kept.read_from(984, PLENTY)) == list(range(984, 1000))
    assert opened.first == [980, 990], "found from the end"
    opened.first.clear()
    assert numbers(kept.read_from(980, PLENTY)) == list(range(980, 1000))
    assert opened.first == [980, 990], "and nothing before a boundary"
    opened.first.clear()
    assert len(kept.read_from(15, 10 * (10 + OVERHEAD_BYTES))) == 10
    assert opened.first == [10, 20], "found from the beginning, and no more than asked for"


def test_a_reader_goes_on_where_it_stopped_in_a_bundle() -> None:
    kept = RecentDeliveries(PLENTY, bundle_messages)
    for _ in range(5):
        keep(kept, 7)
    got: list[Message] = []
    while kept.next > len(got):
        some = kept.read_from(len(got), 3 * (10 + OVERHEAD_BYTES))
        assert 1 <= len(some) <= 3
        got += some
    assert numbers(got) == list(range(35))


def test_bundles_go_as_a_whole_when_there_is_no_room() -> None:
    room = RecentDeliveries(PLENTY, bundle_messages)
    size = keep(room, 10) + OVERHEAD_BYTES
    kept = RecentDeliveries(LARGE_SHARE * 2 * size, bundle_messages)
    for number in range(100):
        keep(kept, 10)
        assert kept.next == 10 * (number + 1)
        assert kept.first % 10 == 0
        assert numbers(kept.read_from(kept.first, PLENTY)) == list(range(kept.first, kept.next))
    # Ids have as many digits, so bundles do not differ much in length.
    assert 25 * 10 <= kept.next - kept.first <= 33 * 10


def test_a_bundle_costs_less_than_its_messages() -> None:
    whole, single = RecentDeliveries(20_000, bundle_messages), RecentDeliveries(20_000)
    for _ in range(100):
        keep(whole, 10)
        keep(single, 10)
    assert whole.next == single.next
    assert whole.next - whole.first > 2 * (single.next - single.first)


def test_a_large_bundle_goes_message_by_message() -> None:
    opened = Opened()
    kept = RecentDeliveries(LARGE_SHARE * 1000, opened)
    keep(kept, 5)
    keep(kept, 40, size=100)
    assert numbers(kept.read_from(5, PLENTY)) == list(range(kept.next))[5:]
    assert opened.first == []
    assert kept.first == 0
    keep(kept, 40, size=100)
    assert 5 < kept.first < 45, "it goes message by message, too"
    assert numbers(kept.read_from(kept.first, PLENTY)) == list(range(kept.first, kept.next))


def test_behind_a_jump_everything_begins_anew() -> None:
    kept = RecentDeliveries(PLENTY, bundle_messages)
    keep(kept, 4)
    kept.skip_to(50)
    assert (kept.first, kept.next) == (50, 50)
    assert kept.read_from(50, PLENTY) == []
    keep(kept, 4)
    assert numbers(kept.read_from(52, PLENTY)) == [52, 53]
    made, parts = bundle(80, 3)
    assert not kept.add_bundle(80, made, 3), "not where it belongs"
    kept.add_all(80, parts)
    assert (kept.first, kept.next) == (80, 83), "a gap is a jump"
    made, parts = bundle(81, 3)
    assert not kept.add_bundle(81, made, 3)
    kept.add_all(81, parts)
    assert numbers(kept.read_from(80, PLENTY)) == [80, 81, 82, 83], "what is told again changes nothing"


def test_of_a_bundle_with_repeats_the_fresh_messages_are_kept() -> None:
    """A delivery says whether a bundle holds just what is fresh; where it does not, it cannot be opened anew."""
    kept = RecentDeliveries(PLENTY, bundle_messages)
    sink = DeliverySink(0, 0, recent=kept, on_fresh=lambda delivery: None)
    made, parts = bundle(0, 6)
    sink.deliver(Deliver(made, 0, message_count=len(parts)), 0)
    again, _ = bundle(4, 5)
    sink.deliver(Deliver(again, 6, message_count=3, duplicate_places=(0, 1)), 0)
    last, rest = bundle(9, 2)
    sink.deliver(Deliver(last, 9, message_count=len(rest)), 0)
    assert numbers(kept.read_from(0, PLENTY)) == list(range(11))
    for position in range(11):
        assert numbers(kept.read_from(position, 1)) == [position]


def test_a_bundle_that_does_not_hold_what_was_delivered_is_noticed() -> None:
    kept = RecentDeliveries(PLENTY, bundle_messages)
    kept.add_bundle(0, bundle(0, 6)[0], 4)
    with pytest.raises(AssertionError, match="bundle at 0: 6 messages, and 4 were delivered"):
        kept.read_from(0, PLENTY)


def test_who_waits_hears_of_a_bundle_once() -> None:
    async def main() -> None:
        kept = RecentDeliveries(PLENTY, bundle_messages)
        waiting = asyncio.ensure_future(kept.wait_for_delivery(10))
        await asyncio.sleep(0)
        keep(kept, 5)
        assert await waiting
        assert not await kept.wait_for_delivery(0.01)
        assert len(kept.read_from(0, PLENTY)) == 5

    run(main())

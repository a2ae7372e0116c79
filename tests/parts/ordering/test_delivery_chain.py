"""A chain depends on the messages and their order, and on nothing else: not on how they were bundled."""

import random

import pytest

from amcast.kernel.bundle import gateway_sender, make_bundle
from amcast.kernel.effects import Deliver
from amcast.kernel.message import Message
from amcast.parts.ordering.delivery_chain import (
    BYTES_PER_MESSAGE,
    FIRST_ALLOWANCE,
    HEAD_BYTES,
    DeliveryChain,
    begin_chain,
)
from amcast.parts.ordering.messages import ChainPoint

GATEWAY = gateway_sender(0, 0)


def chain_of(*deliveries: Deliver, start: ChainPoint | None = None) -> ChainPoint:
    chain = DeliveryChain(start or begin_chain(0))
    for delivery in deliveries:
        chain.extend(delivery)
    return chain.point


def deliver_one_by_one(messages: list[Message], first: int = 0) -> list[Deliver]:
    return [Deliver(message, position) for position, message in enumerate(messages, first)]


def deliver_bundle(messages: list[Message], position: int, duplicates: tuple[int, ...] = ()) -> Deliver:
    bundle = make_bundle(GATEWAY, position, (0, 1), messages)
    return Deliver(bundle, position, message_count=len(messages) - len(duplicates), duplicate_places=duplicates)


def draw_messages(rng: random.Random, count: int, largest: int) -> list[Message]:
    return [
        Message(10**9 * rng.randrange(1, 9000) + i, rng.randrange(9000), (0, 1), rng.randbytes(rng.randrange(largest)))
        for i in range(count)
    ]


@pytest.mark.parametrize("largest", [40, 3000, 40_000])
@pytest.mark.parametrize("seed", range(6))
def test_bundles_have_the_chain_of_their_messages(largest: int, seed: int) -> None:
    rng = random.Random(seed)
    messages = draw_messages(rng, 300, largest)
    single = chain_of(*deliver_one_by_one(messages))
    bundled, position = [], 0
    while position < len(messages):
        size = rng.choice((1, 2, 15, 16, 17, 100))
        part = messages[position : position + size]
        known = draw_messages(rng, rng.choice((0, 0, 2)), 30)
        places = tuple(sorted(rng.sample(range(len(part) + len(known)), len(known))))
        content = list(part)
        for place, duplicate in zip(places, known, strict=True):
            content.insert(place, duplicate)
        bundled.append(deliver_bundle(content, position, places))
        position += len(part)
    assert chain_of(*bundled) == single
    assert single.position == 300


def test_bundle_without_new_messages_changes_nothing() -> None:
    messages = draw_messages(random.Random(1), 3, 20)
    assert chain_of(deliver_bundle(messages, 0, (0, 1, 2))) == begin_chain(0)
    unreadable = Deliver(Message(GATEWAY * 10**9, GATEWAY, (0,), b"\xc1"), 0, message_count=0)
    assert chain_of(unreadable) == begin_chain(0)


def test_every_field_and_the_order_matter() -> None:
    one, two = Message(10**9, 1, (0,), b"a"), Message(2 * 10**9, 2, (0, 1), b"b")
    others = [
        [two, one],
        [one],
        [one, two, two],
        [one, Message(two.id, two.sender, two.destinations, b"c")],
        [one, Message(two.id, two.sender, (0,), b"b")],
        [one, Message(two.id, 3, two.destinations, b"b")],
        [one, Message(two.id + 1, two.sender, two.destinations, b"b")],
    ]
    digests = [chain_of(*deliver_one_by_one(messages)).digest for messages in ([one, two], *others)]
    assert len(set(digests)) == len(digests)


def test_difference_never_disappears() -> None:
    rest = draw_messages(random.Random(2), 200, 50)
    one = chain_of(*deliver_one_by_one([Message(1, 1, (0,), b"a"), *rest]))
    other = chain_of(*deliver_one_by_one([Message(1, 1, (0,), b"b"), *rest]))
    assert one.digest != other.digest


def test_messages_up_to_the_allowance_are_hashed_completely() -> None:
    """Of messages with a kilobyte every byte counts, for ever; of larger ones, in the long run, the first bytes."""
    start = ChainPoint(0, 0, 0, 0)
    for size, is_complete in ((BYTES_PER_MESSAGE - 40, True), (3 * BYTES_PER_MESSAGE, False)):
        message, corrupted = (Message(10**9, 1, (0,), bytes(size) + last) for last in (b"a", b"b"))
        same = chain_of(Deliver(message, 0), start=start) == chain_of(Deliver(corrupted, 0), start=start)
        assert same != is_complete
    first = Message(10**9, 1, (0,), b"x" + bytes(3 * BYTES_PER_MESSAGE))
    longer = Message(10**9, 1, (0,), bytes(3 * BYTES_PER_MESSAGE + 2))
    assert len({chain_of(Deliver(one, 0), start=start).digest for one in (message, first, longer)}) == 3
    assert HEAD_BYTES < BYTES_PER_MESSAGE


def test_large_messages_are_hashed_as_often_as_the_allowance_permits() -> None:
    size = 8 * BYTES_PER_MESSAGE
    chain = DeliveryChain(begin_chain(0))
    complete = 0
    for position in range(2000):
        before = chain.allowance
        chain.extend(Deliver(Message(10**9 + position, 1, (0,), bytes(size)), position))
        complete += chain.allowance < before
    hashed = complete * size
    assert 0.98 * (FIRST_ALLOWANCE + 2000 * BYTES_PER_MESSAGE) < hashed < FIRST_ALLOWANCE + 2000 * BYTES_PER_MESSAGE

"""A busy replica rests so that more arrives at once; a lone message waits for nobody."""

import pytest

from amcast.kernel.bundle import gateway_sender, make_bundle
from amcast.kernel.effects import Deliver
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message
from amcast.live.client_batch import MAX_BATCH_MESSAGES, batch_size, encode_batch
from amcast.live.host.wakeup_coalescer import ACTIVE_NS, WakeupCoalescer
from amcast.live.limits import Limits


def of(count: int, size: int = 1) -> Deliver:
    """A bundle of so many messages, each a batch of so many."""
    parts = [Message(message_id(9, n), 9, (0, 1), encode_batch([b"x"] * size)) for n in range(count)]
    return Deliver(make_bundle(gateway_sender(0, 0), 0, (0, 1), parts), 0, message_count=count)


def slept(count: int, size: int = 1, most_us: int = 1000) -> list[float]:
    """How long a leader rests after so many."""
    told: list[float] = []
    rest = WakeupCoalescer(most_us, told.append)
    rest.record_delivery(of(count, size))
    rest.end_tick(0, is_leader=True)
    return told


def test_few_messages_are_worth_no_rest() -> None:
    assert slept(1) == slept(6) == slept(1, 6) == []


def test_the_more_messages_the_longer_and_never_longer_than_the_limit() -> None:
    assert slept(10) == slept(1, 10) == [pytest.approx(300e-6)]
    assert slept(500) == slept(2, 250) == [pytest.approx(1e-3)]
    assert slept(500, most_us=0) == []


def test_the_rest_goes_on_between_deliveries_and_ends_when_they_do() -> None:
    told: list[float] = []
    rest = WakeupCoalescer(1000, told.append)
    rest.record_delivery(of(100))
    rest.end_tick(0, is_leader=True)
    rest.end_tick(ACTIVE_NS, is_leader=True)
    assert len(told) == 2
    rest.end_tick(ACTIVE_NS + 1, is_leader=True)
    assert len(told) == 2
    rest.record_delivery(of(100))
    rest.end_tick(ACTIVE_NS + 2, is_leader=True)
    rest.record_delivery(of(1))
    rest.end_tick(ACTIVE_NS + 3, is_leader=True)
    assert len(told) == 3, "a lone message ends it at once"


def test_a_follower_does_not_rest() -> None:
    told: list[float] = []
    rest = WakeupCoalescer(1000, told.append)
    for now in range(3):
        rest.record_delivery(of(100))
        rest.end_tick(now)
    assert told == [], "its primary waits for it"
    assert rest.is_busy
    rest.end_tick(3, is_leader=True)
    assert len(told) == 1, "until it leads"


def test_a_gateway_rests_as_long_as_clients_ask() -> None:
    told: list[float] = []
    rest = WakeupCoalescer(1000, told.append)
    rest.record_request(0)
    rest.end_tick(0)
    assert told == [], "nothing was delivered yet"
    rest.record_delivery(of(100))
    rest.end_tick(ACTIVE_NS - 1)
    assert len(told) == 1
    rest.record_delivery(of(100))
    rest.end_tick(ACTIVE_NS)
    assert len(told) == 1, "nobody has asked for so long"
    rest.record_request(ACTIVE_NS)
    rest.end_tick(ACTIVE_NS)
    assert len(told) == 2


@pytest.mark.parametrize("size", [1, 15, 16, 300, MAX_BATCH_MESSAGES])
def test_a_batch_says_how_many_it_holds(size: int) -> None:
    assert batch_size(encode_batch([b"payload"] * size)) == size


@pytest.mark.parametrize(
    "payload", [b"", b"x", b"\x90", b"\xdc", b"\xdc\x00", b"\xdd\xff\xff\xff", b"\xdc\x00\x00\x00"]
)
def test_what_is_no_batch_is_one(payload: bytes) -> None:
    assert batch_size(payload) == 1


def test_a_batch_that_lies_is_believed_only_so_far() -> None:
    assert batch_size(b"\xdd\xff\xff\xff\xff\x00") == MAX_BATCH_MESSAGES


def test_a_limit_below_zero_is_refused() -> None:
    assert Limits(coalesce_us=0).coalesce_us == 0
    with pytest.raises(UsageError, match=r"limits\.coalesce_us = -1; expected 0 or more"):
        Limits(coalesce_us=-1)
    assert Limits(follower_delay_us=0).follower_delay_us == 0
    with pytest.raises(UsageError, match=r"limits\.follower_delay_us = -5; expected 0 or more"):
        Limits(follower_delay_us=-5)
    with pytest.raises(UsageError, match=r"limits\.peers = 0; expected more than 0"):
        Limits(peers=0)

"""Wake-up coalescing: a busy leader or gateway sleeps so that more arrives at once; a lone message never waits."""

import asyncio

import pytest

from amcast.kernel.bundle import gateway_sender, make_bundle
from amcast.kernel.effects import Deliver
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.live.client_batch import MAX_BATCH_MESSAGES, batch_size, encode_batch
from amcast.live.host.host import Host
from amcast.live.host.wakeup_coalescer import ACTIVE_NS, REST_US, WakeupCoalescer
from amcast.live.limits import Limits
from amcast.protocols.skeen.process import Skeen
from tests.live.cluster import SKEEN, run


def delivery_of(count: int, size: int = 1) -> Deliver:
    """A bundle of `count` messages, each a batch of `size`."""
    parts = [Message(message_id(9, n), 9, (0, 1), encode_batch([b"x"] * size)) for n in range(count)]
    return Deliver(make_bundle(gateway_sender(0, 0), 0, (0, 1), parts), 0, message_count=count)


def leads() -> bool:
    return True


def follows() -> bool:
    return False


def sleeps_after(count: int, size: int = 1, most_us: int = 1000) -> list[float]:
    """The sleeps of a leader after a delivery."""
    sleeps: list[float] = []
    coalescer = WakeupCoalescer(most_us, leads, sleeps.append)
    coalescer.record_delivery(delivery_of(count, size))
    coalescer.end_tick(0)
    return sleeps


def test_few_messages_cause_no_sleep() -> None:
    assert sleeps_after(1) == sleeps_after(19) == sleeps_after(1, 19) == []


def test_sleep_grows_with_messages_up_to_the_limit() -> None:
    assert sleeps_after(30) == sleeps_after(1, 30) == [pytest.approx(300e-6)]
    assert sleeps_after(500) == sleeps_after(2, 250) == [pytest.approx(1e-3)]
    assert sleeps_after(500, most_us=0) == []


def test_sleeps_continue_between_deliveries_and_end_with_them() -> None:
    sleeps: list[float] = []
    coalescer = WakeupCoalescer(1000, leads, sleeps.append)
    coalescer.record_delivery(delivery_of(100))
    coalescer.end_tick(0)
    coalescer.end_tick(ACTIVE_NS)
    assert len(sleeps) == 2
    coalescer.end_tick(ACTIVE_NS + 1)
    assert len(sleeps) == 2
    coalescer.record_delivery(delivery_of(100))
    coalescer.end_tick(ACTIVE_NS + 2)
    coalescer.record_delivery(delivery_of(1))
    coalescer.end_tick(ACTIVE_NS + 3)
    assert len(sleeps) == 3, "a lone message ends it at once"


def test_follower_does_not_sleep() -> None:
    sleeps: list[float] = []
    led: list[int] = []
    coalescer = WakeupCoalescer(1000, lambda: bool(led), sleeps.append)
    for now in range(3):
        coalescer.record_delivery(delivery_of(100))
        coalescer.end_tick(now)
    assert sleeps == [], "its primary waits for it"
    assert coalescer.is_busy
    led.append(3)
    coalescer.end_tick(3)
    assert len(sleeps) == 1, "until it leads"


def test_gateway_sleeps_while_clients_send_requests() -> None:
    sleeps: list[float] = []
    coalescer = WakeupCoalescer(1000, follows, sleeps.append)
    coalescer.record_request(0)
    coalescer.end_tick(0)
    assert sleeps == [], "nothing was delivered yet"
    coalescer.record_delivery(delivery_of(100))
    coalescer.end_tick(ACTIVE_NS - 1)
    assert len(sleeps) == 1
    coalescer.record_delivery(delivery_of(100))
    coalescer.end_tick(ACTIVE_NS)
    assert len(sleeps) == 1, "no request came for so long"
    coalescer.record_request(ACTIVE_NS)
    coalescer.end_tick(ACTIVE_NS)
    assert len(sleeps) == 2


def test_rest_ends_when_the_messages_may_leave() -> None:
    sleeps: list[float] = []
    coalescer = WakeupCoalescer(1000, follows, sleeps.append)
    assert coalescer.is_allowed
    assert not coalescer.rest(5_000_000, 0), "others are read in between"
    assert coalescer.rest(5_000_000, 4_900_000)
    assert coalescer.rest(5_000_000, 5_100_000)
    assert sleeps == [pytest.approx(REST_US / 1e6), pytest.approx(100e-6), 0]
    assert not WakeupCoalescer(0, follows).is_allowed, "a replica inside a program never blocks its loop"


@pytest.mark.parametrize("size", [1, 15, 16, 300, MAX_BATCH_MESSAGES])
def test_batch_size_is_read_from_its_first_bytes(size: int) -> None:
    assert batch_size(encode_batch([b"payload"] * size)) == size


@pytest.mark.parametrize(
    "payload", [b"", b"x", b"\x90", b"\xdc", b"\xdc\x00", b"\xdd\xff\xff\xff", b"\xdc\x00\x00\x00"]
)
def test_payload_without_batch_counts_as_one(payload: bytes) -> None:
    assert batch_size(payload) == 1


def test_stated_batch_size_is_bounded() -> None:
    assert batch_size(b"\xdd\xff\xff\xff\xff\x00") == MAX_BATCH_MESSAGES


def test_negative_limit_is_refused() -> None:
    assert Limits(coalesce_us=0).coalesce_us == 0
    with pytest.raises(UsageError, match=r"limits\.coalesce_us = -1; expected 0 or more"):
        Limits(coalesce_us=-1)
    assert Limits(follower_delay_us=0).follower_delay_us == 0
    with pytest.raises(UsageError, match=r"limits\.follower_delay_us = -5; expected 0 or more"):
        Limits(follower_delay_us=-5)
    with pytest.raises(UsageError, match=r"limits\.peers = 0; expected more than 0"):
        Limits(peers=0)


class Resting(Skeen):
    """Rests from each multicast for a quarter of a millisecond; its timer alone would take a minute."""

    expired_after_ns = -1

    def on_submit(self, message: Message) -> None:
        self.began_ns = self.now
        self.rest = (self.now + 250_000, "rest")
        self.set_timer("rest", (60_000_000_000, 60_000_000_000))

    def on_timer(self, name: str) -> None:
        self.rest = None
        self.expired_after_ns = self.now - self.began_ns


@pytest.mark.live
@pytest.mark.parametrize("coalesce_us", [1000, 0])
def test_timer_expires_when_a_rest_ends(coalesce_us: int) -> None:
    found: list[int] = []

    async def main() -> None:
        topology = Topology.grid(1, 1)
        process = Resting(0, topology, SKEEN.configure({}))
        host = Host(process, SKEEN, coalesce_us=coalesce_us)
        host.start({})
        await asyncio.sleep(0)
        host.submit(Message(message_id(9, 0), 9, (0,)))
        for _ in range(10):
            await asyncio.sleep(0.001)
        await host.stop()
        found.append(process.expired_after_ns)

    run(main())
    assert found[0] >= 250_000 if coalesce_us else found == [-1]

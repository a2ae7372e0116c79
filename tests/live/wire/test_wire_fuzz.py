"""Fuzzed codec and handshake: arbitrary and mutated bytes from pending connections, clients and false servers."""

import asyncio
import logging
import random
import tracemalloc

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amcast.live.errors import BadFrameError
from amcast.live.wire import frames as wire
from amcast.live.wire.frames import WIRE_VERSION, Hello
from tests.live.cluster import run
from tests.live.wire.wire_fuzz import LIMITS, Target, campaign, mutate, seeds

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))

LARGE = st.integers(-5, 2**62)


@pytest.fixture(autouse=True)
def silent() -> object:
    """Every input would be logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def feed(*inputs: bytes) -> Target:
    made: list[Target] = []

    async def main() -> None:
        target = Target()
        made.append(target)
        for data in inputs:
            target.take(data)
        await asyncio.sleep(0)
        await target.replica.stop()

    run(main())
    return made[0]


@SETTINGS
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_arbitrary_bytes_do_not_fail_the_host(inputs: list[bytes]) -> None:
    feed(*inputs)


@SETTINGS
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_mutated_bytes_do_not_fail_the_host(seed: int, count: int) -> None:
    rng = random.Random(seed)
    corpus = seeds()
    feed(*(mutate(rng, corpus) for _ in range(count)))


def test_seeds_reach_links() -> None:
    """A fuzzer whose seeds reach no link would test nothing."""
    assert feed(*seeds()).frames >= 5


@SETTINGS
@given(
    st.integers(-1, 2**63), st.text(max_size=20), st.text(max_size=20), LARGE, LARGE, LARGE, LARGE,
    st.none() | st.tuples(LARGE, LARGE), LARGE, LARGE,
)  # fmt: skip
def test_any_hello_is_answered_or_refused(
    version: int, cluster: str, protocol: str, process: int, target: int, incarnation: int, link: int,
    known: tuple[int, int] | None, received: int, oldest: int,
) -> None:  # fmt: skip
    hello = Hello(version, cluster, protocol, process, target, incarnation, link, known, received, oldest)
    frame = wire.encode_hello(msgspec.structs.replace(hello, version=min(max(version, 0), 255)))
    raw = wire.make_frame(wire.HELLO, wire._encoder.encode(hello))
    honest = wire.encode_hello(
        Hello(WIRE_VERSION, "amcast", "primcast", process, 0, incarnation, link, known, received, 1)
    )
    assert wire.read_hello(frame[wire.HEAD_BYTES :]).process == process
    feed(b"\x00\x00\x00" + raw, b"\x00\x00\x00" + frame, b"\x00\x00\x00" + honest, b"\x00\x00\x00" + honest)


@pytest.mark.parametrize("process", [-1, 2**31, 2**40])
def test_invalid_process_numbers_get_no_link(process: int) -> None:
    """Numbers above those of processes name bundles of gateways: no peer may use them."""
    hello = Hello(WIRE_VERSION, "amcast", "primcast", process, 0, 0, 1, None, 0, 1)
    target = feed(b"\x00\x00\x00" + wire.encode_hello(hello))
    assert target.frames == 0
    assert process not in target.network.links


@SETTINGS
@given(st.binary(max_size=200))
def test_unreadable_payload_raises_bad_frame_error(data: bytes) -> None:
    for read in (wire.read_hello, wire.read_ack, wire.read_refusal):
        try:
            read(data)
        except BadFrameError:
            continue


def test_deep_nesting_and_huge_lengths_cost_no_memory() -> None:
    bombs = [b"\x91" * 3000, b"\xdd\xff\xff\xff\xff" * 100, b"\xdf\xff\xff\xff\xff" * 100, b"\xc6\xff\xff\xff\xff\x00"]
    tracemalloc.start()
    feed(*(bytes((mode, 0, 0)) + bomb for bomb in bombs for mode in range(7)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * LIMITS.frame_bytes + 4_000_000


def test_short_campaign_grows_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    run(campaign(5_000, seed=7))
    assert "5000 inputs" in capsys.readouterr().out

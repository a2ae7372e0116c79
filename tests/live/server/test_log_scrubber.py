"""A running node notices that its log is damaged on the disk, reports it, and gets its state from its group later."""

import asyncio
from pathlib import Path

import pytest

from amcast.live.host.host import RestartNeededError
from amcast.live.limits import Limits
from amcast.live.server.log_scrubber import scrub_log
from amcast.live.storage.store import LogStore, MemoryStore
from tests.live.cluster import run
from tests.live.server.test_divergence import QUICK, Shop, read_metric


def flip_bit(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


@pytest.mark.live
def test_damaged_log_of_a_running_node_is_reported_and_restored(tmp_path: Path) -> None:
    async def main() -> None:
        async with Shop(tmp_path, limits={**QUICK, "scrub_pause_s": 0.05}) as shop:
            await shop.start(compare_every=0)
            await shop.multicast(0, 20)
            while not shop.status("orders/3")["scrub"]["passes"]:
                await asyncio.sleep(0.02)
            assert not shop.status("orders/3")["scrub"]["damaged"]
            log = min(shop.cluster.data_folder(2).glob("*.log"))
            flip_bit(log, 512 + 40)
            while not (status := shop.status("orders/3"))["scrub"]["damaged"]:
                await asyncio.sleep(0.02)
            assert status["scrub"]["damage"] == f"{log}: damaged at byte 512"
            assert status["ready"], "its state in memory is whole"
            assert "the log of orders/3 is damaged on its disk" in status["advice"][0]
            assert read_metric("amcast_log_damaged", status) == 1
            await shop.multicast(20, 10)

            await shop.stop("orders/3")
            await shop.start("orders/3", compare_every=0)
            with pytest.raises(RestartNeededError, match="damaged at byte 512"):
                await shop.running["orders/3"].host.ended
            await shop.stop("orders/3")
            await shop.start("orders/3", compare_every=0)
            await shop.running["orders/3"].caught_up()
            while shop.ledgers["orders/3"].rows != shop.ledgers["orders/1"].rows:
                await asyncio.sleep(0.02)
            assert not shop.status("orders/3")["scrub"]["damaged"]

    run(main(), timeout_s=60)


def test_log_is_read_no_faster_than_the_limit(tmp_path: Path) -> None:
    store = LogStore(tmp_path, "os")
    for _ in range(40):
        store.append(bytes(100_000))
        store.commit()
    scrubber = store.make_scrubber()
    assert scrubber is not None

    async def main() -> None:
        limits = Limits(scrub_bytes_per_s=1 << 20, scrub_pause_s=60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await scrub_log(scrubber, limits)

    run(main())
    assert 100_000 < scrubber.bytes < 1_500_000
    assert scrubber.passes == 0
    store.close()


def test_store_without_a_log_has_no_scrubber() -> None:
    assert MemoryStore().make_scrubber() is None

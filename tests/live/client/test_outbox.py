"""Messages with a key are ordered once, whatever happens to their client."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import amcast
from amcast.cluster import connect, local_cluster
from amcast.kernel.errors import UsageError
from amcast.live.client.outbox import FILE, RESERVED, OpenOutbox, Outbox, Posted
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
from tests.live.cluster import run

PROGRAM = """
import asyncio, sys, amcast

async def main():
    async def work(first):
        for number in range(first, int(sys.argv[3]), 5):
            groups = {"north", "south"} if number % 3 else "north"
            await client.multicast(groups, b"%d" % number, key=f"order-{number}")
            await client.multicast("south", b"plain")
            print(number, flush=True)
            await asyncio.sleep(first / 1000)

    async with amcast.connect(sys.argv[1], outbox=sys.argv[2]) as client:
        await asyncio.gather(*map(work, range(5)))

asyncio.run(main())
"""


def open_outbox(folder: Path, now: list[float] | None = None, **settings: float) -> OpenOutbox:
    outbox = Outbox(folder, **settings).open("amcast", lambda: now[0] if now else 0.0)  # type: ignore[arg-type]
    if outbox.identity is None:
        outbox.begin(77, 0, 5)
    else:
        outbox.resume()
    return outbox


def post(outbox: OpenOutbox, key: str, message: int) -> None:
    outbox.post(Posted(key, message, ("north",), key.encode()))
    outbox.write()


def test_next_run_has_the_id_the_messages_and_the_receipts(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    post(outbox, "a", 5)
    post(outbox, "b", 6)
    outbox.answer("a", ("south",))
    outbox.reserve(7)
    outbox.close()
    outbox = open_outbox(tmp_path)
    assert outbox.identity is not None
    assert (outbox.identity.process, outbox.identity.incarnation) == (77, 1)
    assert outbox.identity.reserved == 7 + RESERVED
    assert list(outbox.unanswered) == ["b"]
    answered = outbox.find("a", ("north",), b"a")
    assert answered is not None
    assert answered.message == 5
    with pytest.raises(UsageError, match="key = 'b' was used for another message"):
        outbox.find("b", ("north",), b"other")
    with pytest.raises(UsageError, match="key = 'a' was used for another message"):
        outbox.find("a", ("south",), b"a")
    outbox.close()


def test_keys_are_forgotten_by_number_and_time_when_they_have_receipts(tmp_path: Path) -> None:
    now = [100.0]
    outbox = open_outbox(tmp_path, now, keys=2, seconds=10.0)
    for number, key in enumerate("abcd"):
        post(outbox, key, number)
    for key in "bcd":
        outbox.answer(key, ())
    assert outbox.find("b", ("north",), b"b") is None
    assert outbox.find("c", ("north",), b"c") is not None
    now[0] = 110.0
    assert outbox.find("d", ("north",), b"d") is None
    assert outbox.find("a", ("north",), b"a") is not None  # It has no receipt.
    outbox.close()


def test_torn_write_is_dropped_and_damage_is_refused(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    post(outbox, "a", 5)
    post(outbox, "b", 6)
    outbox.close()
    whole = (tmp_path / FILE).read_bytes()
    for cut in range(2, 40):
        (tmp_path / FILE).write_bytes(whole[:-cut])
        outbox = Outbox(tmp_path).open("amcast")
        assert list(outbox.unanswered) == ["a"]
        outbox.close()
    (tmp_path / FILE).write_bytes(whole.replace(b'"a"', b'"x"', 1))
    with pytest.raises(UsageError, match="record 2 is damaged"):
        Outbox(tmp_path).open("amcast")
    (tmp_path / FILE).write_bytes(whole)
    with pytest.raises(UsageError, match="is of cluster 'amcast'; expected one of 'shop'"):
        Outbox(tmp_path).open("shop")


def test_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="outbox: keys = 0; expected a number from 1 on"):
        Outbox(tmp_path, keys=0)
    with pytest.raises(UsageError, match="outbox: seconds = -1; expected seconds above 0"):
        Outbox(tmp_path, seconds=-1)
    outbox = open_outbox(tmp_path)
    with pytest.raises(UsageError, match="another program has it open"):
        Outbox(tmp_path).open("amcast")
    with pytest.raises(UsageError, match="key = ''; expected a text of 1 to 256"):
        outbox.find("", ("north",), b"")
    outbox.close()


@pytest.mark.live
def test_killed_program_orders_every_key_once(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(format_local_config({"north": 3, "south": 3}))
    cluster = read_cluster(tmp_path / "cluster.toml")
    count, kills = 150, 0
    with local_cluster(cluster) as running:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cluster.toml"), str(tmp_path / "outbox"), str(count)]
        for attempt in range(20):
            with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
                assert program.stdout is not None
                for line in program.stdout:
                    if int(line) == 30 * (attempt + 1):
                        os.kill(program.pid, signal.SIGKILL)
                        kills += 1
                        break
            if program.returncode == 0:
                break
            if attempt == 1:
                running.kill("north/1")
            elif attempt == 2:
                running.start("north/1")
        assert kills >= 4

        async def main() -> None:
            async with connect(cluster, outbox=tmp_path / "outbox") as client:
                receipt = await client.multicast("north", b"0", key="order-0")
                again = await client.multicast("north", b"0", key="order-0", positions=True)
                assert receipt.message == again.message
                with pytest.raises(amcast.UsageError, match="was used for another message"):
                    await client.multicast("south", b"0", key="order-0")
                receipts = await asyncio.gather(*(client.multicast("north", b"x", key="x") for _ in range(50)))
                assert len({one.message for one in receipts}) == 1
                for group, expected in (("north", [*range(count)]), ("south", [n for n in range(count) if n % 3])):
                    seen = []
                    deliveries = client.deliveries(group, since=0)
                    await client.multicast(group, b"end")
                    while (delivery := await anext(deliveries)).payload != b"end":
                        seen += [int(delivery.payload)] if delivery.payload.isdigit() else []
                    assert sorted(seen) == expected
            async with connect(cluster) as client:
                with pytest.raises(amcast.UsageError, match="the client has no outbox"):
                    await client.multicast("north", b"0", key="order-0")

        run(main(), 60)

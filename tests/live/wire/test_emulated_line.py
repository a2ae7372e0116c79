"""Emulated networks: delayed lines, clusters across regions, and real network namespaces."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amcast.cluster import connect
from amcast.kernel.errors import UsageError
from amcast.live.config.cluster import read_cluster
from amcast.live.wire.emulated_line import DelayedWriter, EmulatedLine
from tests.live.cluster import run
from tests.live.secure_cluster import plain, replicas

MS = 1_000_000


async def send_over(line: EmulatedLine, *writes: bytes) -> tuple[list[bytes], list[float]]:
    """Writes at once; returns the arrivals, and their times in milliseconds."""
    got: list[bytes] = []
    at: list[float] = []
    begin = time.perf_counter()

    def arrive(data: bytes) -> None:
        got.append(data)
        at.append((time.perf_counter() - begin) * 1000)

    delayed = DelayedWriter(line, arrive, random.Random(5))
    for data in writes:
        delayed(data)
    async with asyncio.timeout(10):
        while sum(map(len, got)) < sum(map(len, writes)):
            await asyncio.sleep(0.001)
    return got, at


def test_line_delays_in_order_and_by_bandwidth_and_loss() -> None:
    async def main() -> None:
        got, at = await send_over(EmulatedLine(20 * MS), b"a", b"b", b"c")
        assert b"".join(got) == b"abc"
        assert 19 < at[0] < 500
        got, at = await send_over(EmulatedLine(20 * MS, spread=0.5), *(bytes([n]) for n in range(50)))
        assert b"".join(got) == bytes(range(50))
        assert at == sorted(at)
        _, at = await send_over(EmulatedLine(1 * MS, bandwidth=100_000), *(b"x" * 2000 for _ in range(5)))
        assert at[-1] > 99
        _, at = await send_over(EmulatedLine(1 * MS, loss=0.5, retransmit_ns=30 * MS), *(b"x" for _ in range(20)))
        assert at[-1] > 30

    run(main())


def test_flushed_line_loses_nothing() -> None:
    async def main() -> None:
        got: list[bytes] = []
        delayed = DelayedWriter(EmulatedLine(1000 * MS), got.append, random.Random(1))
        delayed(b"a")
        delayed(b"b")
        delayed.flush()
        assert got == [b"a", b"b"]
        delayed(b"c")
        delayed.close()
        assert delayed.waiting_bytes == 0

    run(main())


FAR = {"near": {"near": 0, "far": 40 * MS}, "far": {"near": 40 * MS, "far": 0}}


@pytest.mark.live
def test_latency_across_regions_includes_the_emulated_delay(tmp_path: Path) -> None:
    cluster = plain(tmp_path, {"orders": 1, "stock": 1}, emulation={"matrix_ns": FAR, "client_region": "near"})
    text = cluster.file.read_text()
    for place, region in enumerate(("near", "far")):
        host, port = cluster.addresses[place]
        text = text.replace(f'"{host}:{port}"', f'{{ address = "{host}:{port}", region = "{region}" }}')
    cluster.file.write_text(text)
    cluster = read_cluster(cluster.file)
    took: dict[str, float] = {}

    async def main() -> None:
        async with replicas(cluster), connect(cluster) as client:
            for name, groups in (("near", {"orders"}), ("both", {"orders", "stock"}), ("far", {"stock"})):
                await client.multicast(groups, b"x")
                begin = time.perf_counter()
                await client.multicast(groups, b"x")
                took[name] = (time.perf_counter() - begin) * 1000

    run(main())
    assert took["near"] < 79 <= took["far"]
    assert took["both"] >= 79


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[emulation]\nloss = 1.5", "loss = 1.5; expected a probability below 1"),
        ("[emulation.matrix_ns.a]\nb = 1", "matrix_ns.a names ['b']; expected ['a']"),
        ("[emulation.matrix_ns.a]\na = -1", "matrix_ns.a.a = -1; expected 0 or more"),
        ("[emulation]\nspread = -1.0", "spread = -1.0; expected 0 or more"),
        ("[emulation]\nclient_region = 'x'", "client_region = 'x'; expected one of []"),
        ("[emulation]\nwan = 1", "unknown field `wan`"),
    ],
)
def test_wrong_emulation_is_refused_with_the_field_named(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f"name = 'x'\n[groups.orders]\nreplicas = ['10.0.0.1:7001']\n{text}\n")
    with pytest.raises(UsageError) as refused:
        read_cluster(file)
    assert expected in str(refused.value)


def test_unknown_region_is_refused(tmp_path: Path) -> None:
    cluster = plain(tmp_path, emulation={"matrix_ns": FAR})
    with pytest.raises(
        UsageError, match=r"region '' is not in emulation\.matrix_ns; expected one of \['near', 'far'\]"
    ):
        cluster.node_transport("orders/1")
    with pytest.raises(UsageError, match="region 'moon'"):
        cluster.client_transport(region="moon")


def run_as_root(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a delay of 25 ms between them."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("network namespaces need root, ip and tc")
    names = tuple(f"amcast-{os.getpid()}-{end}" for end in "ab")
    cables = tuple(f"amc{os.getpid() % 100_000}{end}" for end in "ab")
    try:
        run_as_root("ip", "link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for number, (name, cable) in enumerate(zip(names, cables, strict=True), 1):
            run_as_root("ip", "netns", "add", name)
            run_as_root("ip", "link", "set", cable, "netns", name)
            for words in (("addr", "add", f"10.213.7.{number}/24", "dev", cable), ("link", "set", cable, "up"),
                          ("link", "set", "lo", "up")):  # fmt: skip
                run_as_root("ip", "-n", name, *words)
            run_as_root(
                "ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", cable, "root", "netem", "delay", "25ms"
            )
        yield names  # type: ignore[misc]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no namespaces with netem on this machine: {error.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", cables[0]], check=False, capture_output=True)


@pytest.mark.live
@pytest.mark.slow
def test_latency_over_a_delayed_veth_pair_includes_the_delay(tmp_path: Path, namespaces: tuple[str, str]) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        "name = 'far'\ndurability = 'memory'\n[security]\nmode = 'plain'\nplain_beyond_loopback = true\n"
        "[groups.orders]\nreplicas = ['10.213.7.1:7001']\n[groups.stock]\nreplicas = ['10.213.7.2:7001']\n"
    )
    nodes = []
    try:
        for name, node in zip(namespaces, ("orders/1", "stock/1"), strict=True):
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "amcast.cluster", str(file), node]
            nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for child in nodes:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == "ready"
        amcast = [sys.executable, "-c", "from amcast.cli import main; main()"]
        send = ["ip", "netns", "exec", namespaces[0], *amcast, "send", "--config", str(file)]
        for groups, low in (("orders", 0), ("orders,stock", 50)):
            output = subprocess.run([*send, groups, "x", "--json"], check=True, capture_output=True, text=True).stdout
            took = float(output.split('"latency_ms": ')[1].split()[0].strip(",}"))
            assert low <= took < low + 500
    finally:
        for child in nodes:
            child.terminate()
            child.wait(10)
            assert child.stdout is not None
            child.stdout.close()

"""A power cut of all machines that leaves torn tails needs no operator, also in groups of one."""

import contextlib
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.storage.system_files import SystemFiles
from amcast.storage import segments
from tests.live.cluster import run


def tear(folder: Path, sectors: tuple[int, ...]) -> None:
    """Writes some of the sectors of a commit behind the log, as a power cut leaves it."""
    scan = segments.scan_log(SystemFiles(folder))
    assert scan.doubt == ""
    data, _ = segments.encode_commit(scan.next_number, [b"x" * 1400], False, scan.chain, scan.end)
    assert len(data) == 3 * segments.SECTOR
    with (folder / scan.files[-1]).open("r+b") as file:
        for sector in sectors:
            file.seek(scan.end + sector * segments.SECTOR)
            file.write(data[sector * segments.SECTOR : (sector + 1) * segments.SECTOR])


async def exchange(cluster: Cluster, text: bytes, got: list[bytes]) -> None:
    """Starts all replicas and multicasts once; adds what the replica of the group of one delivers."""
    async with contextlib.AsyncExitStack() as running:
        for name in cluster.nodes():
            deliver = (lambda delivery: got.append(delivery.payload)) if name.startswith("stock") else None
            await running.enter_async_context(run_replica(cluster, name, deliver))
        async with connect(cluster) as client:
            await client.multicast({"orders", "stock"}, text)


@pytest.mark.live
def test_cluster_starts_after_a_power_cut_of_all_machines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = format_local_config({"orders": 3, "stock": 1}, protocol="primcast", durability="fsync")
    (tmp_path / "cluster.toml").write_text(text)
    cluster = read_cluster(tmp_path / "cluster.toml")
    folders = {name: cluster.data_folder(process) for name, process in cluster.nodes().items()}
    got: list[bytes] = []
    run(exchange(cluster, b"before", got))
    for place, folder in enumerate(folders.values()):
        tear(folder, ((0, 2), (1, 2), (0,), (0, 1))[place % 4])
    run(exchange(cluster, b"after", got))
    assert (got[0], got[-1]) == (b"before", b"after")
    assert caplog.text.count("a torn tail of") == len(folders)

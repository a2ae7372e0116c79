"""A data folder belongs to one process of one cluster in one protocol, memory durability refuses a log, and one
configuration has one membership."""

import asyncio
import tomllib
from pathlib import Path

import pytest

from amcast import cluster as service
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.live.config.cluster import format_toml, read_cluster
from amcast.live.membership.data_folder import FILE
from amcast.live.membership.topology_follower import FILE as MEMBERS
from amcast.live.operations.local_cluster import find_free_ports, format_local_config
from amcast.live.storage.system_files import SystemFiles
from amcast.storage.identity import read_identity


def cluster_file(folder: Path, title: str, **fields: str) -> Path:
    """Two groups of one replica; all such files of a folder share `data`."""
    file = folder / title
    file.write_text(format_local_config({"orders": 1, "stock": 1}, data=str(folder / "data"), **fields))
    return file


def begun(file: Path) -> None:
    """Runs orders/1 for a moment."""

    async def moment() -> None:
        async with service.run_replica(file, "orders/1"):
            pass

    asyncio.run(moment())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"protocol": "primcast-hc"}, "expected orders/1 (process 0) of cluster 'local' with protocol 'primcast-hc'"),
        ({"name": "test"}, "expected orders/1 (process 0) of cluster 'test' with protocol 'primcast'"),
        ({"durability": "memory"}, "durability = 'memory', and there is a log; expected 'os' or 'fsync', or no log"),
    ],
)
def test_folder_of_another_cluster_or_protocol_is_refused(
    tmp_path: Path, fields: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster_file(tmp_path, "cluster.toml", durability="os")
    begun(file)
    folder = tmp_path / "data" / "process-00000"
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    other = cluster_file(tmp_path, "other.toml", **{"durability": "os", **fields})
    assert service.main([str(other), "orders/1"]) == 64
    assert sentence in capsys.readouterr().err
    with pytest.raises(UsageError, match="process-00000: "):
        service.run_replica(other, "orders/1")
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before, "nothing was changed"
    begun(file)


def test_folder_of_another_node_or_damaged_owner_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster_file(tmp_path, "cluster.toml", durability="os")
    begun(file)
    data = read_cluster(file).data
    (data / "process-00000").rename(data / "process-00001")
    assert service.main([str(file), "stock/1"]) == 64
    assert (
        "the folder belongs to orders/1 (process 0) of cluster 'local' with protocol 'primcast'"
        in capsys.readouterr().err
    )
    (data / "process-00001" / FILE).write_text("{}")
    assert service.main([str(file), "stock/1"]) == 64
    assert "expected the owner that a node recorded" in capsys.readouterr().err


def test_folder_of_an_older_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster_file(tmp_path, "cluster.toml", durability="memory")
    begun(file)
    owner = tmp_path / "data" / "process-00000" / FILE
    owner.write_text(owner.read_text().replace(',"format":3', ""))
    assert service.main([str(file), "orders/1"]) == 64
    assert "a data folder of format 1; expected format 3" in capsys.readouterr().err


def test_members_with_a_flipped_bit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another digit would be another member."""
    file = cluster_file(tmp_path, "cluster.toml", durability="os")
    begun(file)
    members = tmp_path / "data" / "process-00000" / MEMBERS
    data = bytearray(members.read_bytes())
    data[data.index(b'"members":[0]') + 11] ^= 1
    members.write_bytes(data)
    assert service.main([str(file), "orders/1"]) == 64
    assert "expected the members that this node stored. Empty the folder, and admit the node" in capsys.readouterr().err


def test_log_durability_may_follow_memory_durability(tmp_path: Path) -> None:
    begun(cluster_file(tmp_path, "first.toml", durability="memory"))
    begun(cluster_file(tmp_path, "first.toml", durability="memory"))
    begun(cluster_file(tmp_path, "second.toml", durability="os"))
    identity = read_identity(SystemFiles(tmp_path / "data" / "process-00000"))
    assert identity is not None
    assert identity.incarnation == 2, "it knows that it has forgotten"


def edited(file: Path, replicas: list[str]) -> None:
    """Changes the replicas of orders in the file."""
    values = tomllib.loads(file.read_text())
    values["groups"]["orders"]["replicas"] = replicas
    file.write_text(format_toml(values))


def test_replicas_added_by_editing_the_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Editing would shift the process ids of others, and change the majorities of their group."""
    file = cluster_file(tmp_path, "cluster.toml", durability="os")
    begun(file)
    places = [f"127.0.0.1:{port}" for port in find_free_ports(2)]
    edited(file, places[:1])
    begun(file)  # a node may move
    edited(file, places)
    assert service.main([str(file), "orders/1"]) == 64
    errors = capsys.readouterr().err
    assert "its groups are made of the processes orders [0, 1]; stock [2]; expected orders [0]; stock [1]" in errors
    assert "changed by `amcast change`" in errors


@pytest.mark.live
def test_processes_with_different_members_refuse_each_other(tmp_path: Path) -> None:
    """A new node has no folder to compare with; its peers have."""
    file = cluster_file(tmp_path, "cluster.toml", durability="memory")
    with service.local_cluster(read_cluster(file)):
        with service.connect_blocking(file) as client:
            client.multicast({"orders", "stock"}, b"x")
        values = tomllib.loads(file.read_text())
        values["groups"]["stock"]["replicas"].append("127.0.0.1:1")
        other = tmp_path / "other.toml"
        other.write_text(format_toml(values))
        with (
            pytest.raises(CannotTellError, match="different groups or replicas in configuration 0: is"),
            service.connect_blocking(other, connect_s=2.0) as client,
        ):
            client.multicast({"orders"}, b"x", 2.0)

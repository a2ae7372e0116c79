"""A data folder serves one process of one cluster in one protocol, and no life in memory beside a log."""

import asyncio
from pathlib import Path

import pytest

from amcast import service
from amcast.kernel.errors import WrongUse
from amcast.live.config import read_cluster
from amcast.live.launch import local_config
from amcast.live.owning import FILE


def cluster_file(folder: Path, title: str, **fields: str) -> Path:
    """Two groups of one; all such files of a folder have the same `data`."""
    file = folder / title
    file.write_text(local_config({"orders": 1, "stock": 1}, data=str(folder / "data"), **fields))
    return file


def begun(file: Path) -> None:
    """Be orders/1 for a moment."""

    async def moment() -> None:
        async with service.Replica(file, "orders/1"):
            pass

    asyncio.run(moment())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"protocol": "primcast-hc"}, "expected process 0 of cluster 'local' with protocol 'primcast-hc'"),
        ({"name": "test"}, "expected process 0 of cluster 'test' with protocol 'primcast'"),
        ({"durability": "memory"}, "durability = 'memory', and there is a log; expected 'os' or 'fsync', or no log"),
    ],
)
def test_another_cluster_protocol_or_memory_is_refused(
    tmp_path: Path, fields: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster_file(tmp_path, "cluster.toml", durability="os")
    begun(file)
    folder = tmp_path / "data" / "process-00000"
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    other = cluster_file(tmp_path, "other.toml", **{"durability": "os", **fields})
    assert service.main([str(other), "orders/1"]) == 64
    assert said in capsys.readouterr().err
    with pytest.raises(WrongUse, match="process-00000: "):
        service.Replica(other, "orders/1")
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before, "nothing was changed"
    begun(file)


def test_another_nodes_folder_and_a_damaged_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster_file(tmp_path, "cluster.toml", durability="os")
    begun(file)
    data = read_cluster(file).data
    (data / "process-00000").rename(data / "process-00001")
    assert service.main([str(file), "stock/1"]) == 64
    assert "it keeps what process 0 of cluster 'local' with protocol 'primcast' has promised" in capsys.readouterr().err
    (data / "process-00001" / FILE).write_text("{}")
    assert service.main([str(file), "stock/1"]) == 64
    assert "expected what a node wrote there about itself" in capsys.readouterr().err


def test_a_log_may_follow_lives_in_memory(tmp_path: Path) -> None:
    begun(cluster_file(tmp_path, "first.toml", durability="memory"))
    begun(cluster_file(tmp_path, "first.toml", durability="memory"))
    begun(cluster_file(tmp_path, "second.toml", durability="os"))
    assert (tmp_path / "data" / "process-00000" / "life").read_text() == "2\n", "it knows that it has forgotten"

"""Whose a data folder is, and whether everybody means the same cluster.

What a folder keeps are the promises of one process in one protocol. Read by another process, or by another protocol,
they would be lies; and two files with the same `data`, one for tests and one for real, are easily made. So the folder
says whose it is, in the file `node`, and who finds another name there does not start:

    {"cluster": "shop", "node": "orders/1", "process": 0, "protocol": "primcast", "format": 2}

What an incarnation with `durability = "memory"` promises is in no log. A log that lies there must not be taken, in a
later incarnation, for all that was promised: beside one, no incarnation in memory begins.

A promise is also one to certain others. If two processes took different ones for the members of a group, each could
have a majority that the other does not know of. Members change by `amcast change`, which gives every change a number;
for one number there is one answer to who is there. A node whose cluster.toml says something else than its folder, for
the same number, does not start; and two processes that differ do not talk to each other.
"""

from pathlib import Path
from typing import Final

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology
from amcast.live.config.cluster import Cluster
from amcast.live.membership.topology_follower import FILE as MEMBERS
from amcast.live.membership.topology_follower import Roster
from amcast.live.storage.atomic_files import read_json, write_atomically
from amcast.live.storage.segments import FORMAT, START_AGAIN
from amcast.live.wire.frames import named_members

FILE: Final = "node"


class DataFolderOwner(msgspec.Struct, frozen=True):
    """The process whose promises a folder keeps."""

    cluster: str
    node: str
    process: ProcessId
    protocol: str
    format: int = 1
    """The version of all files in the folder; those of format 1 did not state it."""

    def __str__(self) -> str:
        return f"{self.node} (process {self.process}) of cluster {self.cluster!r} with protocol {self.protocol!r}"


def expected_owner(cluster: Cluster, me: ProcessId) -> DataFolderOwner:
    """This node."""
    return DataFolderOwner(cluster.name, cluster.name_of(me), me, cluster.protocol, FORMAT)


def verify_owner(cluster: Cluster, me: ProcessId) -> None:
    """Refuse to be this node with somebody else's folder; nothing is changed."""
    folder = cluster.data_folder(me)
    mine, found = expected_owner(cluster, me), _read(folder)
    if found is not None and found.format != FORMAT:
        raise UsageError(
            f"{folder / FILE}: a data folder of format {found.format}; expected format {FORMAT}: {START_AGAIN}"
        )
    if found is not None and found != mine:
        raise UsageError(
            f"{folder}: it keeps what {found} has promised; expected {mine}. Choose another folder (`data` in"
            f" cluster.toml), or empty this one if all of that cluster is to begin anew"
        )
    roster = Roster.read(folder)
    if roster is not None:
        _check_members(cluster, Topology.from_dict(roster.now, str(folder / MEMBERS)), folder)
    if cluster.durability == "memory" and any(folder.glob("*.log")):
        raise UsageError(
            f"{folder}: durability = 'memory', and there is a log; expected 'os' or 'fsync', or no log: it would miss"
            f" what is promised from now on. Remove it (*.log, nothing else), of one node at a time: its fellows give"
            f" it their group's state"
        )


def _check_members(cluster: Cluster, known: Topology, folder: Path) -> None:
    told = cluster.topology
    if told.configuration != known.configuration or named_members(told) == named_members(known):
        return
    was, now = (
        "; ".join(f"{name} {list(some)}" for name, some in named_members(one).values()) for one in (known, told)
    )
    raise UsageError(
        f"{cluster.file}: its groups are made of the processes {now}; expected {was}, as {folder} says (topology"
        f" {known.configuration}). Replicas of a cluster that has begun are changed by `amcast change`,"
        f" and its groups stay"
    )


def record_owner(cluster: Cluster, me: ProcessId) -> None:
    """The folder is this node's from now on."""
    folder = cluster.data_folder(me)
    if _read(folder) is None:
        write_atomically(folder / FILE, msgspec.json.encode(expected_owner(cluster, me)))


def _read(folder: Path) -> DataFolderOwner | None:
    return read_json(folder / FILE, DataFolderOwner, "what a node wrote there about itself")

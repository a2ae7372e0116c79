"""Ownership of a data folder, and agreement on the members of the cluster.

A data folder holds the promises of one process in one protocol. Another process or protocol must not use them, and two
files with the same `data`, one for tests and one for production, are easily made. So the folder names its owner in the
file `node`, and a node that finds another owner does not start:

    {"cluster": "shop", "node": "orders/1", "process": 0, "protocol": "primcast", "format": 2}

An incarnation with `durability = "memory"` writes no log. A log in the folder would, in a later incarnation, pass for
all promises; so a node with `durability = "memory"` refuses to start on a folder that contains a log.

Promises hold within a membership. Two processes with different ideas of a group's members could each have a majority
that the other does not know of. Members change by `amcast change`, which numbers every configuration; for one number
there is one membership. A node whose cluster.toml contradicts its folder, for the same configuration, does not start;
and two processes that differ do not talk to each other.
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
from amcast.live.wire.frames import named_members
from amcast.storage.segments import FORMAT, START_AGAIN

FILE: Final = "node"


class DataFolderOwner(msgspec.Struct, frozen=True):
    """The process whose promises a folder contains."""

    cluster: str
    node: str
    process: ProcessId
    protocol: str
    format: int = 1
    """The version of all files in the folder; those of format 1 did not state it."""

    def __str__(self) -> str:
        return f"{self.node} (process {self.process}) of cluster {self.cluster!r} with protocol {self.protocol!r}"


def expected_owner(cluster: Cluster, me: ProcessId) -> DataFolderOwner:
    """The owner of this node's folder."""
    return DataFolderOwner(cluster.name, cluster.name_of(me), me, cluster.protocol, FORMAT)


def verify_owner(cluster: Cluster, me: ProcessId) -> None:
    """Refuses to start a node on the folder of another one; changes nothing."""
    folder = cluster.data_folder(me)
    expected, owner = expected_owner(cluster, me), _read(folder)
    if owner is not None and owner.format != FORMAT:
        raise UsageError(
            f"{folder / FILE}: a data folder of format {owner.format}; expected format {FORMAT}: {START_AGAIN}"
        )
    if owner is not None and owner != expected:
        raise UsageError(
            f"{folder}: the folder belongs to {owner}; expected {expected}. Choose another folder (`data` in"
            f" cluster.toml), or empty this one if that whole cluster is to start over"
        )
    roster = Roster.read(folder)
    if roster is not None:
        _check_members(cluster, Topology.from_dict(roster.now, str(folder / MEMBERS)), folder)
    if cluster.durability == "memory" and any(folder.glob("*.log")):
        raise UsageError(
            f"{folder}: durability = 'memory', and there is a log; expected 'os' or 'fsync', or no log: it would lack"
            f" later promises. Remove it (*.log, nothing else) at one node at a time: the other members send it the"
            f" group's state"
        )


def _check_members(cluster: Cluster, known: Topology, folder: Path) -> None:
    wanted = cluster.topology
    if wanted.configuration != known.configuration or named_members(wanted) == named_members(known):
        return
    raise UsageError(
        f"{cluster.file}: its groups are made of the processes {_format_members(wanted)}; expected"
        f" {_format_members(known)}, as {folder} says (configuration {known.configuration}). Replicas of a running"
        f" cluster are changed by `amcast change`, and its groups stay"
    )


def _format_members(topology: Topology) -> str:
    return "; ".join(f"{name} {list(members)}" for name, members in named_members(topology).values())


def record_owner(cluster: Cluster, me: ProcessId) -> None:
    """Records this node as the owner of its folder."""
    folder = cluster.data_folder(me)
    if _read(folder) is None:
        write_atomically(folder / FILE, msgspec.json.encode(expected_owner(cluster, me)))


def _read(folder: Path) -> DataFolderOwner | None:
    return read_json(folder / FILE, DataFolderOwner, "the owner that a node recorded")

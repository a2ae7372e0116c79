"""Whose a data folder is.

What a folder keeps are the promises of one process in one protocol. Read by another process, or by another protocol,
they would be lies; and two files with the same `data`, one for tests and one for real, are easily made. So the folder
says whose it is, in the file `node`, and who finds another name there does not start:

    {"cluster": "shop", "process": 0, "protocol": "primcast"}

What a life with `durability = "memory"` promises is in no log. A log that lies there must not be taken, in a later
life, for all that was promised: beside one, no life in memory begins.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from amcast.kernel.errors import WrongUse
from amcast.kernel.ids import ProcessId
from amcast.live.config import Cluster

FILE: Final = "node"


class Owner(msgspec.Struct, frozen=True):
    """The process whose promises a folder keeps."""

    cluster: str
    process: ProcessId
    protocol: str

    def __str__(self) -> str:
        return f"process {self.process} of cluster {self.cluster!r} with protocol {self.protocol!r}"


def check(cluster: Cluster, me: ProcessId) -> None:
    """Refuse to be this node with somebody else's folder; nothing is changed."""
    folder = cluster.folder_of(me)
    mine, found = Owner(cluster.name, me, cluster.protocol), _read(folder)
    if found is not None and found != mine:
        raise WrongUse(
            f"{folder}: it keeps what {found} has promised; expected {mine}. Choose another folder (`data` in"
            f" cluster.toml), or empty this one if all of that cluster is to begin anew"
        )
    if cluster.durability == "memory" and any(folder.glob("*.log")):
        raise WrongUse(
            f"{folder}: durability = 'memory', and there is a log; expected 'os' or 'fsync', or no log: it would miss"
            f" what is promised from now on. Remove it (*.log, nothing else), of one node at a time: its fellows give"
            f" it their group's state"
        )


def claim(cluster: Cluster, me: ProcessId) -> None:
    """The folder is this node's from now on."""
    folder = cluster.folder_of(me)
    if _read(folder) is None:
        early = folder / f".{FILE}"
        with early.open("wb") as out:
            out.write(msgspec.json.encode(Owner(cluster.name, me, cluster.protocol)))
            out.flush()
            os.fsync(out.fileno())
        early.replace(folder / FILE)


def _read(folder: Path) -> Owner | None:
    file = folder / FILE
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Owner)
    except msgspec.MsgspecError as error:
        raise WrongUse(f"{file}: {error}; expected what a node wrote there about itself") from None

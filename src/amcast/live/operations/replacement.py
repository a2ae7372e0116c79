"""Replacement of a dead replica by a new machine under the same name.

The new machine has an empty disk and does not know the promises of its predecessor, so it must not act as a fresh
member. It begins in a later incarnation than any that its peers have seen, which shows that its state is lost: it has
no vote until its group has sent it the group's state and readmitted it (`on_start` in kernel/process.py).

The peers know the last incarnation of the predecessor; this module requests it from them and stores it where the first
start of the new machine finds it. Groups of protocols that do not tolerate the loss of a member's state refuse such a
member, with a reason.

`accept_loss` is the way out where no group can restore a folder: too few of its members have its state, or its protocol
readmits nobody. An operator then decides that the folder is used as it is.
"""

import shutil
from pathlib import Path
from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.live.config.cluster import Cluster
from amcast.live.operations.cluster_status import NodeAnswers, fetch_statuses
from amcast.live.storage.store import draw_folder, open_folder
from amcast.live.storage.system_files import SystemFiles
from amcast.storage import segments
from amcast.storage.identity import Identity, read_identity, write_identity

LOCK: Final = "lock"
MARGIN: Final = 16
"""Margin for incarnations of the predecessor that no answering peer has seen."""


def prepare_replacement(cluster: Cluster, node: str, client: str | None, incarnation: int | None = None) -> int:
    """Prepares the data folder of this machine for the node; returns the incarnation that it will begin with."""
    me = cluster.process_of(node)
    folder = cluster.data_folder(me)
    files = SystemFiles(folder)
    _check_unused(files, folder)
    if incarnation is None:
        incarnation = _last_seen_incarnation(cluster, node, me, fetch_statuses(cluster, client)) + MARGIN
    if incarnation < 1:
        raise UsageError(f"incarnation = {incarnation}; expected 1 or more, and later than any incarnation of {node}")
    files.make_folder().lock()
    try:
        for name in files.list():
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)  # the journal of a hosted program
            elif name != LOCK:
                files.remove(name)
        # Opening the folder adds one.
        write_identity(files, Identity(draw_folder(), incarnation - 1, is_lost=True))
    finally:
        files.unlock()
    return incarnation


def accept_loss(cluster: Cluster, node: str) -> int:
    """Lets a node take part with its data folder as it is, at its next start; returns how many records it has. The
    records before the damage are kept, and client ids that it issued are not issued again."""
    folder = cluster.data_folder(cluster.process_of(node))
    files = SystemFiles(folder)
    if read_identity(files) is None:
        raise UsageError(f"{folder}: no data folder of a node; expected the one of {node}")
    storage = open_folder(folder, keeps_log=bool(segments.list_segments(files)))
    try:
        return storage.accept_loss()
    finally:
        storage.close()


def _check_unused(files: SystemFiles, folder: Path) -> None:
    """Refuses a folder that a node has taken part with. One that was started and refused by its group may be used."""
    names = [name for name in files.list() if name != LOCK]
    if not names:
        return
    identity = read_identity(files)
    if identity is None or identity.admitted or (identity.has_log and _holds_records(files, identity.folder)):
        raise UsageError(f"{folder} is not empty; expected an empty folder (or start the node as it is)")


def _holds_records(files: SystemFiles, folder: int) -> bool:
    return bool(segments.scan_log(files, folder).records)


def _last_seen_incarnation(cluster: Cluster, node: str, me: ProcessId, answers: NodeAnswers) -> int:
    """The last incarnation of a node that its peers have seen."""
    if "error" not in answers[node]:
        raise UsageError(f"{node} answers at its address; expected a dead node")
    members = cluster.topology.members(cluster.topology.group_of(me) or 0)
    others = [cluster.name_of(member) for member in members if member != me]
    silent = [name for name in others if "error" in answers[name]]
    if len(others) - len(silent) < len(members) // 2:
        raise CannotTellError(
            f"{', '.join(silent)} do not answer; without a majority of its group no member can be readmitted"
        )
    known = [known for status in answers.values() for known in status.get("known_folders", ())]
    incarnations: list[int] = [folder["incarnation"] for folder in known if folder["process"] == me]
    links = [link for status in answers.values() for link in status.get("links", ())]
    incarnations += [link["incarnation"] for link in links if link["peer"] == me and link["incarnation"] is not None]
    if not incarnations:
        raise CannotTellError(f"no answering node has seen {node}; give --incarnation, later than any that it had")
    return max(incarnations)

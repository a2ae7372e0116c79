"""Replacement of a dead replica by a new machine under the same name.

The new machine has an empty disk and does not know the promises of its predecessor, so it must not act as a fresh
member. It begins in a later incarnation than any that its peers have seen, which shows that its state is lost: it has
no vote until its group has sent it the group's state and readmitted it (`on_start` in kernel/process.py).

The peers know the last incarnation of the predecessor; this module requests it from them and stores it where the first
start of the new machine finds it. Groups of protocols that do not tolerate the loss of a member's state refuse such a
member, with a reason.
"""

from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.live.config.cluster import Cluster
from amcast.live.operations.cluster_status import NodeAnswers, fetch_statuses
from amcast.live.storage.store import draw_folder
from amcast.live.storage.system_files import SystemFiles
from amcast.storage.identity import Identity, write_identity

MARGIN: Final = 16
"""Margin for incarnations of the predecessor that no answering peer has seen."""


def prepare_replacement(cluster: Cluster, node: str, client: str | None, incarnation: int | None = None) -> int:
    """Prepares the data folder of this machine for the node; returns the incarnation that it will begin with."""
    me = cluster.process_of(node)
    folder = cluster.data_folder(me)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; expected an empty folder (or start the node as it is)")
    if incarnation is None:
        incarnation = _last_seen_incarnation(cluster, node, me, fetch_statuses(cluster, client)) + MARGIN
    if incarnation < 1:
        raise UsageError(f"incarnation = {incarnation}; expected 1 or more, and later than any incarnation of {node}")
    # Opening the folder adds one.
    write_identity(SystemFiles(folder).make_folder(), Identity(draw_folder(), incarnation - 1))
    return incarnation


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
    incarnations: list[int] = [
        link["incarnation"]
        for status in answers.values()
        for link in status.get("links", ())
        if link["peer"] == me and link["incarnation"] is not None
    ]
    if not incarnations:
        raise CannotTellError(f"no answering node has seen {node}; give --incarnation, later than any that it had")
    return max(incarnations)

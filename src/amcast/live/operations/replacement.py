"""A dead replica's place, taken by a new machine under the same name.

The newcomer has an empty disk. It may not speak as if it had never been there: what its predecessor promised, it does
not know. So it begins in a later incarnation than any that its peers have seen, which tells it and them that its memory
is lost: it has no vote until its group has given it its state and admitted it again (`on_start` in kernel/process.py).

The peers know the predecessor's last incarnation; this asks them, and leaves the number where the newcomer's first
start finds it. Groups of protocols that cannot lose a member's memory refuse such a newcomer, and say so.
"""

from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.live.config.cluster import Cluster
from amcast.live.operations.cluster_status import NodeAnswers, fetch_statuses
from amcast.live.storage.atomic_files import write_atomically

MARGIN: Final = 16
"""Incarnations that a predecessor may have begun, and that none of those who answer has seen."""


def prepare_replacement(cluster: Cluster, node: str, client: str | None, incarnation: int | None = None) -> int:
    """Make this machine's data folder ready to be that node; says in which incarnation it will begin."""
    me = cluster.process_of(node)
    folder = cluster.data_folder(me)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; expected a machine that never was {node} (or start it as it is)")
    if incarnation is None:
        incarnation = _last_seen_incarnation(cluster, node, me, fetch_statuses(cluster, client)) + MARGIN
    if incarnation < 1:
        raise UsageError(f"incarnation = {incarnation}; expected 1 or more, and more than {node} ever had")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "incarnation", f"{incarnation - 1}\n".encode())  # what `next_incarnation` adds one to
    return incarnation


def _last_seen_incarnation(cluster: Cluster, node: str, me: ProcessId, answers: NodeAnswers) -> int:
    """The last incarnation of a node that its peers have seen."""
    if "error" not in answers[node]:
        raise UsageError(f"{node} answers at its address: it is alive; expected one that is gone")
    members = cluster.topology.members(cluster.topology.group_of(me) or 0)
    fellows = [cluster.name_of(member) for member in members if member != me]
    silent = [name for name in fellows if "error" in answers[name]]
    if len(fellows) - len(silent) < len(members) // 2:
        raise CannotTellError(
            f"{', '.join(silent)} do not answer; without a majority of the group nobody can be admitted"
        )
    incarnations: list[int] = [
        link["incarnation"]
        for status in answers.values()
        for link in status.get("links", ())
        if link["peer"] == me and link["incarnation"] is not None
    ]
    if not incarnations:
        raise CannotTellError(f"nobody who answers has seen {node}; give --incarnation, more than it ever had")
    return max(incarnations)

"""A dead replica's place, taken by a new machine under the same name.

The newcomer has an empty disk. It may not speak as if it had never been there: what its predecessor promised, it does
not know. So it begins in a later life than any that its peers have seen, which tells it and them that its memory is
lost: it has no vote until its group has given it its state and admitted it again (`on_start` in kernel/process.py).

The peers know the predecessor's last life; this asks them, and leaves the number where the newcomer's first start finds
it. Groups of protocols that cannot lose a member's memory refuse such a newcomer, and say so.
"""

from typing import Final

from amcast.kernel.errors import Unknown, WrongUse
from amcast.kernel.ids import ProcessId
from amcast.live.config.cluster import Cluster
from amcast.live.operations.cluster_status import Answers, inspected
from amcast.live.storage.atomic_files import put

MARGIN: Final = 16
"""Lives that a predecessor may have begun, and that none of those who answer has seen."""


def prepare(cluster: Cluster, node: str, client: str | None, life: int | None = None) -> int:
    """Make this machine's data folder ready to be that node; says in which life it will begin."""
    me = cluster.node(node)
    folder = cluster.folder_of(me)
    if folder.exists() and any(folder.iterdir()):
        raise WrongUse(f"{folder} is not empty; expected a machine that never was {node} (or start it as it is)")
    if life is None:
        life = _last_seen(cluster, node, me, inspected(cluster, client)) + MARGIN
    if life < 1:
        raise WrongUse(f"life = {life}; expected 1 or more, and more than {node} ever had")
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / "life", f"{life - 1}\n".encode())  # what `next_life` adds one to
    return life


def _last_seen(cluster: Cluster, node: str, me: ProcessId, answers: Answers) -> int:
    """The last life of a node that its peers have seen."""
    if "error" not in answers[node]:
        raise WrongUse(f"{node} answers at its address: it is alive; expected one that is gone")
    members = cluster.topology.members(cluster.topology.group_of(me) or 0)
    fellows = [cluster.name_of(member) for member in members if member != me]
    silent = [name for name in fellows if "error" in answers[name]]
    if len(fellows) - len(silent) < len(members) // 2:
        raise Unknown(f"{', '.join(silent)} do not answer; without a majority of the group nobody can be admitted")
    lives: list[int] = [
        link["life"]
        for status in answers.values()
        for link in status.get("links", ())
        if link["peer"] == me and link["life"] is not None
    ]
    if not lives:
        raise Unknown(f"nobody who answers has seen {node}; give --life, more than it ever had")
    return max(lives)

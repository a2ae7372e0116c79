"""What a node tells its operator: how it is, whether it is ready, what waits and who is slow, what blocks a message.

The same data goes to `amcast status` (over the cluster's own connections, `live/rpc/server.py`), to the metrics and to
the HTTP answers (`live/server/http.py`). No payload and no key is ever part of it.
"""

import time
from importlib import metadata
from typing import Any, Final

from amcast.kernel.ids import MessageId, ProcessId
from amcast.live.host.host import Host
from amcast.live.wire.link import Link

MAX_SLOW_CLIENTS: Final = 5
"""Clients that are told by name, those with the most waiting for them."""


class StatusReporter:
    """Looks at one host for operators."""

    def __init__(self, host: Host, name: str, cluster: str, protocol: str, durability: str) -> None:
        self.host = host
        self.name = name
        self.cluster = cluster
        self.protocol = protocol
        self.durability = durability
        try:
            self.version = metadata.version("amcast")
        except metadata.PackageNotFoundError:
            self.version = "unknown"
        self._began = time.monotonic()

    def reasons_not_ready(self) -> list[str]:
        """Why this node is not ready to serve; empty when it is."""
        host = self.host
        if host.ended.done():
            return ["it has stopped"]
        said = ["it is leaving"] if host.leaving else []
        waits = host.topology_follower.state_survey.reasons()
        said += waits
        if not waits and host.rpc is not None and not host.rpc.caught_up.is_set():
            said.append("it has not caught up with its group")
        if host.topology_follower.retired_ns is not None or host.process.group is None:
            said.append("it was removed from its group")
        topology = host.process.topology
        for group in topology.groups:
            up = sum(member == host.me or host.network.is_up(member) for member in topology.members(group))
            if up < topology.quorum(group):
                said.append(f"it reaches {up} of {len(topology.members(group))} members of group {group}")
        return said

    def status(self) -> dict[str, Any]:
        """Everything, as plain data."""
        host = self.host
        topology = host.process.topology
        missing = self.reasons_not_ready()
        links = host.network.links
        clients = [link for peer, link in links.items() if topology.group_of(peer) is None]
        slowest = sorted(clients, key=lambda link: -link.queued_bytes)[:MAX_SLOW_CLIENTS]
        desk = host.rpc
        return {
            "node": self.name,
            "process": host.me,
            "group": None if host.rpc is None else host.rpc.group,
            "topology": topology.describe(),
            "cluster": self.cluster,
            "protocol": self.protocol,
            "durability": self.durability,
            "version": self.version,
            "wire": list(host.network.versions),
            "incarnation": host.incarnation,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "ready": not missing,
            "missing": missing,
            "advice": host.topology_follower.state_survey.advice(),
            "group_state": host.topology_follower.state_survey.describe(),
            "vitals": dict(host.process.status()),
            "queues": host.queues(),
            "kept": None if desk is None else {"first": desk.recent.first, "next": desk.recent.next},
            "subscribers": 0 if desk is None else desk.subscribers,
            "links": [_describe_link(links.get(peer), peer) for peer in topology.servers if peer != host.me],
            "unordered_bytes": host.process.unanswered_bytes(),
            "full": host.network.full,
            "clients": len(clients),
            "slowest_clients": [_describe_link(link, link.peer) for link in slowest if link.queued_bytes],
            "strangers": len(host.network.strangers),
            "dismissed": host.network.strangers.dismissed,
            "refused": host.network.strangers.refused,
            "steps": host.steps_taken,
            "events": host.events_taken,
            "delivered": host.sink.count,
            "lost_sends": host.lost_sends,
        }

    def explain(self, message: MessageId) -> dict[str, Any]:
        """What a message waits for here."""
        phases = self.host.process.explain(message)
        delivered = self.host.process.has_delivered(message)
        if not phases:
            if delivered:
                said = f"process {self.host.me} has delivered it"
            else:
                said = f"it is not delivered here; {self.protocol} cannot tell what it waits for"
            phases_told = [{"name": "delivered", "done": delivered, "said": said, "late": []}]
        else:
            phases_told = [{**phase._asdict(), "late": list(phase.late)} for phase in phases]
        return {"node": self.name, "process": self.host.me, "delivered": delivered, "phases": phases_told}


def _describe_link(link: Link | None, peer: ProcessId) -> dict[str, Any]:
    if link is None:
        return {"peer": peer, "up": False, "queued_bytes": 0, "pressed": False, "version": None, "incarnation": None}
    up = link.connection is not None
    return {
        "peer": peer,
        "up": up,
        "queued_bytes": link.queued_bytes,
        "pressed": link.pressed,
        "version": link.version if up else None,
        "incarnation": None if link.known is None else link.known[0],
    }

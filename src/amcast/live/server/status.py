"""What a node tells its operator: how it is, whether it is ready, what waits and who is slow, what blocks a message.

The same data goes to `amcast status` (over the cluster's own connections, `live/rpc/server.py`), to the metrics and to
the HTTP answers (`live/server/http.py`). No payload and no key is ever part of it.
"""

import asyncio
import time
from importlib import metadata
from typing import Any, Final

from amcast.kernel.ids import MessageId, ProcessId
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.membership.state_survey import StateSurvey
from amcast.live.wire.link import Link

SLOWEST: Final = 5
"""Clients that are told by name, those with the most waiting for them."""


class StatusReporter:
    """Looks at one host for operators."""

    def __init__(
        self,
        host: Host,
        survey: StateSurvey,
        recent: RecentDeliveries,
        caught_up: asyncio.Event,
        name: str,
        cluster: str,
        protocol: str,
        durability: str,
    ) -> None:
        self.host = host
        self.survey = survey
        self._recent = recent
        self._caught_up = caught_up
        self.name = name
        self.cluster = cluster
        self.protocol = protocol
        self.durability = durability
        try:
            self.version = metadata.version("amcast")
        except metadata.PackageNotFoundError:
            self.version = "unknown"
        self._began = time.monotonic()

    def missing(self) -> list[str]:
        """Why this node is not ready to serve; empty when it is."""
        host = self.host
        if host.ended.done():
            return ["it has stopped"]
        said = ["it is leaving"] if host.is_leaving else []
        waits = self.survey.missing()
        said += waits
        if not waits and not self._caught_up.is_set():
            said.append("it has not caught up with its group")
        if host.retired_ns is not None or host.process.group is None:
            said.append("it was removed from its group")
        topology = host.process.topology
        for group in topology.groups:
            up = sum(member == host.me or host.network.is_connected(member) for member in topology.members(group))
            if up < topology.quorum(group):
                said.append(f"it reaches {up} of {len(topology.members(group))} members of group {group}")
        return said

    def status(self) -> dict[str, Any]:
        """Everything, as plain data."""
        host = self.host
        topology = host.process.topology
        missing = self.missing()
        links = host.network.links
        clients = [link for peer, link in links.items() if topology.group_of(peer) is None]
        slowest = sorted(clients, key=lambda link: -link.queued_bytes)[:SLOWEST]
        return {
            "node": self.name,
            "process": host.me,
            "group": host.home,
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
            "advice": self.survey.advice(),
            "group_state": self.survey.told(),
            "vitals": dict(host.process.status()),
            "queues": host.queues(),
            "kept": {"first": self._recent.first, "next": self._recent.next},
            "subscribers": self._recent.subscribers,
            "links": [_link(links.get(peer), peer) for peer in topology.servers if peer != host.me],
            "unordered_bytes": host.process.unanswered_bytes(),
            "full": host.network.are_clients_paused,
            "clients": len(clients),
            "slowest_clients": [_link(link, link.peer) for link in slowest if link.queued_bytes],
            "strangers": len(host.network.pending),
            "dismissed": host.network.pending.dismissed,
            "refused": host.network.pending.refused,
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
            phases_told = [{**phase._asdict(), "late": list(phase.waiting_for)} for phase in phases]
        return {"node": self.name, "process": self.host.me, "delivered": delivered, "phases": phases_told}


def _link(link: Link | None, peer: ProcessId) -> dict[str, Any]:
    if link is None:
        return {"peer": peer, "up": False, "queued_bytes": 0, "pressed": False, "version": None, "incarnation": None}
    up = link.connection is not None
    return {
        "peer": peer,
        "up": up,
        "queued_bytes": link.queued_bytes,
        "pressed": link.is_congested,
        "version": link.version if up else None,
        "incarnation": None if link.peer_incarnation is None else link.peer_incarnation[0],
    }

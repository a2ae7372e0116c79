"""Status of a node for its operator: readiness, progress, queues, slow peers, and what a message waits for.

`amcast status` (over RPC, `live/rpc/server.py`), the metrics and the HTTP server (`live/server/http.py`) show the same
data. It never contains a payload or a key.
"""

import asyncio
import time
from importlib import metadata
from typing import Any, Final

import msgspec

from amcast.kernel.ids import MessageId, ProcessId
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.membership.state_survey import StateSurvey
from amcast.live.wire.link import Link

MAX_SLOW_CLIENTS: Final = 5
"""Clients listed one by one: those with the most bytes queued for them."""


class StatusReporter:
    """Describes one replica as plain data."""

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
        config: str = "cluster.toml",
    ) -> None:
        """`config` names the cluster.toml in advice to operators."""
        self.host = host
        self.survey = survey
        self._recent = recent
        self._caught_up = caught_up
        self.name = name
        self.cluster = cluster
        self.protocol = protocol
        self.durability = durability
        self._config = config
        try:
            self.version = metadata.version("amcast")
        except metadata.PackageNotFoundError:
            self.version = "unknown"
        self._began = time.monotonic()

    def admission(self) -> str:
        """The standing of this replica's data folder (`parts/node/admission.py`)."""
        return str(self.host.process.status().get("admission", "unstated"))

    def admission_reason(self) -> str:
        """Why this replica does not take part in its group; "" if it does."""
        if self.host.steps_taken == 0:
            return "it starts"
        status = self.host.process.status()
        return str(status.get("admission_reason", ""))

    def advice(self) -> list[str]:
        """What an operator must do because waiting does not help."""
        remedy = self.host.process.status().get("admission_remedy", "")
        command = f"`amcast replace --config {self._config} --node {self.name}"
        if remedy == "replace":
            return [f"if the folder was lost, stop {self.name}, run {command}`, and start it again"]
        if remedy == "accept":
            return [
                f"if its group cannot restore it: stop {self.name}, run {command} --accept-loss`, and start it again;"
                f" what was acknowledged and is missing in the folder may be lost"
            ]
        return self.survey.advice()

    def reasons_not_ready(self) -> list[str]:
        """Why this node is not ready to serve; empty when it is ready."""
        host = self.host
        if host.ended.done():
            return ["it has stopped"]
        reasons = ["it is leaving"] if host.is_leaving else []
        admission_reason = self.admission_reason()
        if admission_reason:
            return [*reasons, admission_reason]
        state_reasons = self.survey.reasons()
        reasons += state_reasons
        if not state_reasons and not self._caught_up.is_set():
            reasons.append("it has not caught up with its group")
        if host.retired_ns is not None or host.process.group is None:
            reasons.append("it was removed from its group")
        topology = host.process.topology
        for group in topology.groups:
            up = sum(member == host.me or host.network.is_connected(member) for member in topology.members(group))
            if up < topology.quorum(group):
                reasons.append(f"it reaches {up} of {len(topology.members(group))} members of group {group}")
        return reasons

    def status(self) -> dict[str, Any]:
        """The whole status, as plain data."""
        host = self.host
        topology = host.process.topology
        reasons = self.reasons_not_ready()
        links = host.network.links
        clients = [link for peer, link in links.items() if topology.group_of(peer) is None]
        slowest = sorted(clients, key=lambda link: -link.queued_bytes)[:MAX_SLOW_CLIENTS]
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
            "ready": not reasons,
            "not_ready_reasons": reasons,
            "advice": self.advice(),
            "admission": self.admission(),
            "admitted": self.admission() in ("unstated", "admitted"),
            "group_state": self.survey.describe(),
            "known_folders": [msgspec.structs.asdict(known) for known in host.process.known_folders()],
            "protocol_status": dict(host.process.status()),
            "queues": host.queues(),
            "recent_deliveries": {"first": self._recent.first, "next": self._recent.next},
            "subscribers": self._recent.subscribers,
            "links": [_describe_link(links.get(peer), peer) for peer in topology.servers if peer != host.me],
            "unordered_bytes": host.process.unanswered_bytes(),
            "clients_paused": host.network.are_clients_paused,
            "clients": len(clients),
            "slowest_clients": [_describe_link(link, link.peer) for link in slowest if link.queued_bytes],
            "pending_connections": len(host.network.pending),
            "evicted_connections": host.network.pending.dismissed,
            "refused_connections": host.network.pending.refused,
            "client_connections": host.network.quotas.connections,
            "clients_over_rate": len(host.network.paused_names),
            "quota_refusals": host.network.quotas.refused,
            "corrupted_frames": host.network.pending.corrupted,
            "steps": host.steps_taken,
            "events": host.events_taken,
            "delivered": host.sink.count,
            "lost_sends": host.lost_sends,
        }

    def explain(self, message: MessageId) -> dict[str, Any]:
        """The phases of one message at this replica: those that are done, and what it waits for."""
        phases = self.host.process.explain(message)
        delivered = self.host.process.has_delivered(message)
        if phases:
            described = [{**phase._asdict(), "waiting_for": list(phase.waiting_for)} for phase in phases]
        else:
            if delivered:
                text = f"process {self.host.me} has delivered it"
            else:
                text = f"it is not delivered here; {self.protocol} cannot tell what it waits for"
            described = [{"name": "delivered", "is_done": delivered, "description": text, "waiting_for": []}]
        return {"node": self.name, "process": self.host.me, "delivered": delivered, "phases": described}


def _describe_link(link: Link | None, peer: ProcessId) -> dict[str, Any]:
    if link is None:
        return {"peer": peer, "up": False, "queued_bytes": 0, "congested": False, "version": None, "incarnation": None}
    up = link.connection is not None
    return {
        "peer": peer,
        "up": up,
        "queued_bytes": link.queued_bytes,
        "congested": link.is_congested,
        "version": link.version if up else None,
        "incarnation": None if link.peer_incarnation is None else link.peer_incarnation[0],
    }
